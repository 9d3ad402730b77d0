#include "tessera/optim/muon.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

namespace {

using at::Tensor;

AdamWOptions adamw_of(const MuonOptions& options) {
  AdamWOptions adamw = options.adamw;
  adamw.format = options.format, adamw.seed = options.seed;
  return adamw;
}

/// values[i] = rounded(of(i)) for all elements, on all threads.
template <class T, class Of>
void fill(const Tensor& values, const Of& of) {
  auto* out = values.mutable_data_ptr<T>();
  constexpr int64_t kGrain = 1 << 15;
  at::parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(of(i));
  });
}

/// The places of an iteration in its memory.
struct Places {
  Tensor norm, sums, square, polynomial;
};

Places places(const Tensor& matrix, const Tensor& work) {
  const plan::MatrixShape shape = {1, matrix.size(0), matrix.size(1)};
  const auto element = static_cast<int64_t>(matrix.element_size());
  int64_t end = 0;
  const auto place = [&](int64_t bytes) {
    constexpr int64_t kAlign = 256;
    const int64_t at = end;
    end += round_up(bytes, kAlign);
    check_internal(
        end <= work.numel(), "optim.muon",
        "an iteration takes " + std::to_string(end) + " bytes and more, it has " + std::to_string(work.numel()));
    return work.narrow(0, at, bytes);
  };
  const int64_t least = shape.least();
  Places found;
  found.norm = place(sizeof(float)).view(at::kFloat).squeeze();
  found.sums = place(4 * matrix.numel());
  for (Tensor* square : {&found.square, &found.polynomial})
    *square = place(element * least * least).view(matrix.scalar_type()).view({least, least});
  return found;
}

/// On a CPU: products in fp32 by our own kernel, whose sums have one order, rounded to the matrix's dtype.
template <class T>
void iterate_here(const Tensor& x, const Places& at, int64_t iterations, const MuonOptions& options) {
  const int64_t rows = x.size(0), columns = x.size(1), least = std::min(rows, columns);
  const bool tall = rows > columns;
  const auto* values = x.const_data_ptr<T>();
  double squares = 0;
  for (int64_t i = 0; i < x.numel(); ++i) squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  auto norm = static_cast<float>(static_cast<T>(static_cast<float>(std::sqrt(squares))));
  const auto eps = static_cast<float>(options.eps);
  norm = options.adds_eps ? static_cast<float>(static_cast<T>(norm + eps)) : std::max(norm, eps);
  fill<T>(x, [&](int64_t i) { return static_cast<float>(values[i]) / norm; });
  const Tensor sums = at.sums.view(at::kFloat), of_squares = sums.narrow(0, 0, least * least).view({least, least}),
               of_matrix = sums.view({rows, columns});
  const auto* sum = sums.const_data_ptr<float>();
  const auto* square = at.square.const_data_ptr<T>();
  const auto a = static_cast<float>(options.coefficients[0]), b = static_cast<float>(options.coefficients[1]),
             c = static_cast<float>(options.coefficients[2]);
  for (int64_t step = 0; step < iterations; ++step) {
    tall ? ops::gemm(of_squares, x.t(), x) : ops::gemm(of_squares, x, x.t());
    fill<T>(at.square, [&](int64_t i) { return sum[i]; });
    ops::gemm(of_squares, at.square, at.square);
    fill<T>(at.polynomial, [&](int64_t i) { return b * static_cast<float>(square[i]) + c * sum[i]; });
    tall ? ops::gemm(of_matrix, x, at.polynomial.t()) : ops::gemm(of_matrix, at.polynomial, x);
    fill<T>(x, [&](int64_t i) { return a * static_cast<float>(values[i]) + sum[i]; });
  }
}

