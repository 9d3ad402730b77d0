#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/opensora12.h"
#include "tessera/models/vae/opensora12_config.h"
#include "tessera/models/vae/vae_weights.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::opensora12_vae {

namespace {

Tensor constants(const std::vector<double>& values) { return at::tensor(values, at::kDouble).to(at::kFloat); }
Tensor per_channel(const Tensor& values) { return values.view({-1, 1, 1, 1}); }

}  // namespace

int64_t usual_overlap(int64_t tile) { return tile / 4 / kStride * kStride; }

OpenSoraVae12::OpenSoraVae12(Config config, ReadWeight read, const Tiling& tiling)
    : config_(std::move(config)),
      weights_(parameters(config_), std::move(read)),
      tiles_(grid_in_cells(tiling, kStride, "256 pixels that share 64 are usual")),
      picture_encoder_(picture_encoder(config_)),
      picture_decoder_(picture_decoder(config_)),
      time_encoder_(time_encoder(config_)),
      time_decoder_(time_decoder(config_)),
      mean_(constants(config_.mean)),
      std_(constants(config_.std)) {}

std::string OpenSoraVae12::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  uint64_t hash = hash_tensor(hash_tensor(weights_.hash(), mean_), std_);
  hash = hash_tensor(hash, at::tensor({config_.groups, config_.time_groups, config_.piece}, at::kLong));
  hash = hash_tensor(hash, at::full({1}, config_.factor, at::kDouble));
  char text[64];
  std::snprintf(text, sizeof text, "opensora1.2-vae-%016llx-v1", static_cast<unsigned long long>(hash));
  fingerprint_ = text + tiles_text(tiles_, kStride);
  return fingerprint_;
}

std::vector<Part> OpenSoraVae12::pieces(int64_t frames) const {
  return parts_of({config_.piece, config_.piece}, frames);
}

int64_t OpenSoraVae12::latent_frames(int64_t frames) const {
  return frames / config_.piece * config_.latent_piece() + div_up(frames % config_.piece, config_.time_stride());
}

int64_t OpenSoraVae12::frames_of(int64_t latent_frames) const {
  if (latent_frames == 1) return 1;
  return latent_frames / config_.latent_piece() * config_.piece +
         latent_frames % config_.latent_piece() * config_.time_stride();
}

std::array<int64_t, 4> OpenSoraVae12::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const auto tells = [&](int64_t n) { return n > 0 && frames_of(latent_frames(n)) == n; };
  if (!tells(frames) || height < kStride || width < kStride) {
    int64_t fewer = std::max<int64_t>(1, frames);
    while (!tells(fewer)) --fewer;
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes 1 frame, " + std::to_string(config_.piece) + "n, or " +
                    std::to_string(config_.piece) + "n and a multiple of " + std::to_string(config_.time_stride()) +
                    ", sides of " + std::to_string(kStride) + " pixels or more",
                {fewer, std::max(kStride, height), std::max(kStride, width)});
  }
  return {config_.latent_channels, latent_frames(frames), height / kStride, width / kStride};
}

Tensor OpenSoraVae12::time_piece(const Tensor& pictures, const net::WeightMap& weights) const {
  const int64_t lead = round_up(pictures.size(1), config_.time_stride()) - pictures.size(1);
  const Tensor whole = lead == 0 ? pictures : at::constant_pad_nd(pictures, {0, 0, 0, 0, lead, 0});
  return run_layers(time_encoder_, time_norms(config_), weights, whole);
}

Tensor OpenSoraVae12::encode_piece(const Tensor& pixels, const net::WeightMap& weights) const {
  const int64_t c = config_.latent_channels, frames = pixels.size(1);
  const Tensor pictures =
      at::empty({c, frames, pixels.size(2) / kStride, pixels.size(3) / kStride}, pixels.options().dtype(at::kFloat));
  for (int64_t i = 0; i < (pixels.is_meta() ? 1 : frames); ++i) {
    const Tensor moments =
        run_layers(picture_encoder_, picture_norms(config_), weights, in_range(pixels.narrow(1, i, 1)));
    pictures.narrow(1, i, 1).copy_(moments.narrow(0, 0, c) * config_.factor);
  }
  return time_piece(pictures, weights);
}

