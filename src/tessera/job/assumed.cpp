#include "tessera/job/assumed.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/base/toml_text.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/training.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/device/backend.h"
#include "tessera/families/registry.h"
#include "tessera/families/releases.h"
#include "tessera/job/catalogue.h"
#include "tessera/job/device.h"
#include "tessera/models/registry.h"
#include "tessera/ops/session.h"

namespace tessera::job {

namespace fs = std::filesystem;

namespace {

constexpr const char* kCompute = "plan.compute_dtype";
constexpr const char* kAttention = "plan.attention";

struct Found {
  std::string dtype, why;
};

/// What a plan by hand has, without the key `otherwise`; damaged ones are told by their reader.
Found of_plan_file(const recipe::Recipe& recipe, const char* key, const std::string& otherwise) {
  const std::string& file = recipe.plan.file;
  std::error_code unseen;
  if (file.empty() || file == "auto" || !fs::is_regular_file(file, unseen)) return {};
  try {
    const toml::table plan = parse_toml(checkpoint::read_text(file), file);
    return {plan[key].value_or(otherwise), "plan.file has it"};
  } catch (const std::exception&) {
    return {};
  }
}

/// That of the run which goes on, by its checkpoint; what is wrong with that is told by who resumes.
Found of_checkpoint(const recipe::Recipe& recipe) {
  try {
    const checkpoint::Resume resume = checkpoint::choose_resume(recipe.run.resume, recipe.run.out, std::nullopt);
    if (!resume.from) return {};
    const checkpoint::Manifest manifest = checkpoint::load_manifest(*resume.from);
    const auto saved = manifest.extra.find("recipe");
    if (saved == manifest.extra.end() || !saved->is_object() || !saved->contains(kCompute)) return {};
    const auto& dtype = (*saved)[kCompute];
    if (!dtype.is_string() || dtype == "auto") return {};
    return {dtype.get<std::string>(), "the run computed so up to " + resume.from->string()};
  } catch (const UserError&) {
    return {};
  }
}

/// 90 of "sm_90"; 0: of no such name.
int generation_of(const std::string& chip) {
  int generation = 0;
  const std::string_view number = std::string_view(chip).substr(std::min<size_t>(chip.size(), 3));
  if (chip.starts_with("sm_")) std::from_chars(number.data(), number.data() + number.size(), generation);
  return generation;
}

bool computes_in_bf16(const std::string& chip) { return generation_of(chip) >= 80; }

Found of_device(const recipe::Recipe& recipe) {
  if (const plan::Profile profile = plan::find_profile(recipe.plan.profile); computes_in_bf16(profile.target))
    return {"bf16", "plan.profile " + profile.name + " is of " + profile.target + ", which has products of bf16"};
  if (!device::used()) return {"fp32", "a CPU computes"};
  const device::Properties gpu = device::used()->properties(device::here().index());
  if (computes_in_bf16(gpu.chip)) return {"bf16", gpu.name + " is of " + gpu.chip + ", which has products of bf16"};
  return {"fp32", gpu.name + " is no GPU of sm_80 or newer"};
}

struct Gpu {
  std::string chip, name;
};

/// What is planned for, or what computes; without a chip where no GPU does.
Gpu gpu_of(const recipe::Recipe& recipe) {
  const plan::Profile profile = plan::find_profile(recipe.plan.profile);
  if (!profile.target.empty() || !device::used()) return {profile.target, "plan.profile " + profile.name};
  const device::Properties gpu = device::used()->properties(device::here().index());
  return {gpu.chip, gpu.name};
}

/// Of a recipe that asks for products in 8 bits. Throws UserError (usage) for GPUs that have none.
std::string told_fp8(const recipe::Recipe& recipe) {
  const auto [chip, name] = gpu_of(recipe);
  if (chip.empty())
    return std::string(kCompute) +
           " = fp8: a CPU computes, which has no products of 8 bits: the same codes by products of bf16, slower than "
           "bf16 by the time of quantising";
  if (generation_of(chip) >= 89) return "";
  throw UserError(Exit::usage, kCompute, "\"fp8\": " + name + " is of " + chip + ", which has no products of 8 bits",
                  "set it to bf16, or take a GPU of sm_89 or newer");
}

std::string settled_compute(recipe::Recipe& recipe) {
  if (recipe.plan.fp8) return told_fp8(recipe);
  if (recipe.values.at(kCompute) != "auto") return "";
  Found found = of_plan_file(recipe, "compute_dtype", "fp32");
  if (found.dtype.empty()) found = of_checkpoint(recipe);
  if (found.dtype.empty()) found = of_device(recipe);
  recipe.set(kCompute, found.dtype);
  const std::string told = recipe.plan.fp8 ? told_fp8(recipe) : "";
  return std::string(kCompute) + " = " + found.dtype + ": " + found.why + (told.empty() ? "" : "; " + told);
}

/// By the chip that is planned for, or that computes; nothing where no GPU does, or none with a choice.
Found attention_of_device(const recipe::Recipe& recipe) {
  const auto [chip, name] = gpu_of(recipe);
  if (chip != "sm_90") return {};
  if (recipe.run.deterministic) return {"flash", "run.deterministic, and cuDNN's backward gives other bits each time"};
  if (device::used())
    if (const std::string lacks = ops::why_no_cudnn_attention(); !lacks.empty()) return {"flash", lacks};
  const plan::Profile profile = plan::find_profile(recipe.plan.profile);
  const plan::RateByDtype& rates = profile.device.attention_backward;
  const auto flash = rates.find("bf16"), cudnn = rates.find("bf16" + std::string(plan::kByCudnn));
  if (flash != rates.end() && cudnn != rates.end() && flash->second.top > cudnn->second.top)
    return {"flash", name + " was measured to be faster with it"};
  return {"cudnn", name + " is of " + chip};
}

std::string settled_attention(recipe::Recipe& recipe) {
  const bool open = recipe.values.at(kAttention) == "auto", wide = recipe.plan.compute == DType::f32;
  if (!open && recipe.plan.attention == plan::Attention::cudnn) {
    const bool no_gpu = !device::used() && plan::find_profile(recipe.plan.profile).target.empty();
    if (wide || no_gpu)
      return std::string(kAttention) +
             " = cudnn has no effect: " + (no_gpu ? "a CPU computes" : "blocks compute in fp32");
    if (const std::string lacks = device::used() ? ops::why_no_cudnn_attention() : ""; !lacks.empty())
      throw UserError(Exit::usage, kAttention, "\"cudnn\": " + lacks, "set it to auto or flash");
  }
  if (!open || wide) return "";
  Found found = of_plan_file(recipe, "attention", "flash");
  if (found.dtype.empty()) found = attention_of_device(recipe);
  if (found.dtype.empty()) return "";
  recipe.set(kAttention, found.dtype);
  return std::string(kAttention) + " = " + found.dtype + ": " + found.why;
}

}  // namespace

std::string settle_compute(recipe::Recipe& recipe) {
  const std::string compute = settled_compute(recipe), attention = settled_attention(recipe);
  return compute + (compute.empty() || attention.empty() ? "" : "; ") + attention;
}

namespace {

bool is_missing(const std::string& path) {
  std::error_code unseen;
  return !path.empty() && !fs::exists(path, unseen);
}

/// Of a key that also takes names: whether a path is meant, one that is not here.
bool is_missing_path(const std::string& text) {
  return is_missing(text) && (text.find_first_of("/\\.") != text.npos || families::release_at(text));
}

/// The autoencoder whose file, or folder, a path names: Wan2.1_VAE.safetensors.
std::string autoencoder_named(const fs::path& path) {
  std::string best;
  for (fs::path rest = path; rest.has_relative_path() && best.empty(); rest = rest.parent_path())
    for (const std::string& name : models::autoencoder_presets())
      if (name.size() > best.size() && families::begins_with_name(rest.filename().string(), name)) best = name;
  return best;
}

bool is_one_expert(const fs::path& path) {
  const std::string last = path.lexically_normal().filename().string();
  const bool folder = std::ranges::any_of(families::all(), [&](const families::Family& family) {
    return std::ranges::any_of(family.experts, [&](const families::Expert& expert) { return expert.folder == last; });
  });
  return folder || last == "transformer" || last == "transformer_2" || checkpoint::is_weight_file(last);
}

/// Collects what is set, and what was not there.
class Assumed {
 public:
  explicit Assumed(recipe::Recipe& recipe) : recipe_(recipe) {}

