#include "tessera/train/job.h"

#include <unistd.h>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/engine/transfer.h"
#include "tessera/models/registry.h"
#include "tessera/plan/plan_notes.h"
#include "tessera/plan/reserve.h"
#include "tessera/train/codec.h"
#include "tessera/train/conditioner.h"
#include "tessera/train/encoder_bytes.h"
#include "tessera/train/gated_step.h"
#include "tessera/train/lora_run.h"
#include "tessera/train/named_weights.h"
#include "tessera/train/stages.h"
#include "tessera/train/text_run.h"

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

namespace {

/// The most that encoding or decoding takes over all parts of the run.
int64_t most_bytes(const Recipe& recipe, const net::VideoCodec& codec) {
  int64_t most = 0;
  for (const RunPart& part : run_parts(recipe))
    in_part(part, [&] {
      for (const data::Bucket& b : part.recipe.data.clips.buckets) {
        const EncoderBytes bytes = codec_bytes(codec, b.frames, b.height, b.width);
        most = std::max({most, bytes.encode, bytes.decode});
      }
    });
  return most;
}

/// Tiles change latents, and so which entries of a cache are used: they follow from the recipe alone, never from the
/// machine or the number of ranks.
void open_tiled(const Recipe& recipe, Job& job) {
  const bool automatic = recipe.data.vae_tile < 0;
  constexpr int64_t kTiles[] = {0, 512, 384, 256, 192, 128};
  for (const int64_t tile : kTiles) {
    job.vae_tile = automatic ? tile : recipe.data.vae_tile;
    job.codec = open_codec(recipe.data.vae, job.model->in_channels(), job.vae_tile);
    if (!automatic || recipe.plan.budget <= 0 || recipe.data.vae.starts_with("haar")) return;
    if (most_bytes(recipe, *job.codec) <= recipe.plan.budget / 4) return;
  }
}

}  // namespace

namespace {

/// Shapes in the headers of the weights, which tell what a config.json leaves open. Nothing for a folder of a
/// config.json alone, enough to plan with; what is damaged is told by those who read it (check_sources, the loader).
std::map<std::string, std::vector<int64_t>> shapes_at(const std::string& path) {
  if (path.empty()) return {};
  try {
    return stored_shapes(checkpoint::open_weights(path));
  } catch (const UserError&) {
    return {};
  }
}

/// What the model makes videos from, for the user to see what was detected.
std::string purpose(const net::Denoiser& model) {
  const net::Conditions c = model.conditions();
  std::string text = c.last_picture ? "a first and a last picture" : c.first_picture ? "a first picture" : "";
  if (c.pictures()) text += c.clip_dim > 0 ? " (latent and CLIP features) and text" : " (latent) and text";
  if (c.clean_first) text = "text, or a first picture and text";
  if (c.audio_dim > 0) text = "sound, a picture and text";
  return text.empty() ? "text" : text;
}

/// Which experts learn, for the user to see what was detected.
std::string experts_told(const Experts& experts) {
  if (experts.list.front().name.empty()) return "";
  if (experts.gated) return "; " + std::to_string(experts.size()) + " experts learn, a gate chooses for each sample";
  char boundary[32];
  std::snprintf(boundary, sizeof boundary, "%g", experts.boundary);
  return (experts.several() ? "; two experts learn in turns" : "; its " + experts.list[0].name + " expert learns") +
         std::string(", high noise from timestep ") + boundary + " on";
}

std::unique_ptr<net::Denoiser> denoiser_at(const Recipe& recipe, const std::string& path) {
  return models::make_denoiser(
      {recipe.model.family, recipe.model.preset, "", path, recipe.model.config, shapes_at(path)});
}

/// Experts share plan, slots and schedule.
void check_same_form(const Recipe& recipe, const net::Denoiser& model, const Expert& expert) {
  if (expert.name.empty() || denoiser_at(recipe, expert.path)->config_json() == model.config_json()) return;
  throw UserError(
      Exit::input, "model.path", expert.path + " has another config.json than the other expert",
      "experts of one run are of one size and type; train each alone: experts.train = \"" + expert.name + "\"");
}

}  // namespace