void OpenSoraVae12::decode_piece(const Tensor& latent, int64_t frames, const net::WeightMap& weights,
                                 const std::function<void(int64_t i, const Tensor& frame)>& store) const {
  const Tensor pictures = run_layers(time_decoder_, time_norms(config_), weights, latent);
  const int64_t lead = pictures.size(1) - frames;
  for (int64_t i = 0; i < (latent.is_meta() ? 1 : frames); ++i)
    store(i, run_layers(picture_decoder_, picture_norms(config_), weights,
                        pictures.narrow(1, lead + i, 1) / config_.factor));
}

Tensor OpenSoraVae12::picture_moments(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  check_pixels(pixels);
  std::vector<Tensor> all;
  for (int64_t i = 0; i < pixels.size(1); ++i)
    all.push_back(run_layers(picture_encoder_, picture_norms(config_), weights_.loaded(),
                             in_range(pixels.narrow(1, i, 1).to(device::here())))
                      .cpu());
  return at::cat(all, 1);
}

Tensor OpenSoraVae12::time_moments(const Tensor& pictures) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> all;
  for (const Part& part : pieces(pictures.size(1)))
    all.push_back(time_piece(pictures.narrow(1, part.begin, part.length).to(device::here()), weights_.loaded()).cpu());
  return at::cat(all, 1);
}

Tensor OpenSoraVae12::moments(const Tensor& pixels) const {
  check_pixels(pixels);
  const auto [c, one, h, w] = latent_shape(1, pixels.size(2), pixels.size(3));
  const int64_t f = latent_frames(pixels.size(1));
  return stitch_clips(tiles_, h, w, 1, [&, c = c, h = h, w = w](const Part& y, const Part& x) {
    const Part rows = pixels_of(y, h, kStride, pixels.size(2)), columns = pixels_of(x, w, kStride, pixels.size(3));
    const Tensor tile = pixels.narrow(2, rows.begin, rows.length).narrow(3, columns.begin, columns.length);
    Tensor result = at::empty({2 * c, f, y.length, x.length}, at::kFloat);
    int64_t done = 0;
    for (const Part& part : pieces(pixels.size(1))) {
      const Tensor piece = encode_piece(tile.narrow(1, part.begin, part.length).to(device::here()), weights_.loaded());
      result.narrow(1, done, piece.size(1)).copy_(piece);
      done += piece.size(1);
    }
    return result;
  });
}

Posterior OpenSoraVae12::posterior(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  const Tensor both = moments(pixels);
  const int64_t c = config_.latent_channels;
  return {both.narrow(0, 0, c), both.narrow(0, c, c)};
}

Tensor OpenSoraVae12::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  return (posterior(pixels).mean - per_channel(mean_)).div_(per_channel(std_)).contiguous();
}

Tensor OpenSoraVae12::unscaled(const Tensor& latent) const {
  check_latent(latent, config_.latent_channels);
  return (latent.to(at::kFloat) * per_channel(std_)).add_(per_channel(mean_));
}

Tensor OpenSoraVae12::decoded(const Tensor& unscaled, int64_t frames) const {
  const Tensor video = at::empty({3, frames, unscaled.size(2) * kStride, unscaled.size(3) * kStride}, at::kFloat);
  int64_t done = 0;
  for (const Part& part : pieces(frames)) {
    const int64_t count = div_up(part.length, config_.time_stride());
    decode_piece(unscaled.narrow(1, done, count).to(device::here()), part.length, weights_.loaded(),
                 [&](int64_t i, const Tensor& frame) { video.narrow(1, part.begin + i, 1).copy_(frame); });
    done += count;
  }
  return video;
}

