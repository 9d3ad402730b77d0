#include "tessera/plan/simulate/simulate.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::plan {
namespace {

constexpr int kCompute = static_cast<int>(Lane::compute), kGather = static_cast<int>(Lane::gather),
              kReduce = static_cast<int>(Lane::reduce), kFetch = static_cast<int>(Lane::h2d);

Task compute(double seconds, Waits wait = {}, Share share = Share::compute) {
  return {kCompute, std::move(wait), {{Resource::compute, share, seconds, false}}, ""};
}
Task transfer(int lane, double seconds, Waits wait = {}, const std::string& communicator = "g") {
  return {lane, std::move(wait), {{Resource::link, Share::comm, seconds, true}}, communicator};
}
Task copy(double seconds, Waits wait = {}) {
  return {kFetch, std::move(wait), {{Resource::h2d, Share::copy, seconds, false}}, ""};
}

TEST(Simulate, ATransferHidesBehindComputeThatDoesNotNeedIt) {
  // gather 0-2 | forward 2-5 beside gather 2-4 | forward 5-8
  const Timeline t = simulate({{{transfer(kGather, 2), compute(3, {0}), transfer(kGather, 2), compute(3, {2})}}}, {});
  EXPECT_DOUBLE_EQ(t.seconds, 8);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::compute), 6);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 2);
  EXPECT_DOUBLE_EQ(t.ranks[0].busy[static_cast<int>(Resource::link)], 4);
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[2].begin, 2);
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[3].begin, 5);
}

TEST(Simulate, WhatIsLongerThanTheComputeBesideItIsExposed) {
  // gather 0-1 | forward 1-3 beside gather 1-6 | forward 6-7
  const Timeline t = simulate({{{transfer(kGather, 1), compute(2, {0}), transfer(kGather, 5), compute(1, {2})}}}, {});
  EXPECT_DOUBLE_EQ(t.seconds, 7);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 1 + 3);
}

TEST(Simulate, TransfersAtTheSameTimeShareTheLink) {
  // both of 2 s begin at 0 and end at 4; one of 1 s and one of 3 s: 2, then 4
  const Timeline even = simulate({{{transfer(kGather, 2), transfer(kReduce, 2)}}}, {});
  EXPECT_DOUBLE_EQ(even.ranks[0].spans[0].end, 4);
  EXPECT_DOUBLE_EQ(even.ranks[0].spans[1].end, 4);
  const Timeline uneven = simulate({{{transfer(kGather, 1), transfer(kReduce, 3)}}}, {});
  EXPECT_DOUBLE_EQ(uneven.ranks[0].spans[0].end, 2);
  EXPECT_DOUBLE_EQ(uneven.ranks[0].spans[1].end, 4);
}

TEST(Simulate, ARunningTransferTakesItsShareOfCompute) {
  // 4 s of compute, of which 2 s beside a transfer at 0.75: 1.5 s done by then, 2.5 s more
  const Timeline t = simulate({{{transfer(kGather, 2), compute(4)}}}, {.steal = 0.25});
  EXPECT_DOUBLE_EQ(t.seconds, 4.5);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::compute), 4);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 0.5);
}

TEST(Simulate, AWaitForAGatherThatItselfWaitsForACopyCountsAsACopy) {
  // copy 0-3 | gather 3-4 | compute 4-5
  const Timeline t = simulate({{{copy(3), transfer(kGather, 1, {0}), compute(1, {1})}}}, {});
  EXPECT_DOUBLE_EQ(t.seconds, 5);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::copy), 3);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 1);
}

TEST(Simulate, CopiesAndTheOptimiserAreSharesOfTheirOwn) {
  // copy 0-3 | compute 3-4 | update 4-6
  const Timeline t = simulate({{{copy(3), compute(1, {0}), compute(2, {}, Share::optimizer)}}}, {});
  EXPECT_DOUBLE_EQ(t.seconds, 6);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::copy), 3);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::compute), 1);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::optimizer), 2);
}