Job make_job(const Recipe& recipe) {
  Job job;
  job.experts = find_experts(recipe);
  job.model = denoiser_at(recipe, job.experts.list.front().path);
  for (const Expert& expert : job.experts.list) check_same_form(recipe, *job.model, expert);
  place_boundary(job.experts, recipe, *job.model);
  for (const Expert& expert : job.experts.list) timestep_options(recipe, expert);  // refused now, not at its first turn
  if (const auto rule = adapter_rule(recipe)) job.adapted = models::adapt(*job.model, *rule);
  job.name = !recipe.model.path.empty()     ? recipe.model.path
             : !recipe.model.preset.empty() ? recipe.model.preset
                                            : recipe.model.family;
  log::info("model: " + job.name + " makes videos from " + purpose(*job.model) + experts_told(job.experts));
  job.image = open_image_encoder(recipe, job.model->conditions());
  const int64_t before = engine::Meter::live();
  open_tiled(recipe, job);
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

int blocks(const Job& job) {
  int count = 0;
  for (const auto& unit : job.model->units()) count += plan::may_save_less(unit->spec());
  return count;
}

/// Each rank's part of the host memory that a node may give to what leaves its devices.
int64_t host_share(const Recipe& recipe, const plan::Profile& profile, int world) {
  int64_t bytes = recipe.plan.host_budget;
  if (bytes < 0) bytes = profile.devices > 0 ? profile.host_memory / 10 * 9 : 0;
  return bytes / (profile.devices > 0 ? std::min(profile.devices, world) : world);
}

/// Of a device, or of this machine's memory shared by the ranks on it: what a rank may take unless the recipe says.
int64_t default_budget(const plan::Profile& profile, int ranks) {
  if (profile.device.memory > 0 && profile.devices > 0) return plan::without_reserve(profile.device.memory);
  const int64_t total = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return total / 10 * 9 / ranks;
}

/// What the updates of a step wait for, all of them: then none may run in the backward. Empty for nothing.
std::string why_not_in_backward(const Recipe& recipe, plan::ParamType compute, plan::ParamType reduce) {
  if (recipe.train.clip_norm > 0) {
    char norm[32];
    std::snprintf(norm, sizeof norm, "%g", recipe.train.clip_norm);
    return std::string("train.clip_norm = ") + norm + " clips by the norm of all gradients (0 clips nothing)";
  }
  if (recipe.run.on_nan == "skip") return "run.on_nan = \"skip\" decides by the loss and norm of the whole step";
  if (compute == plan::ParamType::fp16 || reduce == plan::ParamType::fp16)
    return "fp16 scales the loss, and a step that overflows anywhere is skipped";
  return {};
}

/// Experts that a gate chooses among have a pass each within a step, and gradients in the same place.
void check_gated(const Job& job, plan::Update update, const std::string& where) {
  if (job.experts.gated && update != plan::Update::end)
    throw UserError(Exit::usage, where,
                    "\"" + std::string(name(update)) +
                        "\" with experts.router = \"gate\": each expert's updates end its "
                        "own part of the step",
                    "use \"end\"");
}

void check_in_backward(const Recipe& recipe, plan::ParamType compute, plan::ParamType reduce,
                       const std::string& where) {
  const std::string why = why_not_in_backward(recipe, compute, reduce);
  if (!why.empty())
    throw UserError(Exit::usage, where, "\"in_backward\" updates each unit before the step's norm is known, but " + why,
                    "use \"just_in_time\", or switch that off");
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
  check("compute_dtype", name(recipe.plan.compute), name(plan.compute), recipe.plan.compute == plan::ParamType::fp32);
  check("reduce_dtype", name(recipe.plan.reduce), name(plan.reduce), recipe.plan.reduce == plan::ParamType::fp32);
  check("grad_dtype", name(recipe.plan.grad), name(plan.grad), recipe.plan.grad == plan::ParamType::fp32);
}

}  // namespace

int sample_passes(const Recipe& recipe, const net::Denoiser& model) {
  return static_cast<int>(recipe.sample.steps) + (model.conditions().audio_dim > 0 ? 1 : 0);
}

int64_t prompt_bytes(const Job& job, int prompts) {
  int64_t pictures = 0;
  for (const auto& [name, value] : job.model->blank(job.latent).extra)
    pictures += round_up(static_cast<int64_t>(value.nbytes()), 64);
  if (job.model->conditions().clean_first) pictures += round_up(4 * c10::multiply_integers(job.latent), 64);
  const int64_t text = round_up(job.context_length * job.model->context_dim() * 4, 64);
  return (std::max(prompts, 1) + 1) * text + prompts * pictures;
}

namespace {

/// Pixels of the largest clip as numbers, which y is encoded from; unlike a clip's own, which are bytes.
int64_t picture_bytes(const Recipe& recipe, const net::Denoiser& model) {
  int64_t most = 0;
  if (!model.conditions().pictures()) return most;
  for (const data::Bucket& b : recipe.data.clips.buckets) most = std::max(most, b.frames * b.height * b.width);
  return most * 3 * static_cast<int64_t>(sizeof(float));
}

}  // namespace

