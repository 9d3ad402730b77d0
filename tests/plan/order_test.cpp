// Lanes as streams: whatever two instructions share, one of them comes first; and a wait that is missing is found.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "plan/edit.h"
#include "plan/toy.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/compile/races.h"
#include "tessera/plan/plan_file.h"

namespace tessera::plan {
namespace {

using toy::draw;
using toy::Random;

/// A plan, on one rank or stages in turn, in every format.
struct OrderedCase {
  ModelSpec spec;
  Plan plan;
  explicit OrderedCase(uint64_t seed) {
    Random random(seed);
    spec = toy::conditioned(toy::random_model(random));
    plan = seed % 2 ? toy::random_pipeline(random, spec) : toy::random_plan(random, spec, 2);
    plan.states.moments = static_cast<Moments>(draw(random, 0, 2));
    plan.states.masters = static_cast<Masters>(draw(random, 0, 2));
    plan.grad = draw(random, 0, 1) ? DType::bf16 : DType::f32;
    plan.reduce = draw(random, 0, 1) ? DType::bf16 : DType::f32;
    if (plan.states.masters != Masters::fp32 || draw(random, 0, 1)) plan.param_dtype = DType::bf16;
  }

  std::vector<Schedule> schedules(int rank) const {
    RunSchedules all = compile_all(spec, plan, rank, 2);
    return {std::move(all.train), std::move(all.first), std::move(all.updates), std::move(all.sample)};
  }
};

std::string text(const std::vector<Race>& races, const Schedule& schedule) {
  std::string all;
  for (const Race& race : races) all += to_string(race, schedule) + "\n";
  return all;
}

template <class Wanted>
int find(const Schedule& schedule, const Wanted& wanted, int from = 0) {
  for (int i = from; i < static_cast<int>(schedule.list.size()); ++i)
    if (wanted(schedule.list[i])) return i;
  ADD_FAILURE() << "no such instruction";
  return 0;
}

bool fetches_activations(const Instruction& in) {
  return in.op == Op::fetch && in.part == Part::activations && in.lane == Lane::h2d;
}

/// Parameters that are used in place are gathered by name alone.
bool does_nothing(const Instruction& in) { return in.op == Op::gather && in.slot < 0; }

/// Who uses what an instruction must not touch yet: itself, or for a drop the next one that takes memory; -1 for none.
int who_is_harmed(const Schedule& schedule, int i) {
  if (schedule.list[i].op != Op::drop) return i;
  for (int k = i + 1; k < static_cast<int>(schedule.list.size()); ++k) {
    const Instruction& in = schedule.list[k];
    if (takes_memory(in) || (touches_activations(in) && in.op != Op::drop)) return k;
  }
  return -1;
}

TEST(Clocks, AWaitOrdersWhatItsLaneHasDoneBeforeAndNothingElse) {
  Clocks clocks;
  clocks.add(Lane::gather, {});                    // 0
  clocks.add(Lane::gather, {});                    // 1
  clocks.add(Lane::compute, std::vector<int>{1});  // 2
  clocks.add(Lane::d2h, std::vector<int>{2});      // 3
  clocks.add(Lane::compute, {});                   // 4
  clocks.add(Lane::h2d, std::vector<int>{3});      // 5
  EXPECT_TRUE(clocks.before(0, 2)) << "a lane is in order";
  EXPECT_TRUE(clocks.before(0, 5)) << "through three lanes";
  EXPECT_TRUE(clocks.before(2, 4));
  EXPECT_FALSE(clocks.before(4, 5)) << "issued earlier is not done earlier";
  EXPECT_FALSE(clocks.before(3, 4));
  EXPECT_FALSE(clocks.before(2, 1));
  EXPECT_FALSE(clocks.before(2, 2));
}

TEST(Order, NoTwoInstructionsOfARandomPlanUseTheSameMemoryInNoOrder) {
  std::map<Op, int> taking;  // the cases have what they are to show
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const OrderedCase c(seed);
    for (int rank = 0; rank < c.plan.mesh.world(); ++rank)
      for (const Schedule& schedule : c.schedules(rank)) {
        const auto races = find_races(c.spec, c.plan, schedule, rank);
        ASSERT_TRUE(races.empty()) << "seed " << seed << ", " << schedule.phase << " on rank " << rank << "\n"
                                   << text(races, schedule) << to_toml(c.plan, toy::names(c.spec));
        for (const Instruction& in : schedule.list) taking[in.op] += takes_memory(in);
      }
  }
  EXPECT_GT(taking[Op::fetch], 1000);
  EXPECT_GT(taking[Op::recv], 1000);
  EXPECT_GT(taking[Op::send], 1000);
}

/// Removes each wait of random plans in turn. One that orders nothing else does must be missed: no wait is superfluous,
/// and no use of memory is unknown.
TEST(Order, AnyWaitThatIsRemovedIsMissed) {
  std::map<std::string, int> kinds;
  for (uint64_t seed = 1000; seed < 1060; ++seed) {
    const OrderedCase c(seed);
    const int rank = static_cast<int>(seed) % c.plan.mesh.world();
    for (Schedule& schedule : c.schedules(rank)) {
      for (int i = 0; i < static_cast<int>(schedule.list.size()); ++i) {
        Instruction& in = schedule.list[i];
        // The executor frees what the send that a drop waits for has sent: without that wait, nothing.
        if (does_nothing(in) || (in.op == Op::drop && in.part == Part::message)) continue;
        const Waits whole = in.wait;
        for (const int removed : whole) {
          if (does_nothing(schedule.list[removed])) continue;
          in.wait = whole;
          in.wait.erase_if([&](int wait) { return wait == removed; });
          const int harmed = who_is_harmed(schedule, i);
          if (harmed < 0 || Clocks(schedule.list).before(removed, harmed)) continue;
          const auto races = find_races(c.spec, c.plan, schedule, rank);
          ASSERT_FALSE(races.empty()) << "seed " << seed << ", " << schedule.phase << ": " << i << " "
                                      << to_json(in, schedule.phase, 0, 1, i, 0) << " without "
                                      << to_json(schedule.list[removed], schedule.phase, 0, 1, removed, 0) << "\n"
                                      << to_toml(c.plan, toy::names(c.spec));
          ++kinds[std::string(name(in.op)) + " after " + std::string(name(schedule.list[removed].op))];
        }
        in.wait = whole;
      }
    }
  }
  for (const char* kind :
       {"forward after gather",    "forward after recv",    "backward after fetch",      "backward after gather",
        "backward after recv",     "backward after reduce", "recompute after fetch",     "expand after fetch",
        "weight_grad after fetch", "idle after reduce",     "drop after stash",          "release after gather",
        "fetch after backward",    "fetch after drop",      "fetch after fetch",         "fetch after loss",
        "fetch after release",     "fetch after stash",     "fetch after update",        "gather after fetch",
        "gather after release",    "gather after update",   "gather_outer after update", "norm after backward",
        "norm after norm",         "norm after stash",      "recv after backward",       "recv after drop",
        "recv after forward",      "reduce after backward", "reduce after fetch",        "reduce_outer after backward",
        "send after backward",     "send after forward",    "stash after compress",      "stash after forward",
        "stash after norm",        "stash after stash",     "stash after update",        "update after fetch",
        "update after norm",       "update after stash"})
    EXPECT_GT(kinds[kind], 0) << kind;
}

/// Blocks that offload, on one rank: each fetch is taken while other blocks compute.
struct Offloading {
  ModelSpec spec = toy::model(10);
  Plan plan;
  Schedule schedule;
  explicit Offloading(int prefetch, Tier tier = Tier::host) : plan(toy::plan(spec, "dp_shard=1", 1, 1, prefetch)) {
    for (UnitPlan& unit : plan.units) unit.activations = Policy::offload, unit.offload_to = tier;
    schedule = compile_train(spec, plan, 0);
  }
  std::string races() const { return text(find_races(spec, plan, schedule, 0), schedule); }
};

TEST(Order, AFetchWaitsForTheComputeBeforeItsPlaceAndForNoneBehindIt) {
  for (const int prefetch : {1, 2}) {
    const Offloading c(prefetch);
    const Clocks clocks(c.schedule.list);
    int last = -1, fetches = 0;
    for (int i = 0; i < static_cast<int>(c.schedule.list.size()); ++i) {
      const Instruction& in = c.schedule.list[i];
      if (touches_activations(in)) last = i;
      if (!fetches_activations(in)) continue;
      ++fetches;
      EXPECT_TRUE(clocks.before(last, i));
      const int backward =
          find(c.schedule, [&](const Instruction& b) { return b.op == Op::backward && b.unit == in.unit; });
      int between = 0;  // backwards that the copy has time for
      for (int k = i; k < backward; ++k) between += c.schedule.list[k].op == Op::backward;
      EXPECT_LE(between, prefetch);
      if (in.unit + prefetch < static_cast<int>(c.spec.units.size())) EXPECT_EQ(between, prefetch) << in.name;
    }
    EXPECT_EQ(fetches, 12);
  }
}

TEST(Order, AFetchThatWaitsForItsStashAloneIsFound) {
  Offloading c(1);
  int bare = 0;
  for (Instruction& in : c.schedule.list) {
    if (!fetches_activations(in)) continue;
    const Waits whole = in.wait;
    in.wait.erase_if([&](int wait) { return touches_activations(c.schedule.list[wait]); });
    bare += !c.races().empty();
    in.wait = whole;
  }
  EXPECT_EQ(bare, 12) << "of 12 fetches";
}

TEST(Order, MemoryTakenTooEarlyIsNamedWithWhoMayStillUseIt) {
  Offloading c(1);
  auto& list = c.schedule.list;
  const int fetch =
      find(c.schedule, [](const Instruction& in) { return fetches_activations(in) && in.name == "blocks.3"; });
  const int last = *std::find_if(list[fetch].wait.begin(), list[fetch].wait.end(),
                                 [&](int wait) { return touches_activations(list[wait]); });
  ASSERT_EQ(list[last].op, Op::backward);
  int before = last - 1;
  while (!touches_activations(list[before])) --before;
  std::replace(list[fetch].wait.begin(), list[fetch].wait.end(), last, before);
  EXPECT_EQ(c.races(), "fetch blocks.3, micro-batch 0 (i " + std::to_string(fetch) +
                           ", h2d) does not wait for backward " + list[last].name + ", micro-batch 0 (i " +
                           std::to_string(last) + ", compute): both use memory taken at its place\n");
}

TEST(Order, AMessageThatIsReceivedIntoMemoryInUseIsNamed) {
  const ModelSpec spec = toy::conditioned(toy::model(6));
  Plan plan = toy::plan(spec, "pp=2", 4, 1, 1);
  Schedule schedule = compile_train(spec, plan, 1);
  const int recv = find(schedule, [](const Instruction& in) { return in.op == Op::recv && in.micro == 3; });
  ASSERT_EQ(schedule.list[recv].wait.size(), 1u);
  const Instruction& last = schedule.list[schedule.list[recv].wait[0]];
  schedule.list[recv].wait.clear();
  const std::string found = text(find_races(spec, plan, schedule, 1), schedule);
  EXPECT_NE(found.find("recv blocks.3, micro-batch 3 (i " + std::to_string(recv) + ", recv_prev) does not wait for " +
                       std::string(name(last.op))),
            std::string::npos)
      << found;
}

TEST(Order, ADropThatDoesNotWaitForItsCopyIsFoundWhereItsMemoryIsTaken) {
  Offloading c(1);
  const int drop = find(c.schedule, [](const Instruction& in) { return in.op == Op::drop && in.name == "blocks.3"; });
  c.schedule.list[drop].wait.clear();
  EXPECT_NE(c.races().find("does not wait for stash blocks.3"), std::string::npos) << c.races();
}

TEST(Order, HostMemoryThatIsReadTooEarlyIsFound) {
  Offloading disk(1, Tier::nvme);
  const int write = find(disk.schedule, [](const Instruction& in) {
    return in.op == Op::stash && in.lane == Lane::disk && in.name == "blocks.3";
  });
  disk.schedule.list[write].wait.clear();
  EXPECT_NE(disk.races().find("stash blocks.3, micro-batch 0 (i " + std::to_string(write) +
                              ", disk) does not wait for stash blocks.3"),
            std::string::npos)
      << disk.races();

  const ModelSpec spec = toy::model(3);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 1, 1);
  for (UnitPlan& unit : plan.units) unit.parameters = unit.gradients = unit.states = unit.update_on = Tier::host;
  Schedule schedule = compile_train(spec, plan, 0);
  const int update = find(schedule, [](const Instruction& in) { return in.op == Op::update && in.name == "stem"; });
  schedule.list[update].wait.clear();
  const std::string found = text(find_races(spec, plan, schedule, 0), schedule);
  EXPECT_NE(found.find("does not wait for stash stem"), std::string::npos) << found;
  EXPECT_NE(found.find("the gradient of stem"), std::string::npos) << found;
  EXPECT_NE(found.find("what the norm decides"), std::string::npos) << found;
}

