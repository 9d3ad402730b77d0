#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "plan/toy.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {
namespace {

TEST(InstructionsHash, OfTheWorkIsTheSameOnRanksThatArePricedTogether) {
  toy::Random random(5);
  for (int n = 0; n < 120; ++n) {
    const ModelSpec spec = toy::conditioned(toy::random_model(random));
    const Plan plan = n % 3 ? toy::random_plan(random, spec, 3) : toy::random_pipeline(random, spec);
    std::map<std::array<int64_t, 2>, uint64_t> priced;
    for (const RankGroup& group : rank_groups(spec, plan)) {
      const InstructionsHash hash = instructions_hash(group.schedule);
      ASSERT_EQ(instructions_hash(compile_all(spec, plan, group.rank, 2).train), hash);
      priced[rank_kind(plan, group.rank)] = hash.work;
    }
    for (int rank = 0; rank < plan.mesh.world(); ++rank)
      ASSERT_EQ(instructions_hash(compile_all(spec, plan, rank, 2).train).work, priced.at(rank_kind(plan, rank)))
          << to_toml(plan, toy::names(spec)) << "rank " << rank;
  }
}

/// A change of one instruction, and whether ranks that are priced together may differ in it.
struct Plant {
  const char* name;
  std::function<void(Schedule&)> change;
  bool of_a_rank = false;
};

TEST(InstructionsHash, IsAnotherWhereAnInstructionDoesSomethingElse) {
  const ModelSpec spec = toy::model(4);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 1, 1);
  plan.units[2].activations = Policy::recompute;
  const Schedule as_planned = compile_train(spec, plan, 0);
  const auto gather = std::ranges::find(as_planned.list, Op::gather, &Instruction::op);
  ASSERT_NE(gather, as_planned.list.end());
  const auto at = static_cast<size_t>(gather - as_planned.list.begin());
  const Plant plants[] = {{"left out", [&](Schedule& s) { s.list.erase(s.list.begin() + static_cast<long>(at)); }},
                          {"moved", [&](Schedule& s) { std::swap(s.list[at], s.list[at + 1]); }},
                          {"op", [&](Schedule& s) { s.list[at].op = Op::release; }},
                          {"lane", [&](Schedule& s) { s.list[at].lane = Lane::disk; }},
                          {"unit", [&](Schedule& s) { ++s.list[at].unit; }},
                          {"micro-batch", [&](Schedule& s) { ++s.list[at].micro; }},
                          {"bytes", [&](Schedule& s) { s.list[at].bytes += 64; }},
                          {"sum", [&](Schedule& s) { s.list[at].add = !s.list[at].add; }},
                          {"part", [&](Schedule& s) { s.list[at].part = Part::gradients; }},
                          {"place", [&](Schedule& s) { s.list[at].slot += 64; }, true},
                          {"waits for one more", [&](Schedule& s) { s.list[at].wait.push_back(0); }, true},
                          {"waits for nothing",
                           [&](Schedule& s) {
                             for (Instruction& in : s.list) in.wait.clear();
                           },
                           true}};
  const InstructionsHash planned = instructions_hash(as_planned);
  for (const Plant& plant : plants) {
    Schedule other = as_planned;
    plant.change(other);
    EXPECT_NE(instructions_hash(other).exact, planned.exact) << plant.name;
    EXPECT_EQ(instructions_hash(other).work == planned.work, plant.of_a_rank) << plant.name;
  }
}

}  // namespace
}  // namespace tessera::plan
