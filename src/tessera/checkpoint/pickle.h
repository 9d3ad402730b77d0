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
#include <utility>
#include <vector>

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

}  // namespace tessera::checkpoint
