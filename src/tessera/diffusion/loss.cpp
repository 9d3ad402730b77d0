#include "tessera/diffusion/loss.h"

#include <algorithm>

#include "tessera/ops/ranges.h"

namespace tessera::diffusion {

double mean_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient) {
  const auto count = prediction.numel();
  const float* p = prediction.const_data_ptr<float>();
  const float* t = target.const_data_ptr<float>();
  float* g = gradient.mutable_data_ptr<float>();
  const auto factor = static_cast<float>(2 * scale / static_cast<double>(count));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float difference = p[i] - t[i];
    sum += static_cast<double>(difference) * difference;
    g[i] = difference * factor;
  }
  return sum / static_cast<double>(count);
}

void sum_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient,
                       const at::Tensor& sum) {
  at::sub_out(gradient, prediction, target);
  ops::sum_of_squares(sum, gradient);
  gradient.mul_(static_cast<float>(2 * scale / static_cast<double>(prediction.numel())));
}

std::pair<int64_t, int64_t> rows_here(const net::Batch& batch, size_t s) {
  const net::Tokens& tokens = batch.tokens;
  const auto [first, last] = batch.predictions_of(s);
  const int64_t begin = std::max(first, tokens.begin), end = std::min(last, tokens.begin + tokens.count());
  return {begin - tokens.begin, std::max(begin, end) - tokens.begin};
}

Compared compared(const net::Batch& batch, size_t s, const Target& target) {
  const net::Tokens& tokens = batch.tokens;
  const auto [first, last] = batch.predictions_of(s);
  const auto [begin, end] = rows_here(batch, s);
  if (begin >= end) return {};
  return {begin, end - begin, begin + tokens.begin - tokens.offsets[s] - target.first,
          static_cast<double>(end - begin) / static_cast<double>(last - first)};
}

double sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target, double scale,
                    const at::Tensor& gradient) {
  const Compared rows = compared(batch, s, target);
  if (rows.count == 0) return 0;  // the sample's predictions are on other ranks
  return rows.part * mean_squared_error(prediction.narrow(0, rows.begin, rows.count),
                                        target.rows.narrow(0, rows.at, rows.count), scale * rows.part,
                                        gradient.narrow(0, rows.begin, rows.count));
}

}  // namespace tessera::diffusion
