#pragma once
// The weights of a model wherever they lie: one file (.safetensors, .pth, .pt, .bin), an index.json with its shards, or
// a model folder.
//
//   WeightSet weights = open_weights("Wan2.1-T2V-1.3B");
//   weights.at("blocks.0.self_attn.q.weight").shape;
//   weights.read_f32("blocks.0.self_attn.q.weight", first, count, values);
//
// The mark of weights that a run of this program wrote: what they were trained with is what the recipe gives them.
//
//   write_safetensors(file, tensors, own_metadata());
//   if (is_own(open_weights(path))) ...
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/row_part.h"
#include "tessera/checkpoint/weight_file.h"

namespace tessera::checkpoint {

class WeightSet {
 public:
  const Path& path() const { return path_; }  ///< what was opened, for messages
  const std::vector<WeightFile>& files() const { return files_; }
  std::vector<std::string> names() const;  ///< sorted
  const Metadata& metadata() const { return files_.front().metadata(); }
  /// These take the name of a part of a tensor too (row_part.h).
  bool contains(const std::string& name) const;
  TensorInfo at(const std::string& name) const;  ///< throws naming the nearest known one
  void read(const std::string& name, int64_t first, int64_t count, void* to) const;
  void read_f32(const std::string& name, int64_t first, int64_t count, float* to) const;

 private:
  friend WeightSet open_weights(const Path&, bool);
  void add(const Path& file, bool averaged = false);
  void add_index(const Path& index);
  bool add_named(const Path& folder, bool variants);
  const WeightFile& file_of(const std::string& name) const;
  /// The part that a name is of, where the set holds its tensor; nothing for a stored tensor's own name.
  std::optional<RowPart> part_of(const std::string& name) const;
  void read_stored_f32(const std::string& name, int64_t first, int64_t count, float* to) const;

  Path path_;
  std::vector<WeightFile> files_;
  std::map<std::string, size_t> place_;  ///< name -> file
};

/// In a folder, the first of: model.safetensors, diffusion_pytorch_model.safetensors, pytorch_model.bin,
/// diffusion_pytorch_model.bin, each whole, with an .index.json or as shards ("...-00001-of-00003.safetensors", all of
/// them), as they are or, where there is but one, as a variant ("model.fp16.safetensors"); the folder of Open-Sora's
/// trainer, its fp32 masters or its model/; the one transformer of a folder of several parts (model_folder.h); the only
/// file of weights there is. Throws UserError (input) saying what was looked for.
/// `averaged`: see TorchFile::open; `path` is then one file.
WeightSet open_weights(const Path& path, bool averaged = false);

/// 16 digits that tell two sets of weights apart without reading all of them: a hash of names, shapes, dtypes and 64 elements
/// of each tensor. The same wherever the files lie and whatever their names are.
std::string fingerprint(const WeightSet& weights);

/// Names and shapes of all stored tensors.
std::map<std::string, std::vector<int64_t>> stored_shapes(const WeightSet& weights);

inline constexpr const char* kTrainedBy = "trained_by";

inline Metadata own_metadata() {
  return {{"format", "pt"}, {kTrainedBy, "tessera"}};
}  // "pt": readers of diffusers ask

inline bool is_own(const WeightSet& weights) {
  const Metadata& metadata = weights.metadata();
  const auto found = metadata.find(kTrainedBy);
  return found != metadata.end() && found->second == "tessera";
}

}  // namespace tessera::checkpoint
