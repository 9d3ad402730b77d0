#pragma once
// How the ranks of cp x sp x tp share the tokens of a micro-batch, and the bytes they exchange. Pure arithmetic.
//
//   TokenRange mine = token_share(T, mesh, rank);        // [T * i / n, T * (i + 1) / n): any T, no padding
//   Comm comm = ...; comm.bytes = traffic.bytes(T, mesh, rank, samples);
//
// [Note: token shares] Shares are contiguous and differ by at most one token; a share may begin inside a sample. cp is
// outermost and tp innermost, as in the mesh. Because floor(T * (i * m) / (n * m)) = floor(T * i / n), the shares of
// all ranks with the same (cp, sp) coordinates join to one share of cp x sp, and those with the same cp coordinate to
// one share (a *block*) of cp.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/base/symbol.h"

namespace tessera::plan {

struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

/// Share `index` out of `of` shares.
TokenRange token_share(int64_t tokens, int64_t index, int64_t of);

/// `widened`: the rows and `reach` rows before and after them (none if empty). `overlap`: the intersection.
TokenRange widened(TokenRange rows, int64_t reach);
TokenRange overlap(TokenRange a, TokenRange b);

/// The axes whose ranks share the tokens of a sample.
inline const std::vector<Axis> kSequenceAxes = {Axis::cp, Axis::sp, Axis::tp};
/// cp x sp x tp.
int sequence_size(const Mesh& mesh);
/// The rank's index among the token shares.
int sequence_rank(const Mesh& mesh, int rank);
/// The tokens that this rank stores.
TokenRange token_share(int64_t tokens, const Mesh& mesh, int rank);

/// The tokens whose rows a collective inside a unit sends.
enum class Rows {
  own,        ///< tokens of this rank's (cp, sp) coordinates, sent to the ranks that compute the heads
  others,     ///< the rest of the block, sent back to the ranks that store the tokens
  keys,       ///< all blocks but the next rank's: keys and values in the attention ring
  gradients,  ///< all blocks but this rank's: gradients of keys and values on their way back
  share,      ///< tokens that this rank stores
  rest,       ///< the rest of this rank's (cp, sp) share, sent back to the tp ranks that store the tokens
  context,    ///< conditioning tokens, replicated on every rank: those of the micro-batch's samples
  block,      ///< tokens of this rank's block, sent to the other ranks of cp
  reach,      ///< halo: tokens of this rank that convolutions on other ranks read
  reached,    ///< halo gradients: tokens of other ranks that convolutions on this rank read
  adapter,    ///< one row, of no token: what a linear's adapter sends
};

/// How far an instruction is: FLOPs of the matrix products of linears that it has run.
struct WorkDone {
  double products = 0;      ///< results and gradients of inputs
  double weight_grads = 0;  ///< gradients of weights, which a zero-bubble pipeline leaves for later
};

/// A place in a sample that is another one in samples of other shapes, as it stands in Traffic::part, and back.
constexpr int64_t moving_first(int64_t place) { return -1 - place; }
constexpr int64_t moving_last(int64_t place) { return -2 - place; }

/// A collective inside a unit, independent of the number of tokens. The engine records it during measurement
/// (engine/measure.h), the compiler declares it in the schedule, and the executor compares what ran with the
/// declaration.
struct Traffic {
  std::string purpose;  ///< purpose in the communicator's name: "sequence"
  std::vector<Axis> axes;
  Symbol kind;            ///< "all_to_all"
  Rows rows = Rows::own;  ///< rows that this rank sends
  int64_t row_bytes = 0;  ///< bytes of each row
  /// Only tokens [first, last) of each sample count; -1: to the end. The part is at the same position in samples of every
  /// shape, but for a moving_first and a moving_last, which are those of the shape that was measured.
  std::array<int64_t, 2> part = {0, -1};
  int64_t reach = 0;  ///< halo: rows of the part before and after a rank's own, for Rows::reach and Rows::reached
  /// What the measured rank computes while this is under way; the same twice: it waits at once.
  WorkDone begun = {}, awaited = {};

  bool several(const Mesh& mesh) const;  ///< its group has more than one rank
  /// `samples`: samples of the micro-batch, for rows of the conditioning.
  int64_t bytes(int64_t tokens, const Mesh& mesh, int rank, int64_t samples) const;

 private:
  int64_t rows_within_reach(int64_t tokens, const Mesh& mesh, int rank, int64_t samples) const;
};

}  // namespace tessera::plan
