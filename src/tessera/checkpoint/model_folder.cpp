#include "tessera/checkpoint/model_folder.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/registry.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDiffusersParts[] = {"transformer", "transformer_2", "text_encoder", "vae", "image_encoder"};

Path config_in(const Path& folder) {
  const Path config = folder / "config.json";
  return fs::exists(config) ? config : Path();
}

/// Files that are parts by themselves: the first of each role.
void add_official_files(const Path& folder, const families::Family& family, ModelFolder& found) {
  std::vector<Path> files;
  for (const auto& item : fs::directory_iterator(folder))
    if (item.is_regular_file() && is_weight_file(item.path())) files.push_back(item.path());
  std::sort(files.begin(), files.end());
  for (const families::ReleasedFile& row : family.files) {
    if (found.find(row.role)) continue;
    const auto file = std::find_if(files.begin(), files.end(), [&](const Path& path) {
      return path.filename().string().find(row.mark) != std::string::npos;
    });
    if (file != files.end()) found.parts.push_back({row.role, *file});
  }
}

/// What `folder` has of a family's release.
ModelFolder official_parts(const Path& folder, const families::Family& family) {
  ModelFolder found{"official", {}};
  const auto& experts = family.experts;
  if (!experts.empty() && fs::is_directory(folder / experts[0].folder)) {
    const char* role = "transformer";
    for (const families::Expert& expert : experts) {
      const Path weights = folder / expert.folder;
      if (fs::is_directory(weights)) found.parts.push_back({role, weights, config_in(weights)});
      role = "transformer_2";
    }
  } else if (!config_in(folder).empty()) {
    found.parts.push_back({"transformer", folder, config_in(folder)});
  }
  const size_t transformers = found.parts.size();
  add_official_files(folder, family, found);
  for (const char* role : {"text_encoder", "vae", "image_encoder"})  // where the release is the denoiser alone
    if (const Path part = folder / role; !found.find(role) && fs::is_directory(part))
      found.parts.push_back({role, part, config_in(part)});
  const bool alone = transformers == 1 && found.parts.size() == 1 && found.parts[0].weights == folder;
  if (transformers == 0 || alone) return {"single", {{"model", folder, config_in(folder)}}};
  for (const std::string& tokenizer : {family.tokenizer, std::string("tokenizer")})
    if (!tokenizer.empty() && !found.find("tokenizer") && fs::is_directory(folder / tokenizer))
      found.parts.push_back({"tokenizer", folder / tokenizer});
  return found;
}

/// Also without its model_index.json, as a copy of some of its folders has none.
bool is_pipeline(const Path& folder) {
  if (fs::exists(folder / "model_index.json")) return true;
  const fs::directory_iterator items(folder);
  return fs::is_directory(folder / "transformer") &&
         std::none_of(begin(items), end(items), [](const auto& item) { return is_weight_file(item.path()); });
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
  if (is_pipeline(path)) {
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

  for (const families::Family& family : families::all())
    if (found = official_parts(path, family); found.layout == "official") break;
  return found;
}

}  // namespace tessera::checkpoint
