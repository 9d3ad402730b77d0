#include "tessera/checkpoint/model_folder.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/weight_file.h"
#include "tessera/families/registry.h"
#include "tessera/families/releases.h"
#include "tessera/families/wan.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kEncoders[] = {"text_encoder", "text_encoder_2", "vae", "image_encoder", "audio_encoder"};
constexpr const char *kModelIndex = "model_index.json", *kScheduler = "scheduler/scheduler_config.json";

Path config_in(const Path& folder) {
  const Path config = folder / "config.json";
  return fs::exists(config) ? config : Path();
}

Path plain(const Path& path) {
  const Path normal = path.lexically_normal();
  return normal.has_filename() || !normal.has_parent_path() ? normal : normal.parent_path();
}

nlohmann::json read_json(const Path& file) {
  constexpr int64_t kMost = int64_t{16} << 20;
  return fs::exists(file) ? json_or_nothing(read_foreign(file, kMost, "model.find")) : nlohmann::json();
}

std::vector<Path> weight_files_in(const Path& folder, bool deep = false) {
  std::vector<Path> files;
  const auto consider = [&](const auto& items) {
    for (const auto& item : items)
      if (item.is_regular_file() && is_weight_file(item.path())) files.push_back(item.path());
  };
  if (!fs::is_directory(folder)) return files;
  deep ? consider(fs::recursive_directory_iterator(folder)) : consider(fs::directory_iterator(folder));
  std::ranges::sort(files);
  return files;
}

void add_folder(ModelFolder& found, const char* role, const Path& folder) {
  if (!found.find(role) && fs::is_directory(folder)) found.parts.push_back({role, folder, config_in(folder)});
}

void add_tokenizers(ModelFolder& found, const Path& folder, const families::Family& family) {
  for (const char* role : {"tokenizer", "tokenizer_2"}) {
    if (found.find(role)) continue;
    if (role == std::string_view("tokenizer") && !family.tokenizer.empty() &&
        fs::is_directory(folder / family.tokenizer))
      found.parts.push_back({role, folder / family.tokenizer});
    else if (fs::is_directory(folder / role))
      found.parts.push_back({role, folder / role});
  }
  // where a release keeps each encoder in a folder of its own, the tokenizers are there
  for (const auto& [encoder, role] : {std::pair("text_encoder", "tokenizer"), {"text_encoder_2", "tokenizer_2"}}) {
    const families::ReleasedFile* row = families::released_file(family, encoder);
    const bool reads_bytes = encoder == std::string_view("text_encoder_2") && !family.glyph_encoders.empty();
    if (row && row->folder && found.find(encoder) && !found.find(role) && !reads_bytes)
      found.parts.push_back({role, found.find(encoder)->weights});
  }
}

/// Parts that are a file or a folder of the release by themselves: the first of each role.
void add_released(const Path& folder, const families::Family& family, ModelFolder& found) {
  const std::vector<Path> files = weight_files_in(folder);
  for (const families::ReleasedFile& row : family.files) {
    if (found.find(row.role)) continue;
    if (row.folder) {
      add_folder(found, row.role.c_str(), folder / row.official);
      for (const auto& item : fs::directory_iterator(folder))
        if (item.is_directory() && item.path().filename().string().starts_with(row.mark))
          add_folder(found, row.role.c_str(), item.path());
      continue;
    }
    const auto file = std::ranges::find_if(
        files, [&](const Path& path) { return path.filename().string().find(row.mark) != std::string::npos; });
    if (file == files.end()) continue;
    const Path config = Path(*file).replace_extension("config.json");
    found.parts.push_back({row.role, *file, fs::exists(config) ? config : Path()});
  }
}

/// The encoders that DiffSynth keeps once for all models, of which a release takes its own.
void add_shared_by_diffsynth(const Path& folder, const families::Family& family, ModelFolder& found) {
  const families::Release* release = families::release_at(folder.string());
  const Path models = plain(fs::absolute(folder)).parent_path().parent_path();
  const Path shared = models / Path(families::kDiffSynthCommon).lexically_relative("models");
  if (!release || !fs::is_directory(shared)) return;
  for (const families::ReleasedFile& row : family.files) {
    const Path file = shared / (row.official + ".safetensors");
    const bool reads = std::ranges::any_of(
        release->parts, [&](const families::ReleasePart& part) { return part.file.starts_with(row.official); });
    if (found.find(row.role) || !reads || !fs::exists(file)) continue;
    found.parts.push_back({row.role, file});
    found.layout = "diffsynth";
  }
  const Path tokenizer = (models / Path(families::kDiffSynthTokenizer).lexically_relative("models")).parent_path();
  if (found.layout == "diffsynth" && !found.find("tokenizer") && fs::is_directory(tokenizer))
    found.parts.push_back({"tokenizer", tokenizer});
}

