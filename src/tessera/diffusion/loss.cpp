#include "tessera/diffusion/loss.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"

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

std::pair<int64_t, int64_t> rows_here(const net::Batch& batch, size_t s) {
  const net::Tokens& tokens = batch.tokens;
  const auto [first, last] = batch.predictions_of(s);
  const int64_t begin = std::max(first, tokens.begin), end = std::min(last, tokens.begin + tokens.count());
  return {begin - tokens.begin, std::max(begin, end) - tokens.begin};
}

ops::SampleError sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target,
                              double scale, const at::Tensor& gradient, const std::vector<double>& frame_weights,
                              const ops::ErrorForm& form) {
  const net::Tokens& tokens = batch.tokens;
  const auto [first, last] = batch.predictions_of(s);
  const auto [here, until] = rows_here(batch, s);
  const auto frames = static_cast<int64_t>(std::max<size_t>(frame_weights.size(), 1));
  check_internal((last - first) % frames == 0, "diffusion.loss", "predictions do not divide into frames");
  const int64_t rows = (last - first) / frames, from = first - tokens.begin;  // of a frame; row of the first one
  const auto weight = [&](int64_t f) { return frame_weights.empty() ? 1 : frame_weights[static_cast<size_t>(f)]; };
  ops::SampleError error;                              // 0 where the sample's predictions are on other ranks
  for (int64_t f = 0, end = 0; f < frames; f = end) {  // runs of frames of one weight
    for (end = f + 1; end < frames && weight(end) == weight(f);) ++end;
    const int64_t begin = std::max(here, from + f * rows), count = std::min(until, from + end * rows) - begin;
    if (count <= 0 || weight(f) == 0) continue;
    const double part = weight(f) * static_cast<double>(count) / static_cast<double>(last - first);
    const at::Tensor predicted = prediction.narrow(0, begin, count);
    const int64_t at = begin + tokens.begin - tokens.offsets[s] - target.first;
    ops::kernels(predicted).add_error(error, predicted, target.rows.narrow(0, at, count), form, part, scale * part,
                                      gradient.narrow(0, begin, count));
  }
  return error;
}

}  // namespace tessera::diffusion
