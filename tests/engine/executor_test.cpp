// A schedule, executed, against the plain loop: the same outputs and gradients, whatever the plan does with memory.
#include "tessera/engine/executor.h"

#include <gtest/gtest.h>

#include "engine/toy_engine.h"

namespace tessera::engine {
namespace {

using plan::Policy;
using plan::Tier;
using toy::Toy, toy::ToyRank, toy::ToyStep;

bool same_bits(const Tensor& a, const Tensor& b) { return at::equal(a, b); }

TEST(Executor, AStepIsThePlainLoop) {
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

TEST(Executor, WhereMemoryIsChangesNoBit) {
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

TEST(Executor, UpdatesInTheBackwardAreThoseBehindIt) {
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

}  // namespace
}  // namespace tessera::engine
