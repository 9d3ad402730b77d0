#include "tessera/checkpoint/weights.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/fp8_scale.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/families/registry.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Elements of a tensor that a fingerprint looks at: some at each of a few places.
constexpr int64_t kPlaces = 4, kAtAPlace = 16;

void add_samples(std::string& bytes, const WeightSet& weights, const std::string& name, const TensorInfo& tensor) {
  const int64_t count = tensor.count(), size = size_of(tensor.dtype);
  for (int64_t place = 0; place < kPlaces; ++place) {
    const int64_t first = count * place / kPlaces, now = std::min(kAtAPlace, count - first);
    if (now <= 0) return;
    const size_t at = bytes.size();
    bytes.resize(at + static_cast<size_t>(now * size));
    weights.read(name, first, now, bytes.data() + at);
  }
}

struct Form {
  std::string_view stem, ending;
};
constexpr Form kForms[] = {
    {"model", ".safetensors"}, {"diffusion_pytorch_model", ".safetensors"}, {"pytorch_model", ".bin"}};
constexpr std::string_view kEndings[] = {".safetensors", ".pth", ".pt", ".bin"};
constexpr std::string_view kIndexSuffix = ".index.json";

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw UserError(Exit::input, "weights.open", what, hint);
}

/// "3 files (a.txt, b.mp4 ...) and 1 folder": what lies in a folder, for a message.
std::string listed(const Path& folder) {
  constexpr size_t kNamed = 3;
  std::set<std::string> files;
  size_t folders = 0;
  for (const auto& item : fs::directory_iterator(folder)) {
    if (item.is_directory())
      ++folders;
    else
      files.insert(item.path().filename().string());
  }
  if (files.empty() && folders == 0) return "nothing";
  std::string names;
  for (const std::string& name : files)
    if (const size_t n = std::distance(files.begin(), files.find(name)); n < kNamed) names += (n ? ", " : "") + name;
  const auto counted = [](size_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); };
  std::string text = counted(files.size(), "file");
  if (!files.empty()) text += " (" + names + (files.size() > kNamed ? ", ..." : "") + ")";
  return text + (folders > 0 ? " and " + counted(folders, "folder") : "");
}

