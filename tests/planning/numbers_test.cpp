// Numbers that the documents name, as the planner gives them for real models on shipped profiles.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "planning/shipped.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/job/job.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/planning.h"
#include "tessera/planning/run_plan.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::planning {
namespace {

Planned planned(const recipe::Recipe& recipe) {
  const job::Job job = job::make_job(recipe);
  return make_plan_as_is(
      plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), recipe.mesh, /*prompts=*/0));
}

/// LoRA of I2V-14B at 480p on one GPU of 80 GB, by scripts/plans.
recipe::Recipe lora_of_i2v(const std::string& frames, const std::string& host, const std::string& base) {
  return recipe::load_recipe("", {{"model.preset", "wan2.1-i2v-14b-480p"},
                                  {"data.vae", "wan2.1-vae"},
                                  {"data.text_encoder", "umt5-xxl"},
                                  {"data.frames", frames},
                                  {"data.size", "480,832"},
                                  {"train.mode", "lora"},
                                  {"train.global_batch", "1"},
                                  {"train.micro_batch", "1"},
                                  {"lora.base_dtype", base},
                                  {"plan.compute_dtype", "bf16"},
                                  {"plan.profile", "1xa100-80"},
                                  {"plan.host_budget", host}});
}

/// docs/simulator.md: one sample of 32,760 tokens on eight A100, in the 43 GB that the published run is far above. The aim
/// is 3.7 s a step: 3.60 s are the model's products and attention. Ring and Ulysses are within it; Ulysses because all
/// exchanges of a block but the output's overlap. No copy is in the open, though 14 to 17 GB of activations cross the link.
TEST(Numbers, S2vOnEightA100TakesAtMost43GBAndTheTimesOfTheTable) {
  const auto plan = [](const std::string& mesh, const std::string& budget) {
    return planned(shipped("wan2.2-s2v-14b_full_a100", {{"mesh", mesh}, {"plan.budget", budget}}));
  };
  for (const char* mesh : {"cp=8", "sp=8"}) {
    const Planned tight = plan(mesh, "43000000000");
    ASSERT_TRUE(tight.choice.fits) << mesh;
    EXPECT_LE(tight.choice.memory.peak, 43'000'000'000) << mesh;
    // Ulysses is 0.2 ms beyond it since fused norms keep partial sums of the tables of modulation in their backward.
    EXPECT_LE(tight.choice.fastest, 3.701) << mesh;
    EXPECT_LE(tight.choice.seconds, tight.choice.fastest * (1 + plan::kSameTime)) << mesh;
    const plan::MemoryParts& held = tight.choice.memory.by_part;
    EXPECT_LE(held.parameters + held.gradients + held.states, 21'600'000'000) << mesh;
    EXPECT_LE(tight.prediction.step.exposed_comm, 0.05 * tight.choice.seconds) << mesh;
    EXPECT_LE(tight.prediction.step.exposed_copy, 0.002 * tight.choice.seconds) << mesh;
  }
  const Planned whole = plan("cp=8", "");
  EXPECT_LE(whole.choice.fastest, 3.7) << "with the whole GPU the ring is within the aim";
}

TEST(Numbers, LoraOfI2v14BFitsOneA100At81FramesWithoutHostMemoryAndAt129WithIt) {
  for (const char* base : {"bf16", "int8"}) {
    const Planned without = planned(lora_of_i2v("81", "0", base));
    EXPECT_TRUE(without.choice.fits) << base;
    EXPECT_EQ(without.choice.memory.host.total(), 0) << base;
  }
  const Planned with = planned(lora_of_i2v("129", "200GiB", "bf16"));
  EXPECT_TRUE(with.choice.fits);
  EXPECT_GT(with.choice.memory.host.total(), 0);
}

/// A row of scripts/plans. Where the host's budget is small, units' buffers return to the device or go to disk, and the step
/// is shorter than with all of them where the search began: no bound may be drawn from that (78 s then).
TEST(Numbers, AllOf14BOnOneA100With96GBOfHostMemoryAndADiskTakesAtMost52Seconds) {
  const Planned found = planned(recipe::load_recipe("", {{"model.preset", "wan2.1-t2v-14b"},
                                                         {"data.vae", "wan2.1-vae"},
                                                         {"data.text_encoder", "umt5-xxl"},
                                                         {"data.frames", "81"},
                                                         {"data.size", "480,832"},
                                                         {"train.mode", "full"},
                                                         {"train.global_batch", "1"},
                                                         {"plan.compute_dtype", "bf16"},
                                                         {"plan.masters", "split"},
                                                         {"plan.moments", "int8"},
                                                         {"plan.profile", "1xa100-80"},
                                                         {"plan.host_budget", "96000000000"},
                                                         {"plan.nvme", "."}}));
  ASSERT_TRUE(found.choice.fits);
  EXPECT_LE(found.choice.seconds, 52);
}

/// docs/plans.md: where all results of self-attention have room, recompute adds little; where few of them do, 24 % and more.
TEST(Numbers, RecomputeAddsAtMost13PercentOfComputeWhereTheAttentionsResultsFit) {
  const Planned tight = planned(lora_of_i2v("81", "0", "int8"));
  int recomputed = 0;
  for (size_t u = 0; u < tight.spec.units.size(); ++u) {
    const plan::UnitPlan& unit = tight.plan().units[u];
    recomputed += unit.recomputes();
    if (unit.recomputes()) EXPECT_EQ(unit.policy("self_attn"), plan::Policy::keep) << tight.spec.units[u].name;
  }
  EXPECT_GT(recomputed, 30);
  recipe::Recipe all = lora_of_i2v("81", "0", "int8");
  all.set("plan.budget", "1TiB");
  const Planned free = planned(all);
  EXPECT_LE(tight.prediction.step.compute, 1.13 * free.prediction.step.compute);
}

/// What a step of a student or its critic runs before it trains is part of it, whoever asks for the plan.
TEST(Numbers, TheRequestOfAStudentWithACriticHasItsPasses) {
  const recipe::Recipe recipe = shipped("wan2.1-t2v-1.3b_dmd_h100", {{"model.config.num_layers", "2"},
                                                                     {"mesh", "dp_shard=2"},
                                                                     {"train.global_batch", "4"},
                                                                     {"train.micro_batch", "2"},
                                                                     {"data.frames", "4"},
                                                                     {"data.size", "64,64"},
                                                                     {"data.vae", "haar"}});
  const job::Job job = job::make_job(recipe);
  const std::vector<PartPlan> parts = plan_parts(recipe::run_parts(recipe), job, recipe.mesh, {0}, /*prepared=*/true);
  const Planned &run = parts.at(0).planned, alone = planned(recipe);
  ASSERT_TRUE(alone.plan() == run.plan());
  EXPECT_GT(alone.prediction.step.base, 0);
  EXPECT_GT(alone.of_expert.at(1).base, 0);
  EXPECT_LT(alone.of_expert.at(1).base, alone.prediction.step.base) << "which is the student's";
  EXPECT_EQ(alone.prediction.step.total, run.prediction.step.total);
  EXPECT_EQ(alone.mean_step(), run.mean_step());
  EXPECT_EQ(alone.memory(0).peak, run.memory(0).peak);
  EXPECT_EQ(alone.schedules(0).base.list.size(), run.schedules(0).base.list.size());
}

/// docs/plans.md, One recipe anywhere: the recipe as it is, before its folders are there, on three machines. Each row of the page is what is planned. Micro-batches of one sample are what the search of
/// all sizes takes too; it looks at ten times as many plans.
TEST(Numbers, OneRecipeIsPlannedOnALaptopOneGpuAndEightNodesAsThePageSays) {
  const std::string page = checkpoint::read_text(TESSERA_SOURCE_DIR "/docs/plans.md");
  const std::vector<std::pair<std::string, recipe::Overrides>> machines = {
      {"a laptop, 28 GiB of memory | `tessera plan RECIPE --plan.budget 28GiB`", {{"plan.budget", "28GiB"}}},
      {"one H200 | `tessera plan RECIPE --gpu 1xh200`", {{"plan.profile", "1xh200"}}},
      {"eight nodes of eight H100 | `tessera plan RECIPE --gpu h100 --nodes 8`",
       {{"plan.profile", "h100"}, {"mesh", "dp_shard=64"}}}};
  std::map<std::string, std::string> trained;  // what decides the loss curve, alike on all of them
  for (const auto& [machine, flags] : machines) {
    recipe::Overrides changes = {{"train.micro_batch", "1"}};
    changes.insert(changes.end(), flags.begin(), flags.end());
    const recipe::Recipe recipe = shipped("wan2.1-t2v-1.3b_full_anywhere", changes);
    std::map<std::string, std::string> values = recipe.values;
    std::erase_if(
        values, [](const auto& entry) { return entry.first.starts_with("plan.") || entry.first.starts_with("mesh"); });
    std::erase_if(values, [](const auto& entry) { return entry.first == "train.micro_batch"; });
    if (trained.empty()) trained = values;
    EXPECT_EQ(values, trained) << machine;
    const Planned plan = planned(recipe);
    ASSERT_TRUE(plan.choice.fits) << machine;
    EXPECT_EQ(plan.plan().global_batch, 64) << machine;
    char row[512];
    const std::string summary = plan.plan().summary();
    std::snprintf(row, sizeof row, "| %s | %.1f | %.1f | %s, %s | %s |", machine.c_str(),
                  static_cast<double>(plan.choice.memory.peak) / (int64_t{1} << 30),
                  static_cast<double>(plan.choice.memory.host.total()) / (int64_t{1} << 30),
                  summary.substr(0, summary.find(", masters")).c_str(),
                  summary.substr(summary.find("global batch")).c_str(), format_seconds(plan.choice.seconds).c_str());
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

/// A shipped recipe on the GPU of its row in docs/plans.md.
struct Shipped {
  std::string gpu;
  int devices = 1;
  recipe::Overrides changes = {};
};

/// Micro-batches are those that the search of all sizes takes.
const std::map<std::string, Shipped> kShipped = {
    {"wan2.1-t2v-14b_full_h200", {"h200", 8}},
    {"wan2.2-t2v-a14b_full_h200", {"h200", 8}},
    {"wan2.2-s2v-14b_full_a100", {"a100-80", 1}},  // its mesh is its own
    {"wan2.1-vace-14b_part_h200", {"h200", 8}},
    {"wan2.2-fun-5b-control_full_h100", {"h100", 8}},
    {"wan2.2-animate-14b_lora_h100", {"1xh100", 1}},
    {"hunyuan1.5-480p-t2v_lora_24gb", {"rtx4090", 1}},
    {"hunyuan1.5-480p-i2v_full_h200", {"h200", 8}},
    {"wan2.1-t2v-1.3b_lora", {"rtx4090", 1, {{"train.micro_batch", "1"}}}},
    {"wan2.1-t2v-1.3b_full_anywhere", {"1xh200", 1, {{"train.micro_batch", "2"}}}},
    {"sana-1.6b_lora_24gb", {"rtx4090", 1, {{"train.micro_batch", "4"}}}},
    {"sana1.5-1.6b_full_h100", {"h100", 8, {{"train.micro_batch", "16"}}}},
    {"sana-sprint-0.6b_scm_h100", {"h100", 8, {{"train.micro_batch", "16"}}}},
    {"wan2.1-t2v-1.3b_dmd_h100", {"h100", 8, {{"train.micro_batch", "2"}}}}};

TEST(Numbers, EachShippedRecipeForGpusComputesInBf16AndIsPlannedAsThePageSays) {
  const std::string page = checkpoint::read_text(TESSERA_SOURCE_DIR "/docs/plans.md");
  for (const auto& file : std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/recipes")) {
    const std::string name = file.path().stem().string();
    if (name.ends_with("_cpu")) continue;
    ASSERT_TRUE(kShipped.contains(name)) << name << " has no row";
    const Shipped& shipped = kShipped.at(name);
    recipe::Overrides changes = shipped.changes;
    changes.emplace_back("plan.profile", shipped.gpu);
    if (shipped.devices > 1) changes.emplace_back("mesh.dp_shard", std::to_string(shipped.devices));
    const recipe::Recipe recipe = planning::shipped(name, changes);
    EXPECT_EQ(recipe.values.at("plan.compute_dtype"), "bf16") << name;
    const Planned plan = planned(recipe);
    ASSERT_TRUE(plan.choice.fits) << name;
    EXPECT_EQ(plan.machine.dtype, "bf16") << name;
    char row[512];
    const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (int64_t{1} << 30); };
    std::snprintf(row, sizeof row, "| %s | %s | %.1f | %.1f | %.1f | %.2f s |", name.c_str(), shipped.gpu.c_str(),
                  gib(plan.budget), gib(plan.choice.memory.peak), gib(plan.choice.memory.host.total()),
                  plan.choice.seconds);
    std::string shown = row;
    if (recipe.distill.matches()) shown.resize(shown.rfind("| ", shown.size() - 3) + 2);  // of the steps that a run has
    EXPECT_NE(page.find(shown), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace tessera::planning
