#include "tessera/plan/plan.h"

#include <gtest/gtest.h>

#include "plan/toy.h"
#include "tessera/base/check.h"
#include "tessera/plan/plan_file.h"

namespace tessera::plan {
namespace {

const std::vector<std::string> kNames = {"stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"};

/// The message of the usage error that reading `text` gives.
std::string refusal(const std::string& text) {
  try {
    plan_of_toml(text, "p.toml", kNames);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "accepted";
}

void expect_refusal(const std::string& text, const std::vector<std::string>& parts) {
  const std::string message = refusal(text);
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

TEST(FlatLayout, StartsAndShardsAreAlignedAndShardsAreEqual) {
  toy::Random random(1);
  for (int n = 0; n < 200; ++n) {
    const ModelSpec spec = toy::random_model(random);
    const int shards = toy::draw(random, 1, 16);
    for (const auto& unit : spec.units) {
      const UnitLayout layout = unit_layout(unit, shards);
      ASSERT_EQ(layout.params.size(), unit.params.size());
      ASSERT_EQ(layout.buffers.size(), 1u);
      EXPECT_EQ(layout.buffers[0].shards, shards);
      EXPECT_EQ(layout.total, layout.shard * shards);
      EXPECT_EQ(layout.shard % kFlatAlign, 0);
      int64_t end = 0;
      for (size_t p = 0; p < unit.params.size(); ++p) {
        EXPECT_EQ(layout.params[p].start % kFlatAlign, 0);
        EXPECT_GE(layout.params[p].start, end);
        EXPECT_LT(layout.params[p].start, end + kFlatAlign);
        end = layout.params[p].start + unit.params[p].numel();
      }
      EXPECT_GE(layout.total, end);
      EXPECT_LT(layout.total, end + kFlatAlign * (shards + 1));
    }
  }
}

/// Matrices of 5 x 700 and 300 x 8, a vector beside them, over shards that cut rows anywhere.
TEST(FlatLayout, MatricesGatheredAsCodesHaveABufferAndTheirLinesBesideThem) {
  UnitSpec unit;
  unit.params = {{.name = "a", .shape = {5, 700}, .in_8_bits = true},
                 {.name = "b", .shape = {300}},
                 {.name = "c", .shape = {300, 8}, .in_8_bits = true},
                 {.name = "base", .shape = {40, 30}, .trainable = false, .stored = DType::bf16, .in_8_bits = true},
                 {.name = "kept", .shape = {40, 30}, .trainable = false, .stored = DType::i8, .in_8_bits = true}};
  EXPECT_FALSE(unit_layout(unit, 3).in_codes());
  for (const int shards : {1, 2, 3, 4, 7}) {
    const UnitLayout layout = unit_layout(unit, shards, 1, false, 2, 1, /*codes=*/true);
    ASSERT_EQ(layout.buffers.size(), 4u) << "the vector, its matrices, the base, what is stored in blocks";
    const Buffer& buffer = layout.buffers[1];
    EXPECT_EQ(buffer.params, (std::vector<int>{0, 2}));
    EXPECT_TRUE(buffer.in_codes && buffer.trainable && layout.buffers[2].in_codes && !layout.buffers[3].in_codes);
    EXPECT_EQ(buffer.lines[0].all, 305) << "rows";
    EXPECT_EQ(buffer.lines[1].all, 708) << "columns";
    for (const bool columns : {false, true}) {
      std::vector<int> seen(305 + 708);
      int64_t elements = 0;
      for (int shard = 0; shard < shards; ++shard) {
        int64_t lines = 0;
        for (const CodePiece& piece : code_pieces(layout, buffer, shard, columns)) {
          elements += piece.end - piece.begin;
          EXPECT_EQ(piece.at, lines);
          lines += piece.count;
          EXPECT_LE(piece.offset + piece.end - piece.begin, buffer.shard);
          EXPECT_EQ(layout.params[static_cast<size_t>(piece.param)].start + piece.begin,
                    shard * buffer.shard + piece.offset);
          const int64_t first = piece.param == 0 ? 0 : columns ? 700 : 5;  // of the matrix's lines
          if (columns)
            EXPECT_EQ(piece.first, first);
          else
            EXPECT_EQ(piece.first, first + piece.begin / piece.width);
          for (int64_t line = 0; line < piece.count; ++line) ++seen[static_cast<size_t>(piece.first + line)];
        }
        EXPECT_LE(lines, buffer.lines[columns].most);
      }
      EXPECT_EQ(elements, 5 * 700 + 300 * 8);
      for (int64_t line = 0; line < buffer.lines[columns].all; ++line) EXPECT_GT(seen[static_cast<size_t>(line)], 0);
    }
    const int64_t both = layout.slot_size(Codes::both), rows = layout.slot_size(Codes::rows),
                  columns = layout.slot_size(Codes::columns), without = layout.slot_size(Codes::none);
    EXPECT_EQ(both, layout.total * 4);
    EXPECT_EQ(without, both) << "room for all of it";
    const Buffer& frozen = layout.buffers[2];
    EXPECT_EQ(both - rows, buffer.code_bytes(1) + frozen.code_bytes(1));
    EXPECT_EQ(both - columns, buffer.code_bytes(0) + frozen.code_bytes(0));
    EXPECT_EQ(layout.slot_at(2, Codes::rows), layout.trained_size(Codes::rows));
    EXPECT_EQ(layout.grad_total, layout.buffers[0].total + buffer.total) << "gradients are as without";
  }
}

TEST(FlatLayout, NoBlockStraddlesATensorOrARank) {
  const ModelSpec spec = toy::model(2, 37);
  for (int shards : {1, 2, 3, 4, 7}) {
    for (const auto& unit : spec.units) {
      const UnitLayout layout = unit_layout(unit, shards);
      for (int64_t block = 0; block < layout.total; block += kFlatAlign) {
        const int64_t last = block + kFlatAlign - 1;
        EXPECT_EQ(block / layout.shard, last / layout.shard);
        int tensors = 0;
        for (size_t p = 0; p < unit.params.size(); ++p)
          tensors += layout.params[p].start <= last && layout.params[p].start + unit.params[p].numel() > block;
        EXPECT_LE(tensors, 1);
      }
    }
  }
}

TEST(Plan, SlicesCoverTheGlobalBatchOnceInOrder) {
  for (int dp = 1; dp <= 5; ++dp)
    for (int64_t batch = 1; batch <= 23; ++batch)
      for (int64_t micro = 1; micro <= 4; ++micro) {
        Plan plan;
        plan.mesh[Axis::dp_shard] = dp;
        plan.global_batch = batch, plan.micro_batch = micro;
        int64_t next = 0, least = batch, most = 0;
        for (int r = 0; r < dp; ++r) {
          int64_t own = 0;
          bool idle = false;
          for (int64_t m = 0; m < plan.accumulation(); ++m) {
            const Plan::Slice slice = plan.slice(r, m);
            ASSERT_EQ(slice.first, next);
            ASSERT_GE(slice.count, 0);
            ASSERT_LE(slice.count, micro);
            ASSERT_FALSE(idle && slice.count > 0) << "idle micro-batches come last";
            idle = slice.count == 0;
            next += slice.count, own += slice.count;
          }
          least = std::min(least, own), most = std::max(most, own);
        }
        ASSERT_EQ(next, batch);
        ASSERT_LE(most - least, 1);
        ASSERT_EQ(plan.accumulation(), std::max<int64_t>(1, (most + micro - 1) / micro));
      }
}

TEST(Plan, ARankWithoutSamplesRunsAnIdleMicroBatch) {
  const Plan plan = toy::plan(toy::model(1), "dp_shard=4", 2, 1, 1);
  EXPECT_EQ(plan.accumulation(), 1);
  EXPECT_EQ(plan.slice(0, 0).count, 0);
  EXPECT_EQ(plan.slice(1, 0).count, 1);
  EXPECT_EQ(plan.slice(3, 0).first, 1);
}

TEST(PlanToml, RandomPlansReadBackAsTheyWere) {
  toy::Random random(7);
  for (int n = 0; n < 200; ++n) {
    const ModelSpec spec = toy::random_model(random);
    const Plan plan = toy::random_plan(random, spec);
    const std::string text = to_toml(plan, toy::names(spec));
    EXPECT_EQ(plan_of_toml(text, "p.toml", toy::names(spec)), plan) << text;
    EXPECT_EQ(to_toml(plan_of_toml(text, "p.toml", toy::names(spec)), toy::names(spec)), text);
  }
}

TEST(PlanToml, ASiteWithADotIsAskedForInQuotes) {
  const std::string start = "[[units]]\nname = \"blocks.3\"\nactivations = \"recompute\"\nsites = { ";
  EXPECT_EQ(plan_of_toml(start + "\"ffn.2\" = \"keep\" }\n", "p.toml", kNames).units[4].policy("ffn.2"), Policy::keep);
  try {
    plan_of_toml(start + "ffn.2 = \"keep\" }\n", "p.toml", kNames);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("{ \"ffn.2\" = \"keep\" }"), std::string::npos) << error.what();
  }
}

TEST(PlanToml, FoldsAlikeUnitsIntoRanges) {
  Plan plan;
  plan.units.resize(kNames.size());
  plan.units[4].activations = Policy::recompute;
  const std::string text = to_toml(plan, kNames);
  EXPECT_NE(text.find("name = \"blocks.0-2\"\nactivations = \"keep\"\nstrategy = \"full_shard\"\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("name = \"blocks.3\"\nactivations = \"recompute\""), std::string::npos) << text;
}

TEST(PlanToml, NumbersThatDoNotCountOnAreNotFolded) {
  const std::vector<std::string> names = {"a.01", "a.02", "a.3", "a.5", "a.6", "7", "8"};
  Plan plan;
  plan.units.resize(names.size());
  plan.units[2].activations = plan.units[3].activations = Policy::recompute;
  EXPECT_EQ(plan_of_toml(to_toml(plan, names), "p.toml", names), plan);
}

TEST(PlanToml, AcceptsTheNamesOfFsdpAndZero) {
  const auto strategy = [](const std::string& line) {
    return plan_of_toml("[[units]]\nname = \"*\"\n" + line, "p.toml", kNames).units[2].strategy;
  };
  for (const char* full : {"FULL_SHARD", "full_shard", "ZeRO-3", "zero3"})
    EXPECT_EQ(strategy("strategy = \"" + std::string(full) + "\""), Strategy::full_shard);
  for (const char* grad : {"SHARD_GRAD_OP", "ZeRO-2", "zero_2"})
    EXPECT_EQ(strategy("strategy = \"" + std::string(grad) + "\""), Strategy::shard_grad_op);
  for (const char* two : {"two_level", "TWO-LEVEL", "hybrid_shard_states", "hpZ"})
    EXPECT_EQ(strategy("strategy = \"" + std::string(two) + "\""), Strategy::two_level);
  EXPECT_EQ(strategy("reshard_after_forward = false"), Strategy::shard_grad_op);
  EXPECT_EQ(strategy("reshard_after_forward = true"), Strategy::full_shard);
}

TEST(PlanToml, ALaterTableOverridesAnEarlierOne) {
  const Plan plan =
      plan_of_toml("[[units]]\nname='*'\nactivations='recompute'\n[[units]]\nname='blocks.1-2'\nactivations='keep'\n",
                   "p.toml", kNames);
  EXPECT_EQ(plan.units[0].activations, Policy::recompute);
  EXPECT_EQ(plan.units[2].activations, Policy::keep);
  EXPECT_EQ(plan.units[4].activations, Policy::recompute);
}

TEST(PlanToml, ErrorsNameFileKeyAndTheNearestName) {
  expect_refusal("prefech = 1", {"p.toml", "prefech", "did you mean prefetch?"});
  expect_refusal("[mesh]\ndp_shart = 2", {"p.toml", "mesh.dp_shart", "did you mean mesh.dp_shard?"});
  expect_refusal("[mesh]\ndp_shard = 0", {"mesh.dp_shard", "found 0", "at least 1"});
  expect_refusal("micro_batch = \"two\"", {"p.toml", "micro_batch", "whole number"});
  expect_refusal("global_batch = 99999999999", {"global_batch", "99999999999"});
  expect_refusal("a = \n", {"p.toml:1"});
  expect_refusal("units = 3", {"units", "[[units]]"});
  expect_refusal("mesh = 3", {"mesh", "not a table"});
  expect_refusal("[[units]]\nactivations = \"keep\"", {"units[0].name", "missing"});
  expect_refusal("[[units]]\nname = \"block.1\"", {"units[0].name", "did you mean 'blocks.1'?"});
  expect_refusal("[[units]]\nname = \"blocks.2-9\"", {"units[0].name", "blocks.2-9"});
  expect_refusal("[[units]]\nname = \"*\"\nactivations = \"recomput\"",
                 {"p.toml", "activations", "did you mean recompute?"});
  expect_refusal("[[units]]\nname = \"*\"\nstrategy = \"SHARD_GRAD\"", {"strategy", "did you mean SHARD_GRAD_OP?"});
  expect_refusal("[[units]]\nname = \"*\"\nstrategy = \"HYBRID_SHARD\"", {"strategy", "dp_replicate", "two_level"});
  expect_refusal("[[units]]\nname = \"*\"\nstrategy = \"ZeRO-2\"\nreshard_after_forward = true", {"contradicts"});
  expect_refusal("[[units]]\nname = \"*\"\nreshard_after_forward = 3", {"reshard_after_forward", "true or false"});
}

TEST(Plan, FewerBitsAreWrittenAndReadByName) {
  const ModelSpec spec = toy::model(6);
  Plan plan = toy::plan(spec, "dp_shard=2", 8, 2, 1);
  plan.units[1].activations = {Graph::rebuild, DType::i8};
  plan.units[2].activations = {Graph::rebuild, DType::f8_e4m3, Tier::host};
  plan.units[3].sites = {{"attn", policy_of("bf16", "sites")}, {"boundary", policy_of("offload_fp16", "sites")}};
  EXPECT_EQ(plan_of_toml(to_toml(plan, toy::names(spec)), "p.toml", toy::names(spec)), plan);
  EXPECT_TRUE(plan.units[2].offloads() && plan.units[2].compresses());
  EXPECT_FALSE(plan.units[1].offloads());
  EXPECT_EQ(policy_of("offload_fp8", "").form, DType::f8_e4m3);
  EXPECT_EQ(policy_of("bf16", "").form, DType::bf16);
  EXPECT_NE(plan.summary().find("int8 1, offload_fp8 1"), std::string::npos) << plan.summary();
}

TEST(Plan, WhenAndWhereUpdatesRunIsWrittenAndReadAndHeldAgainstTheTiers) {
  const ModelSpec spec = toy::model(2);
  Plan plan = toy::plan(spec, "dp_shard=2", 8, 2, 1);
  plan.update = Update::just_in_time, plan.update_threads = 3;
  for (Tier UnitPlan::*part : {&UnitPlan::parameters, &UnitPlan::gradients, &UnitPlan::states, &UnitPlan::update_on})
    plan.units[1].*part = Tier::host;
  EXPECT_EQ(plan_of_toml(to_toml(plan, toy::names(spec)), "p.toml", toy::names(spec)), plan);
  EXPECT_NE(plan.summary().find("updates just in time, updates of 1 on the host"), std::string::npos) << plan.summary();
  expect_refusal("update = \"just_in_tim\"", {"p.toml: update", "just_in_time"});
  expect_refusal("[[units]]\nname = \"*\"\nupdate_on = \"host\"", {"update_on", "parameters are on device"});
  expect_refusal("[[units]]\nname = \"*\"\nupdate_on = \"nvme\"", {"update_on", "device or host"});
}

TEST(Plan, AGradientIsTransientWhereOneReductionAndItsUpdateAreAllThereIs) {
  const ModelSpec spec = toy::model(1);
  const auto transient = [&](int64_t global_batch, auto... changes) {
    Plan plan = toy::plan(spec, "dp_shard=2", global_batch, 1, 1);
    plan.update = Update::in_backward;
    (changes(plan.units[1]), ...);
    return plan.transient_gradient(plan.layout(spec.units[1], 1), 1);
  };
  EXPECT_TRUE(transient(2));
  EXPECT_FALSE(transient(4)) << "two micro-batches add to it";
  EXPECT_TRUE(transient(4, [](UnitPlan& u) { u.reduce_once = true; }));
  EXPECT_FALSE(transient(4, [](UnitPlan& u) { u.reduce_once = true, u.strategy = Strategy::no_shard; }));
  EXPECT_FALSE(transient(2, [](UnitPlan& u) { u.gradients = Tier::host; }));
}

TEST(Plan, SummaryCountsPolicies) {
  Plan plan = toy::plan(toy::model(6), "dp_shard=2", 8, 2, 1);
  plan.units[1].activations = plan.units[2].activations = Policy::recompute;
  EXPECT_EQ(
      plan.summary(),
      "keep 6 of 8 units, recompute 2, prefetch 1, global batch 8 in 2 micro-batch(es) of at most 2, mesh dp_shard=2");
}

}  // namespace
}  // namespace tessera::plan
