#include "tessera/train/job.h"

#include <unistd.h>

#include "tessera/base/check.h"
#include "tessera/engine/transfer.h"
#include "tessera/models/names.h"
#include "tessera/models/registry.h"
#include "tessera/train/codec.h"

namespace tessera::train {

Shapes shapes_of(const Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec) {
  Shapes shapes;
  shapes.latent = codec.latent_shape(recipe.data.frames, recipe.data.height, recipe.data.width);
  if (shapes.latent[0] != model.in_channels())
    throw UserError(Exit::usage, "model",
                    "the model takes latents of " + std::to_string(model.in_channels()) + " channels, autoencoder '" +
                        recipe.data.vae + "' makes " + std::to_string(shapes.latent[0]),
                    "does data.vae belong to this model? Else set model.config.in_dim and out_dim to that number");
  for (const data::Bucket& bucket : recipe.data.clips.buckets) {
    const auto latent = codec.latent_shape(bucket.frames, bucket.height, bucket.width);
    shapes.bucket_tokens.push_back(model.token_count(latent));
    if (shapes.bucket_tokens.back() <= shapes.tokens) continue;
    shapes.tokens = shapes.bucket_tokens.back();
    shapes.largest = latent;
  }
  shapes.guidance_branches = recipe.sample.guidance == 1.0 ? 1 : 2;
  return shapes;
}

Job make_job(const Recipe& recipe) {
  Job job;
  job.model =
      models::make_denoiser({recipe.model.family, recipe.model.preset, "", recipe.model.path, recipe.model.config});
  job.name = !recipe.model.path.empty()     ? recipe.model.path
             : !recipe.model.preset.empty() ? recipe.model.preset
                                            : recipe.model.family;
  const int64_t before = engine::Meter::live();
  job.codec = open_codec(recipe.data.vae, job.model->in_channels(), recipe.data.vae_tile);
  job.resident = engine::Meter::live() - before;
  job.text = models::make_text_encoder({.preset = recipe.data.text_encoder});
  static_cast<Shapes&>(job) = shapes_of(recipe, *job.model, *job.codec);
  if (job.text->dim() != job.model->context_dim())
    throw UserError(Exit::usage, "model",
                    "the model takes text embeddings of width " + std::to_string(job.model->context_dim()) +
                        ", text encoder '" + recipe.data.text_encoder + "' makes " + std::to_string(job.text->dim()),
                    "does data.text_encoder belong to this model? Else set model.config.text_dim to that number");
  job.context_length = job.model->context_length();
  return job;
}

namespace {

/// Nine tenths of a device, or of this machine's memory shared by the ranks on it: what a rank may take unless the
/// recipe says.
/// Each rank's part of the host memory that a node may give to what leaves its devices.
int64_t host_share(const Recipe& recipe, const plan::Profile& profile, int world) {
  int64_t bytes = recipe.plan.host_budget;
  if (bytes < 0) bytes = profile.devices > 0 ? profile.host_memory / 10 * 9 : 0;
  return bytes / (profile.devices > 0 ? std::min(profile.devices, world) : world);
}

int64_t default_budget(const plan::Profile& profile, int ranks) {
  if (profile.device.memory > 0 && profile.devices > 0) return profile.device.memory / 10 * 9;
  const int64_t total = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return total / 10 * 9 / ranks;
}

/// What encoding one clip during training takes, about: its pixels as floats, and twice that on the way to a latent.
int64_t pixel_bytes(const Recipe& recipe) {
  int64_t most = 0;
  for (const data::Bucket& b : recipe.data.clips.buckets) most = std::max(most, b.frames * b.height * b.width);
  return most * 3 * static_cast<int64_t>(sizeof(float)) * 3;
}

/// A plan by hand says how masters and moments are kept; keys of the recipe that say otherwise would change nothing.
void check_formats(const Recipe& recipe, const plan::Plan& plan) {
  const auto check = [&](std::string_view key, std::string_view in_recipe, std::string_view in_plan, bool is_default) {
    if (is_default || in_recipe == in_plan) return;
    throw UserError(Exit::usage, "plan.file",
                    recipe.plan.file + " has " + std::string(key) + " = \"" + std::string(in_plan) +
                        "\", the recipe plan." + std::string(key) + " = \"" + std::string(in_recipe) + "\"",
                    "say it in one of them");
  };
  const plan::StateFormat& states = recipe.plan.states;
  check("masters", name(states.masters), name(plan.states.masters), states.masters == plan::Masters::fp32);
  check("moments", name(states.moments), name(plan.states.moments), states.moments == plan::Moments::fp32);
  check("param_dtype", name(recipe.plan.param_dtype), name(plan.gathered()),
        recipe.plan.param_dtype == plan::ParamType::fp32);
}

}  // namespace

int64_t prompt_bytes(const Job& job, int prompts) {
  return (std::max(prompts, 1) + 1) * round_up(job.context_length * job.model->context_dim() * 4, 64);
}

PlanRequest plan_request(const Recipe& recipe, const Job& job, const Shapes& shapes, const Mesh& mesh, int prompts) {
  PlanRequest request;
  request.model = job.model.get();
  request.model_name = job.name;
  request.latent = shapes.largest;  // smaller buckets run under the same schedule and take less
  request.mesh = mesh;
  request.guidance_branches = shapes.guidance_branches;
  request.resident = job.resident + prompt_bytes(job, prompts);
  if (recipe.data.online()) request.resident += pixel_bytes(recipe);
  // Samples are decoded while everything else is there: counted as if it always were, so that none breaks the plan.
  const bool decodes = recipe.sample.every > 0 || recipe.data.online();
  if (decodes) request.resident += codec_bytes(*job.codec, recipe.data.frames, recipe.data.height, recipe.data.width);
  request.planner.global_batch = recipe.train.global_batch;
  const int64_t share = div_up(recipe.train.global_batch, mesh.dp_size());
  request.planner.micro_batch = recipe.train.micro_batch > 0 ? std::min(recipe.train.micro_batch, share) : share;
  request.any_micro_batch = recipe.train.micro_batch == 0;
  request.machine.profile = plan::find_profile(recipe.plan.profile);
  request.planner.budget =
      recipe.plan.budget > 0 ? recipe.plan.budget : default_budget(request.machine.profile, mesh.world());
  request.planner.prefetch = recipe.plan.prefetch;
  request.planner.recompute_units = recipe.plan.recompute;
  request.planner.strategy = recipe.plan.strategy;
  request.planner.states = recipe.plan.states;
  request.planner.host_budget = host_share(recipe, request.machine.profile, mesh.world());
  request.planner.nvme = !recipe.plan.nvme.empty();
  request.planner.activations = recipe.plan.activations;
  request.planner.parameters = recipe.plan.parameters;
  request.planner.gradients = recipe.plan.gradients;
  request.planner.states_tier = recipe.plan.states_tier;
  request.machine.update_bytes = 4 + 2 * plan::bytes_per_parameter(recipe.plan.states);
  request.planner.param_dtype = recipe.plan.param_dtype;
  if (!recipe.plan.file.empty() && recipe.plan.file != "auto") {
    std::vector<std::string> names;
    for (const auto& unit : job.model->units()) names.push_back(unit->spec().name);
    request.by_hand = plan::Plan::from_toml(checkpoint::read_text(recipe.plan.file), recipe.plan.file, names);
    check_formats(recipe, *request.by_hand);
  }
  request.checkpoints_kept = static_cast<int>(recipe.checkpoint.keep);
  request.run.steps = recipe.run.steps;
  request.run.checkpoint_every = recipe.checkpoint.every;
  request.run.sample_every = recipe.sample.every;
  request.run.sample_prompts = prompts;
  request.run.sample_steps = static_cast<int>(recipe.sample.steps);
  return request;
}

void load_initial_weights(const Recipe& recipe, const Job& job, engine::Store& store) {
  if (recipe.model.init == "load" && recipe.model.path.empty())
    throw UserError(Exit::usage, "model.init", "'load' has nothing to load: model.path is empty",
                    "set model.path, or model.init = \"random\"");
  if (recipe.model.path.empty() || recipe.model.init == "random") {
    engine::fill_shards(store, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
      job.model->initialise(param, static_cast<uint64_t>(recipe.run.seed), first, count, out);
    });
    return;
  }
  const checkpoint::WeightSet weights = checkpoint::open_weights(recipe.model.path);
  std::vector<std::string> official;
  for (const auto& unit : job.model->units())
    for (const auto& param : unit->spec().params) official.push_back(param.name);
  const auto foreign = [&](const std::string& name, const std::string& naming) {
    return job.model->foreign_name(name, naming);
  };
  const models::Naming naming =
      models::detect_naming(official, foreign, models::kDenoiserNamings, weights.names(), recipe.model.path);
  engine::load_weights(
      store, weights, [&](const std::string& name) { return naming.prefix + foreign(name, naming.naming); },
      [](const std::string& name, const std::vector<int64_t>& shape) {
        const std::string preset = models::likely_preset(name, shape);
        return preset.empty() ? "does model.config belong to these weights?"
                              : "these weights are " + preset + ": try model.preset = \"" + preset + "\"";
      });
}

}  // namespace tessera::train