/// On a device: its library's products, into the memory that is there.
void iterate_there(const Tensor& x, const Places& at, int64_t iterations, const MuonOptions& options) {
  const bool tall = x.size(0) > x.size(1);
  const Tensor next =
      at.sums.narrow(0, 0, static_cast<int64_t>(x.nbytes())).view(x.scalar_type()).view({x.size(0), x.size(1)});
  Tensor norm = at.norm, square = at.square, polynomial = at.polynomial, out = next;
  at::linalg_vector_norm_out(norm, x, 2, std::nullopt, /*keepdim=*/false, at::kFloat);
  options.adds_eps ? norm.add_(options.eps) : norm.clamp_min_(options.eps);
  x.div_(norm);
  for (int64_t step = 0; step < iterations; ++step) {
    tall ? at::mm_out(square, x.t(), x) : at::mm_out(square, x, x.t());
    at::addmm_out(polynomial, square, square, square, options.coefficients[1], options.coefficients[2]);
    tall ? at::addmm_out(out, x, x, polynomial.t(), options.coefficients[0], 1)
         : at::addmm_out(out, x, polynomial, x, options.coefficients[0], 1);
    x.copy_(next);
  }
}

}  // namespace

void orthogonalise(const Tensor& matrix, const Tensor& work, int64_t iterations, const MuonOptions& options) {
  const Places at = places(matrix, work);
  if (ops::on_device(matrix))
    iterate_there(matrix, at, iterations, options);
  else if (matrix.scalar_type() == at::kFloat)
    iterate_here<float>(matrix, at, iterations, options);
  else
    iterate_here<c10::BFloat16>(matrix, at, iterations, options);
}

Muon::Muon(MuonOptions options)
    : options_(options), adamw_(adamw_of(options)), states_(plan::states_of(options.format)) {}

plan::MatrixShape Muon::shape_of(const std::vector<int64_t>& shape) const {
  constexpr size_t kKernel = 4;  // dimensions of a convolution over pictures, which is flat in both
  if (!options_.batches || shape.size() == 2 || shape.size() == kKernel) return plan::matrix_shape(shape);
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  return {c10::multiply_integers(shape) / (rows * columns), rows, columns};
}

double Muon::scale(const std::vector<int64_t>& shape) const {
  constexpr double kRms = 0.2;
  if (options_.scale == MuonOptions::Scale::rms)
    return kRms * std::sqrt(static_cast<double>(std::max(shape[0], shape[1])));
  const auto rows = static_cast<double>(shape[shape.size() - 2]), columns = static_cast<double>(shape.back());
  return std::sqrt(std::max(1.0, rows / columns));
}

void Muon::transform(const plan::ParamSpec& param, const Tensor& matrix, const Tensor& work) const {
  const plan::MatrixShape shape = shape_of(param.shape);
  const Tensor all = matrix.view({shape.count, shape.rows, shape.columns});
  for (int64_t m = 0; m < shape.count; ++m) orthogonalise(all[m], work, options_.format.iterations, options_);
}

ops::DirectionRange Muon::direction(const net::Slice& slice) const {
  if (options_.format.matrices == DType::f32) return {.fp32 = static_cast<float*>(slice.direction)};
  return {.bf16 = static_cast<uint16_t*>(slice.direction)};
}

void Muon::direct(const net::Slice& slice, const net::StepControl& control) const {
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const ops::MomentumFactors f = {rounded(control.scale), rounded(options_.damped ? 1 - options_.momentum : 1),
                                  rounded(options_.momentum), options_.nesterov};
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MomentRange moment = ranges.moment("exp_avg");
  ops::backend(slice.on_device).momentum(moment, ranges.gradient(), slice.count(), f, direction(slice));
}

void Muon::update(const net::Slice& slice, const net::StepControl& control) const {
  if (!slice.spec->whole) {
    net::StepControl own = control;
    own.lr *= options_.adamw_rate;
    return adamw_.update(slice, own);
  }
  const double rate = control.lr * scale(slice.spec->shape), keep = 1 - control.lr * options_.weight_decay;
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  ops::backend(slice.on_device)
      .step_along(masters, direction(slice), slice.count(), static_cast<float>(keep), static_cast<float>(rate));
}

}  // namespace tessera::optim
