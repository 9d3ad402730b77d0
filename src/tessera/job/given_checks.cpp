#include "tessera/job/given_checks.h"

#include <c10/util/Exception.h>
#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/base/version.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/training.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/device/failure.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/engine/store/meter.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/job/encoders.h"
#include "tessera/job/experts.h"
#include "tessera/models/registry.h"
#include "tessera/plan/optimizers.h"
#include "tessera/recipe/setting.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

namespace {

void refuse(const char* key, const recipe::Recipe& recipe, const std::string& what, const std::string& hint) {
  std::string shown;
  for (const std::string& item : split_list(recipe.values.at(key))) shown += (shown.empty() ? "" : ",") + item;
  throw UserError(Exit::usage, key, shown + ": " + what, hint);
}

void check_lengths(const recipe::Recipe& recipe, const net::VideoCodec& codec) {
  for (const data::Bucket& bucket : recipe.data.clips.buckets) {
    const int64_t latents = codec.latent_shape(bucket.frames, bucket.height, bucket.width)[1];
    if (latents < 2) continue;  // a picture
    double weight = 0;
    for (const families::Weighted& kind :
         families::fitting(recipe.diffusion.conditions, latents, families::is_causal(bucket.frames, latents)))
      weight += kind.weight;
    if (weight > 0) continue;
    refuse("diffusion.conditions", recipe, "clips of " + bucket.text() + " are too short for each of them",
           "give a kind of single frames, or of none, a weight, or leave that shape out");
  }
}

/// What would give a model frames in place of a key that does not.
const char* other_key(const net::Conditions& takes) {
  if (diffusion::reads_beside(takes)) return "diffusion.mask_types gives it frames beside them";
  if (takes.frame_masks) return "diffusion.mask_ratios gives it frames without noise";
  return takes.given_frames ? "diffusion.conditions gives it frames beside them" : "leave it out";
}

void check_latents(const char* key, const recipe::Recipe& recipe, bool encodes) {
  if (!recipe.data.latents || !encodes) return;
  refuse(key, recipe,
         "frames that are given are encoded on their own, and data.latents = \"" + recipe.values.at("data.latents") +
             "\" has latents of whole clips",
         "train on the clips, or leave it out");
}

bool has_conditions(const recipe::Recipe::Diffusion& diffusion) {
  return std::ranges::any_of(diffusion.conditions, [](const families::Weighted& kind) {
    return kind.weight > 0 && families::places_of(kind.name).any();
  });
}

/// The frames of the kind, of training or of samples, that parts a clip most often.
std::vector<int64_t> most_parted(const recipe::Recipe& recipe, int64_t latent_frames) {
  std::vector<families::Weighted> kinds = recipe.diffusion.mask_types;
  const auto& sample = recipe.sample;
  std::string sampled = sample.condition;
  if (sampled == "auto")
    sampled = families::kind_giving(!sample.images.empty(), !sample.last_images.empty(), !sample.videos.empty());
  const bool none = sampled == families::kind_giving(false, false, false);
  if (!none && (sample.condition != "auto" || !sample.videos.empty() || !kinds.empty())) kinds.push_back({sampled, 1});
  return families::most_parted(kinds, latent_frames);
}

/// Which conditions are drawn and left out.
void check_drawn(const recipe::Recipe& recipe, const net::Conditions& takes) {
  if (recipe.diffusion.draws.on()) {
    if (takes.guides.empty() && (!takes.first_image || takes.last_image))
      refuse("diffusion.condition_draws", recipe, "the model is given no masks or pictures that could be drawn",
             "leave it out");
    check_latents("diffusion.condition_draws", recipe, true);
  }
  const auto taken = [&](const std::string& name) {
    if (name == "control") return takes.control_dim > 0;
    if (name == "start") return takes.takes_images() && takes.mask_channels == 0;
    return name == "reference" ? takes.reference_dim > 0 : takes.clip_dim > 0;
  };
  for (const families::Weighted& one : recipe.diffusion.condition_dropout)
    if (!taken(one.name))
      refuse("diffusion.condition_dropout", recipe,
             "the model has no condition " + one.name + " that could be left out", "leave it out");
}

/// Chunks with timesteps of their own are drawn from the whole of one distribution.
void check_chunks(const recipe::Recipe& recipe, const net::Conditions& takes) {
  const recipe::Recipe::Diffusion& keys = recipe.diffusion;
  if (recipe.distill.chunk > 0 && !takes.chunks_in_time)
    refuse("distill.chunk", recipe, "the model takes one timestep for a clip, and its frames see all others",
           "leave it out, or distil a model that takes a timestep for each frame (docs/long-clips.md)");
  const diffusion::ChunkDraws draws = chunk_draws(keys);
  if (!draws.on()) return;
  const char* key = draws.starts.empty() ? "diffusion.first_frame_noise" : "diffusion.chunks";
  if (!takes.chunks_in_time)
    refuse(key, recipe, "the model takes one timestep for a clip",
           "leave it out, or train a model that takes one for each frame (docs/data-sets.md)");
  diffusion::Options options;
  diffusion::parse_timesteps(keys.timesteps, options);
  const std::pair<bool, std::string> beside[] = {
      {!diffusion::draws_chunks(options.timesteps), "diffusion.timesteps = \"" + keys.timesteps + "\""},
      {keys.strata > 0, "diffusion.strata"},
      {!keys.bands.empty(), "diffusion.bands"},
      {keys.min_t > 0 || keys.max_t < 1, "diffusion.min_t or max_t"},
      {keys.huber_schedule != "constant", "diffusion.huber_schedule, which goes by a clip's timestep"},
      {find_experts(recipe).several() && recipe.experts.router != "gate", "experts that own a range of timesteps"}};
  for (const auto& [there, what] : beside)
    if (there) refuse(key, recipe, "it cannot be combined with " + what, "leave one of them out");
}

}  // namespace