/// Files "<stem>-00001-of-00003.safetensors" of a folder, sorted; refuses an incomplete set.
std::vector<Path> shards(const Path& folder, const Form& form) {
  std::vector<Path> found;
  size_t expected = 0;
  for (const auto& item : fs::directory_iterator(folder)) {
    std::string name = item.path().filename().string();
    size_t of = name.rfind("-of-");
    if (!name.starts_with(std::string(form.stem) + "-") || !name.ends_with(form.ending) || of == std::string::npos)
      continue;
    std::string total = name.substr(of + 4, name.size() - of - 4 - form.ending.size());
    if (total.empty() || total.size() > 9 || total.find_first_not_of("0123456789") != std::string::npos) continue;
    expected = std::max(expected, static_cast<size_t>(std::stoul(total)));
    found.push_back(item.path());
  }
  if (found.size() != expected)
    refuse(folder.string() + ": " + std::to_string(found.size()) + " of " + std::to_string(expected) + " shards of " +
               std::string(form.stem) + " are there",
           "fetch the missing ones");
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

void WeightSet::add(const Path& file, bool averaged) {
  files_.push_back(WeightFile::open(file, averaged));
  for (const auto& entry : files_.back().tensors())
    if (!place_.emplace(entry.name, files_.size() - 1).second)
      refuse(path_.string() + ": tensor " + shown(entry.name) + " is in more than one file, also in " +
                 file.filename().string(),
             "remove the file that does not belong to the model");
}

void WeightSet::add_index(const Path& index) {
  const std::string what = index.string() + ": weight_map";
  const Json json = parse_json(read_text(index), index.string());
  const Json& map = json_member(json, "weight_map", index.string());
  if (!map.is_object() || map.empty())
    refuse(what + ": expected an object from tensor to file", "fetch the index again");

  std::map<std::string, size_t> files;
  std::set<std::string> missing;
  for (const auto& [name, value] : map.items()) {
    std::string file = json_string(value, what + ": " + shown(name));
    // an index names files beside it; anything else could read from anywhere
    if (Path(file).filename() != Path(file) || file == "." || file == "..")
      refuse(what + ": " + shown(name) + " is in " + shown(file) + ", expected a plain file name",
             "fetch the index again");
    if (missing.count(file) || !fs::exists(index.parent_path() / file)) {
      missing.insert(file);
      continue;
    }
    auto [at, is_new] = files.emplace(file, files_.size());
    if (is_new) files_.push_back(WeightFile::open(index.parent_path() / file));
    if (!files_[at->second].find(name))
      refuse(what + ": " + shown(name) + " should be in " + shown(file) + ", which does not have it",
             "index and shards are of different models: fetch both again");
    place_[name] = at->second;
  }
  if (missing.empty()) return;
  std::string list;
  for (const std::string& file : missing) list += (list.empty() ? "" : ", ") + file;
  const size_t named = files.size() + missing.size();
  refuse(index.string() + " names " + std::to_string(named) + (named == 1 ? " file" : " files") + ", of which " +
             std::to_string(missing.size()) + (missing.size() == 1 ? " is" : " are") + " not there: " + list,
         "fetch what is missing; was a download cut short?");
}

std::vector<std::string> WeightSet::names() const {
  std::vector<std::string> result;
  for (const auto& [name, file] : place_) result.push_back(name);
  return result;
}

const WeightFile& WeightSet::file_of(const std::string& name) const {
  auto found = place_.find(name);
  if (found != place_.end()) return files_[found->second];
  std::vector<std::string> near = nearest(name, names());
  throw UserError(Exit::input, "weights.read", path_.string() + ": no tensor " + shown(name),
                  near.empty() ? "it has no tensors at all" : "the nearest name in it is " + shown(near[0]));
}

bool WeightSet::contains(const std::string& name) const {
  if (place_.count(name) > 0) return true;
  const auto part = row_part(name);
  return part && place_.count(part->whole) > 0;
}

std::optional<RowPart> WeightSet::part_of(const std::string& name) const {
  if (place_.count(name) > 0) return std::nullopt;
  auto part = row_part(name);
  return part && place_.count(part->whole) > 0 ? part : std::nullopt;
}

TensorInfo WeightSet::at(const std::string& name) const {
  const auto part = part_of(name);
  if (!part) return *file_of(name).find(name);
  TensorInfo info = *file_of(part->whole).find(part->whole);
  const auto shape = part_shape(*part, info.shape);
  if (!shape)
    refuse(path_.string() + ": " + info.name + " " + shape_text(info.shape) + " should hold " +
               std::to_string(part->count) + " tensors, one after the other" +
               (part->pairs > 0 ? ", of heads of " + std::to_string(part->pairs) : ""),
           "is the file of another model?");
  info.name = name;
  info.shape = *shape;
  return info;
}

void WeightSet::read(const std::string& name, int64_t first, int64_t count, void* to) const {
  const auto part = part_of(name);
  if (!part) return file_of(name).read(name, first, count, to);
  at(name);  // refuses a tensor that cannot be divided so
  const WeightFile& file = file_of(part->whole);
  const TensorInfo& stored = *file.find(part->whole);
  read_part(
      *part, stored.shape, size_of(stored.dtype), first, count,
      [&](int64_t begin, int64_t n, void* into) { file.read(part->whole, begin, n, into); }, to);
}

void WeightSet::read_f32(const std::string& name, int64_t first, int64_t count, float* to) const {
  const auto part = part_of(name);
  if (!part) return read_stored_f32(name, first, count, to);
  at(name);  // as above
  read_part(
      *part, file_of(part->whole).find(part->whole)->shape, sizeof(float), first, count,
      [&](int64_t begin, int64_t n, void* into) { read_stored_f32(part->whole, begin, n, static_cast<float*>(into)); },
      to);
}

void WeightSet::read_stored_f32(const std::string& name, int64_t first, int64_t count, float* to) const {
  file_of(name).read_f32(name, first, count, to);
  const TensorInfo& tensor = at(name);
  if (size_of(tensor.dtype) != 1 || tensor.count() == 0) return;
  for (const std::string& scale : fp8_scale_names(name)) {
    if (!contains(scale)) continue;
    const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0], found = at(scale).count();
    check_input(found == 1 || found == rows, "weights.load",
                path_.string() + ": " + scale + " has " + std::to_string(found) + " values, " + name + " has " +
                    std::to_string(rows) + " rows",
                "expected one scale for all, or one for each row");
    std::vector<float> scales(static_cast<size_t>(found));
    file_of(scale).read_f32(scale, 0, found, scales.data());
    return apply_fp8_scales(to, first, count, scales, tensor.count() / rows);
  }
}

