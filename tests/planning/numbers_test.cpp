// Numbers that the documents name, as the planner gives them for real models on shipped profiles.
#include <gtest/gtest.h>

#include "tessera/job/job.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/planning.h"
#include "tessera/recipe/load_recipe.h"

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
/// of 3.7 s a step is missed: 3.60 s are the model's products and attention, and what is left of the step is the copies of
/// 14 to 17 GB of activations, which wait for the compute that takes their memory, and norms that are computed again.
TEST(Numbers, S2vOnEightA100TakesAtMost43GBAndTheTimesOfTheTable) {
  const auto plan = [](const std::string& mesh, const std::string& budget) {
    return planned(recipe::load_recipe(TESSERA_SOURCE_DIR "/recipes/wan2.2-s2v-14b_full_a100.toml",
                                       {{"mesh", mesh}, {"plan.budget", budget}, {"data.text_encoder_path", ""}}));
  };
  for (const auto& [mesh, seconds] : {std::pair("cp=8", 3.78), {"sp=8", 3.82}}) {
    const Planned tight = plan(mesh, "43000000000");
    ASSERT_TRUE(tight.choice.fits) << mesh;
    EXPECT_LE(tight.choice.memory.peak, 43'000'000'000) << mesh;
    EXPECT_LE(tight.choice.seconds, seconds) << mesh;
    const plan::MemoryParts& held = tight.choice.memory.by_part;
    EXPECT_LE(held.parameters + held.gradients + held.states, 21'600'000'000) << mesh;
    EXPECT_LE(tight.prediction.step.exposed_comm, 0.05 * tight.choice.seconds) << mesh;
  }
  const Planned whole = plan("cp=8", "");
  EXPECT_LE(whole.choice.seconds, 3.7) << "with the whole GPU the ring is within the aim";
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

}  // namespace
}  // namespace tessera::planning