/// Where the folder itself has the weights of a denoiser: as its config.json says or their usual names do, or by the
/// one file that is no other part of the release.
std::optional<ModelPart> denoiser_in(const Path& folder, const families::Family& family) {
  if (const Path config = config_in(folder); !config.empty()) return ModelPart{"transformer", folder, config};
  std::vector<Path> others = weight_files_in(folder);
  const auto begins = [](const Path& file) { return file.filename().string().starts_with("diffusion_pytorch_model"); };
  if (std::ranges::any_of(others, begins)) return ModelPart{"transformer", folder};
  std::erase_if(others, [&](const Path& file) {
    return std::ranges::any_of(family.files, [&](const families::ReleasedFile& row) {
      return file.filename().string().find(row.mark) != std::string::npos;
    });
  });
  if (others.size() != 1 || family.files.empty()) return std::nullopt;
  return ModelPart{"transformer", others[0]};
}

bool has_model(const Path& folder) { return !config_in(folder).empty() || !weight_files_in(folder).empty(); }

/// Of a release with folders of denoisers in one, transformer/NAME: the one that is there.
void add_only_denoiser(const Path& folder, ModelFolder& found) {
  std::vector<Path> all;
  if (fs::is_directory(folder))
    for (const auto& item : fs::directory_iterator(folder))
      if (item.is_directory() && has_model(item.path())) all.push_back(item.path());
  if (all.size() == 1) add_folder(found, "transformer", all.front());
}

/// Whether a folder inside a folder is there that the family's release alone has.
bool has_nested(const Path& folder, const families::Family& family) {
  return std::ranges::any_of(family.files, [&](const families::ReleasedFile& row) {
    return row.folder && row.official.find('/') != row.official.npos && fs::is_directory(folder / row.official);
  });
}

/// What `folder` has of a family's release.
ModelFolder official_parts(const Path& folder, const families::Family& family) {
  ModelFolder found{"official", {}};
  const auto& experts = family.experts;
  bool in_folder = false;
  if (!experts.empty() && fs::is_directory(folder / experts[0].folder)) {
    add_folder(found, "transformer", folder / experts[0].folder);
    add_folder(found, "transformer_2", folder / experts[1].folder);
  } else if (const auto denoiser = denoiser_in(folder, family)) {
    found.parts.push_back(*denoiser);
    in_folder = true;
  } else if (has_nested(folder, family)) {
    add_only_denoiser(folder / "transformer", found);
  }
  add_released(folder, family, found);
  for (const char* role : kEncoders) add_folder(found, role, folder / role);  // where the release is the denoiser alone
  add_shared_by_diffsynth(folder, family, found);
  if (found.parts.empty() || (in_folder && found.parts.size() == 1))
    return {"single", {{"model", folder, config_in(folder)}}};
  add_tokenizers(found, folder, family);
  return found;
}

/// The one of a folder's files that is meant; the folder, whose opener says what it holds, where they are several.
void add_file(ModelFolder& found, const char* role, const Path& folder, const std::vector<Path>& files) {
  if (!files.empty() && !found.find(role)) found.parts.push_back({role, files.size() == 1 ? files[0] : folder});
}

/// ComfyUI's folders, each with files of all models; false where `folder` has none of them.
bool comfyui_parts(const Path& folder, ModelFolder& found) {
  struct Row {
    const char* role;
    const char *name, *older;
  };
  constexpr Row kRows[] = {{"transformer", "diffusion_models", "unet"},
                           {"text_encoder", "text_encoders", "clip"},
                           {"vae", "vae", ""},
                           {"image_encoder", "clip_vision", ""},
                           {"audio_encoder", "audio_encoders", ""}};
  const auto split = [](const Path& root) {
    return fs::is_directory(root / "diffusion_models") || fs::is_directory(root / "text_encoders") ||
           fs::is_directory(root / "clip_vision");
  };
  Path root;
  for (const Path& place : {folder, folder / "split_files", folder / "models"})
    if (root.empty() && split(place)) root = place;
  if (root.empty()) return false;
  const auto with = [](std::vector<Path> files, std::string_view word, bool wanted) {
    std::erase_if(
        files, [&](const Path& file) { return (file.filename().string().find(word) != std::string::npos) != wanted; });
    return files;
  };
  const families::Family& family = families::standard();
  for (const Row& row : kRows) {
    const bool older = *row.older && !fs::is_directory(root / row.name);
    const Path place = root / (older ? row.older : row.name);
    std::vector<Path> files = weight_files_in(place, /*deep=*/true);
    if (row.role == std::string_view("transformer") && files.size() == 2 && !family.experts.empty()) {
      const std::vector<Path> high = with(files, family.experts[0].name, true),
                              low = with(files, family.experts[1].name, true);
      if (high.size() == 1 && low.size() == 1) add_file(found, "transformer_2", place, low), files = high;
    }
    if (row.role == std::string_view("text_encoder")) {
      for (const char* second : {"clip_l", "byt5"}) {
        add_file(found, "text_encoder_2", place, with(files, second, true));
        files = with(files, second, false);
      }
    }
    add_file(found, row.role, place, files);
  }
  if (found.parts.empty()) return false;
  const auto rank = [](const ModelPart& part) { return part.role.starts_with("transformer") ? 0 : 1; };
  std::ranges::sort(found.parts, [&](const ModelPart& a, const ModelPart& b) {
    return std::pair(rank(a), a.role) < std::pair(rank(b), b.role);
  });
  found.layout = "comfyui";
  for (const Path& place : {folder, root}) add_tokenizers(found, place, family);
  return true;
}

