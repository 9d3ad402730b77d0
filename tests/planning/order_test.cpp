// The plans of real models: whatever two instructions share, one of them comes first, if lanes are streams.
#include <gtest/gtest.h>

#include "planning/shipped.h"
#include "tessera/job/job.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/registry.h"
#include "tessera/plan/compile/races.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/planning.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::planning {
namespace {

/// Races in all schedules of all ranks.
std::string races(const Planned& planned, const plan::Plan& plan) {
  std::string all;
  for (int rank = 0; rank < plan.mesh.world(); ++rank) {
    const plan::RunSchedules schedules = plan::compile_all(planned.spec, plan, rank, planned.guidance_branches);
    for (const plan::Schedule* schedule : {&schedules.train, &schedules.first, &schedules.updates, &schedules.sample})
      for (const plan::Race& race : plan::find_races(planned.spec, plan, *schedule, rank))
        all += plan.summary() + ", rank " + std::to_string(rank) + ": " + to_string(race, *schedule) + "\n";
  }
  return all;
}

/// A recipe of recipes/ with fewer micro-batches, on few frames of the wavelet.
Planned planned(const std::string& name, recipe::Overrides changes) {
  changes.emplace_back("data.vae", "haar");
  const recipe::Recipe recipe = shipped(name, changes);
  const job::Job job = job::make_job(recipe);
  return make_plan_as_is(
      plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), recipe.mesh, /*prompts=*/1));
}

TEST(PlanRequestOf, AReleasedModelWithTheWaveletSaysHowManyTokensItsAutoencoderMakes) {
  const auto notes = [](const std::string& preset, const std::string& vae, const std::string& size = "1024,1024") {
    const recipe::Recipe recipe =
        shipped("wan2.1-t2v-14b_full_h200", {{"model.path", ""},
                                             {"model.preset", preset},
                                             {"data.vae", vae},
                                             {"data.frames", "1"},
                                             {"data.size", size},
                                             {"data.text_encoder", preset == "sana-1.6b" ? "gemma-2-2b" : "umt5-xxl"}});
    const job::Job job = job::make_job(recipe);
    return plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), Mesh{}, 0).notes;
  };
  EXPECT_EQ(
      notes("sana-1.6b", "haar"),
      "a sample has 16384 tokens with data.vae = haar and 1024 with the released dc-ae-f32c32: to plan for the latter set data.vae = "
      "\"dc-ae-f32c32\" or its path");
  EXPECT_EQ(notes("sana-1.6b", "dc-ae-f32c32"), "");
  EXPECT_EQ(notes("sana-1.6b", "haar", "1000,1000"), "") << "which dc-ae-f32c32 does not take";
  EXPECT_EQ(notes("wan2.1-t2v-14b", "haar"), "") << "the wavelet makes the shapes of this model's autoencoder";
}

TEST(Order, NoInstructionsOfAShippedRecipeShareMemoryInNoOrder) {
  const std::pair<const char*, recipe::Overrides> cases[] = {
      {"wan-tiny_demo_cpu", {{"mesh", "dp_shard=2"}}},
      {"wan-tiny_demo_cpu", {{"mesh", "pp=2,tp=2"}, {"train.micro_batch", "1"}}},
      {"wan-tiny_demo_cpu", {{"mesh", "cp=2,sp=2"}}},
      {"wan2.1-t2v-1.3b_lora", {{"data.frames", "32"}, {"plan.compute_dtype", "bf16"}}},
      {"wan2.1-t2v-14b_full_h200", {{"data.frames", "80"}, {"train.global_batch", "2"}}},
      {"wan2.2-s2v-14b_full_a100", {{"data.frames", "84"}, {"plan.budget", "43000000000"}}},
      {"wan2.2-s2v_demo_cpu", {{"mesh", "dp_shard=2"}}},
      {"wan2.2-t2v-a14b_full_h200", {{"data.frames", "80"}, {"train.global_batch", "2"}}},
  };
  for (const auto& [name, changes] : cases) {
    const Planned found = planned(name, changes);
    EXPECT_EQ(races(found, found.plan()), "") << name;
  }
}

/// All plans that the search looks at, with little memory: adapters, several experts, stages.
TEST(Order, NoInstructionsOfACandidateShareMemoryInNoOrder) {
  constexpr const char* kConfig =
      R"({"dim": 64, "num_heads": 2, "num_layers": 4, "ffn_dim": 192, "in_dim": 16, "out_dim": 16, "freq_dim": 32,
          "text_dim": 48, "text_len": 8})";
  int candidates = 0;
  for (const bool adapters : {false, true})
    for (const char* mesh : {"dp_replicate=2,dp_shard=2", "pp=2", "cp=2,tp=2"}) {
      const std::unique_ptr<net::Denoiser> model = models::make_denoiser({.config_text = kConfig});
      if (adapters) models::adapt(*model, {.rank = 4, .base = DType::i8, .targets = {"all"}});
      PlanRequest request;
      request.model = model.get();
      request.latent = {16, 4, 16, 16};
      request.mesh = Mesh::parse(mesh);
      request.planner.global_batch = 6, request.planner.micro_batch = 1;
      request.planner.experts = 2;
      request.planner.host_budget = int64_t{1} << 40;
      request.any_idle = true;
      request.run.steps = 10;
      request.planner.budget = make_plan_as_is(request).choice.memory.peak * 3 / 4;
      const Planned found = make_plan_as_is(request);
      for (const auto& candidate : found.choice.candidates) EXPECT_EQ(races(found, candidate.plan), "") << mesh;
      candidates += static_cast<int>(found.choice.candidates.size());
    }
  EXPECT_GT(candidates, 100);
}

}  // namespace
}  // namespace tessera::planning
