#include "tessera/job/sources.h"

#include <filesystem>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/training.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/job/experts.h"
#include "tessera/models/registry.h"

namespace tessera::job {

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
