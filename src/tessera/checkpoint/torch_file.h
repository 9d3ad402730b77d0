#pragma once
// Reads a Python pickle as a description: nothing is looked up, called or built, and what is not on the list is
// refused.
//
//   Pickle pickle = Pickle::parse(bytes, "model.pth: data.pkl", {"collections.OrderedDict", "torch.FloatStorage"});
//   for (auto [key, value] : pickle.pairs(pickle.root())) ...
//
// A pickle is a program for a small stack machine; "call this global with these arguments" is one of its instructions,
// which is why loading one in Python may run anything. Here a call becomes a value of kind `call` that holds the name
// and the arguments. Protocols 2 to 5, the instructions that tensors, dicts and plain values need.
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

class Pickle {
 public:
  using Ref = uint32_t;  ///< a value: values may share others, and a list may even hold itself
  enum class Kind { none, boolean, integer, real, text, bytes, tuple, list, dict, global, call, persistent };

  struct Value {
    Kind kind = Kind::none;
    int64_t integer = 0;  ///< boolean, integer
    double real = 0;
    std::string text = {};        ///< text, bytes; "module.name" of a global or of what is called
    std::vector<Ref> items = {};  ///< tuple, list, arguments; dict: key, value, key, value; persistent: the one id
  };

  /// Globals outside `allowed` are a UserError (input) that names them. `what` opens every message: the file. A dict
  /// and an OrderedDict are the same; attributes set on them (state_dict's _metadata) are dropped.
  static Pickle parse(std::string_view bytes, const std::string& what, const std::set<std::string>& allowed);

  Ref root() const { return root_; }
  const Value& at(Ref ref) const { return values_[ref]; }
  std::vector<std::pair<Ref, Ref>> pairs(Ref dict) const;  ///< keys and values in file order; empty when it is no dict

 private:
  friend class PickleMachine;
  std::deque<Value> values_;
  Ref root_ = 0;
};

// The tensors of a .pth, .pt or .bin file that torch.save wrote. Reads the same way as a safetensors file, runs
// nothing.
//
//   TorchFile file = TorchFile::open("Wan2.1_VAE.pth");
//   for (const TorchFile::Entry& entry : file.entries()) ...        // names, dtypes, shapes: no data has been read
//   file.read("decoder.conv1.weight", 0, entry.count(), values);
//
// Dicts within dicts give dotted names ("optimizer.state.0.exp_avg"); a dict that only wraps the weights ("state_dict",
// "model_state", "module", ...) gives no prefix. Texts and numbers of the outermost dict become metadata.

/// An open file of which every storage, offset, shape and stride has been checked to lie inside it; what does not, and
/// any pickled global that tensors do not need, is a UserError (input). Reading is safe from many threads.
class TorchFile {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    Shape strides;           ///< in elements
    int64_t begin = 0;       ///< byte of the file where element 0 lies
    int64_t span = 0;        ///< elements from the first to the last that the strides reach
    bool contiguous = true;  ///< row-major: elements follow each other
    int64_t count() const { return *element_count(shape); }
  };

  /// `averaged`: the moving average of the weights that a trainer stored beside them (a dict "state_dict_ema", "ema",
  /// ...). Throws UserError (input) naming the dicts that are there when there is none.
  static TorchFile open(const Path& path, bool averaged = false);
  /// Whether the file begins as one that torch.save wrote, of either form.
  static bool recognises(const ReadFile& file);

  const Path& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }  ///< in the order of the pickle
  const Metadata& metadata() const { return metadata_; }
  const Entry* find(std::string_view name) const;  ///< nullptr when absent

  /// Elements [first, first + count) in row-major order, as stored. A tensor with other strides (a transposed view) is
  /// read as a whole each time.
  void read(const Entry& entry, int64_t first, int64_t count, void* to) const;

 private:
  explicit TorchFile(const Path& path) : file_(path) {}

  ReadFile file_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  Metadata metadata_;
};

/// Everything that such a file holds, by its place in the dicts and lists: TorchFile gives the weights alone.
///
///   TorchTree tree("checkpoint_500.pt");
///   tree.metadata().at("step");                                            // "500"
///   tree.find("optimizer.state.0.exp_avg")->shape;
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