void check_given(const recipe::Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec) {
  const net::Conditions takes = model.conditions();
  const bool beside = diffusion::reads_beside(takes);
  if (recipe.data.references != recipe::Recipe().data.references && takes.references == 0)
    refuse("data.references", recipe, "the model takes no pictures of references", "leave it out");
  if (takes.always_reference && recipe.data.references != takes.references)
    refuse("data.references", recipe, "every sample of the model begins with one reference", "leave it out");
  check_drawn(recipe, takes);
  if (takes.clip_dim > 0 && takes.image_with_first && recipe.data.latents && recipe.diffusion.conditions.empty() &&
      recipe.diffusion.image_share > 0)
    refuse("diffusion.image_share", recipe,
           "what the model sees of a first frame is made from its pixels, and data.latents = \"" +
               recipe.values.at("data.latents") + "\" has latents",
           "train on the clips, set diffusion.image_share = 0, or model.config.image_len = 0");
  if (!recipe.diffusion.conditions.empty()) {
    if (!takes.given_frames || beside)
      refuse(
          "diffusion.conditions", recipe,
          beside ? "the model is given frames by kinds of its own" : "the model reads no frames beside the noisy ones",
          other_key(takes));
    check_latents("diffusion.conditions", recipe, !families::given_text(recipe.diffusion.conditions).empty());
  }
  if (!recipe.diffusion.mask_types.empty()) {
    if (!beside)
      refuse("diffusion.mask_types", recipe, "the model is given no frames by these kinds", other_key(takes));
    check_latents("diffusion.mask_types", recipe, families::any_noisy(recipe.diffusion.mask_types));
  }
  for (const recipe::RunPart& part : recipe::run_parts(recipe)) {
    check_chunks(part.recipe, takes);
    const bool follows = takes.control_dim > 0 || takes.pose_dim > 0 || !takes.guides.empty();
    for (const recipe::Recipe::DataSet& set : part.recipe.data_sets())
      if (!set.data.control_path.empty() && !follows)
        throw UserError(Exit::usage, "recipe",
                        "data.control_path = " + set.data.control_path + ": the model follows no other clip",
                        "leave it out, or train a model that follows a clip (docs/data-sets.md)");
    if (!part.recipe.diffusion.conditions.empty()) recipe::in_part(part, [&] { check_lengths(part.recipe, codec); });
    if (!part.recipe.diffusion.mask_ratios.empty() && !takes.frame_masks)
      refuse("diffusion.mask_ratios", part.recipe, "the model takes no frames without noise among the noisy ones",
             other_key(takes));
  }
}