/// Also without its model_index.json, as a copy of some of its folders has none.
bool is_pipeline(const Path& folder) {
  if (fs::exists(folder / kModelIndex)) return true;
  return fs::is_directory(folder / "transformer") && weight_files_in(folder).empty();
}

ModelFolder pipeline_parts(const Path& folder) {
  ModelFolder found{"diffusers", {}};
  for (const char* role : {"transformer", "transformer_2"}) add_folder(found, role, folder / role);
  for (const char* role : kEncoders) add_folder(found, role, folder / role);
  add_tokenizers(found, folder, {});
  check_input(!found.parts.empty(), "model.find",
              folder.string() + ": model_index.json is there, but no part of the model", "fetch the folder again");
  return found;
}

ModelFolder gate_parts(const Path& folder) {
  ModelFolder found{"gate", {}};
  for (int e = 0; fs::is_directory(folder / ("expert_" + std::to_string(e))); ++e) {
    const std::string role = "expert_" + std::to_string(e);
    found.parts.push_back({role, folder / role, config_in(folder / role)});
  }
  found.parts.push_back({"gate", folder / "gate.safetensors"});
  return found;
}

ModelFolder parts_of(const Path& folder) {
  for (const families::Family& family : families::all())  // some have folders that diffusers' pipelines have too
    if (has_nested(folder, family)) return official_parts(folder, family);
  if (is_pipeline(folder)) return pipeline_parts(folder);
  if (fs::exists(folder / "gate.safetensors") && fs::is_directory(folder / "expert_0")) return gate_parts(folder);
  ModelFolder found{"single", {}};
  if (comfyui_parts(folder, found)) return found;
  for (const families::Family& family : families::all())
    if (found = official_parts(folder, family); found.layout != "single") break;
  return found;
}

/// "transformer, vae and tokenizer"
std::string listed_roles(const ModelFolder& folder) {
  std::vector<std::string> roles;
  for (const ModelPart& part : folder.parts) roles.push_back(part.role);
  return families::listed(roles, "and");
}

/// Flux's pipeline numbers CLIP first, others T5.
bool clip_is_first(const ModelFolder& folder) {
  const ModelPart* first = folder.layout == "diffusers" ? folder.find("text_encoder") : nullptr;
  if (!first || first->config.empty()) return false;
  const auto json = read_json(first->config);
  return json.is_object() && json.contains("model_type") && json["model_type"] == "clip_text_model";
}