PlanRequest plan_request(const Recipe& recipe, const Job& job, const Shapes& shapes, const Mesh& mesh, int prompts) {
  PlanRequest request;
  request.model = job.model.get();
  request.model_name = job.name;
  request.latent = shapes.largest;  // smaller buckets run under the same schedule and take less
  request.mesh = mesh;
  request.guidance_branches = shapes.guidance_branches;
  request.resident = job.resident + prompt_bytes(job, prompts);
  const EncoderBytes encoders = encoder_bytes(recipe, job, mesh);
  if (recipe.data.online())  // clips come in every step
    request.resident += encoders.codec_weights + encoders.encode + picture_bytes(recipe, *job.model);
  if (job.experts.gated && !recipe.experts.hard) {
    const int64_t own = div_up(recipe.train.global_batch, mesh.dp_size());
    request.resident += mixed_bytes(own, recipe.train.micro_batch > 0 ? recipe.train.micro_batch : own,
                                    4 * c10::multiply_integers(shapes.largest));
  }
  if (recipe.sample.every > 0) {
    constexpr int64_t kLatents = 4;  // what the sampler remembers
    request.between_steps = encoders.decoding() + kLatents * 4 * c10::multiply_integers(shapes.latent);
  }
  request.encoders = encoders;
  if (!recipe.data.online()) {
    int64_t numbers = c10::multiply_integers(shapes.largest) + job.context_length * job.model->context_dim();
    for (const auto& [name, value] : job.model->blank(shapes.largest).extra) numbers += value.numel();
    request.cache_entry = 4 * numbers;
  }
  request.planner.global_batch = recipe.train.global_batch;
  const int64_t share = div_up(recipe.train.global_batch, mesh.dp_size());
  request.planner.micro_batch = recipe.train.micro_batch > 0 ? std::min(recipe.train.micro_batch, share) : share;
  request.any_micro_batch = recipe.train.micro_batch == 0;
  request.machine.profile = plan::find_profile(recipe.plan.profile);
  request.planner.budget =
      recipe.plan.budget > 0 ? recipe.plan.budget : default_budget(request.machine.profile, mesh.world());
  request.planner.prefetch = recipe.plan.prefetch;
  request.planner.update = job.experts.gated ? plan::Update::end : recipe.plan.update;
  if (recipe.plan.update) check_gated(job, *recipe.plan.update, "plan.update");
  if (recipe.plan.update == plan::Update::in_backward)
    check_in_backward(recipe, recipe.plan.compute, recipe.plan.reduce, "plan.update");
  request.planner.may_update_in_backward = why_not_in_backward(recipe, recipe.plan.compute, recipe.plan.reduce).empty();
  request.planner.update_on = recipe.plan.update_on;
  request.planner.update_threads = recipe.plan.update_threads;
  request.planner.recompute_units = recipe.plan.recompute;
  if (recipe.plan.recompute_every > 0) request.planner.recompute_units = blocks(job) / recipe.plan.recompute_every;
  request.planner.strategy = recipe.plan.strategy;
  request.planner.pipeline = recipe.plan.pipeline;
  request.planner.chunks = recipe.plan.chunks;
  request.planner.states = recipe.plan.states;
  request.planner.host_budget = host_share(recipe, request.machine.profile, mesh.world());
  request.planner.nvme = !recipe.plan.nvme.empty();
  request.planner.activations = recipe.plan.activations;
  request.planner.boundary = recipe.plan.boundary;
  request.planner.parameters = recipe.plan.parameters;
  request.planner.gradients = recipe.plan.gradients;
  request.planner.states_tier = recipe.plan.states_tier;
  request.planner.offload_to = recipe.plan.offload_to;
  request.machine.update_bytes =
      static_cast<double>(plan::size_of(recipe.plan.grad)) + 2 * plan::bytes_per_parameter(recipe.plan.states);
  request.planner.experts = static_cast<int>(job.experts.size());
  request.planner.idle = recipe.plan.idle.value_or(plan::Tier::device);
  request.any_idle = job.experts.several() && !recipe.plan.idle;
  request.planner.param_dtype = recipe.plan.param_dtype;
  request.planner.compute = recipe.plan.compute, request.planner.reduce = recipe.plan.reduce;
  request.planner.grad = recipe.plan.grad;
  if (!recipe.plan.file.empty() && recipe.plan.file != "auto") {
    std::vector<std::string> names;
    for (const auto& unit : job.model->units()) names.push_back(unit->spec().name);
    check_input(std::filesystem::is_regular_file(recipe.plan.file), "plan.file",
                recipe.plan.file + ": there is no such file",
                "tessera plan RECIPE --write FILE writes a plan, or use auto");
    const std::string text = checkpoint::read_text(recipe.plan.file);
    request.by_hand = plan::Plan::from_toml(text, recipe.plan.file, names);
    for (const std::string& note : plan::notes_on(text, *request.by_hand, names))
      request.notes += (request.notes.empty() ? recipe.plan.file + ": " : "; ") + note;
    check_formats(recipe, *request.by_hand);
    check_gated(job, request.by_hand->update, recipe.plan.file + ": update");
    if (request.by_hand->update == plan::Update::in_backward)
      check_in_backward(recipe, request.by_hand->compute, request.by_hand->reduce, recipe.plan.file + ": update");
    if (request.by_hand->experts != request.planner.experts)
      throw UserError(Exit::usage, "plan.file",
                      recipe.plan.file + " has experts = " + std::to_string(request.by_hand->experts) +
                          ", the run has " + std::to_string(request.planner.experts),
                      "set experts in the plan to that number");
    request.planner.compute = request.by_hand->compute;  // shapes are measured in it
  }
  // Processors without products of 16 bits have no rate for them: there kernels widen, and compute in fp32.
  if (request.planner.compute != plan::ParamType::fp32 && request.machine.profile.device.gemm.contains("bf16"))
    request.machine.dtype = "bf16";  // fp16 is as fast
  request.checkpoints_kept = static_cast<int>(recipe.checkpoint.keep);
  request.run.steps = recipe.run.steps;
  request.run.checkpoint_every = recipe.checkpoint.every;
  request.run.sample_every = recipe.sample.every;
  request.run.sample_prompts = prompts;
  request.run.sample_steps = sample_passes(recipe, *job.model);
  return request;
}

