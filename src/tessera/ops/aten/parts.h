#pragma once
// What the kernels in LibTorch's operators share: products of mixed dtypes, and tables by runs of tokens.
#include <algorithm>

#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"

namespace tessera::ops::aten {

/// a b in `type`. Operands of one 16-bit dtype are multiplied as they are, with fp32 sums; mixed ones are widened.
Tensor product(const Tensor& a, const Tensor& b, at::ScalarType type);
/// a b + bias, all of one dtype.
Tensor product_and_bias(const Tensor& a, const Tensor& b, const Tensor& bias);
/// out = a b, or adds to it; out may be fp32 with 16-bit operands.
void product_into(const Tensor& out, const Tensor& a, const Tensor& b, bool add);

/// [Note: delta for flash] The flash backward takes the output, of which it needs out . d_out of each query and head alone. Whoever
/// has only that, delta [heads, rows] (ranks of sp and cp), gives it this instead: out' = d_out delta / |d_out|^2, the part of
/// the output along its gradient. It is no larger than the output, and as all terms of its product with d_out have one sign,
/// that is delta to within the rounding of out', with nothing lost by cancellation.
Tensor output_along(const Tensor& d_out, const Tensor& delta, int64_t heads);

/// x[index] of dim 0. LibTorch's index_select has no meta form.
inline Tensor selected(const Tensor& x, const Tensor& index) {
  if (!x.is_meta()) return x.index_select(0, index);
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = index.size(0);
  return at::empty(shape, x.options());
}

/// Tokens [begin, begin + count) and the rows of tables that they use: a run of tokens shares one row, which broadcasts;
/// if there are more than 64 runs, they are one part, and each token has its own row of a gathered table.
class TokenPart {
 public:
  TokenPart(int64_t begin, int64_t count, int64_t row, const RowIndex* gathered)
      : begin(begin), count(count), row_(row), gathered_(gathered) {}

  const int64_t begin, count;
  Tensor tokens(const Tensor& x) const { return x.narrow(0, begin, count); }
  /// [1, D], or [count, D].
  Tensor rows(const Tensor& table) const {
    if (table.dim() == 1) return table.unsqueeze(0);
    return gathered_ ? selected(table, gathered_->of_token) : table.narrow(0, row_, 1);
  }
  /// Adds the sums of `values` [count, D] over the tokens of each row to the rows of `table`.
  void add_sums(const Tensor& table, const Tensor& values) const;

 private:
  int64_t row_;
  const RowIndex* gathered_;
};

/// Calls body(part) for all of `tokens` tokens, in order. `rows` null: the tables have one row.
template <class Body>
void each_part(const RowIndex* rows, int64_t tokens, const Body& body) {
  constexpr size_t kMostRuns = 64;
  if (!rows)
    body(TokenPart(0, tokens, 0, nullptr));
  else if (rows->runs.size() > kMostRuns)
    body(TokenPart(0, tokens, 0, rows));
  else
    for (const RowRun& run : rows->runs) body(TokenPart(run.begin, run.end - run.begin, run.row, nullptr));
}

}  // namespace tessera::ops::aten
