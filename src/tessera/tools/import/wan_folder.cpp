#include "tessera/tools/import/wan_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/families/registry.h"
#include "tessera/families/releases.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

constexpr const char* kClip = "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth";
constexpr const char* kWav2vec = "wav2vec2-large-xlsr-53-english";
constexpr const char* kT5 = "models_t5_umt5-xxl-enc-bf16.pth";
constexpr const char* kTokenizer = "google/umt5-xxl";

/// config.json's model_type; empty where the file does not say (diffusers' does not).
std::string model_type_of(const fs::path& config) {
  if (config.empty()) return {};
  const auto json = json_or_nothing(checkpoint::read_text(config));
  return json.is_object() && json.contains("model_type") && json["model_type"].is_string()
             ? json["model_type"].get<std::string>()
             : "";
}

void check_wan_task(const WanTask& task, const std::string& folder, const checkpoint::ModelFolder& found) {
  const auto* transformer = found.find("transformer") ? found.find("transformer") : found.find("model");
  if (task.two_experts && !found.find("transformer_2"))
    throw UserError(
        Exit::input, "import",
        folder + " holds one model, --task " + task.name + " has two: high_noise_model/ and low_noise_model/",
        "give the folder of that release, or its own task");
  const std::string type = transformer ? model_type_of(transformer->config) : "";
  if (type.empty() || type == task.type) return;
  throw UserError(Exit::input, "import",
                  folder + " holds a " + type + " model, by its config.json, and --task " + task.name + " expects a " +
                      task.type + " model",
                  "give the task that belongs to the folder");
}

}  // namespace

const WanTask& wan_task(const std::string& name) {
  std::vector<std::string> known;
  for (const WanTask& task : families::wan_tasks()) {
    if (task.name == name) return task;
    known.push_back(task.name);
  }
  std::string list;
  for (const std::string& other : known) list += (list.empty() ? "" : ", ") + other;
  throw UserError(Exit::usage, "import", "--task " + name + " is not known",
                  "did you mean " + nearest(name, known).front() + "? There are " + list);
}

std::string tokenizer_in(const std::string& folder) {
  return fs::is_directory(folder) || !fs::exists(folder) ? (fs::path(folder) / "spiece.model").string() : folder;
}

namespace {

/// What a release's folder holds beside the model; what it lacks is said.
void set_found_encoders(Translator& t, const checkpoint::ModelFolder& found, const std::string& folder,
                        const std::vector<std::string>& options, TextEncoder text, bool image, const char* vae) {
  const auto part = [&](const char* role, const std::string& file, const char* key, const auto& set) {
    if (const auto* there = found.find(role))
      set(there->weights.string());
    else
      t.warn_of(folder, "there is no " + file + " in it: put it there, or set " + key +
                            ", whose default is none of the release's");
  };
  part("vae", vae, "data.vae", [&](const std::string& file) { t.set("data.vae", file, options); });
  if (text == TextEncoder::in_folder)
    part("text_encoder", kT5, "data.text_encoder_path", [&](const std::string& file) {
      t.set("data.text_encoder", "umt5-xxl", options);
      t.set("data.text_encoder_path", file, options);
    });
  if (image)
    part("image_encoder", kClip, "data.image_encoder_path",
         [&](const std::string& file) { t.set("data.image_encoder_path", file, options); });
  part("tokenizer", (fs::path(kTokenizer) / "spiece.model").string(), "data.tokenizer",
       [&](const std::string& file) { t.set("data.tokenizer", tokenizer_in(file), options); });
}

/// Where the official release has them.
void set_released_encoders(Translator& t, const fs::path& root, const char* vae,
                           const std::vector<std::string>& options, TextEncoder text) {
  t.set("data.vae", (root / vae).string(), options);
  t.set("data.text_encoder", "umt5-xxl", options);
  if (text == TextEncoder::in_folder) t.set("data.text_encoder_path", (root / kT5).string(), options);
  t.set("data.tokenizer", tokenizer_in((root / kTokenizer).string()), options);
}

}  // namespace

void set_wan_encoders(Translator& t, const std::string& folder, const std::vector<std::string>& options,
                      TextEncoder text) {
  if (!fs::exists(folder)) return set_released_encoders(t, folder, families::kWan21Vae, options, text);
  if (text == TextEncoder::elsewhere) t.set("data.text_encoder", "umt5-xxl", options);
  const checkpoint::ModelFolder found = checkpoint::find_parts(folder);
  set_found_encoders(t, found, folder, options, text, found.find("image_encoder") != nullptr, families::kWan21Vae);
}

