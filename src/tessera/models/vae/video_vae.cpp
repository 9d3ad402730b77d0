#include "tessera/models/vae/video_vae.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::models {

namespace {

std::string text(const ClipSize& clip) {
  return std::to_string(clip.frames) + " x " + std::to_string(clip.height) + " x " + std::to_string(clip.width);
}

void check_latent(const Tensor& latent, int64_t channels) {
  check_input(latent.dim() == 4 && latent.size(0) == channels && latent.numel() > 0, "models.vae",
              "a latent of another shape than [" + std::to_string(channels) + ", f, h, w]", "run prepare again");
}

/// Constants [C, places] for each of so many latent frames, [C, f or 1, 1, 1].
Tensor of_frames(const Tensor& values, int64_t frames) {
  const Tensor each =
      values.size(1) == 1 ? values : values.index_select(1, at::arange(frames, at::kLong) % values.size(1));
  return each.view({values.size(0), -1, 1, 1});
}

}  // namespace

void refuse_size(const char* where, const ClipSize& clip, const std::string& rule, const ClipSize& nearest) {
  throw UserError(Exit::usage, where, text(clip) + " (frames x height x width): " + rule,
                  "change data.frames, data.size or data.buckets, for instance to " + text(nearest));
}

void check_pixels(const Tensor& pixels) {
  check_input(pixels.dim() == 4 && pixels.size(0) == 3, "models.vae", "pixels of another shape than [3, F, H, W]",
              "give a clip of three colours in [-1, 1]");
}

std::array<int64_t, 4> causal_latent(int64_t channels, int64_t time, int64_t cell, const ClipSize& clip) {
  const auto& [frames, height, width] = clip;
  const bool fits =
      frames > 0 && (frames - 1) % time == 0 && height > 0 && height % cell == 0 && width > 0 && width % cell == 0;
  if (!fits) {
    const auto near = [cell](int64_t n) { return std::max(cell, n / cell * cell); };
    refuse_size(
        "models.vae", clip,
        "the autoencoder takes 1 + " + std::to_string(time) + "n frames, sizes in multiples of " + std::to_string(cell),
        {1 + std::max<int64_t>(0, frames - 1) / time * time, near(height), near(width)});
  }
  return {channels, 1 + (frames - 1) / time, height / cell, width / cell};
}

Tensor constants(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).to(at::kFloat).unsqueeze(1);
}

VideoVae::VideoVae(Parts parts)
    : weights_(std::move(parts.parameters), std::move(parts.read)),
      cell_(parts.cell),
      tiles_(grid_in_cells(parts.tiling, parts.cell, parts.usual_tiles)),
      time_tiles_(parts.usual_frames ? in_cells(parts.tiling.frames, parts.tiling.shared_frames, parts.cell_frames,
                                                "frames", parts.usual_frames)
                                     : StitchedTiles{}),
      name_(std::move(parts.name)),
      settings_(std::move(parts.settings)),
      scaling_(std::move(parts.scaling)),
      cell_frames_(parts.cell_frames),
      usual_frames_(parts.usual_frames),
      std_(scaling_.std.select(1, 0).contiguous()),
      mean_(scaling_.mean.defined() ? scaling_.mean.select(1, 0).contiguous() : at::zeros_like(std_)) {}

std::string VideoVae::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  uint64_t hash = weights_.hash();
  if (scaling_.mean.defined()) hash = hash_tensor(hash, scaling_.mean);
  hash = hash_tensor(hash, scaling_.std);
  for (const Tensor& setting : settings_) hash = hash_tensor(hash, setting);
  char text[32];
  std::snprintf(text, sizeof text, "-%016llx-v1", static_cast<unsigned long long>(hash));
  fingerprint_ = name_ + text + tiles_text(tiles_, cell_) + tiles_text("-frames", time_tiles_, cell_frames_);
  return fingerprint_;
}

Posterior VideoVae::posterior(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  check_pixels(pixels);
  LayerRunner run(weights_);
  const Tensor all = moments(pixels, run);
  const int64_t c = mean_.size(0);
  if (all.size(0) == c) return {all, {}};
  return {all.narrow(0, 0, c), all.narrow(0, c, c)};
}

Tensor VideoVae::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  const Posterior p = posterior(pixels);
  const int64_t frames = p.mean.size(1);
  const Tensor centred = scaling_.mean.defined() ? p.mean - of_frames(scaling_.mean, frames) : p.mean;
  return (scaling_.times ? centred.mul_(of_frames(scaling_.times(), frames))
                         : centred.div_(of_frames(scaling_.std, frames)))
      .contiguous();
}

Tensor VideoVae::unscaled(const Tensor& latent) const {
  check_latent(latent, mean_.size(0));
  const int64_t frames = latent.size(1);
  const Tensor numbers = latent.to(at::kFloat);
  const Tensor scaled =
      scaling_.times ? numbers / of_frames(scaling_.times(), frames) : numbers * of_frames(scaling_.std, frames);
  return scaling_.mean.defined() ? scaled.add_(of_frames(scaling_.mean, frames)) : scaled;
}

Tensor VideoVae::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  LayerRunner run(weights_);
  return pixels(unscaled(latent), run);
}

plan::UnitWork VideoVae::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const at::NoGradGuard no_grad;
  latent_shape(frames, height, width);  // refuses what does not come back
  LayerRunner run(weights_, /*works=*/true);
  moments(on_meta({3, frames, height, width}, at::kByte), run);
  return run.work();
}

Tensor VideoVae::encode_tiles(const Tensor& clip, const RunTile& run) const {
  const int64_t height = clip.size(2), width = clip.size(3);
  const auto [c, f, h, w] = latent_shape(1, height, width);
  return stitch_clips(tiles_, h, w, 1, [&, h = h, w = w](const Part& y, const Part& x) {
    const Part rows = pixels_of(y, h, cell_, height), columns = pixels_of(x, w, cell_, width);
    return run(clip.narrow(2, rows.begin, rows.length).narrow(3, columns.begin, columns.length), y, x);
  });
}

Tensor VideoVae::decode_tiles(const Tensor& latent, const RunTile& run) const {
  return stitch_clips(tiles_, latent.size(2), latent.size(3), cell_, [&](const Part& y, const Part& x) {
    return run(latent.narrow(2, y.begin, y.length).narrow(3, x.begin, x.length), y, x);
  });
}

int64_t VideoVae::counted(const CountBytes& count, const std::function<void(LayerRunner& run)>& pass) const {
  const at::NoGradGuard no_grad;
  LayerRunner run(weights_);
  weights_.meta();  // are there before, and not counted
  return count([&] { pass(run); });
}

std::pair<int64_t, int64_t> VideoVae::largest_tile(int64_t h, int64_t w) const {
  const auto [y, x] = parts_of(tiles_, h, w);
  return {longest(y), longest(x)};
}

std::pair<int64_t, int64_t> VideoVae::largest_tile_pixels(int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(1, height, width);
  const auto [y, x] = parts_of(tiles_, h, w);
  return {most_pixels(y, h, cell_, height), most_pixels(x, w, cell_, width)};
}

}  // namespace tessera::models
