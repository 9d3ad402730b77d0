// A schedule, executed, against the plain loop: the same outputs and gradients, whatever the plan does with memory.
#include "tessera/engine/engine.h"

#include <gtest/gtest.h>

#include "engine/memory_record.h"
#include "engine/toy_engine.h"
#include "tessera/engine/store/meter.h"

namespace tessera::engine {
namespace {

using plan::Policy;
using plan::Tier;
using toy::Toy, toy::ToyRank, toy::ToyStep;

bool same_bits(const Tensor& a, const Tensor& b) { return at::equal(a, b); }

TEST(Engine, AStepIsThePlainLoop) {
  const Toy toy;
  ToyRank rank(toy, toy.plan());
  const ToyStep found = rank.step(1), plain = toy.plain_step(1);
  ASSERT_EQ(found.outputs.size(), plain.outputs.size());
  for (size_t m = 0; m < plain.outputs.size(); ++m)
    EXPECT_TRUE(at::allclose(found.outputs[m], plain.outputs[m], 1e-5, 1e-6)) << "micro-batch " << m;
  ASSERT_EQ(found.gradients.size(), plain.gradients.size());
  for (const auto& [name, gradient] : plain.gradients)
    EXPECT_TRUE(at::allclose(found.gradients.at(name), gradient, 1e-4, 1e-6)) << name;
  EXPECT_NEAR(found.norm, plain.norm, 1e-5 * plain.norm);
}

TEST(Engine, WhereMemoryIsChangesNoBit) {
  const Toy toy;
  ToyRank kept(toy, toy.plan());
  const ToyStep expected[] = {kept.step(1), kept.step(2)};
  const plan::UnitPlan choices[] = {
      {.activations = Policy::rebuild},
      {.activations = Policy::recompute},
      {.activations = Policy::offload},
      {.activations = Policy::recompute, .sites = {{"boundary", Policy::offload}}},
      {.reduce_once = true, .parameters = Tier::host, .gradients = Tier::host, .states = Tier::host},
      {.parameters = Tier::host, .gradients = Tier::host, .states = Tier::host, .update_on = Tier::host},
  };
  for (const plan::UnitPlan& choice : choices) {
    const plan::Plan plan = toy.plan(choice);
    SCOPED_TRACE(plan.summary());
    ToyRank rank(toy, plan, /*poison=*/true);
    for (int64_t step = 1; step <= 2; ++step) {
      const ToyStep found = rank.step(step);
      const ToyStep& wanted = expected[step - 1];
      for (size_t m = 0; m < wanted.outputs.size(); ++m)
        EXPECT_TRUE(same_bits(found.outputs[m], wanted.outputs[m])) << "micro-batch " << m;
      for (const auto& [name, weight] : wanted.weights) EXPECT_TRUE(same_bits(found.weights.at(name), weight)) << name;
    }
  }
}

TEST(Engine, UpdatesInTheBackwardAreThoseBehindIt) {
  const Toy toy;
  plan::Plan early = toy.plan();
  early.update = plan::Update::in_backward;
  ToyRank behind(toy, toy.plan()), inside(toy, early);
  for (int64_t step = 1; step <= 3; ++step) {
    const ToyStep a = behind.step(step), b = inside.step(step);
    for (const auto& [name, weight] : a.weights) EXPECT_TRUE(same_bits(b.weights.at(name), weight)) << name;
    EXPECT_DOUBLE_EQ(a.norm, b.norm);
  }
}

TEST(Engine, GradientsThatAreStoredIn16BitsCountInTheNormAsTheyAreStored) {
  const Toy toy;
  plan::Plan wide_plan = toy.plan();
  wide_plan.global_batch = wide_plan.micro_batch;  // so that an update in the backward finds them in the arena
  plan::Plan behind = wide_plan;
  behind.grad = DType::bf16;
  plan::Plan early = behind;
  early.update = plan::Update::in_backward;
  ToyRank exact(toy, wide_plan), rounded(toy, behind), inside(toy, early);
  for (int64_t step = 1; step <= 2; ++step) {
    const ToyStep wide = exact.step(step), a = rounded.step(step), b = inside.step(step);
    EXPECT_DOUBLE_EQ(a.norm, b.norm);
    for (const auto& [name, weight] : a.weights) EXPECT_TRUE(same_bits(b.weights.at(name), weight)) << name;
    if (step > 1) continue;
    double squares = 0;
    for (const auto& [name, gradient] : wide.gradients)
      squares += gradient.to(at::kBFloat16).to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(a.norm, std::sqrt(squares), 1e-6 * a.norm);
    EXPECT_GT(std::abs(a.norm - wide.norm), 1e-5 * wide.norm) << "it tells the two apart";
  }
}

TEST(Engine, AStepThatIsSkippedUpdatesNothingAndTheNextOneIsItsOwn) {
  const Toy toy;
  for (const plan::Update update : {plan::Update::end, plan::Update::just_in_time}) {
    plan::Plan plan = toy.plan();
    plan.update = update;
    ToyRank rank(toy, plan), other(toy, plan);
    rank.step(1), other.step(1);
    rank.skips = true;
    const ToyStep skipped = rank.step(2);
    const auto before = skipped.weights;
    rank.skips = false;
    const ToyStep a = rank.step(3), b = other.step(3);
    const ToyStep again = rank.step(4), same = other.step(4);
    for (const auto& [name, weight] : again.weights)
      EXPECT_TRUE(same_bits(same.weights.at(name), weight)) << name << ": a skipped step leaves no trace";
  }
}

/// What the record says of a step, and how often a copy was given bytes that were freed before.
std::pair<std::string, int> recorded_step(ToyRank& rank) {
  testing::MemoryRecord& record = testing::MemoryRecord::install();
  rank.engine().lanes().on_instruction(
      [&](int64_t, int index, const plan::Instruction& in, bool ends) { record.at(index, in, ends); });
  const int before = record.reused();
  record.start(rank.schedule());
  {
    const testing::MemoryRecord::Scope scope(record);
    rank.step(1);
  }
  std::string faults;
  for (const std::string& fault : record.take_faults()) faults += fault + "\n";
  return {faults, record.reused() - before};
}

TEST(Engine, CopiesAreGivenMemoryAfterItsLastUseAsTheScheduleSays) {
  Meter::install();
  const Toy toy;
  plan::Plan plan = toy.plan({.activations = Policy::offload});
  ToyRank rank(toy, plan);
  const auto [faults, reused] = recorded_step(rank);
  EXPECT_EQ(faults, "");
  EXPECT_GT(reused, 0);

  plan::Schedule spoilt = plan::compile_train(toy.spec(), plan, 0);
  for (plan::Instruction& in : spoilt.list)
    if (plan::takes_memory(in))
      in.wait.erase_if([&](int wait) { return plan::touches_activations(spoilt.list[wait]); });
  ToyRank careless(toy, plan, std::move(spoilt));
  const std::string found = recorded_step(careless).first;
  EXPECT_NE(found.find("h2d) may be given bytes that"), std::string::npos) << found;
}

}  // namespace
}  // namespace tessera::engine
