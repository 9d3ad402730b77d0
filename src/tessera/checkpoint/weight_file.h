#pragma once
// One file of tensors, of whichever form its first bytes say: safetensors, or what torch.save wrote.
//
//   WeightFile file = WeightFile::open("Wan2.1_VAE.pth");
//   const TensorInfo& w = *file.find("conv1.weight");
//   file.read_f32(w.name, 0, w.count(), values);
//
// Names are without what wrappers of modules put into them ("_orig_mod." of torch.compile).
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/torch_file.h"

namespace tessera::checkpoint {

/// Files that may hold weights, by their ending.
bool is_weight_file(const Path& path);

/// "blocks.0.attn.weight" of "_orig_mod.blocks.0._checkpoint_wrapped_module.attn.weight": what torch.compile, FSDP and
/// activation checkpointing wrap a module in has no name here.
std::string without_wrappers(std::string_view name);

class WeightFile {
 public:
  /// Throws UserError (input), see the two forms; `averaged` is of torch.save's.
  static WeightFile open(const Path& path, bool averaged = false);

  const Path& path() const;
  std::string_view format() const;                                   ///< "safetensors" or "pth"
  const std::vector<TensorInfo>& tensors() const { return infos_; }  ///< in file order
  const Metadata& metadata() const;
  const TensorInfo* find(std::string_view name) const;  ///< nullptr when absent

  /// Elements [first, first + count) as stored. Throws UserError (input) for an unknown name or a range outside.
  void read(std::string_view name, int64_t first, int64_t count, void* to) const;
  void read_f32(std::string_view name, int64_t first, int64_t count, float* to) const;  ///< floating dtypes only

 private:
  explicit WeightFile(std::variant<SafetensorsFile, TorchFile> file);

  std::variant<SafetensorsFile, TorchFile> file_;
  const std::string& stored(std::string_view name) const;  ///< the file's own name of a tensor

  std::vector<TensorInfo> infos_;
  std::unordered_map<std::string, size_t> index_;
  std::unordered_map<std::string, std::string> wrapped_;  ///< to the names that the file has with wrappers
};

}  // namespace tessera::checkpoint
