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
// Quantised activations, with their error measured: the quantised storages of a unit and micro-batch go into one buffer;
// their own memory is free until they are expanded again.
//
//   Packed packed;
//   packed.add(storage, DType::i8);             // for each storage that can_pack
//   packed.compress(error);                     // allocates packed.buffer(), frees the storages' memory
//   ...; packed.expand();                       // the reverse; the storages hold rounded values
//
// A lean graph does not save tensors that it recomputes from saved ones (ops/rebuild.h); those are not listed.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
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

/// While it lives, lists the storages that nodes built on this thread save, each once, under the session's site
/// (ops/session.h). `foreign`: tensors that are not the unit's own (conditioning, inputs, tables) and are left out.
class SavedStorages {
 public:
  explicit SavedStorages(const std::vector<at::Tensor>& foreign, bool selective = false);
  ~SavedStorages();
  SavedStorages(const SavedStorages&) = delete;
  /// The storages found, without those of the outputs, which later units read.
  std::vector<SavedStorage> take(const std::vector<at::Tensor>& stream, const std::vector<at::Tensor>& cond);

  /// The recomputations of a lean graph so far; null for other graphs.
  const ops::Rebuilds* rebuilds() const { return rebuilds_ ? &*rebuilds_ : nullptr; }

 private:
  friend struct SavedHook;
  void note(const at::Tensor& tensor, const std::string& site);

  std::set<const void*> seen_;
  std::vector<SavedStorage> found_;
  std::optional<ops::Rebuilds> rebuilds_;
};

/// Relative errors of the quantised storages, one for each: |rounded - x| / |x| over all its values (Euclidean).
struct CompressionError {
  double sum = 0, most = 0;
  int64_t count = 0;
  void add(double relative);

  /// fp64 [storages, 2] where they lie: squares of the errors and of the values of those that the host has not read, so that
  /// it need not wait for each. Storages beyond its rows are read at once, and all without it.
  at::Tensor squares = {};
  int64_t unread = 0;
  /// `read`: the first `unread` rows.
  void settle(const std::vector<double>& read);
};

/// Rows shorter than this are statistics (a norm's 1/sigma, the log-sum-exp of attention). They are small, and their
/// errors would scale whole rows: they stay exact.
inline constexpr int64_t kShortRow = 8;

/// Whether the form makes it smaller: true for floats of more bits in whole rows.
bool can_pack(const SavedStorage& saved, DType form);
/// Bytes in that form, a multiple of 64: int8 and fp8 with their scales.
int64_t packed_bytes(const SavedStorage& saved, DType form);

class Packed {
 public:
  /// Precondition: can_pack(saved, form).
  void add(SavedStorage saved, DType form);
  bool empty() const { return members_.empty(); }

  void compress(CompressionError& error);
  /// Fills the storages again and drops the references to them and to the buffer.
  void expand();
  /// The buffer that compress() filled, as a storage that may be offloaded.
  const SavedStorage& buffer() const { return *buffer_; }

 private:
  struct Member {
    SavedStorage saved;
    DType form;
    int64_t at;  ///< its offset in the buffer
  };
  std::vector<Member> members_;
  std::optional<SavedStorage> buffer_;  ///< from compress() to expand()
  int64_t bytes_ = 0;
};

}  // namespace tessera::engine
