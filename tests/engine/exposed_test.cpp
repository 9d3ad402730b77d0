#include "tessera/engine/step_times.h"

#include <gtest/gtest.h>

namespace tessera::engine {
namespace {

using plan::Lane, plan::Op;

/// Instructions with what they wait for, and when they ran.
struct Step {
  std::vector<plan::Instruction> list;
  std::vector<std::array<double, 2>> times;
  Step& add(Op op, Lane lane, double begin, double end, plan::Waits wait = {}) {
    plan::Instruction in;
    in.op = op, in.lane = lane, in.wait = std::move(wait);
    list.push_back(std::move(in));
    times.push_back({begin, end});
    return *this;
  }
  Exposed exposed() const { return exposed_time(list, times, waited_for(list, times)); }
};

TEST(ExposedTime, IsWhatComputingWaitedForAndNotWhatLanesTook) {
  Step step;
  step.add(Op::gather, Lane::gather, 0, 2)           // computing waits for all of it
      .add(Op::forward, Lane::compute, 2, 5, {0})    //
      .add(Op::gather, Lane::gather, 2, 4)           // hidden
      .add(Op::forward, Lane::compute, 5, 6, {2})    //
      .add(Op::gather, Lane::gather, 4, 9)           // 3 of its 5 seconds are not
      .add(Op::forward, Lane::compute, 9, 10, {4});  //
  EXPECT_DOUBLE_EQ(step.exposed().comm, 2 + 3);
  EXPECT_DOUBLE_EQ(step.exposed().copy, 0);
}

TEST(ExposedTime, GoesToTheRootOfAChainOfWaits) {
  Step step;
  step.add(Op::fetch, Lane::disk, 0, 3)
      .add(Op::fetch, Lane::h2d, 3, 4, {0})
      .add(Op::gather, Lane::gather, 4, 6, {1})
      .add(Op::forward, Lane::compute, 6, 7, {2})
      .add(Op::recv, Lane::recv_next, 0, 12)
      .add(Op::backward, Lane::compute, 12, 13, {4});
  const Exposed exposed = step.exposed();
  EXPECT_DOUBLE_EQ(exposed.copy, 4) << "disk and link";
  EXPECT_DOUBLE_EQ(exposed.comm, 2) << "the gather itself";
  EXPECT_DOUBLE_EQ(exposed.stages, 5);
}

TEST(ExposedTime, ALaneThatWasLateBecauseOfItsOwnQueueIsToBlameForThat) {
  Step step;
  step.add(Op::forward, Lane::compute, 0, 1)
      .add(Op::reduce, Lane::reduce, 1, 5, {0})
      .add(Op::reduce, Lane::reduce, 5, 6, {0})
      .add(Op::norm, Lane::compute, 6, 7, {2});
  EXPECT_DOUBLE_EQ(step.exposed().comm, 5);
}

TEST(ExposedTime, IncludesWhatIsLeftAfterTheLastUpdate) {
  Step step;
  step.add(Op::update, Lane::compute, 0, 2).add(Op::stash, Lane::d2h, 2, 3, {0}).add(Op::stash, Lane::disk, 3, 7, {1});
  EXPECT_DOUBLE_EQ(step.exposed().copy, 5);
}

TEST(ExposedTime, BetweenTwoInstructionsThatWaitForNothingIsDispatch) {
  Step step;
  step.add(Op::gather, Lane::gather, 0, 3)
      .add(Op::forward, Lane::compute, 4, 5, {0})  // a second after its gather
      .add(Op::forward, Lane::compute, 7, 8)       // two after the forward before it
      .add(Op::forward, Lane::compute, 8, 9, {0});
  EXPECT_DOUBLE_EQ(step.exposed().dispatch, 1 + 2);
  EXPECT_DOUBLE_EQ(step.exposed().comm, 3);
}

TEST(ExposedTime, OfNothingIsNothing) {
  EXPECT_EQ(Step().exposed().comm, 0);
  EXPECT_EQ(Step().add(Op::forward, Lane::compute, 0, 3).exposed().comm, 0);
}

}  // namespace
}  // namespace tessera::engine
