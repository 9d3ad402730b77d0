#pragma once
// Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon): the momentum of a matrix is made nearly orthogonal
// by a few Newton-Schulz iterations before it is a step; all other parameters have AdamW. Matrices are those parameters that
// are plan::ParamSpec::whole ([Note: whole matrices] of net/unit_update.h).
//
//   Muon muon({.momentum = 0.95, .weight_decay = 0.01, .adamw = {.betas = {0.9, 0.95}}, .format = format});
//
// The dtype and the number of iterations are the format's (plan::StateFormat). In bf16 the direction, the iterate and the
// products are rounded to it, as published.
#include <array>

#include "tessera/ops/adamw.h"
#include "tessera/optim/adamw.h"
#include "tessera/plan/whole_matrices.h"

namespace tessera::optim {

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  /// The gradient enters the momentum times 1 - momentum, as in PyTorch and in Jordan's; else as it is, as in
  /// HunyuanVideo-1.5. Steps are the same but for eps.
  bool damped = true;
  std::array<double, 3> coefficients = {3.4445, -4.775, 2.0315};
  double eps = 1e-7;
  bool adds_eps = false;  ///< to the norm of the matrix; else it is the least that is divided by
  /// What a step is times the rate:
  ///   rms        0.2 sqrt(max(rows, columns)) of the first two sizes: as large as AdamW's
  ///   original   sqrt(max(1, rows / columns)) of the last two sizes
  enum class Scale { rms, original } scale = Scale::rms;
  /// Tensors of three dimensions, and of five and more, are batches of matrices of the last two, as in Jordan's; else they
  /// are [first, rest].
  bool batches = false;
  double weight_decay = 0.01;
  AdamWOptions adamw = {};  ///< of other parameters; format and seed are those below
  double adamw_rate = 1;    ///< their rate as a multiple of that of the matrices
  plan::StateFormat format = {.optimizer = plan::Optimizer::muon};
  uint64_t seed = 0;  ///< key of stochastic rounding
};

/// With g the scaled gradient: m = mu m + (1 - mu) g; u = mu m + (1 - mu) g if Nesterov, else m; X = u made orthogonal;
/// p = p (1 - lr wd) - lr scale X.
class Muon final : public net::UnitUpdate {
 public:
  explicit Muon(MuonOptions options);

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return states_(param); }
  void update(const net::Slice& slice, const net::StepControl& control) const override;
  void direct(const net::Slice& slice, const net::StepControl& control) const override;
  void transform(const plan::ParamSpec& param, const at::Tensor& matrix, const at::Tensor& work) const override;
  double scale(const std::vector<int64_t>& shape) const;

 private:
  ops::DirectionRange direction(const net::Slice& slice) const;
  plan::MatrixShape shape_of(const std::vector<int64_t>& shape) const;

  const MuonOptions options_;
  const AdamW adamw_;
  const plan::StatesOf states_;
};

/// The iterations in place on a contiguous matrix, fp32 or bf16; `work`: bytes, as many as plan::transform_bytes() says.
void orthogonalise(const at::Tensor& matrix, const at::Tensor& work, int64_t iterations, const MuonOptions& options);

}  // namespace tessera::optim
