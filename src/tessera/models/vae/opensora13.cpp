#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/opensora13.h"
#include "tessera/models/vae/opensora13_config.h"
#include "tessera/models/vae/vae_weights.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::opensora13_vae {

namespace {

/// What the code decodes to less than 4 frames a latent frame: as many as it has of the first.
constexpr int64_t kLead = kTimeStride - 1;

/// Of a side: it is halved rounding down, then twice rounding up.
int64_t cells_of(int64_t pixels) { return div_up(div_up(pixels / 2, 2), 2); }
int64_t latents_of(int64_t frames) { return (frames - 1) / kTimeStride + 1; }
int64_t shown(int64_t latents) { return latents * kTimeStride - kLead; }

template <size_t n>
Tensor constants(const std::array<float, n>& values) {
  return at::tensor(at::ArrayRef<float>(values.data(), n), at::kFloat);
}

/// [C, frames] of the normalization.
Tensor of_channels(const Config& config, bool mean) {
  switch (config.normalization) {
    case Normalization::video:
      return constants(mean ? kMean : kStd).unsqueeze(1);
    case Normalization::video_5frames:
      return constants(mean ? kMeanOfFrames : kStdOfFrames).view({-1, kFrames});
    case Normalization::none:
      break;
  }
  return at::full({config.latent_channels, 1}, mean ? 0.0 : 1.0, at::kFloat);
}

}  // namespace

int64_t usual_overlap(int64_t tile) { return tile / 4 / kStride * kStride; }

OpenSoraVae13::OpenSoraVae13(Config config, ReadWeight read, const Tiling& tiling)
    : config_(std::move(config)),
      weights_(parameters(config_), std::move(read)),
      tiles_(grid_in_cells(tiling, kStride, "256 pixels that share 64 are usual")),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)),
      mean_(of_channels(config_, true).select(1, 0).contiguous()),
      std_(of_channels(config_, false).select(1, 0).contiguous()) {}

std::string OpenSoraVae13::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  uint64_t hash = weights_.hash();
  hash = hash_tensor(hash_tensor(hash, of_channels(config_, true)), of_channels(config_, false));
  hash = hash_tensor(hash, at::tensor({config_.groups, config_.piece, int64_t{config_.overlap}}, at::kLong));
  char text[64];
  std::snprintf(text, sizeof text, "opensora1.3-vae-%016llx-v1", static_cast<unsigned long long>(hash));
  fingerprint_ = text + tiles_text(tiles_, kStride);
  return fingerprint_;
}

std::vector<Part> OpenSoraVae13::pieces(int64_t frames) const {
  if (config_.piece == 0 || frames == 1) return {{0, frames}};
  if (!config_.overlap) return parts_of({config_.piece, config_.piece}, frames);
  std::vector<Part> all;
  for (int64_t begin = 0; begin < frames - 1; begin += config_.piece - 1)
    all.push_back({begin, std::min(config_.piece, frames - begin)});
  return all;
}

std::vector<Part> OpenSoraVae13::latent_pieces(int64_t latent_frames) const {
  if (config_.piece == 0) return {{0, latent_frames}};
  return parts_of({config_.latent_piece(), config_.latent_piece()}, latent_frames);
}

int64_t OpenSoraVae13::latent_frames(int64_t frames) const {
  int64_t all = 0;
  for (const Part& piece : pieces(frames)) all += latents_of(piece.length);
  return all;
}

int64_t OpenSoraVae13::frames_of(int64_t latent_frames) const {
  const std::vector<Part> all = latent_pieces(latent_frames);
  int64_t frames = config_.overlap ? 1 - static_cast<int64_t>(all.size()) : 0;
  for (const Part& piece : all) frames += shown(piece.length);
  return frames;
}

std::array<int64_t, 4> OpenSoraVae13::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const auto comes_back = [&](int64_t n) { return n > 0 && frames_of(latent_frames(n)) == n; };
  if (!comes_back(frames) || height < kStride || width < kStride) {
    const std::string piece = std::to_string(config_.piece);
    int64_t fewer = std::max<int64_t>(1, frames);
    while (!comes_back(fewer)) --fewer;
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes " +
                    (config_.overlap || config_.piece == 0 ? "" : piece + "k, or " + piece + "k + ") +
                    "1 + 4n frames, sides of " + std::to_string(kStride) + " pixels or more",
                {fewer, std::max(kStride, height), std::max(kStride, width)});
  }
  return {config_.latent_channels, latent_frames(frames), cells_of(height), cells_of(width)};
}

