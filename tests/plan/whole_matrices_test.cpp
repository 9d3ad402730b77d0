// Whole matrices among ranks: every element has one place in them, messages match at both ends, and their memory does not
// overlap.
#include "tessera/plan/whole_matrices.h"
#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include "plan/edit.h"
#include "plan/toy.h"
#include "tessera/plan/compile/rules.h"
#include "tessera/plan/optimizers.h"

namespace tessera::plan {
namespace {

/// Two buffers under tp, and tensors that no rank sends whole.
UnitSpec unit_of_matrices() {
  UnitSpec unit;
  unit.name = "mid", unit.kind = "block";
  unit.params = {{"b.weight", {40, 36}}, {"b.bias", {40}},           {"norm", {300}},
                 {"kernel", {7, 5, 3}},  {"a.weight", {24, 50}},     {"table", {12, 30}},
                 {"left", {33, 20}},     {"frozen.weight", {16, 8}}, {"row", {1, 700}}};
  for (const int whole : {0, 3, 4, 6, 7, 8}) unit.params[static_cast<size_t>(whole)].whole = true;
  unit.params[0].split = unit.params[1].split = Split::column_parallel, unit.params[4].split = Split::row_parallel;
  unit.params[7].trainable = false;
  return unit;
}

Plan plan_on(const char* mesh, Strategy strategy) {
  Plan plan;
  plan.mesh = Mesh::parse(mesh);
  plan.units.assign(1, {.strategy = strategy});
  plan.states.optimizer = Optimizer::muon;
  return plan;
}

template <class Check>
void on_all_layouts(const Check& check) {
  for (const char* mesh : {"single", "dp_shard=3", "tp=2", "dp_shard=2,tp=2", "dp_replicate=2,dp_shard=2", "cp=2,tp=2",
                           "dp_shard=2,sp=2", "dp_shard=13"})
    for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard, Strategy::two_level}) {
      SCOPED_TRACE(std::string(mesh) + ", strategy " + std::to_string(static_cast<int>(strategy)));
      check(plan_on(mesh, strategy));
    }
}

TEST(WholeMatrices, EachElementIsOneMembersAndComesToOneOwner) {
  const UnitSpec unit = unit_of_matrices();
  on_all_layouts([&](const Plan& plan) {
    const UnitLayout layout = plan.layout(unit, 0);
    for (int rank = 0; rank < plan.mesh.world(); ++rank) {
      const std::vector<MatrixParts> parts = matrix_parts(plan, unit, layout, rank);
      std::vector<std::vector<int>> seen(unit.params.size());
      for (size_t b = 0; b < parts.size(); ++b) {
        for (const auto& pieces : parts[b].pieces)
          for (const MatrixParts::Piece& piece : pieces) {
            const auto p = static_cast<size_t>(piece.param);
            EXPECT_GE(parts[b].owner[p], 0);
            EXPECT_LT(parts[b].owner[p], parts[b].members);
            seen[p].resize(static_cast<size_t>(unit.params[p].numel()));
            for (int64_t e = piece.begin; e < piece.end; ++e)
              ++seen[p].at(static_cast<size_t>(e / piece.width * piece.inner + piece.first + e % piece.width));
          }
      }
      for (size_t p = 0; p < seen.size(); ++p) {
        const bool matrix = unit.params[p].whole && unit.params[p].trainable;
        EXPECT_EQ(seen[p], std::vector<int>(matrix ? static_cast<size_t>(unit.params[p].numel()) : 0, 1))
            << unit.params[p].name << " of rank " << rank;
      }
    }
  });
}

