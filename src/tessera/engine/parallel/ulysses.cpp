#include "tessera/engine/parallel/ulysses.h"

#include "tessera/base/check.h"

namespace tessera::engine {

namespace {

/// The part of a tensor that is sent: a number of columns of a dtype.
struct Columns {
  int64_t width;
  at::ScalarType type;
  int64_t bytes() const { return width * static_cast<int64_t>(c10::elementSize(type)); }
};

/// One flat buffer for each member of sp: for every tensor its rows, one tensor after the other. Wider types come
/// first, so that every tensor begins at a multiple of its element.
class Parcels {
 public:
  Parcels(const std::vector<int64_t>& rows, const std::vector<Columns>& columns, const at::TensorOptions& options)
      : rows_(rows), columns_(columns) {
    for (size_t i = 1; i < columns.size(); ++i)
      check_internal(c10::elementSize(columns[i].type) <= c10::elementSize(columns[i - 1].type), "engine.ulysses",
                     "a wider type follows a narrower one");
    for (int64_t n : rows) whole_.push_back(at::empty({n * row_bytes()}, options.dtype(at::kByte)));
  }
  const std::vector<Tensor>& all() const { return whole_; }
  /// Tensor i of a member, [rows, width].
  Tensor part(size_t member, size_t i) const {
    int64_t before = 0;
    for (size_t j = 0; j < i; ++j) before += columns_[j].bytes();
    const int64_t rows = rows_[member];
    const Tensor bytes = whole_[member].narrow(0, rows * before, rows * columns_[i].bytes());
    return bytes.view(columns_[i].type).view({rows, columns_[i].width});
  }
  int64_t row_bytes() const {
    int64_t bytes = 0;
    for (const Columns& c : columns_) bytes += c.bytes();
    return bytes;
  }

 private:
  std::vector<Tensor> whole_;
  std::vector<int64_t> rows_;
  std::vector<Columns> columns_;
};

std::vector<int64_t> rows_by_member(int64_t tokens, const Parallel& parallel) {
  std::vector<int64_t> rows;
  for (int i = 0; i < parallel.sp(); ++i) rows.push_back(parallel.part(tokens, i).count());
  return rows;
}

}  // namespace

std::vector<Tensor> scatter_heads(const std::vector<Tensor>& tensors, int64_t tokens, const Parallel& parallel) {
  const int n = parallel.sp();
  if (n == 1) return tensors;
  const std::vector<int64_t> rows = rows_by_member(tokens, parallel);
  const auto& options = tensors[0].options();
  std::vector<Columns> columns;
  for (const Tensor& t : tensors)
    columns.push_back({div_exact(t.size(1), n, "engine.ulysses: columns / sp"), t.scalar_type()});
  const Parcels in(rows, columns, options);
  {
    const Parcels out(std::vector<int64_t>(n, rows[parallel.sp_rank()]), columns, options);
    for (size_t i = 0; i < tensors.size(); ++i)
      for (int member = 0; member < n; ++member)
        out.part(member, i).copy_(tensors[i].narrow(1, member * columns[i].width, columns[i].width));
    parallel.exchange_heads(out.all(), in.all(), plan::Rows::own, out.row_bytes() * (n - 1));
  }
  std::vector<Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<Tensor> parts;
    for (int member = 0; member < n; ++member) parts.push_back(in.part(member, i));
    result.push_back(at::cat(parts));
  }
  return result;
}

std::vector<Tensor> gather_heads(const std::vector<Tensor>& tensors, int64_t tokens, const Parallel& parallel) {
  const int n = parallel.sp();
  if (n == 1) return tensors;
  const std::vector<int64_t> rows = rows_by_member(tokens, parallel);
  const int64_t mine = rows[parallel.sp_rank()];
  const auto& options = tensors[0].options();
  std::vector<Columns> columns;
  for (const Tensor& t : tensors) columns.push_back({t.size(1), t.scalar_type()});
  const Parcels in(std::vector<int64_t>(n, mine), columns, options);
  {
    const Parcels out(rows, columns, options);
    for (size_t i = 0; i < tensors.size(); ++i) {
      int64_t at = 0;
      for (int member = 0; member < n; at += rows[member++])
        out.part(member, i).copy_(tensors[i].narrow(0, at, rows[member]));
    }
    parallel.exchange_heads(out.all(), in.all(), plan::Rows::others, out.row_bytes());
  }
  std::vector<Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t width = columns[i].width;
    Tensor whole = at::empty({mine, width * n}, tensors[i].options());
    for (int member = 0; member < n; ++member) whole.narrow(1, member * width, width).copy_(in.part(member, i));
    result.push_back(std::move(whole));
  }
  return result;
}

}  // namespace tessera::engine