  void set(const std::string& key, const std::string& value, bool told = true) {
    if (recipe_.values.at(key) != value) recipe_.set(key, value);
    if (told) set_ += (set_.empty() ? "" : ", ") + key + " = " + value;
  }
  void missing(const std::string& key, const std::string& path) {
    if (missing_.empty()) first_ = path;
    missing_ += (missing_.empty() ? "" : ", ") + key + (named_ == path ? "" : " = " + path);
    recipe_.assumed.push_back(key);
    named_ = path;
  }
  const std::string& missing() const { return missing_; }
  const std::string& first() const { return first_; }  ///< path that is missing
  const std::string& text() const { return set_; }

 private:
  recipe::Recipe& recipe_;
  std::string missing_, first_, named_, set_;
};

/// The denoiser's size, where its weights are not here. Gives the preset that is planned, also of weights that are here and
/// tell their release by their path; empty: none is known.
std::string assume_model(recipe::Recipe& recipe, Assumed& assumed) {
  const std::string path = recipe.model.path;
  const families::Release* release = families::release_at(path);
  const std::string preset = !recipe.model.preset.empty() ? recipe.model.preset : release ? release->preset : "";
  if (!is_missing(path) || recipe.model.init == "random") return preset;
  if (preset.empty())
    throw UserError(Exit::input, "model.path",
                    path + ": no such file or folder, and no release has such a name, so its size is not known",
                    "name the size to plan without weights: model.preset (tessera list presets --files)");
  assumed.missing("model.path", path);
  assumed.set("model.path", "", /*told=*/false);
  assumed.set("model.init", "load", /*told=*/false);  // not random: the weights come later
  assumed.set("model.preset", preset);
  if (release && release->two_experts && release->preset == preset && !is_one_expert(path) &&
      recipe.experts.train == "auto" && recipe.experts.router != "gate")
    assumed.set("experts.train", "both");
  return preset;
}

}  // namespace

std::string assume_released(recipe::Recipe& recipe) {
  Assumed assumed(recipe);
  const std::string vae = recipe.data.vae;
  const std::string preset = assume_model(recipe, assumed);
  const bool planned = !assumed.missing().empty();
  const Partners partners = preset.empty() ? Partners() : partners_of(preset);
  const bool missing_vae = is_missing_path(vae) && !models::is_built_in_codec(vae) &&
                           std::ranges::count(models::autoencoder_presets(), vae) == 0;
  if (missing_vae) {
    const families::Release* release = families::release_at(vae);
    std::string name = autoencoder_named(vae);
    if (name.empty() && release) name = partners_of(release->preset).autoencoder;
    if (name.empty()) name = partners.autoencoder;
    if (name.empty())
      throw UserError(Exit::input, "data.vae", vae + ": no such file or folder, and no release has such a name",
                      "name the autoencoder to plan without its weights: tessera list autoencoders");
    assumed.missing("data.vae", vae);
    assumed.set("data.vae", name);
  } else if (planned && recipe.values.at("data.vae") == "auto" && !partners.autoencoder.empty()) {
    assumed.set("data.vae", partners.autoencoder);
  }
  // The text encoders' paths stay: a plan needs their presets alone, and they have weights, if not here.
  for (const auto& [key, path] : {std::pair("data.text_encoder_path", recipe.data.text_encoder_path),
                                  {"data.pooled_encoder_path", recipe.data.pooled_encoder_path},
                                  {"data.glyph_encoder_path", recipe.data.glyph_encoder_path}})
    if (is_missing(path)) assumed.missing(key, path);
  if ((planned || is_missing(recipe.data.text_encoder_path)) && recipe.values.at("data.text_encoder") == "auto" &&
      !partners.text_encoder.empty())
    assumed.set("data.text_encoder", partners.text_encoder);
  for (const auto& [key, path, otherwise] : {std::tuple("data.image_encoder_path", recipe.data.image_encoder_path, ""),
                                             {"data.tokenizer", recipe.data.tokenizer, ""},
                                             {"data.pooled_tokenizer", recipe.data.pooled_tokenizer, ""},
                                             {"data.audio_encoder", recipe.data.audio_encoder, "auto"}})
    if (otherwise == std::string_view("auto") ? is_missing_path(path) : is_missing(path)) {
      assumed.missing(key, path);
      assumed.set(key, otherwise, /*told=*/false);
    }
  if (is_missing(recipe.lora.init)) {  // a plan has adapters of lora.rank either way
    assumed.missing("lora.init", recipe.lora.init);
    assumed.set("lora.init", "", /*told=*/false);
  }
  for (const recipe::LoraStrength& lora : recipe.sample.loras)
    if (is_missing(lora.file)) assumed.missing("sample.lora", lora.file);
  if (assumed.missing().empty()) return "";
  return "not here yet: " + assumed.missing() +
         (assumed.text().empty() ? "; plans need no weights" : "; planned by " + assumed.text()) +
         checkpoint::fetched_by(assumed.first());
}

}  // namespace tessera::job