Tensor OpenSoraVae12::decode_frames(const Tensor& latent, int64_t frames) const {
  const at::NoGradGuard no_grad;
  check_input(latent.dim() == 4 && latent_frames(frames) == latent.size(1), "models.vae",
              "a latent that has not as many frames as a clip of " + std::to_string(frames) + " makes",
              "run prepare again");
  return decoded(unscaled(latent), frames);
}

Tensor OpenSoraVae12::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  const Tensor all = unscaled(latent);
  return stitch_clips(tiles_, all.size(2), all.size(3), kStride, [&](const Part& y, const Part& x) {
    return decoded(all.narrow(2, y.begin, y.length).narrow(3, x.begin, x.length), frames_of(all.size(1)));
  });
}

int64_t OpenSoraVae12::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const GridParts parts = parts_of(tiles_, h, w);
  const net::WeightMap meta = weights_.meta();
  return tiled_bytes(tiles_, h, w, 2 * c * f, [&, h = h, w = w](int64_t, int64_t) {
    const Tensor piece = at::empty({3, std::min(frames, config_.piece), most_pixels(parts.y, h, kStride, height),
                                    most_pixels(parts.x, w, kStride, width)},
                                   at::TensorOptions(at::kByte).device(at::kMeta));
    return count([&] { encode_piece(piece, meta); });
  });
}

int64_t OpenSoraVae12::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const net::WeightMap meta = weights_.meta();
  const int64_t all = 4 * c * f * h * w, cell = 3 * kStride * kStride;
  return all + tiled_bytes(tiles_, h, w, cell * frames, [&, c = c, f = f](int64_t tile_h, int64_t tile_w) {
           const Tensor piece = at::empty({c, std::min(f, config_.latent_piece()), tile_h, tile_w},
                                          at::TensorOptions(at::kFloat).device(at::kMeta));
           const int64_t shown = std::min(frames, config_.piece);
           return count([&] { decode_piece(piece, shown, meta, [](int64_t, const Tensor&) {}); });
         });
}

plan::UnitWork OpenSoraVae12::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const GridParts parts = parts_of(tiles_, h, w);
  PassWork work(parameters(config_));
  for (const Part& y : parts.y)
    for (const Part& x : parts.x)
      for (const Part& piece : pieces(frames)) {
        for (int64_t i = 0; i < piece.length; ++i)
          add_work(picture_encoder_, 1, pixels_of(y, h, kStride, height).length, pixels_of(x, w, kStride, width).length,
                   work);
        add_work(time_encoder_, round_up(piece.length, config_.time_stride()), y.length, x.length, work);
      }
  return work.work();
}

namespace {

/// A buffer of the file, which counts more than what a config.json says.
void take_stored(const WeightSource& weights, const std::string& name, std::vector<double>& values) {
  if (!has_tensor(weights, name)) return;
  const Tensor stored = weights.read(name).to(at::kDouble).flatten().contiguous();
  check_input(stored.numel() == static_cast<int64_t>(values.size()), "models.vae",
              weights.file + ": tensor '" + name + "' has " + std::to_string(stored.numel()) +
                  " numbers, expected one for each of " + std::to_string(values.size()) + " latent channels",
              "fetch the file again");
  values.assign(stored.const_data_ptr<double>(), stored.const_data_ptr<double>() + stored.numel());
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(
      weights, {"spatial_vae.module.encoder.conv_in.weight", "temporal_vae.encoder.conv_in.conv.weight"}, "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_groups(config, weights.file);
  stored.expect(parameters(config), "Open-Sora 1.2's autoencoder");
  take_stored(weights, stored.full("shift"), config.mean);
  take_stored(weights, stored.full("scale"), config.std);
  return std::make_unique<OpenSoraVae12>(std::move(config), stored.reader(), tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<OpenSoraVae12>(Config{}, random_weights(parameters({})), tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"opensora_vae12"},
          .presets = {{"opensora1.2-vae", released}}};
}

}  // namespace tessera::models::opensora12_vae