int64_t given_bytes(const recipe::Recipe::Diffusion& diffusion, const net::Denoiser& model,
                    const std::array<int64_t, 4>& latent) {
  const net::Conditions takes = model.conditions();
  constexpr int64_t kFloat = 4, kDouble = 8, kIndex = 8, kBlock = 64;
  const bool by_frame = takes.chunks_in_time && chunk_draws(diffusion).on();
  const int64_t mask = takes.frame_masks && !diffusion.mask_ratios.empty() ? kFloat * latent[1]
                       : by_frame                                          ? kDouble * latent[1]
                                                                           : 0;
  if (latent[1] < 2) return 0;
  const int64_t frames = kFloat * latent[0] * latent[1] * latent[2] * latent[3];
  if (diffusion::reads_beside(takes)) {
    if (!families::any_beside(diffusion.mask_types)) return mask;
    return round_up(frames, kBlock) + round_up(kFloat * model.context_length() * model.context_dim(), kBlock) +
           kIndex * latent[1];
  }
  if (takes.given_frames && has_conditions(diffusion)) return frames + frames / latent[0];
  return mask;
}

std::vector<families::GivenFrames> encoded_given(const recipe::Recipe::Diffusion& diffusion, int64_t frames,
                                                 int64_t latent_frames) {
  std::vector<families::GivenFrames> all = families::all_given(diffusion.conditions, frames, latent_frames);
  if (latent_frames > 1 && families::any_noisy(diffusion.mask_types))
    all.push_back({0, frames, 0, latent_frames, true});
  return all;
}

net::Sample blank_sample(const recipe::Recipe& recipe, const net::Denoiser& model,
                         const std::array<int64_t, 4>& latent) {
  auto whole = latent;
  const net::Conditions takes = model.conditions();
  whole[1] += takes.always_reference ? takes.references : std::min(recipe.data.references, takes.references);
  net::Sample sample = model.blank(whole);
  const bool in_chunks = recipe.distill.chunk > 0;
  if (takes.chunks_in_time && (in_chunks || chunk_draws(recipe.diffusion).on()) && whole[1] > 1)
    sample.extra["t"] = at::zeros({whole[1]}, at::kDouble);
  if (takes.chunks_in_time && in_chunks) {
    std::vector<int64_t> begins = net::chunk_bounds(whole[1], recipe.distill.chunk);
    begins.pop_back();
    sample.extra["chunks"] = at::tensor(begins, at::kLong);
  }
  if (!diffusion::reads_beside(model.conditions())) return sample;
  const std::vector<int64_t> given = most_parted(recipe, latent[1]);
  if (given.empty()) return sample;
  sample.extra["mask_index"] = at::tensor(given, at::kLong);
  sample.extra["y_null"] = sample.context.to(at::kMeta);
  return sample;
}

