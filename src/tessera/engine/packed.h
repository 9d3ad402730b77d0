#pragma once
// Saved activations in fewer bits than they were made in: lossy, and measured. All storages of a unit and micro-batch
// go into one buffer; their own memory is free until they are expanded again (saved.h).
//
//   Packed packed;
//   packed.add(storage, DType::i8);      // for each that can_pack
//   packed.compress(error);                     // takes packed.buffer(), frees the storages' memory
//   ...; packed.expand();                       // the reverse; the storages hold rounded values
#include <optional>

#include "tessera/base/dtype.h"
#include "tessera/engine/saved.h"

namespace tessera::engine {

/// Relative errors of what was compressed, one a storage: |rounded - x| / |x| over all its values (Euclidean).
struct CompressionError {
  double sum = 0, most = 0;
  int64_t count = 0;
  void add(double relative);
};

/// Rows shorter than this are statistics (a norm's 1/sigma, the log-sum-exp of attention): small, and the rest hangs on
/// them. They stay exact.
inline constexpr int64_t kShortRow = 8;

/// Whether the form makes it smaller: floats of more bits in whole rows.
bool can_pack(const SavedStorage& saved, DType form);
/// Bytes it takes in that form, in whole 64: int8 and fp8 with their scales.
int64_t packed_bytes(const SavedStorage& saved, DType form);

class Packed {
 public:
  /// `form` is one that can_pack it.
  void add(SavedStorage saved, DType form);
  bool empty() const { return members_.empty(); }

  void compress(CompressionError& error);
  /// Fills the storages again and lets go of them and of the buffer.
  void expand();
  /// What compress has filled: bytes as a storage that may be elsewhere meanwhile.
  const SavedStorage& buffer() const { return *buffer_; }

 private:
  struct Member {
    SavedStorage saved;
    DType form;
    int64_t at;  ///< where it begins in the buffer
  };
  std::vector<Member> members_;
  std::optional<SavedStorage> buffer_;  ///< while there is any
  int64_t bytes_ = 0;
};

}  // namespace tessera::engine
