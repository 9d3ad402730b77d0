#include "tessera/checkpoint/weights.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/row_part.h"

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
constexpr Form kForms[] = {{"model", ".safetensors"},
                           {"diffusion_pytorch_model", ".safetensors"},
                           {"pytorch_model", ".bin"},
                           {"diffusion_pytorch_model", ".bin"}};

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

/// What a folder has of one form: the whole file, its index, its shards.
struct Named {
  Path whole, index;
  std::set<Path> shards;
  size_t expected = 0;  ///< shards, as their names count them
};

/// Takes `end` off; whether it was there.
bool strip(std::string_view& name, std::string_view end) {
  if (!name.ends_with(end)) return false;
  name.remove_suffix(end.size());
  return true;
}

/// Takes ".fp16" off. A variant is a word: neither numbers with hyphens nor further dots are in it.
std::string strip_variant(std::string_view& name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos || name.substr(dot).find_first_of("- ") != name.npos || dot + 1 == name.size()) return {};
  std::string variant(name.substr(dot + 1));
  name.remove_suffix(name.size() - dot);
  return variant;
}

/// By variant, "" for files of none: "<stem>.safetensors", "<stem>.fp16.safetensors", "<stem>.safetensors.index.json",
/// "<stem>.safetensors.index.fp16.json", "<stem>-00001-of-00003.safetensors", and shards with the variant at either end
/// of their numbers.
std::map<std::string, Named> named_files(const Path& folder, const Form& form) {
  std::map<std::string, Named> found;
  for (const auto& item : fs::directory_iterator(folder)) {
    const std::string file = item.path().filename().string();
    std::string_view name = file;
    if (!name.starts_with(form.stem)) continue;
    std::string variant;
    bool index = false;
    if (strip(name, ".json")) {
      index = strip(name, ".index");
      if (!index) variant = strip_variant(name), index = strip(name, ".index");
      if (!index) continue;
    }
    if (!strip(name, form.ending)) continue;
    if (variant.empty()) variant = strip_variant(name);
    name.remove_prefix(std::min(name.size(), form.stem.size()));
    if (name.empty()) {
      (index ? found[variant].index : found[variant].whole) = item.path();
      continue;
    }
    const size_t dash = name.find('-'), of = name.rfind("-of-");
    if (dash == name.npos || of == name.npos || of <= dash || index) continue;
    const std::string total(name.substr(of + 4));
    if (total.empty() || total.size() > 9 || total.find_first_not_of("0123456789") != std::string::npos) continue;
    if (dash > 0 && (name[0] != '.' || !variant.empty())) continue;
    Named& shards = found[dash > 0 ? std::string(name.substr(1, dash - 1)) : variant];
    shards.expected = std::max(shards.expected, static_cast<size_t>(std::stoul(total)));
    shards.shards.insert(item.path());
  }
  return found;
}

/// Checkpoints of other programs that are no weights of a model: the line that makes such of them is in the message.
void refuse_checkpoint(const Path& folder) {
  std::vector<Path> places = {folder};
  for (const auto& item : fs::directory_iterator(folder))
    if (item.is_directory()) places.push_back(item.path());
  for (const Path& place : places) {
    const std::string made = (folder / "model.pth").string();
    if (fs::exists(place / ".metadata"))
      refuse(place.string() + ": is a checkpoint of torch.distributed (DCP), expected the weights of a model",
             "make a file of it: python -c \"from torch.distributed.checkpoint.format_utils import dcp_to_torch_save; "
             "dcp_to_torch_save('" +
                 place.string() + "', '" + made + "')\"");
    if (fs::exists(place / "zero_to_fp32.py"))
      refuse(place.string() + ": is a checkpoint of DeepSpeed, expected the weights of a model",
             "make files of it: python " + (place / "zero_to_fp32.py").string() + " " + place.string() + " " +
                 (folder / "model").string());
  }
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
  for (const auto& [stored, value] : map.items()) {
    const std::string name = without_wrappers(stored);
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
    const bool wrapped = !files_[at->second].find(name);
    if (wrapped && !files_[at->second].find(stored))
      refuse(what + ": " + shown(name) + " should be in " + shown(file) + ", which does not have it",
             "index and shards are of different models: fetch both again");
    place_[wrapped ? stored : name] = at->second;
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

/// What one of the usual names in the folder says, as it is or as a variant; whether there was one.
bool WeightSet::add_named(const Path& folder, bool variants) {
  for (const Form& form : kForms) {
    std::map<std::string, Named> found = named_files(folder, form);
    if (variants == found.contains("") || found.empty()) continue;
    if (found.size() > 1 && variants)
      refuse(folder.string() + ": holds " + std::string(form.stem) + std::string(form.ending) + " in " +
                 std::to_string(found.size()) + " variants, " + found.begin()->first + " and " +
                 std::next(found.begin())->first + (found.size() > 2 ? " among them" : ""),
             "name the file itself, or the .index.json of its shards");
    const Named& named = variants ? found.begin()->second : found[""];
    if (!named.whole.empty()) {
      add(named.whole);
    } else if (!named.index.empty()) {
      add_index(named.index);
    } else {
      if (named.shards.size() != named.expected)
        refuse(folder.string() + ": " + std::to_string(named.shards.size()) + " of " + std::to_string(named.expected) +
                   " shards of " + std::string(form.stem) + " are there",
               "fetch the missing ones");
      for (const Path& shard : named.shards) add(shard);
    }
    if (!files_.empty()) return true;
  }
  return false;
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
  if (set.add_named(path, /*variants=*/false) || set.add_named(path, /*variants=*/true)) return set;
  if (fs::exists(path / "running_states.json")) {  // a checkpoint of ColossalAI's trainers
    if (fs::exists(path / "master.safetensors")) {
      set.add(path / "master.safetensors");
      return set;
    }
    if (fs::is_directory(path / "model") && set.add_named(path / "model", /*variants=*/false)) return set;
    refuse(path.string() + ": running_states.json is there, but neither master.safetensors nor the weights in model/",
           fs::is_directory(path / "lora") ? "it is of a LoRA: name its lora/adapter_model.bin"
                                           : "was the checkpoint removed? take a later one");
  }
  refuse_checkpoint(path);
  const ModelFolder folder = find_parts(path);
  const ModelPart *model = folder.find("transformer"), *second = folder.find("transformer_2");
  if (model && second)
    refuse(path.string() + ": holds two models, " + model->weights.lexically_relative(folder.path).string() + " and " +
               second->weights.lexically_relative(folder.path).string(),
           "name one of the two");
  if (model && model->weights != path) return open_weights(model->weights);
  if (folder.path != path) return open_weights(folder.path);

  std::vector<Path> found;
  for (const auto& item : fs::directory_iterator(path))
    if (item.is_regular_file() && is_weight_file(item.path())) found.push_back(item.path());
  if (found.size() == 1) {
    set.add(found[0]);
    return set;
  }
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
