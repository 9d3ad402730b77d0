#include "tessera/tools/import/wan_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/model_folder.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

constexpr const char* kV21 = "Wan2.1_VAE.pth";
constexpr const char* kV22 = "Wan2.2_VAE.pth";
constexpr const char* kClip = "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth";
constexpr const char* kWav2vec = "wav2vec2-large-xlsr-53-english";
constexpr const char* kOther = "this kind of Wan model is not there";

// Frames, steps, rate, shift and guidance are those of the releases' configurations.
constexpr WanTask kTasks[] = {
    {"t2v-1.3B", "t2v", false, kV21, 81, 50, 16, 5, 5, 832, 480},
    {"t2v-14B", "t2v", false, kV21, 81, 50, 16, 5, 5, 1280, 720},
    {"t2i-14B", "t2v", false, kV21, 1, 50, 16, 5, 5, 1280, 720},
    {"i2v-14B", "i2v", false, kV21, 81, 40, 16, 5, 5, 1280, 720},
    {"flf2v-14B", "flf2v", false, kV21, 81, 50, 16, 16, 5, 1280, 720},
    {"t2v-A14B", "t2v", true, kV21, 81, 40, 16, 12, 3, 1280, 720},
    {"i2v-A14B", "i2v", true, kV21, 81, 40, 16, 5, 3.5, 1280, 720},
    {"ti2v-5B", "ti2v", false, kV22, 121, 50, 24, 5, 5, 1280, 704},
    {"s2v-14B", "s2v", false, kV21, 80, 40, 16, 3, 4.5, 1280, 720},
    {"animate-14B", "animate", false, kV21, 77, 20, 16, 5, 1, 1280, 720, kOther},
    {"vace-1.3B", "vace", false, kV21, 81, 50, 16, 16, 5, 832, 480, kOther},
    {"vace-14B", "vace", false, kV21, 81, 50, 16, 16, 5, 1280, 720, kOther},
};

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
  const bool two = found.find("transformer_2") != nullptr;
  if (task.two_experts != two)
    throw UserError(Exit::input, "import",
                    folder + (two ? " holds two experts, " : " holds one model, ") + "--task " + task.name + " has " +
                        (task.two_experts ? "two: high_noise_model/ and low_noise_model/" : "one"),
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
  for (const WanTask& task : kTasks) {
    if (task.name == name) {
      if (task.why_not) throw UserError(Exit::usage, "import", "--task " + name + ": " + task.why_not);
      return task;
    }
    if (!task.why_not) known.push_back(task.name);
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
                        const std::vector<std::string>& options, TextEncoder text, bool image) {
  const auto part = [&](const char* role, const char* what, const auto& set) {
    if (const auto* there = found.find(role))
      set(there->weights.string());
    else
      t.result().implied.push_back({folder, std::string("no ") + what + " is in it: the recipe's default holds"});
  };
  part("vae", "autoencoder", [&](const std::string& file) { t.set("data.vae", file, options); });
  if (text == TextEncoder::in_folder)
    part("text_encoder", "text encoder", [&](const std::string& file) {
      t.set("data.text_encoder", "umt5-xxl", options);
      t.set("data.text_encoder_path", file, options);
    });
  if (image)
    part("image_encoder", "image encoder",
         [&](const std::string& file) { t.set("data.image_encoder_path", file, options); });
  part("tokenizer", "tokenizer",
       [&](const std::string& file) { t.set("data.tokenizer", tokenizer_in(file), options); });
}

/// Where the official release has them.
void set_released_encoders(Translator& t, const fs::path& root, const char* vae,
                           const std::vector<std::string>& options, TextEncoder text) {
  t.set("data.vae", (root / vae).string(), options);
  t.set("data.text_encoder", "umt5-xxl", options);
  if (text == TextEncoder::in_folder)
    t.set("data.text_encoder_path", (root / "models_t5_umt5-xxl-enc-bf16.pth").string(), options);
  t.set("data.tokenizer", tokenizer_in((root / "google/umt5-xxl").string()), options);
}

}  // namespace

void set_wan_encoders(Translator& t, const std::string& folder, const std::vector<std::string>& options,
                      TextEncoder text) {
  if (!fs::exists(folder)) return set_released_encoders(t, folder, kV21, options, text);
  if (text == TextEncoder::elsewhere) t.set("data.text_encoder", "umt5-xxl", options);
  const checkpoint::ModelFolder found = checkpoint::find_parts(folder);
  set_found_encoders(t, found, folder, options, text, found.find("image_encoder") != nullptr);
}

void set_wan_folder(Translator& t, const WanTask& task, const std::string& folder,
                    const std::vector<std::string>& options) {
  const fs::path root = folder;
  const std::string type = task.type;
  const bool image = !task.two_experts && (type == "i2v" || type == "flf2v");
  if (type == "s2v" && (!fs::exists(root) || fs::exists(root / kWav2vec)))
    t.set("data.audio_encoder", (root / kWav2vec).string(), options);
  if (!fs::exists(root)) {
    t.set("model.path", folder, options, "it is not here: taken to be the official release");
    set_released_encoders(t, root, task.vae, options, TextEncoder::in_folder);
    if (image) t.set("data.image_encoder_path", (root / kClip).string(), options);
    return;
  }
  const checkpoint::ModelFolder found = checkpoint::find_parts(root);
  check_wan_task(task, folder, found);
  t.set("model.path", folder, options);
  set_found_encoders(t, found, folder, options, TextEncoder::in_folder, image);
}

}  // namespace tessera::tools