TEST(WholeMatrices, WhatMembersSendAndReceiveIsTheSame) {
  const UnitSpec unit = unit_of_matrices();
  on_all_layouts([&](const Plan& plan) {
    const UnitLayout layout = plan.layout(unit, 0);
    for (size_t b = 0; b < layout.buffers.size(); ++b) {
      std::map<std::vector<int>, std::array<int64_t, 2>> sums;  // by group: what its members send, and send back
      for (int rank = 0; rank < plan.mesh.world(); ++rank) {
        const MatrixParts parts = matrix_parts(plan, unit, layout, rank)[b];
        if (parts.empty()) continue;
        const std::vector<int> members = plan.mesh.group(rank, sum_axes(plan, layout.buffers[b]));
        EXPECT_EQ(members.at(static_cast<size_t>(parts.index)), rank);
        auto& [there, back] = sums[members];
        there += parts.sent(), back += parts.returned();
        for (const int other : members) {
          const MatrixParts theirs = matrix_parts(plan, unit, layout, other)[b];
          EXPECT_EQ(theirs.owner, parts.owner);
          EXPECT_EQ(parts.elements(parts.index, theirs.index), theirs.elements(parts.index, theirs.index));
        }
      }
      for (const auto& [members, sum] : sums) EXPECT_EQ(sum[0], sum[1]);
    }
  });
}

TEST(WholeMatrices, TheMemoryOfAnUpdateHasAPlaceForEach) {
  const UnitSpec unit = unit_of_matrices();
  on_all_layouts([&](const Plan& plan) {
    const UnitLayout layout = plan.layout(unit, 0);
    for (const DType type : {DType::f32, DType::bf16})
      for (int rank = 0; rank < plan.mesh.world(); ++rank) {
        const std::vector<MatrixParts> parts = matrix_parts(plan, unit, layout, rank);
        int64_t most = 0;
        for (const MatrixParts& buffer : parts) {
          if (buffer.empty()) continue;
          const MatrixWork work = matrix_work(unit, buffer, type);
          most = std::max(most, work.bytes);
          std::vector<std::pair<int64_t, int64_t>> kept, passing;  // [at, bytes)
          const auto& pieces = buffer.pieces[static_cast<size_t>(buffer.index)];
          for (size_t i = 0; i < pieces.size() && buffer.members > 1; ++i)
            kept.emplace_back(work.own[i], work.own[i] + size_of(type) * pieces[i].count());
          for (size_t p = 0; p < unit.params.size(); ++p) {
            if (buffer.owner[p] != buffer.index) continue;
            EXPECT_EQ(work.whole[p] % 256, 0) << "where a device's products want it";
            kept.emplace_back(work.whole[p], work.whole[p] + size_of(type) * unit.params[p].numel());
            EXPECT_LE(work.transform + transform_bytes(matrix_shape(unit.params[p].shape), type), work.bytes);
          }
          for (int m = 0; m < buffer.members; ++m)
            if (m != buffer.index)
              passing.emplace_back(
                  work.from[static_cast<size_t>(m)],
                  work.from[static_cast<size_t>(m)] + size_of(type) * buffer.elements(m, buffer.index));
          kept.insert(kept.end(), passing.begin(), passing.end());
          std::ranges::sort(kept);
          for (size_t i = 0; i + 1 < kept.size(); ++i) EXPECT_LE(kept[i].second, kept[i + 1].first);
          if (!kept.empty()) EXPECT_LE(kept.back().second, work.bytes);
        }
        EXPECT_EQ(work_bytes(unit, parts, type), most);
      }
  });
}

TEST(WholeMatrices, LargeOnesGoToDifferentRanks) {
  UnitSpec unit;
  for (const int rows : {100, 60, 100, 60}) unit.params.push_back({"w", {rows, 100}, true});
  for (ParamSpec& param : unit.params) param.whole = true;
  const Plan plan = plan_on("dp_shard=2", Strategy::full_shard);
  const std::vector<int> owner = matrix_parts(plan, unit, plan.layout(unit, 0), 0)[0].owner;
  EXPECT_NE(owner[0], owner[2]);
  EXPECT_NE(owner[1], owner[3]);
}

ModelSpec toy_of_matrices() {
  ModelSpec spec = toy::model(2);
  for (UnitSpec& unit : spec.units)
    if (unit.kind == "block") unit.params[0].whole = true;
  return spec;
}

