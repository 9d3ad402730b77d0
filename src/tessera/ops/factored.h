#pragma once
// Updates by the root of a second moment that is kept as means over rows and columns (Shazeer and Stern, 2018,
// https://arxiv.org/abs/1804.04235) and clipped by the root mean square over the whole tensor, over slices of flat shards:
// Adafactor and CAME. A slice may begin and end inside a row: sums are those of its elements, in one order, and are added to
// what is there, so that ranks add theirs ([Note: sums over tensors] of net/unit_update.h).
//
//   add_row_sums(slice, sums);                          // of squared gradients: of each row, then of each column
//   take_means({slice.place, rows, columns, sums, beta2});     // sums of the whole tensor become factors of 1 / sqrt(v)
//   slice.factors = sums, add_divided_squares(slice, &square);
//   slice.squares = square, adafactor(slice, step);
#include <cstdint>

#include "tessera/ops/update_block.h"

namespace tessera::ops {

/// Where the elements of a slice are in its tensor: element e of this rank's part is e / width * inner + first + e % width of
/// the whole (net::Cut; width 0: e). The whole is `matrices` of rows and columns, one after the other; none: not factored.
struct FactoredPlace {
  int64_t begin = 0, count = 0;
  int64_t inner = 0, width = 0, first = 0;
  int64_t matrices = 0, rows = 0, columns = 0;
};

/// What the two optimisers share.
struct ClippedSlice {
  FactoredPlace place;
  GradientRange gradient;
  float scale = 1, eps = 0;        ///< of the gradient; added to its square
  const float* factors = nullptr;  ///< of 1 / sqrt(v), rows then columns, of a factored tensor
  float* second = nullptr;         ///< else v of each element, which becomes keep v + take (g^2 + eps)
  float keep = 0, take = 0;
  const float* squares = nullptr;  ///< of the divided gradient, over the whole tensor
  double numel = 1, clip_threshold = 1;
};

/// What becomes of the clipped update u in Adafactor: u *= rate; m = keep m + take u, which is then the step, where there is a
/// first moment; p = p (1 - rate decay) - step. `size`: the sum of the tensor's squares; the rate is then lr times its root
/// mean square, or `least`.
struct AdafactorStep {
  MasterRange p;
  MomentRange first;
  bool has_first = false;
  float keep = 0, take = 0;
  double lr = 0, weight_decay = 0, least = 0;
  const float* size = nullptr;
};

/// ... and in CAME: m = keep m + take u; the step is lr m, of a factored tensor times the factors of the residual, whose rows
/// and columns are sums of (u - m)^2 + eps.
struct CameStep {
  MasterRange p;
  MomentRange first;
  float keep = 0, take = 0, eps = 0;
  const float* factors = nullptr;
  float lr = 0, decay = 1;
};

/// Rows of a matrix whose values in a column are added in order, before these sums are.
inline constexpr int64_t kRowGroup = 64;
/// Sums over rows and columns of g^2 + eps, and of the residual, which needs `first` and what it is multiplied by alone.
void add_row_sums(const ClippedSlice& slice, double* sums);
void add_residual_sums(const ClippedSlice& slice, const CameStep& step, double* sums);
/// Sums of squares as ops::sum_of_squares has them: of the divided gradient; of parameters.
void add_divided_squares(const ClippedSlice& slice, double* sum);
void add_master_squares(const MasterRange& p, int64_t n, double* sum);

/// The states of a factored tensor, and the sums over all of it: states become beta times what they were, and 1 - beta times
/// the means; sums become factors.
struct FactoredMeans {
  FactoredPlace place;
  float *rows = nullptr, *columns = nullptr, *sums = nullptr;
  double beta = 0;
};
void take_means(const FactoredMeans& means);

void adafactor(const ClippedSlice& slice, const AdafactorStep& step);
void came(const ClippedSlice& slice, const CameStep& step);

}  // namespace tessera::ops
