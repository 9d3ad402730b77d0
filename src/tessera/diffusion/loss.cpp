#include "tessera/diffusion/loss.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/families/frames/given_frames.h"

namespace tessera::diffusion {

HuberSchedule huber_schedule_of(const std::string& name) {
  if (name == "constant") return HuberSchedule::constant;
  if (name == "exponential") return HuberSchedule::exponential;
  if (name == "snr") return HuberSchedule::snr;
  throw UserError(Exit::usage, "diffusion.huber_schedule", "'" + name + "' is not known",
                  "there are constant, exponential and snr");
}

ops::ErrorForm LossRule::at(double t) const {
  ops::ErrorForm form = this->form;
  const double share = t / 1000;
  if (schedule == HuberSchedule::exponential) form.c = std::exp(share * std::log(form.c));
  if (schedule == HuberSchedule::snr) {
    const double s = std::sqrt((1 - share) / (share + 1e-4));
    form.c = (1 - form.c) / ((1 + s) * (1 + s)) + form.c;
  }
  form.c *= scale;
  return form;
}

double Guidance::at(double draw, double t) const {
  const double s = low + (high - low) * draw;
  return by_sigma ? 1 + (s - 1) * t / 1000 : s;
}

at::Tensor guided_target(const at::Tensor& target, const at::Tensor& unguided, double s, bool zero) {
  at::Tensor from = unguided.to(target.dtype());
  if (zero) {
    const at::Tensor u = unguided.to(at::kDouble), v = target.to(at::kDouble);
    constexpr double kLeast = 1e-8;  // as the published formula has it
    from = (u * ((v * u).sum() / ((u * u).sum() + kLeast))).to(target.dtype());
  }
  return from + s * (target - from);
}

at::Tensor on_grid(const at::Tensor& pixels, const std::string& way, int64_t height, int64_t width) {
  const at::Tensor planes = pixels.unsqueeze(1);
  const std::array<int64_t, 2> size = {height, width};
  if (way == "nearest") return at::upsample_nearest2d(planes, size).squeeze(1);
  if (way == "nearest_exact") return at::_upsample_nearest_exact2d(planes, size).squeeze(1);
  if (way == "bilinear") return at::_upsample_bilinear2d_aa(planes, size, /*align_corners=*/false).squeeze(1);
  check_internal(way == "area", "diffusion.mask", "'" + way + "' is no way to resize a mask");
  return at::adaptive_avg_pool2d(planes, size).squeeze(1);
}

at::Tensor latent_mask(const at::Tensor& frames, const std::string& way, const std::array<int64_t, 4>& latent) {
  const auto [channels, f, h, w] = latent;
  if (frames.size(0) == 1) return on_grid(frames, way, h, w).expand({f, h, w}).contiguous();
  const bool causal = families::is_causal(frames.size(0), f);
  std::vector<at::Tensor> groups;
  if (causal) groups.push_back(frames.slice(0, 0, 1));
  if (const int64_t from = causal ? 1 : 0, left = f - from; left > 0)
    groups.push_back(at::adaptive_avg_pool1d(frames.slice(0, from).flatten(1).t().unsqueeze(0), left)[0].t().reshape(
        {left, frames.size(1), frames.size(2)}));
  return on_grid(at::cat(groups).contiguous(), way, h, w).contiguous();
}

at::Tensor mask_weights(const at::Tensor& mask, const MaskRule& rule, const std::vector<double>& frame_weights) {
  at::Tensor weights = (rule.inverted ? 1 - mask : mask) * (1 - rule.least) + rule.least;
  weights.clamp_(rule.unmasked, 1);
  if (!rule.of_area) return weights;
  at::Tensor counted = weights.to(at::kDouble);
  if (!frame_weights.empty()) counted = counted * at::tensor(frame_weights, at::kDouble).view({-1, 1, 1});
  const double area = counted.mean().item<double>();
  return area > 0 ? weights.div_(area) : weights;
}

std::pair<int64_t, int64_t> rows_here(const net::Batch& batch, size_t s) {
  const net::Tokens& tokens = batch.tokens;
  const auto [first, last] = batch.predictions_of(s);
  const int64_t begin = std::max(first, tokens.begin), end = std::min(last, tokens.begin + tokens.count());
  return {begin - tokens.begin, std::max(begin, end) - tokens.begin};
}

std::vector<WeighedRows> weighed_rows(const net::Batch& batch, size_t s, const std::vector<double>& frame_weights) {
  const auto [first, last] = batch.predictions_of(s);
  const auto [here, until] = rows_here(batch, s);
  const auto frames = static_cast<int64_t>(std::max<size_t>(frame_weights.size(), 1));
  check_internal((last - first) % frames == 0, "diffusion.loss", "predictions do not divide into frames");
  const int64_t rows = (last - first) / frames, from = first - batch.tokens.begin;  // of a frame; row of the first one
  const auto weight = [&](int64_t f) { return frame_weights.empty() ? 1 : frame_weights[static_cast<size_t>(f)]; };
  std::vector<WeighedRows> found;
  for (int64_t f = 0, end = 0; f < frames; f = end) {  // runs of frames of one weight
    for (end = f + 1; end < frames && weight(end) == weight(f);) ++end;
    const int64_t begin = std::max(here, from + f * rows), count = std::min(until, from + end * rows) - begin;
    if (count <= 0 || weight(f) == 0) continue;
    found.push_back({begin, count, weight(f) * static_cast<double>(count) / static_cast<double>(last - first)});
  }
  return found;
}

ops::SampleError sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target,
                              double scale, const at::Tensor& gradient, const std::vector<double>& frame_weights,
                              const ops::ErrorForm& form) {
  const net::Tokens& tokens = batch.tokens;
  ops::SampleError error;  // 0 where the sample's predictions are on other ranks
  for (const auto& [begin, count, part] : weighed_rows(batch, s, frame_weights)) {
    const at::Tensor predicted = prediction.narrow(0, begin, count);
    const int64_t at = begin + tokens.begin - tokens.offsets[s] - target.first;
    const at::Tensor weights = target.weights.defined() ? target.weights.narrow(0, at, count) : at::Tensor();
    ops::kernels(predicted).add_error(error, predicted, target.rows.narrow(0, at, count), weights, form, part,
                                      scale * part, gradient.narrow(0, begin, count));
  }
  return error;
}

}  // namespace tessera::diffusion
