#pragma once
// The storages that autograd graphs save, listed while they are saved, with the site of the operator that saved them.
// The memory of such a storage can be freed under the graph and given back later: activations can be offloaded between
// a unit's forward and its backward, and operators need not know.
//
//   SavedStorages saved(foreign);                       // this thread lists from here on
//   ... build the unit's graph ...
//   for (SavedStorage& s : saved.take(out.stream, out.cond)) { copy(s, host); free_memory(s); }
//   ...; take_memory(s); copy(host, s);                 // before the backward
//
// A lean graph does not save tensors that it recomputes from saved ones (ops/rebuild.h); those are not listed.
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ops/rebuild.h"

namespace tessera::engine {

struct SavedStorage {
  std::string site;
  at::Storage storage;
  at::ScalarType type;  ///< of the tensor that was saved
  int64_t row;          ///< size of the tensor's last dimension; 1 for a vector
  SavedStorage(std::string site, const at::Tensor& tensor);
  /// Device bytes: allocations are multiples of 64 bytes.
  int64_t bytes() const;
};

/// Frees the device memory; tensors over the storage may not be read until take_memory.
void free_memory(SavedStorage& saved);
void take_memory(SavedStorage& saved);

/// While it lives, lists the storages that nodes built on this thread save, each once, under the site of the last
/// at_site(). `foreign`: tensors that are not the unit's own (conditioning, inputs, tables) and are left out.
class SavedStorages {
 public:
  explicit SavedStorages(const std::vector<at::Tensor>& foreign, bool selective = false);
  ~SavedStorages();
  SavedStorages(const SavedStorages&) = delete;
  /// The storages found, without those of the outputs, which later units read.
  std::vector<SavedStorage> take(const std::vector<at::Tensor>& stream, const std::vector<at::Tensor>& cond);

  /// The recomputations of a lean graph so far; null for other graphs.
  const ops::Rebuilds* rebuilds() const { return rebuilds_ ? &*rebuilds_ : nullptr; }

  /// Names the operator that saves next; a Context calls it at every site.
  static void at_site(std::string_view site);

 private:
  friend struct SavedHook;
  void note(const at::Tensor& tensor, const std::string& site);

  std::set<const void*> seen_;
  std::vector<SavedStorage> found_;
  std::optional<ops::Rebuilds> rebuilds_;
};

}  // namespace tessera::engine
