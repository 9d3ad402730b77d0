#include "tessera/checkpoint/model_folder.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDiffusersParts[] = {"transformer", "transformer_2", "text_encoder", "vae", "image_encoder"};

/// Files of the official layout that are parts by themselves: what their names begin with or hold.
struct OfficialFile {
  const char* role;
  std::string_view part_of_name;
};
constexpr OfficialFile kOfficialFiles[] = {
    {"text_encoder", "models_t5"}, {"vae", "VAE"}, {"image_encoder", "models_clip"}};

Path config_in(const Path& folder) {
  const Path config = folder / "config.json";
  return fs::exists(config) ? config : Path();
}

void add_official_files(const Path& folder, ModelFolder& found) {
  std::vector<Path> files;
  for (const auto& item : fs::directory_iterator(folder))
    if (item.is_regular_file() && is_weight_file(item.path())) files.push_back(item.path());
  std::sort(files.begin(), files.end());
  for (const OfficialFile& row : kOfficialFiles) {
    const auto file = std::find_if(files.begin(), files.end(), [&](const Path& path) {
      return path.filename().string().find(row.part_of_name) != std::string::npos;
    });
    if (file != files.end()) found.parts.push_back({row.role, *file});
  }
}

}  // namespace

const ModelPart* ModelFolder::find(const std::string& role) const {
  const auto part = std::find_if(parts.begin(), parts.end(), [&](const ModelPart& p) { return p.role == role; });
  return part == parts.end() ? nullptr : &*part;
}

ModelFolder find_parts(const Path& path) {
  std::error_code error;
  check_input(fs::exists(path, error), "model.find", path.string() + ": there is no such file or folder",
              "check the path");
  ModelFolder found{"single", {}};
  if (!fs::is_directory(path)) {
    found.parts.push_back({"model", path, config_in(path.has_parent_path() ? path.parent_path() : Path("."))});
    return found;
  }
  if (fs::exists(path / "model_index.json")) {
    found.layout = "diffusers";
    for (const char* role : kDiffusersParts)
      if (fs::is_directory(path / role)) found.parts.push_back({role, path / role, config_in(path / role)});
    if (fs::is_directory(path / "tokenizer")) found.parts.push_back({"tokenizer", path / "tokenizer"});
    check_input(!found.parts.empty(), "model.find",
                path.string() + ": model_index.json is there, but no part of the model", "fetch the folder again");
    return found;
  }

  if (fs::exists(path / "gate.safetensors") && fs::is_directory(path / "expert_0")) {
    found.layout = "gate";
    for (int e = 0; fs::is_directory(path / ("expert_" + std::to_string(e))); ++e) {
      const std::string role = "expert_" + std::to_string(e);
      found.parts.push_back({role, path / role, config_in(path / role)});
    }
    found.parts.push_back({"gate", path / "gate.safetensors"});
    return found;
  }

  ModelFolder official{"official", {}};
  if (fs::is_directory(path / "high_noise_model")) {
    official.parts.push_back({"transformer", path / "high_noise_model", config_in(path / "high_noise_model")});
    if (fs::is_directory(path / "low_noise_model"))
      official.parts.push_back({"transformer_2", path / "low_noise_model", config_in(path / "low_noise_model")});
  } else if (!config_in(path).empty()) {
    official.parts.push_back({"transformer", path, config_in(path)});
  }
  const size_t transformers = official.parts.size();
  add_official_files(path, official);
  const bool alone = transformers == 1 && official.parts.size() == 1 && official.parts[0].weights == path;
  if (transformers == 0 || alone) {
    found.parts.push_back({"model", path, config_in(path)});
    return found;
  }
  if (fs::is_directory(path / "google/umt5-xxl")) official.parts.push_back({"tokenizer", path / "google/umt5-xxl"});
  return official;
}

}  // namespace tessera::checkpoint
