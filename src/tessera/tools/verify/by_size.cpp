#include "tessera/tools/verify/by_size.h"

#include <cmath>

#include "tessera/diffusion/loss.h"
#include "tessera/diffusion/sampler.h"

namespace tessera::tools {

using at::Tensor;
using diffusion::Options;

std::function<double(double)> relative(double bound) {
  return [bound](double largest) { return bound * largest; };
}

Tensor doubles(const std::vector<double>& values) { return at::tensor(at::ArrayRef<double>(values), at::kDouble); }

Options by_size(double shift, bool bf16) {
  Options options;
  diffusion::parse_timesteps("by_size", options);
  options.shift = shift;
  options.rounds_to_bf16 = bf16;
  return options;
}

Tensor sigmas_of(const Options& options, const Tensor& normal) {
  std::vector<double> sigmas;
  for (int64_t i = 0; i < normal.numel(); ++i)
    sigmas.push_back(diffusion::draw_of(options, 1 / (1 + std::exp(-normal[i].item<double>()))).sigma);
  return doubles(sigmas).to(at::kFloat);
}

std::vector<double> size_schedule(int steps, double shift) {
  return diffusion::make_sampler("euler_by_size", steps, shift)->sigmas();
}

Tensor bf16_steps(const Tensor& values) {
  constexpr int kBits = 7;  // behind the leading one
  return at::exp2(at::floor(at::log2(values.to(at::kDouble).abs())) - kBits);
}

void compare_rounded(CaseFile& file, const std::string& name, const Tensor& computed, const Tensor& exact) {
  file.compare_each(name, computed, [&](const Tensor&) {
    const Tensor step = bf16_steps(exact), place = exact.to(at::kDouble) / step;
    const Tensor edge = (place - at::floor(place) - 0.5).abs() < 1e-3;
    return at::where(edge, step, at::zeros_like(step));
  });
}

std::vector<VideoSize> video_sizes(const Settings& rows) { return rows.get<std::vector<VideoSize>>(); }

double shift_of_first(const VideoSize& size, double scale) {
  const auto [height, width, frames] = size;
  return scale * diffusion::area_shift(static_cast<double>(height * width), frames == 1 ? 1 : frames / 17 * 5);
}

double shift_of_second(const VideoSize& size, double scale) {
  const auto [height, width, frames] = size;
  const auto pixels = static_cast<double>(height * width);
  return frames == 1 ? diffusion::area_shift(pixels, 1) : scale * diffusion::area_shift(pixels, (frames - 1) / 4);
}

Tensor area_timesteps(const std::vector<VideoSize>& sizes, const Tensor& t, double scale,
                      double (*shift_of)(const VideoSize& size, double scale)) {
  std::vector<Tensor> rows;
  for (const VideoSize& size : sizes) {
    const double shift = shift_of(size, scale);
    std::vector<double> row;
    for (int64_t i = 0; i < t.numel(); ++i)
      row.push_back(1000 * diffusion::shift_sigma(t[i].item<double>() / 1000, shift));
    rows.push_back(doubles(row));
  }
  return at::stack(rows).to(at::kFloat);
}

double loss_of_rows(const Tensor& prediction, const Tensor& target, double scale, const Tensor& gradient,
                    const std::vector<double>& weights) {
  net::Batch batch;
  batch.tokens.offsets = {0, prediction.size(0)};
  return diffusion::sample_error(prediction, batch, 0, {target}, scale, gradient, weights).value();
}

AreaLoss area_loss(const AreaSamples& samples) {
  const Tensor &x0 = samples.x0, &mask = samples.mask;
  const Tensor wanted = samples.wanted.defined() ? samples.wanted : x0;
  const auto rows = [](const Tensor& latent) { return models::to_rows(latent, {1, 1, 1}).to(at::kFloat).contiguous(); };
  std::vector<Tensor> noisy, losses;
  for (int64_t i = 0; i < samples.t.numel(); ++i) {
    const double time = samples.t[i].item<double>() / 1000;
    const int64_t frames = x0.size(2);
    Tensor x = diffusion::add_noise(x0[i], samples.noise[i], time);
    std::vector<double> weights = samples.weights;
    for (int64_t f = 0; mask.defined() && f < frames; ++f) {
      const bool given = mask[i][f].item<int64_t>() == 0;
      weights.push_back(given ? 0 : static_cast<double>(frames) / static_cast<double>(mask[i].sum().item<int64_t>()));
      if (given) x.select(1, f).copy_(x0[i].select(1, f));
    }
    Tensor predicted = 0.3 * at::sin(x) + 0.1 * time + samples.text[i].item<double>();
    if (samples.beside.defined()) predicted = predicted + samples.beside[i];
    const Tensor prediction = rows(-predicted);
    const double loss = loss_of_rows(prediction, rows(diffusion::velocity(wanted[i], samples.noise[i])), 1,
                                     at::zeros_like(prediction), weights);
    losses.push_back(at::scalar_tensor(loss, at::kFloat));
    noisy.push_back(x);
  }
  return {at::stack(noisy), at::stack(losses)};
}

}  // namespace tessera::tools