namespace {

bool several(const recipe::Recipe& recipe) { return find_experts(recipe).models() > 1; }
bool windows(const recipe::Recipe& recipe) {
  const Experts experts = find_experts(recipe);
  return !experts.critic() && !experts.list.front().name.empty();
}

/// Why what was set for a key does nothing, "VALUE has no effect: ..."; none where it does something, or nothing was set.
std::vector<std::string> idle(const recipe::Setting& setting, const recipe::Facts& facts) {
  const std::vector<std::string> value = split_list(facts.recipe.values.at(setting.key));
  if (value == split_list(setting.fallback)) return {};  // a list of one is that one
  std::string shown;
  for (const std::string& item : value) shown += (shown.empty() ? "" : ",") + item;
  std::vector<std::string> why;
  for (const recipe::Needs& needs : setting.more.needs)
    if (!needs.met(facts)) why.push_back(shown + " has no effect: " + needs.otherwise);
  return why;
}

/// "KEY = VALUE has no effect: ..." for each key that was set and lacks what it needs. What [data] says holds for the sets
/// that do not say it themselves: it does nothing where it does nothing for each of them.
void add_idle(const recipe::Facts& facts, std::vector<std::string>& notes) {
  std::vector<recipe::Recipe> sets;
  for (size_t s = 0; s < facts.recipe.sets.size(); ++s) sets.push_back(facts.recipe.of_set(s));
  for (const recipe::Setting& setting : recipe::settings()) {
    const bool by_set = !sets.empty() && setting.key.starts_with("data.");
    bool used = false;
    for (size_t s = 0; by_set && s < sets.size(); ++s) {
      const std::string own = facts.recipe.sets[s].key + setting.key.substr(5);
      const auto why = idle(setting, {sets[s], facts.mesh, facts.several_experts, facts.own_windows});
      if (!facts.recipe.values.contains(own))
        used |= why.empty();
      else
        for (const std::string& each : why) notes.push_back(own + " = " + each);
    }
    if (used) continue;
    for (const std::string& each : idle(setting, facts)) notes.push_back(setting.key + " = " + each);
  }
}

/// Fields of model.config that replace those of a preset.
std::string replaced_sizes(const recipe::Recipe& recipe) {
  std::string list;
  for (const auto& [key, value] : recipe.values)
    if (key.starts_with("model.config.") && !value.empty()) list += (list.empty() ? "" : ", ") + key.substr(13);
  return list;
}

}  // namespace

std::vector<std::string> without_effect(const recipe::Recipe& recipe, const Mesh& mesh) {
  std::vector<std::string> notes;
  const recipe::Facts facts{recipe, mesh, several, windows};
  add_idle(facts, notes);
  const std::string replaced = replaced_sizes(recipe);
  if (!recipe.model.preset.empty() && !replaced.empty())
    notes.push_back("model.preset = " + recipe.model.preset + " is changed by model.config, which gives " + replaced);
  const auto add = [&](const char* key, const std::string& words) {
    notes.push_back(std::string(key) + " = " + recipe.values.at(key) + " " + words);
  };
  if (recipe.lr_schedule.warmup_steps > recipe.run.steps && recipe.lr_schedule.name != "constant")
    add("train.warmup_steps", "never ends: run.steps = " + std::to_string(recipe.run.steps) +
                                  ", so the learning rate does not reach train.lr");
  if (plan::row(recipe.plan.states.optimizer).distance && recipe.train.lr < 0.1)
    add("train.lr", "multiplies the step size that train.optimizer = " + recipe.values.at("train.optimizer") +
                        " finds itself: 1 is usual");
  if (facts.searches()) {
    const int64_t share = div_up(recipe.train.global_batch, mesh.dp_size());
    if (recipe.train.micro_batch > share)
      add("train.micro_batch", "is more than the samples of a rank: micro-batches have " + std::to_string(share));
    if (recipe.plan.strategy && mesh.world() == 1 && *recipe.plan.strategy != plan::Strategy::no_shard &&
        *recipe.plan.strategy != plan::Strategy::two_level)
      add("plan.strategy", "has no effect on one rank: there is no other to share with");
  }
  const int replicas = mesh[Axis::dp_replicate];
  const bool two_level = recipe.plan.strategy == plan::Strategy::two_level;
  if (replicas > 1 && mesh[Axis::dp_shard] == 1 && !two_level)
    notes.push_back("mesh.dp_replicate = " + std::to_string(replicas) +
                    " shards nothing: every rank holds the whole model, gradients and states; dp_shard = " +
                    std::to_string(replicas) + " shards them over as many ranks");
  if (two_level && replicas == 1)
    notes.push_back(
        "plan.strategy = two_level has no effect: with mesh.dp_replicate = 1 there is one replica, "
        "and it is full_shard");
  if (mesh.dp_size() > recipe.train.global_batch && recipe::batches(recipe).empty())
    notes.push_back("train.global_batch = " + std::to_string(recipe.train.global_batch) + " leaves " +
                    std::to_string(mesh.dp_size() - recipe.train.global_batch) + " of " +
                    std::to_string(mesh.dp_size()) + " ranks without a sample, which wait for the others");
  if (!recipe.model.path.empty() && recipe.model.init != "random") {
    const char* why =
        " while model.path has pretrained weights, which expect the embeddings and latents they were trained with";
    if (encodes_texts(recipe) && recipe.data.text_encoder_path.empty())
      notes.push_back("data.text_encoder_path is empty: '" + recipe.data.text_encoder + "' gets random weights" + why);
    const bool codes = encodes_clips(recipe);
    if (codes && models::is_built_in_codec(recipe.data.vae))
      notes.push_back("data.vae = " + recipe.data.vae + " is a plain wavelet" + why);
    if (codes && std::ranges::count(models::autoencoder_presets(), recipe.data.vae) > 0)
      notes.push_back("data.vae = " + recipe.data.vae + " is a name without a file: it gets random weights" + why);
  }
  return notes;
}