/// A rank without samples computes nothing that needs its parameters, so nothing that it computes comes after the copy
/// of its shard that the others' gather waits for.
TEST(Order, AHostUpdateOfARankWithoutSamplesComesAfterTheCopyOfItsShard) {
  int needed = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const ModelSpec spec = toy::random_model(random);
    Plan plan = toy::random_plan(random, spec);
    plan.mesh = Mesh::parse("dp_shard=2"), plan.global_batch = 1;
    plan.update = Update::in_backward;
    for (UnitPlan& unit : plan.units)
      if (draw(random, 0, 1)) unit.parameters = unit.gradients = unit.states = unit.update_on = Tier::host;
    Schedule schedule = compile_train(spec, plan, 0);
    ASSERT_EQ(text(find_races(spec, plan, schedule, 0), schedule), "") << to_toml(plan, toy::names(spec));
    for (int i = 0; i < static_cast<int>(schedule.list.size()); ++i) {
      Instruction& in = schedule.list[i];
      if (in.lane != Lane::host) continue;
      const auto copy =
          std::find_if(in.wait.begin(), in.wait.end(), [&](int wait) { return schedule.list[wait].op == Op::fetch; });
      ASSERT_NE(copy, in.wait.end());
      const int removed = *copy;
      in.wait.erase(copy);
      if (Clocks(schedule.list).before(removed, i)) continue;
      const std::string found = text(find_races(spec, plan, schedule, 0), schedule);
      EXPECT_NE(found.find("both use the parameters of " + in.name), std::string::npos) << found;
      ++needed;
    }
  }
  EXPECT_GT(needed, 0);
}

