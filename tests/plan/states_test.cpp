#include "tessera/plan/states.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/plan_file.h"
#include "toy.h"

namespace tessera::plan {
namespace {

UnitSpec unit_of(std::vector<std::vector<int64_t>> shapes) {
  UnitSpec unit;
  for (auto& shape : shapes) unit.params.push_back({"p" + std::to_string(unit.params.size()), shape});
  return unit;
}

TEST(States, BytesOfAParameterByFormat) {
  EXPECT_DOUBLE_EQ(bytes_per_parameter({}), 12);
  EXPECT_DOUBLE_EQ(bytes_per_parameter({Masters::split, Moments::fp32}), 12);
  EXPECT_DOUBLE_EQ(bytes_per_parameter({Masters::bf16, Moments::bf16}), 6);
  EXPECT_NEAR(bytes_per_parameter({Masters::split, Moments::int8}), 6.03, 0.002);
  EXPECT_NEAR(bytes_per_parameter({Masters::bf16, Moments::int8}), 4.03, 0.002);
}

TEST(States, SmallTensorsKeepFp32Moments) {
  const StatesOf states = states_of({Masters::fp32, Moments::int8});
  ParamSpec small{"small", {4095}}, large{"large", {64, 64}};
  EXPECT_EQ(states(small), (std::vector<StateSpec>{{"exp_avg", DType::f32, 1}, {"exp_avg_sq", DType::f32, 1}}));
  EXPECT_EQ(states(large), (std::vector<StateSpec>{{"exp_avg", DType::u8, 1},
                                                   {"exp_avg_scale", DType::f32, 256},
                                                   {"exp_avg_sq", DType::u8, 1},
                                                   {"exp_avg_sq_scale", DType::f32, 256}}));
}

TEST(States, RangesOfAllRanksTileEveryTensorAndBlocksBelongToOneRank) {
  const UnitSpec unit = unit_of({{300, 70}, {17}, {5000}, {256}});
  for (const int shards : {1, 2, 3, 4, 7}) {
    const UnitLayout layout = unit_layout(unit, shards);
    std::vector<int64_t> next(unit.params.size()), scales(unit.params.size());
    for (int rank = 0; rank < shards; ++rank) {
      const StateLayout mine = state_layout(unit, layout, {Held{rank}}, states_of({Masters::split, Moments::int8}));
      int64_t end = 0;
      for (const auto& range : mine.ranges) {
        EXPECT_EQ(range.begin, next[range.param]);
        next[range.param] = range.end;
        for (size_t s = 0; s < range.states.size(); ++s) {
          EXPECT_EQ(range.at[s] % kStateAlign, 0);
          EXPECT_GE(range.at[s], end) << "states overlap";
          const int64_t values = range.states[s].values(range.begin, range.end);
          end = range.at[s] + values * size_of(range.states[s].type);
          if (range.states[s].kind == "exp_avg_scale") scales[range.param] += values;
        }
      }
      EXPECT_LE(end, mine.bytes);
    }
    for (size_t p = 0; p < unit.params.size(); ++p) {
      EXPECT_EQ(next[p], unit.params[p].numel());
      if (scales[p]) {
        EXPECT_EQ(scales[p], div_up(unit.params[p].numel(), 256));
      }
    }
  }
}

TEST(States, PiecesOfAllCopiesTileEveryShardAndOnlyTheirOwnersHaveTheirStates) {
  const UnitSpec unit = unit_of({{300, 70}, {17}, {5000}, {256}});
  for (const int shards : {1, 2, 3})
    for (const int copies : {2, 3}) {
      const UnitLayout layout = unit_layout(unit, shards, 1, false, 4, copies);
      ASSERT_EQ(layout.grad_partition * copies, layout.grad_shard);
      EXPECT_TRUE(layout.partitioned());
      EXPECT_EQ(layout.buffers[0].partition() % kFlatAlign, 0) << "no block straddles a rank";
      std::vector<int64_t> updated(unit.params.size());
      for (int shard = 0; shard < shards; ++shard)
        for (int partition = 0; partition < copies; ++partition) {
          const Held held{shard, partition};
          const StateLayout mine = state_layout(unit, layout, {held}, states_of({Masters::split, Moments::int8}));
          int64_t of_shard = 0, of_partition = 0;
          for (const auto& range : mine.ranges) {
            EXPECT_EQ(range.states.empty(), !range.updated);
            of_shard += range.end - range.begin;
            if (!range.updated) continue;
            of_partition += range.end - range.begin;
            const int64_t first = layout.params[range.param].start + range.begin;
            EXPECT_EQ(first / layout.buffers[0].partition(), shard * copies + partition);
            EXPECT_EQ(range.begin, updated[range.param]) << "pieces follow each other";
            updated[range.param] = range.end;
          }
          EXPECT_LE(of_shard, layout.buffers[0].shard);
          EXPECT_LE(of_partition, layout.buffers[0].partition());
        }
      for (size_t p = 0; p < unit.params.size(); ++p) EXPECT_EQ(updated[p], unit.params[p].numel());
    }
}

TEST(States, NamesAreReadAndAWrongOneNamesTheNearest) {
  EXPECT_EQ(masters_of("split", "plan.masters"), Masters::split);
  EXPECT_EQ(moments_of("int8", "plan.moments"), Moments::int8);
  EXPECT_EQ(dtype_of("bf16", "plan.param_dtype", kComputeTypes), DType::bf16);
  try {
    moments_of("int4", "plan.moments");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("int4"), std::string::npos);
    EXPECT_NE(error.hint().find("int8"), std::string::npos) << error.hint();
  }
}

TEST(States, APlanKeepsItsFormatAsAFile) {
  Plan plan;
  plan.units.resize(1);
  plan.states = {Masters::split, Moments::int8};
  const Plan read = plan_of_toml(to_toml(plan, {"stem"}), "plan.toml", {"stem"});
  EXPECT_EQ(read.states, plan.states);
  EXPECT_EQ(read.gathered(), DType::bf16);
  EXPECT_NE(read.summary().find("masters split, moments int8"), std::string::npos) << read.summary();
  EXPECT_EQ(plan_of_toml("param_dtype = \"bf16\"", "plan.toml", {"stem"}).gathered(), DType::bf16);
}

TEST(States, WhatIsComputedInIsWhatIsGatheredAndLiesInTheSlots) {
  Plan plan = plan_of_toml("compute_dtype = \"fp16\"\nreduce_dtype = \"bf16\"", "plan.toml", {"stem"});
  EXPECT_EQ(plan.gathered(), DType::f16);
  EXPECT_EQ(plan.slots(), DType::f16);
  EXPECT_EQ(plan.reduce, DType::bf16);
  EXPECT_EQ(plan_of_toml(to_toml(plan, {"stem"}), "plan.toml", {"stem"}), plan);
  UnitSpec unit;
  unit.params = {{.name = "a", .shape = {300}}, {.name = "b", .shape = {100}}};
  const UnitLayout half = unit_layout(unit, 2, 1, false, 2), whole = unit_layout(unit, 2);
  EXPECT_EQ(half.total * 2, whole.total) << "slots have half the bytes";
  EXPECT_EQ(half.grad_total, whole.grad_total) << "gradients are fp32";
  EXPECT_EQ(half.in_slot(1, Codes::none) * 2, half.in_gradient(1));
  // Gathered in 16 bits and computed in fp32: widened in slots of fp32.
  plan.compute = DType::f32;
  EXPECT_EQ(plan.slots(), DType::f32);
}

TEST(States, ProductsIn8BitsGatherAndHoldBf16AndAreWrittenByTheirName) {
  Plan plan = plan_of_toml("compute_dtype = \"fp8\"", "plan.toml", {"stem"});
  EXPECT_TRUE(plan.fp8);
  EXPECT_EQ(plan.compute, DType::bf16);
  EXPECT_EQ(plan.gathered(), DType::bf16);
  EXPECT_EQ(plan.slots(), DType::bf16);
  plan.units.resize(1);
  const std::string text = to_toml(plan, {"stem"});
  EXPECT_NE(text.find("compute_dtype = \"fp8\""), std::string::npos) << text;
  EXPECT_EQ(plan_of_toml(text, "plan.toml", {"stem"}), plan);
  EXPECT_NE(plan.summary().find("computes in fp8"), std::string::npos) << plan.summary();
  EXPECT_FALSE(plan_of_toml("compute_dtype = \"bf16\"", "plan.toml", {"stem"}).fp8);
  plan.gather_fp8 = true;
  const std::string codes = to_toml(plan, {"stem"});
  EXPECT_NE(codes.find("gather = \"fp8\""), std::string::npos) << codes;
  EXPECT_EQ(text.find("gather"), std::string::npos) << "bf16 is what plans without the key gather";
  EXPECT_EQ(plan_of_toml(codes, "plan.toml", {"stem"}), plan);
  EXPECT_NE(plan.summary().find("gathers codes of 8 bits"), std::string::npos) << plan.summary();
  EXPECT_NE(plan_of_toml("compute_dtype = \"bf16\"", "plan.toml", {"stem"}), plan);
}

TEST(States, GradientsRestInTheirTypeAndMoveInTheArenaAsFp32) {
  const ModelSpec spec = toy::model(2);
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    int64_t resting[2];
    for (const bool rounded : {false, true}) {
      Plan plan = toy::plan(spec, "dp_shard=2", 4, 1, 1);
      if (rounded) plan.grad = DType::bf16;
      for (UnitPlan& unit : plan.units) unit.gradients = tier;
      EXPECT_EQ(plan_of_toml(to_toml(plan, toy::names(spec)), "plan.toml", toy::names(spec)), plan);
      const Schedule step = compile_train(spec, plan, 0);
      const MemoryCurve curve = memory_curve(spec, plan, step, 0);
      const int64_t device = curve.persistent - curve.by_part.parameters - curve.by_part.states;
      resting[rounded] = device + curve.host.gradients + curve.nvme.gradients;
      int rested = 0;
      for (const Instruction& in : step.list)
        if (in.op == Op::stash && in.part == Part::gradients && in.lane != Lane::disk) {
          ++rested;
          EXPECT_EQ(in.bytes, plan.gradient_bytes(plan.layout(spec.units[in.unit], in.unit)));
          EXPECT_EQ(in.lane, tier == Tier::device ? Lane::reduce : Lane::d2h);
        }
      // of both micro-batches of each unit; what stays as it is needs no way to its place
      EXPECT_EQ(rested, rounded || tier != Tier::device ? 2 * 4 : 0);
    }
    EXPECT_EQ(resting[true] * 2, resting[false]) << name(tier);
  }
}

TEST(States, AFileThatContradictsItselfIsRefused) {
  const std::pair<const char*, const char*> files[] = {
      {"masters = \"split\"\nparam_dtype = \"fp32\"", "plan.toml: param_dtype"},
      {"masters = \"split\"\ncompute_dtype = \"fp16\"", "plan.toml: compute_dtype"},
      {"grad_dtype = \"fp16\"", "plan.toml: grad_dtype"},
      {"param_dtype = \"fp32\"\ncompute_dtype = \"fp8\"", "plan.toml: compute_dtype"},
      {"gather = \"fp8\"\ncompute_dtype = \"bf16\"", "plan.toml: gather"},
      {"compute_dtype = \"fp4\"", "plan.toml: compute_dtype"},
      {"param_dtype = \"bf16\"\ncompute_dtype = \"fp16\"", "plan.toml: compute_dtype"}};
  for (const auto& [file, where] : files) {
    try {
      plan_of_toml(file, "plan.toml", {"stem"});
      FAIL() << file;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(where), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera::plan
