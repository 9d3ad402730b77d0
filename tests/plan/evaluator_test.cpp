// What a search knows of the plans that it asks for.
#include "tessera/plan/search/evaluator.h"

#include <gtest/gtest.h>

#include "plan/planner_toy.h"

namespace tessera::plan {
namespace {

/// Passes of a search come to the same plans: three in ten of a refusal's.
TEST(Evaluator, APlanThatWasAskedForBeforeIsNotCompiledAgain) {
  const ModelSpec model = toy::dear_model();
  const Machine machine = toy::machine();
  const Plan keep = choose(model, toy::kTwo, toy::input(0), machine).plan;
  Plan recompute = keep;
  for (UnitPlan& unit : recompute.units) unit.activations = Policy::recompute;
  for (const int64_t budget : {int64_t{0}, int64_t{1}}) {  // all fit, and none
    const PlannerInput input = toy::input(budget);
    const UnitsByHand by_hand({}, model, {});
    const Evaluator evaluator(model, input, machine, by_hand, {});
    const Evaluated first = evaluator.evaluate(keep), other = evaluator.evaluate(recompute),
                    again = evaluator.evaluate(keep);
    EXPECT_EQ(evaluator.evaluated(), 2);
    EXPECT_EQ(again.candidate.fits, budget == 0);
    EXPECT_EQ(again.candidate.plan, keep);
    EXPECT_EQ(again.candidate.peak, first.candidate.peak);
    EXPECT_EQ(again.candidate.seconds, first.candidate.seconds);
    EXPECT_EQ(again.memory.by_part.total(), first.memory.by_part.total());
    EXPECT_LT(other.candidate.peak, first.candidate.peak);
    evaluator.evaluate(keep, /*whole=*/true);
    EXPECT_EQ(evaluator.evaluated(), 3) << "its micro-batches are not all in what is known of it";
  }
}

}  // namespace
}  // namespace tessera::plan