/// The walk that predicts memory, and what the order is proven of, know the same instructions.
TEST(Order, WhatTakesMemoryIsWhatThePredictionSaysTakesIt) {
  std::set<Op> changing;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const OrderedCase c(seed);
    for (int rank = 0; rank < c.plan.mesh.world(); ++rank)
      for (const Schedule& schedule : c.schedules(rank)) {
        ActivationWalk walk(c.spec, c.plan, rank, schedule.phase == "train");
        for (const Instruction& in : schedule.list) {
          const int64_t before = walk.live(), highest = walk.run(in);
          if (highest == before && walk.live() == before) continue;
          changing.insert(in.op);
          const bool may = touches_activations(in) || takes_memory(in);
          // The end of a micro-batch: what is sent forwards frees nothing and takes nothing.
          ASSERT_TRUE(may) << to_json(in, schedule.phase, rank, 1, 0, 0);
        }
      }
  }
  EXPECT_EQ(changing, (std::set{Op::forward, Op::loss, Op::finish, Op::recompute, Op::backward, Op::weight_grad,
                                Op::compress, Op::expand, Op::drop, Op::fetch, Op::send, Op::recv}));
}

/// As a file, the same waits are demanded by the rules.
TEST(Order, TheRulesRefuseAFileThatTakesMemoryWithoutAWait) {
  const ModelSpec spec = toy::conditioned(toy::model(6));
  Plan plan = toy::plan(spec, "pp=2", 4, 1, 1);
  for (UnitPlan& unit : plan.units) unit.activations = Policy::offload;
  for (const Op op : {Op::fetch, Op::recv}) {
    toy::Edit edit(toy::run(spec, plan, 1));
    ASSERT_EQ(toy::text(check(edit.done())), "");
    int spoilt = 0;
    for (const int k : edit.all([&](const Line& l) { return l.in.op == op && takes_memory(l.in); })) {
      const std::vector<int> whole = edit.waits(k);
      std::erase_if(edit.waits(k), [&](int wait) { return touches_activations(edit[wait].in); });
      if (edit.waits(k) == whole) continue;  // nothing has used memory before
      const std::string found = toy::text(check(edit.done()));
      ASSERT_NE(found.find("the memory that it is given here may still be in use"), std::string::npos) << found;
      edit.waits(k) = whole;
      ++spoilt;
    }
    EXPECT_GT(spoilt, 4) << name(op);
  }
}

}  // namespace
}  // namespace tessera::plan
