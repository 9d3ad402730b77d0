#include "tessera/checkpoint/foreign_states.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/torch_file.h"
#include "tessera/checkpoint/training.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

void refuse_foreign(const std::string& what, const std::string& hint) {
  throw UserError(Exit::input, "run.resume", what, hint);
}

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kWhole =
    "save whole states: StateDictType.FULL_STATE_DICT with FSDP.optim_state_dict, or torch.distributed.checkpoint's "
    "get_state_dict with full_state_dict = True";
constexpr const char* kRunning = "running_states.json";

std::string identity_of(const fs::path& named, const fs::path& file) {
  return fs::weakly_canonical(fs::absolute(named)).string() + ", " + std::to_string(fs::file_size(file)) + " bytes, " +
         std::to_string(fs::last_write_time(file).time_since_epoch().count());
}

OrderedJson read_json(const fs::path& path) {
  constexpr int64_t kMost = int64_t{64} << 20;
  return parse_ordered_json(read_foreign(path, kMost, "run.resume", "copy the folder again, whole"), path.string());
}

/// A text or number of the file's outermost dict as a whole number from 0 on; nothing where it is none.
std::optional<int64_t> whole_number(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  const std::string& text = found->second;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size() && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

/// A pickle names the classes of its values; those of sharded tensors hold a rank's part, and where to find the others.
TorchTree open_tree(const std::string& file) {
  try {
    return TorchTree(file);
  } catch (const UserError& error) {
    const std::string text = error.what();
    for (const char* sharded : {"ShardedTensor", "DTensor"})
      if (text.find(sharded) != std::string::npos)
        refuse_foreign(file + ": holds a " + sharded + ", a rank's part of a tensor (" + text + ")", kWhole);
    throw;
  }
}

std::optional<ForeignStates::Moment> moment_of(const TorchTree& tree, const std::string& place) {
  const TorchFile::Entry* entry = tree.find(place);
  if (!entry) return std::nullopt;
  return ForeignStates::Moment{entry->shape,
                               [&tree, entry](float* to) { tree.read_f32(*entry, 0, entry->count(), to); }};
}

class FileStates : public ForeignStates {
 public:
  explicit FileStates(const std::string& file) : tree_(open_tree(file)) {}

  int64_t step() const override {
    const std::optional<int64_t> step = whole_number(tree_.metadata(), "step");
    if (!step)
      refuse_foreign(tree_.path().string() + ": has no step, expected a dict {\"model\", \"optimizer\", \"step\"}",
                     "save the number of steps that are done as \"step\"; weights alone are model.path");
    return *step;
  }

  std::vector<std::string> order() const override {
    std::vector<std::string> names;
    const TorchFile model = TorchFile::open(tree_.path());
    for (const TorchFile::Entry& entry : model.entries()) names.push_back(entry.name);
    return names;
  }

  std::optional<Moment> find(const std::string& parameter, const std::string& kind) const override {
    return moment_of(tree_, place(parameter, kind));
  }
  std::string place(const std::string& parameter, const std::string& kind) const override {
    return "optimizer.state." + parameter + "." + kind;
  }

  int64_t groups() const override { return whole_number(tree_.metadata(), "optimizer.param_groups").value_or(1); }
  std::optional<WeightSet> average() const override { return std::nullopt; }
  std::string identity() const override { return identity_of(tree_.path(), tree_.path()); }

 private:
  const TorchTree tree_;
};

/// Its states lie in pieces, each of some parameters, which an index names by their numbers: those of all parameters
/// that are trained, in the order of the model, whatever groups they are in.
class FolderStates : public ForeignStates {
 public:
  explicit FolderStates(const fs::path& folder) : folder_(folder) {
    const fs::path optimizer = folder / "optimizer";
    for (const char* name : {"pytorch_optim.bin.index.json", "optimizer.safetensors.index.json"})
      if (fs::exists(optimizer / name)) index_ = optimizer / name;
    if (index_.empty())
      refuse_foreign(folder.string() + ": has no optimizer/pytorch_optim.bin.index.json, nor optimizer.safetensors's",
                     "to begin with new moments, give the folder as model.path");
    for (const auto& [number, file] : map_of(index_)) file_of_[number] = open(optimizer / file);
  }

  int64_t step() const override {
    const OrderedJson running = read_json(folder_ / kRunning);
    for (const char* key : {"actual_update_step", "global_step"})  // 1.x has the second alone, which counts updates
      if (running.contains(key) && running[key].is_number_integer() && running[key].get<int64_t>() >= 0)
        return running[key].get<int64_t>();
    refuse_foreign((folder_ / kRunning).string() + ": has no actual_update_step, nor global_step",
                   "is it the trainer's own file?");
  }

  std::vector<std::string> order() const override {
    std::vector<std::string> names;
    for (const char* file : {"model.safetensors.index.json", "pytorch_model.bin.index.json"})
      if (names.empty() && fs::exists(folder_ / "model" / file))
        for (const auto& [name, piece] : map_of(folder_ / "model" / file)) names.push_back(name);
    if (names.empty())
      refuse_foreign(folder_.string() + ": its model/ has no index of weights, which is the order of the moments",
                     "to begin with new moments, give the folder as model.path");
    return names;
  }

  std::optional<Moment> find(const std::string& parameter, const std::string& kind) const override {
    const auto found = file_of_.find(parameter);
    if (found == file_of_.end()) return std::nullopt;
    if (found->second->tree) return moment_of(*found->second->tree, parameter + "." + kind);
    const SafetensorsFile& file = *found->second->safetensors;
    const auto* entry = file.find("state." + parameter + "." + kind);
    if (!entry) return std::nullopt;
    return Moment{entry->shape, [&file, entry](float* to) { file.read_f32(entry->name, 0, entry->count(), to); }};
  }
  std::string place(const std::string& parameter, const std::string& kind) const override {
    return parameter + "." + kind + " of " + index_.filename().string();
  }
  int64_t groups() const override { return 1; }

  std::optional<WeightSet> average() const override {
    for (const char* name : {"ema.safetensors", "ema.pt"})
      if (fs::exists(folder_ / name)) return open_weights(folder_ / name);
    return std::nullopt;
  }
  std::string identity() const override { return identity_of(folder_, folder_ / kRunning); }

 private:
  struct Piece {
    std::optional<TorchTree> tree;
    std::optional<SafetensorsFile> safetensors;
  };

  static std::vector<std::pair<std::string, std::string>> map_of(const fs::path& index) {
    std::vector<std::pair<std::string, std::string>> pairs;
    const OrderedJson json = read_json(index);
    if (json.contains("weight_map") && json["weight_map"].is_object())
      for (const auto& [key, value] : json["weight_map"].items())
        if (value.is_string()) pairs.emplace_back(key, value.get<std::string>());
    if (pairs.empty()) refuse_foreign(index.string() + ": has no weight_map", "was it cut short? copy it again");
    return pairs;
  }

  std::shared_ptr<Piece> open(const fs::path& file) {
    auto& piece = pieces_[file.string()];
    if (piece) return piece;
    if (file.parent_path() != folder_ / "optimizer" || !fs::exists(file))
      refuse_foreign(index_.string() + " names " + file.string() + ", which is not there",
                     "copy the folder again, whole");
    piece = std::make_shared<Piece>();
    if (file.extension() == ".safetensors")
      piece->safetensors.emplace(SafetensorsFile::open(file));
    else
      piece->tree.emplace(open_tree(file.string()));
    return piece;
  }

  const fs::path folder_;
  fs::path index_;
  std::map<std::string, std::shared_ptr<Piece>> pieces_, file_of_;
};

}  // namespace

std::unique_ptr<ForeignStates> open_foreign_states(const std::string& path) {
  if (is_trainer_folder(path)) return std::make_unique<FolderStates>(path);
  return std::make_unique<FileStates>(path);
}

}  // namespace tessera::checkpoint