TEST(WholeMatrices, AnUpdateDeclaresItsMessagesAndItsMemory) {
  const ModelSpec spec = toy_of_matrices();
  for (const char* mesh : {"dp_shard=2", "dp_shard=3"})
    for (const bool on_host : {false, true})
      for (const Update when : {Update::end, Update::just_in_time, Update::in_backward}) {
        Plan plan = toy::plan(spec, mesh, 6, 1, 1);
        plan.states.optimizer = Optimizer::muon, plan.update = when;
        for (UnitPlan& unit : plan.units)
          if (on_host) unit.parameters = unit.gradients = unit.states = unit.update_on = Tier::host;
        const std::vector<Line> lines = toy::run(spec, plan, 2, 0);
        EXPECT_EQ(toy::text(check(lines)), "") << mesh;
        int64_t moved = 0, owned = 0;
        for (const Line& line : lines) {
          if (line.in.op != Op::update) continue;
          EXPECT_EQ(parse_line(to_json(line)).in.work, line.in.work);
          EXPECT_EQ(parse_line(to_json(line)).in.flops, line.in.flops);
          if (!line.in.name.text().starts_with("blocks.")) {
            EXPECT_EQ(line.in.work, 0) << line.in.name;
            EXPECT_TRUE(line.in.comm.empty()) << line.in.name;
            continue;
          }
          ASSERT_EQ(line.in.comm.size(), 2u);
          EXPECT_EQ(line.in.comm[0].kind, "all_to_all");
          EXPECT_TRUE(
              line.in.comm[0].group.text().starts_with(on_host ? "host_matrices:dp_shard" : "matrices:dp_shard"));
          moved += line.in.comm[0].bytes - line.in.comm[1].bytes;
          EXPECT_EQ(line.in.target >= 0, !on_host && line.in.work > 0);
          EXPECT_EQ(line.in.host >= 0, on_host && line.in.work > 0);
          owned += line.in.flops > 0;
          if (line.in.flops > 0) EXPECT_GE(line.in.work, 64 * 40 * 2 * 2) << "the matrix and its sums";
        }
        EXPECT_EQ(moved, 0) << "what is sent is what comes back, over all ranks";
        EXPECT_EQ(owned, 2 * 2) << "two blocks, two steps: one rank each";
      }
}

TEST(WholeMatrices, AScheduleWhoseUpdateSendsOtherKindsIsRefused) {
  const ModelSpec spec = toy_of_matrices();
  Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
  plan.states.optimizer = Optimizer::muon;
  std::vector<Line> lines = toy::run(spec, plan, 1, 0);
  for (Line& line : lines)
    if (line.in.op == Op::update)
      for (Comm& comm : line.in.comm) comm.kind = "all_gather";
  EXPECT_NE(toy::text(check(lines)).find("all_to_all"), std::string::npos);
}

TEST(WholeMatrices, APlanKeepsTheirDtypeAndIterations) {
  Plan plan;
  plan.units.resize(1);
  plan.states = {.optimizer = Optimizer::muon, .matrices = DType::f32, .iterations = 7};
  EXPECT_EQ(plan_of_toml(to_toml(plan, {"stem"}), "plan.toml", {"stem"}).states, plan.states);
  plan.states.optimizer = Optimizer::adamw;
  EXPECT_EQ(to_toml(plan, {"stem"}).find("matrix"), std::string::npos);
}

TEST(WholeMatrices, StatesOfAMatrixAreItsMomentumAlone) {
  ParamSpec param = {"w", {100, 100}};
  const auto kinds = [&](StateFormat format) {
    std::string text;
    for (const StateSpec& state : states_of(format)(param)) text += state.kind + " ";
    return text;
  };
  EXPECT_EQ(kinds({.optimizer = Optimizer::muon}), "exp_avg exp_avg_sq ");
  param.whole = true;
  EXPECT_EQ(kinds({.optimizer = Optimizer::muon}), "exp_avg ");
  EXPECT_EQ(kinds({.moments = Moments::int8, .optimizer = Optimizer::muon}), "exp_avg exp_avg_scale ");
  EXPECT_EQ(kinds({.optimizer = Optimizer::adamw}), "exp_avg exp_avg_sq ") << "the optimiser decides";
}

}  // namespace
}  // namespace tessera::plan