std::optional<double> number_in(const nlohmann::json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (!json.is_object() || found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

}  // namespace

const ModelPart* ModelFolder::find(const std::string& role) const {
  const auto part = std::ranges::find(parts, role, &ModelPart::role);
  return part == parts.end() ? nullptr : &*part;
}

ModelFolder find_parts(const Path& given) {
  const Path path = snapshot_of(given);
  std::error_code error;
  check_input(fs::exists(path, error), "model.find", path.string() + ": there is no such file or folder",
              "check the path" + fetched_by(path.string()));
  ModelFolder found =
      fs::is_directory(path)
          ? parts_of(path)
          : ModelFolder{"single",
                        {{"model", path, config_in(path.has_parent_path() ? path.parent_path() : Path("."))}}};
  found.path = path;
  return found;
}

ModelPart find_part(const Path& path, const std::string& wanted) {
  const ModelFolder folder = find_parts(path);
  std::string role = wanted;
  const bool pooled = role.starts_with("pooled_");
  if (pooled) role = role == "pooled_encoder" ? "text_encoder" : "tokenizer";
  if ((role == "text_encoder" || role == "tokenizer") && pooled != clip_is_first(folder)) role += "_2";
  if (const ModelPart* part = folder.find(role)) return *part;
  if (folder.layout == "single" && folder.parts[0].role == "model") {
    ModelPart part = {role, folder.path, config_in(folder.path)};
    if (fs::is_directory(folder.path)) return part;
    const Path config = Path(folder.path).replace_extension("config.json");
    part.config = fs::exists(config) ? config : Path();
    return part;
  }
  throw UserError(
      Exit::input, "model.find", folder.path.string() + ": holds no " + role + ", but " + listed_roles(folder),
      "name the file or folder of the " + role + " itself, or complete the folder" + fetched_by(path.string()));
}

ModelFacts find_facts(const Path& given) {
  if (given.empty()) return {};
  const Path path = plain(snapshot_of(given)), name = path.filename();
  for (const Path& folder : {path, path.parent_path()}) {
    const Path experts = folder / kExpertsFile, index = folder / kModelIndex;
    if (fs::exists(experts)) {
      const auto json = read_json(experts);
      return {number_in(json, "boundary"), number_in(json, "flow_shift"), experts};
    }
    const bool inside = folder == path || name == "transformer" || name == "transformer_2";
    if (!inside || !(fs::exists(index) || fs::exists(folder / kScheduler))) continue;
    const auto boundary = number_in(read_json(index), "boundary_ratio");
    return {boundary, number_in(read_json(folder / kScheduler), "flow_shift"), boundary ? index : Path()};
  }
  return {};
}

std::string experts_text(const ModelFacts& facts) {
  auto json = nlohmann::ordered_json::object();
  if (facts.boundary) json["boundary"] = *facts.boundary;
  if (facts.flow_shift) json["flow_shift"] = *facts.flow_shift;
  return json.dump(2) + "\n";
}

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = "hf:";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// A name of an organisation, a repository or a revision: no part of it leads out of its folder.
bool is_name(std::string_view text) {
  const auto sign = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= 96 && text.front() != '.' && std::ranges::all_of(text, sign);
}

bool there(const Path& path) {
  std::error_code unseen;
  return fs::exists(path, unseen);
}

/// The revision that refs/main names; empty where there is none, or no such text.
std::string main_revision(const Path& repository) {
  constexpr int64_t kMost = 256;
  const Path file = repository / "refs" / "main";
  if (!there(file)) return "";
  try {
    std::string text = read_foreign(file, kMost, "hub");
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    return is_name(text) ? text : "";
  } catch (const UserError&) {
    return "";
  }
}

}  // namespace

std::optional<HubName> hub_name(const std::string& text) {
  const bool marked = text.starts_with(kMark);
  std::string rest = marked ? text.substr(kMark.size()) : text;
  while (marked && rest.starts_with('/')) rest.erase(0, 1);  // hf://ORG/NAME
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return std::nullopt;
  const size_t second = std::min(rest.find('/', slash + 1), rest.size());
  HubName name{rest.substr(0, second), rest.substr(std::min(second + 1, rest.size())), marked};
  if (!is_name(name.repository.substr(0, slash)) || !is_name(name.repository.substr(slash + 1))) return std::nullopt;
  for (const Path& part : Path(name.inside))
    if (part == "..") return std::nullopt;
  return name;
}

Path hub_cache() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return Path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return Path(cache) / "huggingface/hub";
  return Path(environment("HOME")) / ".cache/huggingface/hub";
}

std::string found_at(const std::string& text) {
  if (text.empty() || there(text)) return text;
  const std::optional<HubName> name = hub_name(text);
  if (!name) return text;
  const Path plain = name->inside.empty() ? Path(name->repository) : Path(name->repository) / name->inside;
  if (name->marked && there(plain)) return plain.string();
  std::string folder = name->repository;
  folder.replace(folder.find('/'), 1, "--");
  const Path repository = hub_cache() / ("models--" + folder);
  const std::string revision = main_revision(repository);
  if (revision.empty()) return text;
  const Path snapshot = repository / "snapshots" / revision;
  const Path found = name->inside.empty() ? snapshot : snapshot / name->inside;
  return there(found) ? found.string() : text;
}

Path snapshot_of(const Path& path) {
  const Path found = found_at(path.string());
  if (!there(found / "snapshots")) return found;
  const std::string revision = main_revision(found);
  return revision.empty() ? found : found / "snapshots" / revision;
}

std::string fetched_by(const std::string& text) {
  std::string folder;
  const families::Release* release = families::release_at(text, &folder);
  const std::optional<HubName> name = hub_name(text);
  const auto owner = [](const std::string& repository) { return repository.substr(0, repository.find('/') + 1); };
  std::string command;
  if (name && (name->marked || (release && owner(name->repository) == owner(release->repository)))) {
    command = "hf download " + name->repository;
  } else if (release) {
    command = families::download_line(families::repository_of(*release, folder),
                                      is_weight_file(folder) ? std::string() : folder);
  }
  return command.empty() ? command : "; " + command + " fetches it";
}

}  // namespace tessera::checkpoint
