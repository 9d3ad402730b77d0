// The parts of the compiler, each alone: what they add to a draft.
#include <gtest/gtest.h>

#include "plan/toy.h"
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {
namespace {

std::vector<int> list(const Waits& waits) { return {waits.begin(), waits.end()}; }

struct Drafted {
  explicit Drafted(const std::function<void(Plan&)>& change = {}, const std::string& mesh = "dp_shard=2") {
    plan = toy::plan(model, mesh, /*global_batch=*/4, /*micro_batch=*/1, /*prefetch=*/1);
    if (change) change(plan);
    draft.emplace(model, plan, /*rank=*/0, "train", CompiledFor::run);
    draft->schedule.micros = 2;
  }
  const Instruction& at(int index) const { return draft->schedule.list[static_cast<size_t>(index)]; }
  int first() { return draft->add(draft->make(Op::forward, Lane::compute, 1, 0)); }

  const ModelSpec model = toy::model(2);
  Plan plan;
  std::optional<Draft> draft;
};

TEST(Draft, NamesAGroupOnceAndOneOfASingleRankHasNoName) {
  Drafted of;
  const GroupName& shards = of.draft->group_name("gather", {Axis::dp_shard});
  EXPECT_EQ(shards.name, "gather:dp_shard[0,1]");
  EXPECT_EQ(&of.draft->group_name("gather", {Axis::dp_shard}), &shards);
  EXPECT_TRUE(of.draft->outer.axis.empty()) << "there are no replicas";
  EXPECT_EQ(of.draft->world.name, "control:dp_shard[0,1]");
}

TEST(Draft, WaitsAreInOrderAndOnceAndForMemoryThereAreNone) {
  Drafted of;
  Instruction in = of.draft->make(Op::update, Lane::compute, 2, -1, Part::states, 64, {3, 1, 3});
  EXPECT_EQ(in.name, "blocks.1");
  const int at = of.draft->add(in);
  EXPECT_EQ(list(of.at(at).wait), (std::vector<int>{1, 3}));
  EXPECT_EQ(of.at(at).bytes, 64);
  Draft memory(of.model, of.plan, 0, "train", CompiledFor::memory);
  EXPECT_TRUE(memory.schedule.list[static_cast<size_t>(memory.add(in))].wait.empty());
}

TEST(Draft, RangesInFlightAreFreedOldestFirst) {
  Drafted of;
  Draft& draft = *of.draft;
  Waits none;
  for (int i = 0; i < 3; ++i) draft.flights.push_back({{draft.arena.take(64, none), i}});
  draft.retire(draft.flights, 1);
  EXPECT_EQ(draft.flights.size(), 1u);
  Waits waits;
  EXPECT_EQ(draft.arena.take(128, waits), 0) << "the two oldest are free";
  EXPECT_EQ(list(waits), (std::vector<int>{0, 1}));
  EXPECT_FALSE(draft.arena.empty());
}

TEST(Tiers, ABufferOnDiskComesAndGoesByWayOfTheHostAfterItsLastWrite) {
  Drafted of([](Plan& plan) { plan.units[1].states = Tier::nvme; });
  Tiers tiers(*of.draft);
  EXPECT_EQ(tiers.written(1, Part::states), -1);
  const int gone = tiers.offload(Part::states, 1, -1, /*at=*/0, {of.first()});
  const int write = tiers.written(1, Part::states);
  EXPECT_EQ(of.at(gone).lane, Lane::d2h);
  EXPECT_EQ(of.at(write).lane, Lane::disk);
  EXPECT_EQ(list(of.at(write).wait), (std::vector<int>{gone}));
  EXPECT_EQ(of.at(write).host, of.at(gone).host);
  const int back = tiers.reload(Part::states, 1, -1, /*at=*/0, {});
  EXPECT_EQ(of.at(back).lane, Lane::h2d);
  const Instruction& read = of.at(back - 1);
  EXPECT_EQ(read.lane, Lane::disk);
  EXPECT_TRUE(std::ranges::find(read.wait, write) != read.wait.end()) << "it reads what was written";
  EXPECT_NE(read.host, of.at(write).host) << "one lane fills a buffer while the other empties the one before";
  EXPECT_EQ(tiers.fetched(1), -1) << "those were states";
  EXPECT_FALSE(of.draft->host.empty());
  tiers.release_bounce_buffers(0);
  EXPECT_TRUE(of.draft->host.empty());
}

TEST(Activations, AreDroppedBehindTheNextForwardAndComeBackOnce) {
  Drafted of([](Plan& plan) { plan.units[1].activations = plan.units[2].activations = Policy::offload; });
  Tiers tiers(*of.draft);
  Activations activations(*of.draft, tiers);
  const UnitVisit first{true, 1, 0}, second{true, 2, 0}, kept{true, 3, 0};
  activations.stash(first, of.first());
  EXPECT_EQ(of.at(1).op, Op::stash);
  activations.stash(second, of.first());
  EXPECT_EQ(of.at(3).op, Op::drop);
  EXPECT_EQ(of.at(3).name, "blocks.0");
  EXPECT_EQ(list(of.at(3).wait), (std::vector<int>{1}));
  EXPECT_EQ(activations.fetched(second), -1) << "not yet";
  activations.fetch(second), activations.fetch(second);
  EXPECT_EQ(of.at(activations.fetched(second)).op, Op::fetch);
  EXPECT_EQ(activations.fetched(second), static_cast<int>(of.draft->schedule.list.size()) - 1);
  activations.fetch(first);
  const size_t count = of.draft->schedule.list.size();
  activations.fetch(kept);
  EXPECT_EQ(of.draft->schedule.list.size(), count) << "it was not offloaded";
  EXPECT_TRUE(of.draft->host.empty());
}

TEST(StageActs, AMessageIsAwaitedByTheFirstUnitOfItsActAlone) {
  Drafted of([](Plan& plan) { plan.pipeline.schedule = PipelineSchedule::one_f_one_b; }, "pp=2");
  Draft last(of.model, of.plan, /*rank=*/1, "train", CompiledFor::run);
  last.schedule.micros = 4;
  StageActs acts(last);
  const std::vector<UnitVisit> visits = acts.visits_of({PipelineAct::Kind::forward, 0, 0});
  ASSERT_FALSE(visits.empty());
  EXPECT_EQ(visits.front().unit, of.plan.first_unit(1));
  EXPECT_TRUE(acts.begins_act(visits, 0));
  acts.receive_for(visits, 0), acts.receive_for(visits, 0);
  ASSERT_EQ(last.schedule.list.size(), 1u) << "it is received once";
  EXPECT_EQ(last.schedule.list[0].lane, Lane::recv_prev);
  Instruction in, later;
  acts.await_message(in, visits.front());
  EXPECT_EQ(list(in.wait), (std::vector<int>{0}));
  acts.await_message(later, {true, visits.front().unit + 1, 0});
  EXPECT_TRUE(later.wait.empty());
}

}  // namespace
}  // namespace tessera::plan
