#pragma once
// What autograd graphs hold, seen while it is saved: storages, by the site of the operator that saved them. The memory
// of such a storage can be freed under the graph and given back later, so that activations can be elsewhere between a
// unit's forward and its backward without the operators knowing.
//
//   SavedStorages saved(foreign);                       // this thread lists from here on
//   ... build the unit's graph ...
//   for (SavedStorage& s : saved.take(out.stream, out.cond)) { copy(s, host); free_memory(s); }
//   ...; take_memory(s); copy(host, s);                 // before the backward
//
// The graph may be lean: it does not hold what is made again from what it holds (ops/rebuild.h), and that is not
// listed.
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
  at::ScalarType type;  ///< of the tensor that was seen over it,
  int64_t row;          ///< and its row: values of its last dimension; 1 for a vector
  SavedStorage(std::string site, const at::Tensor& tensor);
  /// What it takes of the device: allocations are multiples of 64 bytes.
  int64_t bytes() const;
};

/// Frees the device memory; tensors over the storage may not be read until take_memory.
void free_memory(SavedStorage& saved);
void take_memory(SavedStorage& saved);

/// Lists the storages that nodes built on this thread save while it lives, each once, under the site that was named
/// last. `foreign`: tensors that belong to others (conditioning, inputs, tables) and are left out.
class SavedStorages {
 public:
  explicit SavedStorages(const std::vector<at::Tensor>& foreign, bool selective = false);
  ~SavedStorages();
  SavedStorages(const SavedStorages&) = delete;
  /// What was found, without what the outputs hold: others read them.
  std::vector<SavedStorage> take(const std::vector<at::Tensor>& stream, const std::vector<at::Tensor>& cond);

  /// Of a lean graph what makes values again, so far; null of others.
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
