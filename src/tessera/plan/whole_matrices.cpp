#include "tessera/plan/whole_matrices.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/states.h"

namespace tessera::plan {

namespace {

constexpr int64_t kPlaceAlign = 256;  // bytes: products of a device's library choose their kernels by it

bool is_matrix(const ParamSpec& param) { return param.trainable && param.whole; }

/// Adds a place of `bytes` at the end.
int64_t add_place(int64_t& end, int64_t bytes) {
  const int64_t at = end;
  end += round_up(bytes, kPlaceAlign);
  return at;
}

MatrixParts::Piece piece_of(const ParamSpec& param, int p, int64_t part, int tp, int tp_rank) {
  const int64_t numel = param.numel();
  if (tp == 1 || param.split == Split::none) return {p, 0, 0, numel, numel, 0};
  if (param.split == Split::column_parallel) return {p, 0, 0, numel, part, part * tp_rank};
  const int64_t inner = numel / param.shape[0], width = inner / tp;
  return {p, 0, 0, inner, width, width * tp_rank};
}

/// The matrices of a buffer to the members, each to the one with the least work so far.
std::vector<int> owners(const UnitSpec& unit, const Buffer& buffer, int members) {
  std::vector<int> order, owner(unit.params.size(), -1);
  for (const int p : buffer.params)
    if (is_matrix(unit.params[static_cast<size_t>(p)])) order.push_back(p);
  const auto work = [&](int p) { return transform_flops(unit.params[static_cast<size_t>(p)], 1); };
  std::ranges::stable_sort(order, [&](int a, int b) { return work(a) > work(b); });
  std::vector<double> load(static_cast<size_t>(members), 0.0);
  for (const int p : order) {
    const auto least = std::ranges::min_element(load);
    owner[static_cast<size_t>(p)] = static_cast<int>(least - load.begin());
    *least += work(p);
  }
  return owner;
}

}  // namespace

MatrixShape matrix_shape(const std::vector<int64_t>& shape) {
  const int64_t rows = shape.front();
  return {1, rows, std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>())};
}

double transform_flops(const ParamSpec& param, int64_t iterations) {
  const MatrixShape shape = matrix_shape(param.shape);
  const auto numel = static_cast<double>(shape.count * shape.rows * shape.columns),
             least = static_cast<double>(shape.least());
  // two products of the matrix with one of its smaller side, and the square of that one
  return static_cast<double>(iterations) *
         (4 * numel * least + 2 * static_cast<double>(shape.count) * least * least * least);
}

int64_t transform_bytes(const MatrixShape& shape, DType type) {
  int64_t bytes = kPlaceAlign;  // the norm
  add_place(bytes, 4 * shape.rows * shape.columns);
  for (int squares = 0; squares < 2; ++squares) add_place(bytes, size_of(type) * shape.least() * shape.least());
  return bytes;
}

int64_t MatrixParts::elements(int from, int to) const {
  int64_t count = 0;
  for (const Piece& piece : pieces[static_cast<size_t>(from)])
    if (owner[static_cast<size_t>(piece.param)] == to) count += piece.count();
  return count;
}

int64_t MatrixParts::sent() const {
  int64_t count = 0;
  for (int m = 0; m < members; ++m) count += m == index ? 0 : elements(index, m);
  return count;
}

int64_t MatrixParts::returned() const {
  int64_t count = 0;
  for (int m = 0; m < members; ++m) count += m == index ? 0 : elements(m, index);
  return count;
}

std::vector<MatrixParts> matrix_parts(const Plan& plan, const UnitSpec& unit, const UnitLayout& layout, int rank) {
  std::vector<MatrixParts> all(layout.buffers.size());
  const int tp = plan.mesh[Axis::tp];
  for (size_t b = 0; b < layout.buffers.size(); ++b) {
    const Buffer& buffer = layout.buffers[b];
    const auto whole = [&](int p) { return is_matrix(unit.params[static_cast<size_t>(p)]); };
    if (!buffer.trainable || std::ranges::none_of(buffer.params, whole)) continue;
    MatrixParts& parts = all[b];
    const std::vector<int> members = plan.mesh.group(rank, sum_axes(plan, buffer));
    parts.members = static_cast<int>(members.size());
    parts.index = static_cast<int>(std::ranges::find(members, rank) - members.begin());
    parts.owner = owners(unit, buffer, parts.members);
    for (const int member : members) {
      std::vector<MatrixParts::Piece>& pieces = parts.pieces.emplace_back();
      for (const auto& range : state_layout(unit, layout, plan.held(layout, member), {}).ranges) {
        if (range.buffer != static_cast<int>(b) || !range.updated || !whole(range.param)) continue;
        const auto p = static_cast<size_t>(range.param);
        MatrixParts::Piece piece =
            piece_of(unit.params[p], range.param, layout.params[p].numel, tp, plan.mesh.coordinate(member, Axis::tp));
        piece.begin = range.begin, piece.end = range.end;
        pieces.push_back(piece);
      }
    }
  }
  return all;
}

MatrixWork matrix_work(const UnitSpec& unit, const MatrixParts& parts, DType type) {
  MatrixWork work;
  const int64_t element = size_of(type);
  const auto member = static_cast<size_t>(parts.index);
  work.whole.assign(unit.params.size(), -1);
  work.to.assign(static_cast<size_t>(parts.members), 0), work.from = work.to;
  work.own.resize(parts.pieces[member].size());
  for (int m = 0; parts.members > 1 && m < parts.members; ++m) {
    int64_t at = work.to[static_cast<size_t>(m)] = add_place(work.bytes, element * parts.elements(parts.index, m));
    for (size_t i = 0; i < work.own.size(); ++i) {
      const MatrixParts::Piece& piece = parts.pieces[member][i];
      if (parts.owner[static_cast<size_t>(piece.param)] != m) continue;
      work.own[i] = at, at += element * piece.count();
    }
  }
  int64_t most = 0;
  for (size_t p = 0; p < unit.params.size(); ++p) {
    if (parts.owner[p] != parts.index) continue;
    work.whole[p] = add_place(work.bytes, element * unit.params[p].numel());
    most = std::max(most, transform_bytes(matrix_shape(unit.params[p].shape), type));
  }
  if (parts.members == 1)  // its part is the whole
    for (size_t i = 0; i < work.own.size(); ++i)
      work.own[i] = work.whole[static_cast<size_t>(parts.pieces[member][i].param)];
  work.transform = work.bytes;
  for (int m = 0; m < parts.members; ++m)
    work.from[static_cast<size_t>(m)] =
        add_place(work.bytes, m == parts.index ? 0 : element * parts.elements(m, parts.index));
  work.bytes = std::max({work.bytes, work.transform + most, kPlaceAlign});  // a rank without a part takes part too
  return work;
}

int64_t work_bytes(const UnitSpec& unit, const std::vector<MatrixParts>& parts, DType type) {
  int64_t bytes = 0;
  for (const MatrixParts& buffer : parts)
    if (!buffer.empty()) bytes = std::max(bytes, matrix_work(unit, buffer, type).bytes);
  return bytes;
}

double own_flops(const UnitSpec& unit, const std::vector<MatrixParts>& parts, int64_t iterations) {
  double flops = 0;
  for (const MatrixParts& buffer : parts)
    for (size_t p = 0; p < buffer.owner.size(); ++p)
      if (buffer.owner[p] == buffer.index) flops += transform_flops(unit.params[p], iterations);
  return flops;
}

}  // namespace tessera::plan