namespace {

/// Where a fault of ours is reported: wherever this copy of the program came from.
const std::string kWhere = std::string(" (tessera ") + kVersion +
                           "): as an issue in the repository that you have tessera from, with all that it printed; "
                           "CONTRIBUTING.md there says what else helps";

}  // namespace

Exit tell_error(const std::exception& error) {
  const auto say = [](const Error& told) {
    log::error(told.code() == Exit::internal ? told.what() + kWhere : told.what());
    return told.code();
  };
  if (const auto* named = dynamic_cast<const device::Failure*>(&error)) return say(*named);
  if (const auto failed = device::failure()) return say(*failed);  // the error followed from that
  if (const auto* own = dynamic_cast<const Error*>(&error)) return say(*own);
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    log::error(std::string(file->what()) + "; check that path: whether it is there and may be written");
    const std::error_code& code = file->code();
    const bool name = code == std::errc::filename_too_long || code == std::errc::too_many_symbolic_link_levels ||
                      code == std::errc::invalid_argument;
    return name ? Exit::input : Exit::disk;  // a name that no file can have is no fault of the disk
  }
  if (const auto short_of = engine::out_of_memory(error)) return say(*short_of);
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  log::error(std::string(from_torch ? from_torch->what_without_backtrace() : error.what()) +
             "; this is a fault in tessera; please report it with the command" + kWhere);
  return Exit::internal;
}

namespace {

namespace fs = std::filesystem;
using models::ModelKind;

/// "a LoRA", "an autoencoder": what a file is, for messages.
const char* described(ModelKind kind) {
  switch (kind) {
    case ModelKind::denoiser:
      return "a diffusion transformer";
    case ModelKind::vae:
      return "a video autoencoder";
    case ModelKind::text_encoder:
      return "a text encoder";
    case ModelKind::image_encoder:
      return "an image encoder";
    case ModelKind::audio_encoder:
      return "a speech model";
    case ModelKind::lora:
      return "a LoRA";
    case ModelKind::unknown:
      break;
  }
  return "of no known kind";
}

/// The key that a file of this kind belongs to.
std::string place_of(ModelKind kind) {
  switch (kind) {
    case ModelKind::denoiser:
      return "it belongs to model.path";
    case ModelKind::vae:
      return "it belongs to data.vae";
    case ModelKind::text_encoder:
      return "it belongs to data.text_encoder_path";
    case ModelKind::image_encoder:
      return "it belongs to data.image_encoder_path";
    case ModelKind::audio_encoder:
      return "it belongs to data.audio_encoder";
    default:
      return "this is a LoRA: give the weights of its base model";
  }
}

/// A folder of a config.json alone: enough to plan with.
bool has_no_weights(const fs::path& path) {
  if (!fs::is_directory(path)) return false;
  for (const auto& item : fs::recursive_directory_iterator(path))
    if (checkpoint::is_weight_file(item.path()) || item.path().string().ends_with(".index.json")) return false;
  return true;
}

/// Refuses what is not there, with the command that fetches it where it is a release.
void check_there(const std::string& key, const std::string& path, const std::string& expected) {
  std::error_code unseen;
  if (fs::exists(path, unseen)) return;
  throw UserError(Exit::input, key, path + ": no such " + expected,
                  "check the path; relative paths start at the current folder, " + fs::current_path().string() +
                      checkpoint::fetched_by(path));
}

void check_kind(const std::string& key, const fs::path& path, ModelKind wanted) {
  if (has_no_weights(path)) return;
  const checkpoint::WeightSet weights = checkpoint::open_weights(path);
  models::Shapes shapes;
  for (const auto& name : weights.names()) shapes[name] = weights.at(name).shape;
  const models::Identity what = models::identify(shapes);
  if (what.kind == wanted || what.kind == ModelKind::unknown) return;
  throw UserError(
      Exit::input, key,
      path.string() + " is " + described(what.kind) + " (" + what.model + "), expected " + described(wanted),
      place_of(what.kind));
}

}  // namespace

