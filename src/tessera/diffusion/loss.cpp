#include "tessera/diffusion/loss.h"

#include <algorithm>

#include "tessera/base/check.h"
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

std::vector<Compared> compared(const net::Batch& batch, size_t s, const Target& target,
                               const std::vector<double>& frame_weights) {
  const net::Tokens& tokens = batch.tokens;
  const auto [first, last] = batch.predictions_of(s);
  const auto [here, until] = rows_here(batch, s);
  const auto frames = static_cast<int64_t>(std::max<size_t>(frame_weights.size(), 1));
  check_internal((last - first) % frames == 0, "diffusion.loss", "predictions do not divide into frames");
  const int64_t rows = (last - first) / frames, from = first - tokens.begin;  // of a frame; row of the first one
  const auto weight = [&](int64_t f) { return frame_weights.empty() ? 1 : frame_weights[static_cast<size_t>(f)]; };
  std::vector<Compared> runs;
  for (int64_t f = 0, end = 0; f < frames; f = end) {
    for (end = f + 1; end < frames && weight(end) == weight(f);) ++end;
    const int64_t begin = std::max(here, from + f * rows), stop = std::min(until, from + end * rows);
    if (begin >= stop || weight(f) == 0) continue;
    runs.push_back({begin, stop - begin, begin + tokens.begin - tokens.offsets[s] - target.first,
                    weight(f) * static_cast<double>(stop - begin) / static_cast<double>(last - first)});
  }
  return runs;
}

double sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target, double scale,
                    const at::Tensor& gradient, const std::vector<double>& frame_weights) {
  double error = 0;  // 0 where the sample's predictions are on other ranks
  for (const Compared& rows : compared(batch, s, target, frame_weights))
    error += rows.part * mean_squared_error(prediction.narrow(0, rows.begin, rows.count),
                                            target.rows.narrow(0, rows.at, rows.count), scale * rows.part,
                                            gradient.narrow(0, rows.begin, rows.count));
  return error;
}

}  // namespace tessera::diffusion