TEST(Simulate, ACollectiveStartsWhenTheLastRankHasCome) {
  // rank 0 comes at 1, rank 1 at 5; the transfer of 2 s ends at 7 on both
  const RankTasks early{{compute(1), transfer(kReduce, 2, {0}), compute(1, {1})}};
  const RankTasks late{{compute(5), transfer(kReduce, 2, {0}), compute(1, {1})}};
  const Timeline t = simulate({early, late}, {});
  for (const RankTimeline& rank : t.ranks) {
    EXPECT_DOUBLE_EQ(rank.spans[1].end, 7);
    EXPECT_DOUBLE_EQ(rank.seconds, 8);
  }
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 6);
  EXPECT_DOUBLE_EQ(t.ranks[1].share(Share::comm), 2);
  EXPECT_EQ(t.slowest, 1) << "both end together, and the other one waited";
  EXPECT_EQ(simulate({late, early}, {}).slowest, 0);
}

TEST(Simulate, TheNthUseOfACommunicatorIsOneCollective) {
  const RankTasks a{{transfer(kGather, 1), compute(4, {0}), transfer(kGather, 1, {1})}};
  const RankTasks b{{transfer(kGather, 1), compute(1, {0}), transfer(kGather, 1, {1})}};
  const Timeline t = simulate({a, b}, {});
  EXPECT_DOUBLE_EQ(t.ranks[1].spans[0].end, 1);
  EXPECT_DOUBLE_EQ(t.ranks[1].spans[2].end, 6);
}

TEST(Simulate, PhasesOfOneInstructionFollowEachOther) {
  Task norm{
      kCompute, {}, {{Resource::compute, Share::optimizer, 2, false}, {Resource::link, Share::comm, 1, true}}, "w"};
  const Timeline t = simulate({{{norm, compute(1)}}}, {});
  EXPECT_DOUBLE_EQ(t.seconds, 4);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::optimizer), 2);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 1);
}

TEST(Simulate, WhatTakesNoTimeIsDoneWhenItsWaitsAre) {
  const Timeline t = simulate({{{compute(2), {kReduce, {0}, {}, ""}, {kGather, {1}, {}, ""}}}}, {});
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[2].end, 2);
  EXPECT_DOUBLE_EQ(t.seconds, 2);
}

TEST(Simulate, AnUpdateOnTheSameProcessorsIsTheOptimisersTimeAndNoTransfers) {
  // 4 s of compute beside 3 s of updates, each at half its speed until 6; then the last second of compute
  const Task update{static_cast<int>(Lane::host), {}, {{Resource::compute, Share::optimizer, 3, false}}, ""};
  const Timeline t = simulate({{{update, compute(4)}}}, {});
  EXPECT_DOUBLE_EQ(t.seconds, 7);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::compute), 4);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::optimizer), 3);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 0);
}

TEST(Simulate, SharesAddUpToTheStep) {
  const Timeline t = simulate({{{transfer(kGather, 2), copy(1.5), compute(3, {0}), transfer(kReduce, 4, {2}),
                                 compute(2, {1}), compute(1, {3}, Share::optimizer), transfer(kGather, 0.5, {5})}}},
                              {.steal = 0.3});
  double sum = 0;
  for (double share : t.ranks[0].shares) sum += share;
  EXPECT_NEAR(sum, t.seconds, 1e-12);
}

TEST(Simulate, ListsThatWaitForEachOtherAreNamed) {
  const RankTasks first{{transfer(kGather, 1, {}, "a"), transfer(kGather, 1, {}, "b")}};
  const RankTasks second{{transfer(kGather, 1, {}, "b"), transfer(kGather, 1, {}, "a")}};
  try {
    simulate({first, second}, {});
    FAIL() << "two ranks that use two communicators in opposite order never end";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("deadlock after"), std::string::npos) << error.what();
  }
}

TEST(Simulate, ATransferBesideComputeIsSlowerWhereItNeedsTheSameProcessor) {
  // 2 s of a transfer at half of its rate: 4 s beside compute, which does 3 s of its 5 meanwhile
  const Timeline t = simulate({{{transfer(kGather, 2), compute(5)}}}, {.steal = 0.25, .beside = 0.5});
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[0].end, 4);
  EXPECT_DOUBLE_EQ(t.seconds, 4 + 2);
  // alone it has its own rate
  EXPECT_DOUBLE_EQ(simulate({{{transfer(kGather, 2), compute(1, {0})}}}, {.beside = 0.5}).seconds, 3);
}

