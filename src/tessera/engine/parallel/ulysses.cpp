#include "tessera/engine/parallel/ulysses.h"

#include "tessera/base/check.h"

namespace tessera::engine {

namespace {

/// One flat buffer for each member of sp: for every tensor its rows, one tensor after the other.
struct Parcels {
  Parcels(const std::vector<int64_t>& rows, const std::vector<int64_t>& widths, const at::TensorOptions& options)
      : widths_(widths) {
    int64_t width = 0;
    for (int64_t w : widths) width += w;
    for (int64_t n : rows) whole_.push_back(at::empty({n * width}, options));
  }
  const std::vector<Tensor>& all() const { return whole_; }
  /// Tensor i of a member, [rows, width].
  Tensor part(size_t member, size_t i) const {
    int64_t before = 0, width = 0;
    for (size_t j = 0; j < widths_.size(); ++j) width += widths_[j], before += j < i ? widths_[j] : 0;
    const int64_t rows = whole_[member].numel() / width;
    return whole_[member].narrow(0, rows * before, rows * widths_[i]).view({rows, widths_[i]});
  }
  int64_t row_bytes() const {
    int64_t width = 0;
    for (int64_t w : widths_) width += w;
    return width * static_cast<int64_t>(whole_[0].element_size());
  }

 private:
  std::vector<Tensor> whole_;
  std::vector<int64_t> widths_;
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
  std::vector<int64_t> widths;
  for (const Tensor& t : tensors) widths.push_back(div_exact(t.size(1), n, "engine.ulysses: columns / sp"));
  const Parcels in(rows, widths, options);
  {
    const Parcels out(std::vector<int64_t>(n, rows[parallel.sp_rank()]), widths, options);
    for (size_t i = 0; i < tensors.size(); ++i)
      for (int member = 0; member < n; ++member)
        out.part(member, i).copy_(tensors[i].narrow(1, member * widths[i], widths[i]));
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
  std::vector<int64_t> widths;
  for (const Tensor& t : tensors) widths.push_back(t.size(1));
  const Parcels in(std::vector<int64_t>(n, mine), widths, options);
  {
    const Parcels out(rows, widths, options);
    for (size_t i = 0; i < tensors.size(); ++i) {
      int64_t at = 0;
      for (int member = 0; member < n; at += rows[member++])
        out.part(member, i).copy_(tensors[i].narrow(0, at, rows[member]));
    }
    parallel.exchange_heads(out.all(), in.all(), plan::Rows::others, out.row_bytes());
  }
  std::vector<Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor whole = at::empty({mine, widths[i] * n}, options);
    for (int member = 0; member < n; ++member) whole.narrow(1, member * widths[i], widths[i]).copy_(in.part(member, i));
    result.push_back(std::move(whole));
  }
  return result;
}

}  // namespace tessera::engine