Tensor OpenSoraVae13::moments(const Tensor& pixels) const {
  check_pixels(pixels);
  const auto [c, one, h, w] = latent_shape(1, pixels.size(2), pixels.size(3));
  const int64_t f = latent_frames(pixels.size(1));
  return stitch_clips(tiles_, h, w, 1, [&, c = c, h = h, w = w](const Part& y, const Part& x) {
    const Part rows = pixels_of(y, h, kStride, pixels.size(2)), columns = pixels_of(x, w, kStride, pixels.size(3));
    const Tensor tile = pixels.narrow(2, rows.begin, rows.length).narrow(3, columns.begin, columns.length);
    Tensor result = at::empty({2 * c, f, y.length, x.length}, at::kFloat);
    int64_t done = 0;
    for (const Part& part : pieces(pixels.size(1))) {
      const Tensor piece = in_range(tile.narrow(1, part.begin, part.length).to(device::here()));
      const int64_t count = latents_of(part.length);
      result.narrow(1, done, count).copy_(run_layers(encoder_, config_.groups, weights_.loaded(), piece));
      done += count;
    }
    return result;
  });
}

Posterior OpenSoraVae13::posterior(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  const Tensor both = moments(pixels);
  const int64_t c = config_.latent_channels;
  return {both.narrow(0, 0, c), both.narrow(0, c, c)};
}

std::pair<Tensor, Tensor> OpenSoraVae13::statistics(int64_t latent_frames) const {
  const auto each = [&](bool mean) {
    const Tensor values = of_channels(config_, mean);  // [C, places]
    const Tensor of_frames =
        values.size(1) == 1 ? values : values.index_select(1, at::arange(latent_frames, at::kLong) % values.size(1));
    return of_frames.view({values.size(0), -1, 1, 1});
  };
  return {each(true), each(false)};
}

Tensor OpenSoraVae13::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  const Tensor latent = posterior(pixels).mean;
  const auto [mean, deviation] = statistics(latent.size(1));
  return (latent - mean).div_(deviation).contiguous();
}

Tensor OpenSoraVae13::decoded(const Tensor& unscaled) const {
  const int64_t f = unscaled.size(1);
  const Tensor video = at::empty({3, frames_of(f), unscaled.size(2) * kStride, unscaled.size(3) * kStride}, at::kFloat);
  int64_t done = 0;
  for (const Part& part : latent_pieces(f)) {
    const Tensor latent = unscaled.narrow(1, part.begin, part.length).to(device::here());
    Tensor frames =
        run_layers(decoder_, config_.groups, weights_.loaded(), latent).narrow(1, kLead, shown(part.length));
    if (config_.overlap && done > 0) {
      const Tensor last = video.select(1, done - 1);
      last.add_(frames.select(1, 0).cpu()).mul_(0.5);
      frames = frames.slice(1, 1);
    }
    video.narrow(1, done, frames.size(1)).copy_(frames);
    done += frames.size(1);
  }
  return video;
}

Tensor OpenSoraVae13::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  check_latent(latent, config_.latent_channels);
  const auto [mean, deviation] = statistics(latent.size(1));
  const Tensor unscaled = (latent.to(at::kFloat) * deviation).add_(mean);
  return stitch_clips(tiles_, latent.size(2), latent.size(3), kStride, [&](const Part& y, const Part& x) {
    return decoded(unscaled.narrow(2, y.begin, y.length).narrow(3, x.begin, x.length));
  });
}

int64_t OpenSoraVae13::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const GridParts parts = parts_of(tiles_, h, w);
  const net::WeightMap meta = weights_.meta();
  return tiled_bytes(tiles_, h, w, 2 * c * f, [&, h = h, w = w](int64_t, int64_t) {
    const Tensor piece = at::empty({3, pieces(frames).front().length, most_pixels(parts.y, h, kStride, height),
                                    most_pixels(parts.x, w, kStride, width)},
                                   at::TensorOptions(at::kByte).device(at::kMeta));
    return count([&] { run_layers(encoder_, config_.groups, meta, in_range(piece)); });
  });
}

int64_t OpenSoraVae13::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const net::WeightMap meta = weights_.meta();
  const int64_t unscaled = 4 * c * f * h * w, cell = 3 * kStride * kStride;
  return unscaled + tiled_bytes(tiles_, h, w, cell * frames, [&, c = c, f = f](int64_t tile_h, int64_t tile_w) {
           const Tensor piece = at::empty({c, latent_pieces(f).front().length, tile_h, tile_w},
                                          at::TensorOptions(at::kFloat).device(at::kMeta));
           return count([&] { run_layers(decoder_, config_.groups, meta, piece); });
         });
}

plan::UnitWork OpenSoraVae13::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const GridParts parts = parts_of(tiles_, h, w);
  PassWork work(parameters(config_));
  for (const Part& y : parts.y)
    for (const Part& x : parts.x)
      for (const Part& piece : pieces(frames))
        add_work(encoder_, piece.length, pixels_of(y, h, kStride, height).length,
                 pixels_of(x, w, kStride, width).length, work);
  return work.work();
}

namespace {

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.conv_in.conv.weight", "encoder.mid.attn_1.q.conv.weight"}, "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_sizes(config, weights.file);
  stored.expect(parameters(config), "Open-Sora 1.3's autoencoder");
  return std::make_unique<OpenSoraVae13>(std::move(config), stored.reader(), tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<OpenSoraVae13>(Config{}, random_weights(parameters({})), tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"opensora_vae13"},
          .presets = {{"opensora1.3-vae", released}}};
}

}  // namespace tessera::models::opensora13_vae