/// What one of the usual names in the folder says; whether there was one.
bool WeightSet::add_named(const Path& folder) {
  for (const Form& form : kForms) {
    const Path whole = folder / (std::string(form.stem) + std::string(form.ending));
    const Path index = whole.string() + std::string(kIndexSuffix);
    if (fs::exists(whole)) {
      add(whole);
    } else if (fs::exists(index)) {
      add_index(index);
    } else {
      for (const Path& shard : shards(folder, form)) add(shard);
    }
    if (!files_.empty()) return true;
  }
  return false;
}

bool is_weight_file(const Path& path) {
  const std::string name = path.filename().string();
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](auto ending) { return name.ends_with(ending); });
}

WeightSet open_weights(const Path& path, bool averaged) {
  WeightSet set;
  set.path_ = path;
  std::error_code error;
  if (averaged && (fs::is_directory(path, error) || path.string().ends_with(".json")))
    refuse(path.string() + ": averages of weights lie in one file, beside the weights",
           "name the .pth that a trainer saved");
  if (averaged) {
    set.add(path, averaged);
    return set;
  }
  if (!fs::is_directory(path, error)) {
    if (path.string().ends_with(".json")) {
      set.add_index(path);
    } else {
      set.add(path);
    }
    return set;
  }
  if (fs::exists(path / "manifest.json"))
    refuse(path.string() + ": is a training checkpoint, expected the weights of a model",
           "take the run's model folder, or make weights of it: tessera convert " + path.string() + " OUT");
  if (set.add_named(path)) return set;
  if (fs::exists(path / "running_states.json")) {  // a checkpoint of ColossalAI's trainers
    if (fs::exists(path / "master.safetensors")) {
      set.add(path / "master.safetensors");
      return set;
    }
    if (fs::is_directory(path / "model") && set.add_named(path / "model")) return set;
    refuse(path.string() + ": running_states.json is there, but neither master.safetensors nor the weights in model/",
           fs::is_directory(path / "lora") ? "it is of a LoRA: name its lora/adapter_model.bin"
                                           : "was the checkpoint removed? take a later one");
  }
  if (fs::is_directory(path / "transformer") && set.add_named(path / "transformer")) return set;

  std::vector<Path> found;
  for (const auto& item : fs::directory_iterator(path))
    if (item.is_regular_file() && is_weight_file(item.path())) found.push_back(item.path());
  if (found.size() == 1) {
    set.add(found[0]);
    return set;
  }
  if (const families::Family* family = families::holding_experts(path))
    refuse(path.string() + ": holds two models, " + families::listed(families::expert_folders(*family), "and"),
           "name one of the two");
  if (!found.empty())
    refuse(path.string() + ": holds " + std::to_string(found.size()) + " files of weights, among them " +
               found[0].filename().string(),
           "name the file itself");
  const bool run = fs::exists(path / "recipe.toml") && fs::is_directory(path / "checkpoints");
  refuse(
      path.string() + ": no weights in it, but " + listed(path) +
          "; looked for model.safetensors, diffusion_pytorch_model.safetensors, pytorch_model.bin, their .index.json "
          "and their shards",
      run ? "it is the folder of a run: its model is in " + (path / "model").string() + ", its checkpoints in " +
                (path / "checkpoints").string()
          : "name the file of weights itself, or the folder that holds it");
}

std::string fingerprint(const WeightSet& weights) {
  std::string bytes;
  for (const std::string& name : weights.names()) {
    const TensorInfo tensor = weights.at(name);
    bytes += name + shape_text(tensor.shape) + std::string(dtype_name(tensor.dtype));
    add_samples(bytes, weights, name, tensor);
  }
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_text(bytes)));
  return text;
}

std::map<std::string, std::vector<int64_t>> stored_shapes(const WeightSet& weights) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& name : weights.names()) shapes[name] = weights.at(name).shape;
  return shapes;
}

}  // namespace tessera::checkpoint