void set_wan_folder(Translator& t, const WanTask& task, const std::string& folder,
                    const std::vector<std::string>& options) {
  const fs::path root = folder;
  const std::string type = task.type;
  const bool image = !task.two_experts && (type == "i2v" || type == "flf2v");
  const bool speech = type == "s2v";
  if (speech && (!fs::exists(root) || fs::exists(root / kWav2vec)))
    t.set("data.audio_encoder", (root / kWav2vec).string(), options);
  else if (speech)
    t.warn_of(folder,
              std::string("there is no ") + kWav2vec + "/ in it: put the folder there, or set data.audio_encoder");
  if (!fs::exists(root)) {
    t.set("model.path", folder, options, "it is not here: taken to be the official release");
    t.assume("model.preset", task.preset, std::string("the size of ") + task.name);
    set_released_encoders(t, root, task.vae, options, TextEncoder::in_folder);
    if (image) t.set("data.image_encoder_path", (root / kClip).string(), options);
    return;
  }
  const checkpoint::ModelFolder found = checkpoint::find_parts(root);
  check_wan_task(task, folder, found);
  t.set("model.path", folder, options);
  const auto* transformer = found.find("transformer") ? found.find("transformer") : found.find("model");
  if (transformer && transformer->config.empty())
    t.assume("model.preset", task.preset, std::string("the size of ") + task.name + ": there is no config.json");
  set_found_encoders(t, found, folder, options, TextEncoder::in_folder, image, task.vae);
}

std::string folder_of_shards(const std::vector<std::string>& files, const std::string& option) {
  std::vector<fs::path> folders;
  for (const std::string& file : files) {
    const fs::path path = file, folder = path.parent_path().empty() ? fs::path(".") : path.parent_path();
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  // diffusion_pytorch_model*.safetensors are shards: their folder has the index
  if (files.size() == 1 && files[0].find('*') == std::string::npos) return files[0];
  if (folders.size() == 1) return folders[0].string();
  std::ranges::sort(folders);
  if (folders.size() == 2 && folders[0].parent_path() == folders[1].parent_path() &&
      folders[0].filename() == "high_noise_model" && folders[1].filename() == "low_noise_model") {
    const fs::path both = folders[0].parent_path();
    return both.empty() ? "." : both.string();
  }
  throw UserError(Exit::usage, "import",
                  option + " names two models, " + folders[0].string() + " and " + folders[1].string(),
                  "two experts train from the folder that holds high_noise_model and low_noise_model: model.path");
}

void find_encoders_beside(Translator& t, const std::string& weights) {
  std::error_code ignored;
  fs::path folder = fs::is_directory(weights, ignored) ? fs::path(weights) : fs::path(weights).parent_path();
  if (folder.filename() == "high_noise_model" || folder.filename() == "low_noise_model") folder = folder.parent_path();
  if (folder.empty()) folder = ".";
  if (!fs::is_directory(folder, ignored)) return;
  const auto assume = [&](const char* key, const fs::path& file, const std::string& word = "") {
    if (fs::exists(file, ignored)) t.assume(key, word.empty() ? file.string() : word, "it lies beside the weights");
  };
  for (const char* vae : {families::kWan21Vae, families::kWan22Vae}) assume("data.vae", folder / vae);
  if (!t.result().find("data.text_encoder")) assume("data.text_encoder", folder / kT5, "umt5-xxl");
  const auto* text = t.result().find("data.text_encoder");
  if (text && text->value == "umt5-xxl") assume("data.text_encoder_path", folder / kT5);
  assume("data.tokenizer", folder / kTokenizer / "spiece.model");
  assume("data.image_encoder_path", folder / kClip);
  assume("data.audio_encoder", folder / kWav2vec);
}

std::string kept_by_diffsynth(const fs::path& own) {
  const families::Family wan = families::of("wan");
  const bool common = own.extension() == ".pth" && std::ranges::any_of(wan.files, [&](const auto& file) {
                        return file.official == own.stem().string();
                      });
  const fs::path converted = fs::path(kDiffSynthCommon) / (own.stem().string() + ".safetensors");
  return common && (fs::exists(converted) || !fs::exists(own)) ? converted.string() : own.string();
}

void find_converted_encoders(Translator& t, const std::string& model) {
  const families::Release* release = families::release_at(model);
  const families::Family wan = families::of("wan");
  if (!release || !release->preset.starts_with(wan.name)) return;
  const auto reads = [&](const families::ReleasedFile& file) {
    return std::ranges::any_of(release->parts, [&](const auto& part) { return part.file.starts_with(file.official); });
  };
  for (const families::ReleasedFile& file : wan.files) {
    const fs::path there = fs::path(kDiffSynthCommon) / (file.official + ".safetensors");
    if (!fs::exists(there) || !reads(file)) continue;
    const char* why = "where DiffSynth keeps it";
    if (file.role == "vae") t.assume("data.vae", there.string(), why);
    if (file.role == "image_encoder") t.assume("data.image_encoder_path", there.string(), why);
    if (file.role != "text_encoder") continue;
    if (!t.result().find("data.text_encoder")) t.assume("data.text_encoder", "umt5-xxl", why);
    if (t.result().find("data.text_encoder")->value == "umt5-xxl")
      t.assume("data.text_encoder_path", there.string(), why);
  }
}

}  // namespace tessera::tools
