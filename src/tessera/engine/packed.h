#pragma once
// Quantised activations, with their error measured. The quantised storages of a unit and micro-batch go into one
// buffer; their own memory is free until they are expanded again (saved.h).
//
//   Packed packed;
//   packed.add(storage, DType::i8);             // for each storage that can_pack
//   packed.compress(error);                     // allocates packed.buffer(), frees the storages' memory
//   ...; packed.expand();                       // the reverse; the storages hold rounded values
#include <optional>

#include "tessera/base/dtype.h"
#include "tessera/engine/saved.h"

namespace tessera::engine {

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