namespace {

NamedWeights open_initial_weights(const Recipe& recipe, const Job& job) {
  const auto foreign = [&model = *job.model](const std::string& name, const std::string& naming) {
    return model.foreign_name(name, naming);
  };
  return NamedWeights(recipe.model.path, job.model->units(), foreign, models::kDenoiserNamings);
}

/// Values of the adapters; of a model without any never asked for.
engine::Fill initial_adapters(const Recipe& recipe, const Job& job) {
  const auto rule = adapter_rule(recipe);
  return rule ? adapter_values(*rule, job.adapted, recipe.lora.init) : engine::Fill();
}

std::string likely_cause(const std::string& name, const std::vector<int64_t>& shape) {
  const std::string preset = models::likely_preset(name, shape);
  return preset.empty() ? "does model.config belong to these weights?"
                        : "these weights are " + preset + ": try model.preset = \"" + preset + "\"";
}

}  // namespace

void check_weights(const Recipe& recipe, const Job& job) {
  for (size_t e = 0; e < job.experts.size(); ++e)
    if (!recipe.model.path.empty() && recipe.model.init != "random")
      open_initial_weights(for_expert(recipe, job.experts, e), job).check(job.model->units(), likely_cause);
  if (!recipe.data.text_encoder_path.empty())
    open_text_weights(*job.text, recipe.data.text_encoder_path).check(job.text->units(), likely_text_cause);
}

namespace {

/// Of the expert that the store is about.
void load_expert(const Recipe& recipe, const Job& job, engine::Store& store, engine::Roundings& rounded) {
  const engine::Fill adapters = initial_adapters(recipe, job);
  if (recipe.model.init == "load" && recipe.model.path.empty())
    throw UserError(Exit::usage, "model.init", "'load' has nothing to load: model.path is empty",
                    "set model.path, or model.init = \"random\"");
  if (recipe.model.path.empty() || recipe.model.init == "random") {
    const engine::Fill initial = [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
      if (models::is_adapter_parameter(param.name)) return adapters(param, first, count, out);
      job.model->initialise(param, static_cast<uint64_t>(recipe.run.seed), first, count, out);
    };
    engine::fill_shards(store, initial, &rounded);
    return;
  }
  const NamedWeights weights = open_initial_weights(recipe, job);
  engine::load_weights(store, weights.set(), weights.names(), likely_cause, adapters, &rounded);
}

}  // namespace

engine::Roundings load_initial_weights(const Recipe& recipe, const Job& job, engine::Store& store) {
  return load_weights_of(recipe, job, job.experts, store);
}

engine::Roundings load_weights_of(const Recipe& recipe, const Job& job, const Experts& experts, engine::Store& store) {
  engine::Roundings rounded;
  each_expert(store, experts,
              [&](size_t e, const std::string&) { load_expert(for_expert(recipe, experts, e), job, store, rounded); });
  return rounded;
}

}  // namespace tessera::train
