#pragma once
// Everything that a file of torch.save holds, by its place in the dicts and lists. TorchFile gives the weights alone.
//
//   TorchTree tree("checkpoint_500.pt");
//   tree.metadata().at("step");                                            // "500"
//   tree.find("optimizer.state.0.exp_avg")->shape;
//   tree.metadata().at("optimizer.param_groups");                          // "2", the length of the list
#include "tessera/checkpoint/torch_file.h"

namespace tessera::checkpoint {

class TorchTree {
 public:
  /// Throws UserError (input) as TorchFile::open does.
  explicit TorchTree(const Path& path);

  const Path& path() const { return file_.path(); }
  const std::vector<TorchFile::Entry>& entries() const { return entries_; }  ///< in the order of the pickle
  /// Texts and numbers of the outermost dict, and of each list "param_groups" its length.
  const Metadata& metadata() const { return metadata_; }
  const TorchFile::Entry* find(std::string_view name) const;  ///< nullptr when absent
  /// Elements [first, first + count) in row-major order, of any floating dtype, as fp32.
  void read_f32(const TorchFile::Entry& entry, int64_t first, int64_t count, float* to) const;

 private:
  ReadFile file_;
  std::vector<TorchFile::Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  Metadata metadata_;
};

}  // namespace tessera::checkpoint