TEST(Simulate, ACopyTakesItsShareOfCompute) {
  const Timeline t = simulate({{{copy(2), compute(4)}}}, {.copy_steal = 0.25});
  EXPECT_DOUBLE_EQ(t.seconds, 4.5);
}

// A GPU's copies have engines of their own and share memory with its compute, and both directions the host's.
TEST(Simulate, ACopyOfAGpuIsSlowerBesideComputeAndBesideOneTheOtherWay) {
  // 2 s of a copy at half of its rate, while 4 s of compute lose a quarter: 3 s are done by then
  const Timeline t = simulate({{{copy(2), compute(4)}}}, {.copy_steal = 0.25, .copy_beside = 0.5});
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[0].end, 4);
  EXPECT_DOUBLE_EQ(t.seconds, 5);
  // transfers between GPUs keep their rate: link and copies share nothing
  EXPECT_DOUBLE_EQ(simulate({{{transfer(kGather, 2), copy(2)}}}, {.copy_beside = 0.5}).seconds, 2);
  const Task back = {static_cast<int>(Lane::d2h), {}, {{Resource::d2h, Share::copy, 2, false}}, ""};
  const Timeline both = simulate({{{copy(1), back}}}, {.both_ways = 0.5});
  EXPECT_DOUBLE_EQ(both.ranks[0].spans[0].end, 2);
  EXPECT_DOUBLE_EQ(both.ranks[0].spans[1].end, 3) << "alone from 2 on";
}

// [Note: processors in common]: what copies and transfers are given, compute does not get, and the other way round.
TEST(Simulate, OnProcessorsInCommonACopyBesideComputeTakesLonger) {
  const SimulateOptions halves = {.copy_steal = 0.5, .copy_beside = 0.5, .shared_processor = true};
  const Timeline t = simulate({{{copy(2), compute(4)}}}, halves);
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[0].end, 4);
  EXPECT_DOUBLE_EQ(t.seconds, 6) << "2 s of copies and 4 s of compute, one after the other or not";
  EXPECT_DOUBLE_EQ(simulate({{{copy(2), compute(1, {0})}}}, halves).seconds, 3) << "alone it has its own rate";
}

TEST(Simulate, OnProcessorsInCommonTransfersAndCopiesLeaveComputeAFairShare) {
  // each alone would take half; a third for each of the three until 3, when 2 s of compute are left
  const SimulateOptions halves = {
      .steal = 0.5, .copy_steal = 0.5, .beside = 0.5, .copy_beside = 0.5, .shared_processor = true};
  const Timeline three = simulate({{{transfer(kGather, 1), copy(1), compute(3)}}}, halves);
  EXPECT_NEAR(three.ranks[0].spans[0].end, 3, 1e-12);
  EXPECT_NEAR(three.ranks[0].spans[1].end, 3, 1e-12);
  EXPECT_NEAR(three.seconds, 5, 1e-12);
  // without compute two of them have half each
  const Timeline two = simulate({{{transfer(kGather, 1), copy(1)}}}, halves);
  EXPECT_NEAR(two.seconds, 2, 1e-12);
}

TEST(Simulate, AnInstructionThatWaitsForOtherRanksTakesNeitherLinkNorProcessor) {
  const Task waits = {kCompute, {}, {{Resource::none, Share::comm, 2, false}}, ""};
  const SimulateOptions halves = {
      .steal = 0.5, .copy_steal = 0.5, .beside = 0.5, .copy_beside = 0.5, .shared_processor = true};
  const Timeline t = simulate({{{waits, transfer(kGather, 2)}}}, halves);
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[0].end, 2);
  EXPECT_DOUBLE_EQ(t.ranks[0].spans[1].end, 2);
  EXPECT_DOUBLE_EQ(t.ranks[0].share(Share::comm), 2);
}

TEST(Simulate, AThreadThatWaitsIsWokenAndOneThatComesLaterIsNot) {
  // copy 0-1, woken, compute 1.25-2.25
  EXPECT_DOUBLE_EQ(simulate({{{copy(1), compute(1, {0})}}}, {.wake = 0.25}).seconds, 2.25);
  // compute that comes at 3 finds the copy done long ago
  EXPECT_DOUBLE_EQ(simulate({{{copy(1), compute(3), compute(1, {0})}}}, {.wake = 0.25}).seconds, 4);
}

}  // namespace
}  // namespace tessera::plan
