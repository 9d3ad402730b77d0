// A search simulates three of many micro-batches ([Note: many micro-batches] in search/evaluator.h).
#include <gtest/gtest.h>

#include <ctime>

#include "plan/transformer.h"
#include "tessera/plan/search/evaluator.h"

namespace tessera::plan {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Machine machine_of(const toy::Network& network, const char* profile) {
  Machine machine;
  machine.profile = find_profile(profile);
  machine.work = network.work, machine.dtype = "bf16";
  return machine;
}

PlannerInput batch_of(int64_t samples) {
  PlannerInput input;
  input.global_batch = samples;
  input.budget = 40 * kGiB, input.host_budget = 160 * kGiB;
  return input;
}

TEST(ManyMicroBatches, TakeTheTimeAndMemoryOfAllOfThem) {
  const toy::Network network = toy::transformer({.dim = 5120, .ffn = 13824, .blocks = 12, .tokens = 32760});
  const Machine machine = machine_of(network, "1xa100-80");
  for (const int64_t samples : {4, 9, 33}) {
    const PlannerInput input = batch_of(samples);
    const Choice choice = choose(network.model, Mesh{}, input, machine);
    ASSERT_TRUE(choice.fits);
    const UnitsByHand none({}, network.model, {});
    const Evaluator evaluator(network.model, input, machine, none, {});
    for (const Candidate& candidate : choice.candidates) {
      if (!candidate.fits) continue;
      const Evaluated some = evaluator.evaluate(candidate.plan), all = evaluator.evaluate(candidate.plan, true);
      EXPECT_TRUE(all.candidate.fits);
      EXPECT_EQ(some.candidate.peak, all.candidate.peak) << samples << ": " << candidate.plan.summary();
      EXPECT_EQ(some.candidate.host, all.candidate.host) << samples << ": " << candidate.plan.summary();
      EXPECT_NEAR(some.candidate.seconds / all.candidate.seconds, 1, 0.01)
          << samples << ": " << candidate.plan.summary();
    }
    // what is chosen has the time of a whole step
    EXPECT_DOUBLE_EQ(choice.seconds, predict(network.model, choice.plan, machine).step.total);
  }
}

TEST(ManyMicroBatches, TakeNoLongerToPlanThanFew) {
  const toy::Network network = toy::transformer({.dim = 5120, .ffn = 13824, .blocks = 12, .tokens = 32760});
  const Machine machine = machine_of(network, "1xa100-80");
  const auto processor_seconds = [&](int64_t samples) {
    const std::clock_t start = std::clock();
    choose(network.model, Mesh{}, batch_of(samples), machine);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  const double few = processor_seconds(4), many = processor_seconds(64);
  EXPECT_LT(many, 3 * few);
}

}  // namespace
}  // namespace tessera::plan
