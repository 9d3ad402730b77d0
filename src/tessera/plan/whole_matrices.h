#pragma once
// Updates of whole matrices (OptimizerRow::whole): a tensor's elements are spread over the ranks that update parts of it,
// and each matrix has a rank that gets all of it, transforms it and sends the parts back. Every rank does the arithmetic of
// a matrix on the whole of it, so all layouts give the same bits.
//
//   const std::vector<MatrixParts> parts = matrix_parts(plan, unit, layout, rank);     // by buffer
//   parts[b].owner[p]; parts[b].sent(); work_bytes(unit, parts, plan.states.matrices);
//
// A buffer's matrices go to the members of sum_axes() in turn, the largest first, each to the one with the least work so far.
// Memory of an update, for one buffer after the other: the parts of this rank ("own"), the whole matrices of this rank, and
// what it receives for them, whose memory their transformation then uses.
#include <cstdint>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

/// A tensor as matrices, row-major and one after the other: kernels of convolutions are [out, the rest], tensors of three
/// dimensions a batch.
struct MatrixShape {
  int64_t count = 0, rows = 0, columns = 0;
  int64_t least() const { return rows < columns ? rows : columns; }
};
MatrixShape matrix_shape(const std::vector<int64_t>& shape);

/// FLOPs of the transformation of a tensor, and bytes that it takes beside the tensor.
double transform_flops(const ParamSpec& param, int64_t iterations);
int64_t transform_bytes(const MatrixShape& shape, DType type);

/// The matrices of a buffer among the ranks that update parts of them.
struct MatrixParts {
  /// Elements [begin, end) of the member's tensor-parallel part of a parameter; element e of it is e / width * inner + first
  /// + e % width of the whole tensor.
  struct Piece {
    int param;
    int64_t begin, end;
    int64_t inner, width, first;
    int64_t count() const { return end - begin; }
  };
  int members = 1, index = 0;              ///< of the group, and this rank among them
  std::vector<int> owner;                  ///< by parameter of the unit: the member that has the whole; -1: no matrix
  std::vector<std::vector<Piece>> pieces;  ///< of each member, in the order of the parameters

  bool empty() const { return pieces.empty(); }
  /// Elements of member `from` that `to` has the whole of.
  int64_t elements(int from, int to) const;
  /// Elements that this rank sends to the others before the transformation, and after it.
  int64_t sent() const;
  int64_t returned() const;
};
std::vector<MatrixParts> matrix_parts(const Plan& plan, const UnitSpec& unit, const UnitLayout& layout, int rank);

/// Where an update's memory has what, in bytes from its begin.
struct MatrixWork {
  std::vector<int64_t> own;    ///< of each piece of this rank, in their order
  std::vector<int64_t> to;     ///< of the first piece for each member: these are one after the other
  std::vector<int64_t> whole;  ///< by parameter of the unit, of this rank's matrices; -1: of another
  std::vector<int64_t> from;   ///< what comes from each member, and goes back
  int64_t transform = 0;       ///< what the transformation takes, over what came
  int64_t bytes = 0;           ///< of all
};
MatrixWork matrix_work(const UnitSpec& unit, const MatrixParts& parts, DType type);
/// Of the unit's update: the most of its buffers.
int64_t work_bytes(const UnitSpec& unit, const std::vector<MatrixParts>& parts, DType type);
/// FLOPs of this rank.
double own_flops(const UnitSpec& unit, const std::vector<MatrixParts>& parts, int64_t iterations);

}  // namespace tessera::plan
