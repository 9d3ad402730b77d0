#pragma once
// How the ranks of cp x sp x tp share the tokens of a micro-batch, and what they send each other: pure arithmetic.
//
//   TokenRange mine = token_share(T, mesh, rank);        // [T * i / n, T * (i + 1) / n): any T, no padding
//   Comm comm = ...; comm.bytes = traffic.bytes(T, mesh, rank, samples);
//
// [Note: token shares] Shares are contiguous and differ by one token at most; a share may cut a sample anywhere. cp is
// outermost and tp innermost, as in the mesh. Because floor(T * (i * m) / (n * m)) = floor(T * i / n), the shares of
// the ranks of one (cp, sp) place make one share of cp x sp, and those of one cp place one share (a *block*) of cp.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"

namespace tessera::plan {

struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

/// Share `index` of `of`.
TokenRange token_share(int64_t tokens, int64_t index, int64_t of);

/// The rows and so many before and behind them, of none none; and what two ranges have in common.
TokenRange widened(TokenRange rows, int64_t reach);
TokenRange overlap(TokenRange a, TokenRange b);

/// The axes whose ranks share the tokens of a sample.
inline const std::vector<Axis> kSequenceAxes = {Axis::cp, Axis::sp, Axis::tp};
/// cp x sp x tp.
int sequence_size(const Mesh& mesh);
/// The rank's place among them, in the order of their shares.
int sequence_rank(const Mesh& mesh, int rank);
/// The tokens whose rows rest on the rank.
TokenRange token_share(int64_t tokens, const Mesh& mesh, int rank);

/// Of which tokens a collective inside a unit sends rows.
enum class Rows {
  own,        ///< those of this rank's place in cp x sp, on their way to all heads' owners
  others,     ///< the rest of the block, on its way back to the tokens' owners
  keys,       ///< all blocks but the next rank's: keys and values that travel round the ring
  gradients,  ///< all blocks but this rank's: their gradients, which travel home
  share,      ///< those that rest on this rank
  rest,       ///< the rest of this rank's place in cp x sp, on their way back to the ranks of tp where they rest
  context,    ///< of the conditioning, which every rank has whole: as many as the micro-batch's samples have
  block,      ///< those of this rank's block, to the other ranks of cp
  reach,      ///< those that a convolution of other ranks reaches from their own tokens
  reached,    ///< those of other ranks that one reaches from here: their gradients
};

/// A collective that runs inside a unit, whatever the number of tokens. The engine notes it when it measures the unit
/// (engine/measure.h), the compiler makes a declaration of it, the executor holds what ran against that.
struct Traffic {
  std::string purpose;  ///< of the communicator: "sequence"
  std::vector<Axis> axes;
  std::string kind;       ///< "all_to_all"
  Rows rows = Rows::own;  ///< sends so many rows
  int64_t row_bytes = 0;  ///< of so many bytes each
  /// Counted are these of each sample's tokens, [first, last); -1: to its end. A part that has another place in samples
  /// of other shapes cannot be declared.
  std::array<int64_t, 2> part = {0, -1};
  int64_t reach = 0;  ///< of these two: so many rows of the part, before and behind a rank's own

  bool several(const Mesh& mesh) const;  ///< its group has more than one rank
  /// `samples`: of the micro-batch, for rows of the conditioning.
  int64_t bytes(int64_t tokens, const Mesh& mesh, int rank, int64_t samples) const;

 private:
  int64_t rows_within_reach(int64_t tokens, const Mesh& mesh, int rank, int64_t samples) const;
};

}  // namespace tessera::plan