void check_sources(const recipe::Recipe& recipe, Missing missing) {
  if (!recipe.model.path.empty() && recipe.model.init != "random") {
    check_there("model.path", recipe.model.path, "file or folder");
    for (const Expert& expert : find_experts(recipe).list) check_kind("model.path", expert.path, ModelKind::denoiser);
  }
  if (missing == Missing::refused) {
    const recipe::Recipe::Data& data = recipe.data;
    for (const auto& [key, path] : {std::pair("data.text_encoder_path", data.text_encoder_path),
                                    {"data.image_encoder_path", data.image_encoder_path},
                                    {"data.pooled_encoder_path", data.pooled_encoder_path},
                                    {"data.glyph_encoder_path", data.glyph_encoder_path}})
      if (!path.empty()) check_there(key, path, "file or folder");
    for (const auto& [key, path] :
         {std::pair("data.tokenizer", data.tokenizer), {"data.pooled_tokenizer", data.pooled_tokenizer}})
      if (!path.empty()) check_there(key, path, "file: a tokenizer is a spiece.model, a tokenizer.json or its folder");
    for (const auto& [path, role] : {std::pair(data.vae, "vae"),
                                     {data.text_encoder_path, "text_encoder"},
                                     {data.image_encoder_path, "image_encoder"},
                                     {data.second_encoder_path(), "pooled_encoder"}})
      if (fs::is_directory(path)) checkpoint::find_part(path, role);  // refuses a model's folder without that part
  }
  // a folder may hold several models, and its opener knows which of them it wants; a file of CLIP's two towers too
  for (const auto& [key, path, kind] :
       {std::tuple("data.vae", recipe.data.vae, ModelKind::vae),
        {"data.text_encoder_path", recipe.data.text_encoder_path, ModelKind::text_encoder},
        {"data.image_encoder_path", recipe.data.image_encoder_path, ModelKind::image_encoder},
        {"data.audio_encoder", recipe.data.audio_encoder, ModelKind::audio_encoder}})
    if (fs::is_regular_file(path)) check_kind(key, path, kind);
  if (recipe.lora.on && !recipe.lora.init.empty()) {  // of experts each has its own in a folder there
    check_there("lora.init", recipe.lora.init, "file or folder");
    if (fs::is_regular_file(recipe.lora.init)) check_kind("lora.init", recipe.lora.init, ModelKind::lora);
  }
  for (const recipe::LoraStrength& lora : recipe.sample.loras) {
    if (missing == Missing::refused) check_there("sample.lora", lora.file, "file or folder");
    if (fs::is_regular_file(lora.file)) check_kind("sample.lora", lora.file, ModelKind::lora);
  }
  const std::string& resume = recipe.run.resume;
  if (resume != "auto" && resume != "no" && !fs::exists(fs::path(resume) / "manifest.json") &&
      !fs::is_regular_file(resume) && !checkpoint::is_trainer_folder(resume) &&  // another trainer's
      !checkpoint::has_gone_on(resume, recipe.run.out))                          // keep may have pruned it since
    throw UserError(
        Exit::input, "run.resume",
        resume + (fs::exists(resume) ? " has no manifest.json: it is not a complete checkpoint" : ": no such folder"),
        "give a folder of a run's checkpoints/, another trainer's checkpoint_{step}.pt or epoch*-global_step* folder, \"auto\" or \"no\"");
}

}  // namespace tessera::job
