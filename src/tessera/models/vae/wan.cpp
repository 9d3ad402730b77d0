#include "tessera/models/vae/wan.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <map>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/vae_weights.h"
#include "tessera/models/vae/video_vae.h"
#include "tessera/models/vae/wan_config.h"

namespace tessera::models::wan_vae {

namespace {

Tensor constants(const std::vector<double>& values) { return at::tensor(values, at::kDouble).to(at::kFloat); }

at::TensorOptions on_meta(at::ScalarType type) { return at::TensorOptions(type).device(at::kMeta); }

/// A value per channel, for [C, f, h, w].
Tensor per_channel(const Tensor& values) { return values.view({-1, 1, 1, 1}); }

}  // namespace

WanVae::WanVae(Config config, ReadWeight read, const Tiling& tiling)
    : config_(std::move(config)),
      weights_(parameters(config_), std::move(read)),
      tiling_(tiling),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)),
      mean_(constants(config_.mean)),
      std_(constants(config_.std)) {
  const int64_t cell = config_.stride();
  check_internal(tiling.width == 0, "models.vae", "tiles of Wan's autoencoder that are not square");
  if (tiling.size % cell != 0 || tiling.overlap % cell != 0 || (tiling.size > 0 && tiling.overlap >= tiling.size) ||
      tiling.size < 0 || tiling.overlap < 0)
    throw UserError(Exit::usage, "models.vae",
                    "tiles of " + std::to_string(tiling.size) + " pixels that share " + std::to_string(tiling.overlap) +
                        ": expected multiples of " + std::to_string(cell) + ", the tile larger than what it shares",
                    "256 pixels that share 64 are usual");
}

std::string WanVae::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  const uint64_t hash = hash_tensor(hash_tensor(weights_.hash(), mean_), std_);
  char text[96];
  std::snprintf(text, sizeof text, "wan%s-vae-%016llx-v1", config_.version(), static_cast<unsigned long long>(hash));
  fingerprint_ =
      text + (tiling_.size ? "-tiles" + std::to_string(tiling_.size) + "+" + std::to_string(tiling_.overlap) : "");
  return fingerprint_;
}

std::array<int64_t, 4> WanVae::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const int64_t time = config_.time_stride(), cell = config_.stride();
  const bool fits =
      frames > 0 && (frames - 1) % time == 0 && height > 0 && height % cell == 0 && width > 0 && width % cell == 0;
  if (!fits) {
    const auto near = [cell](int64_t n) { return std::max(cell, n / cell * cell); };
    refuse_size(
        "models.vae", {frames, height, width},
        "the autoencoder takes 1 + " + std::to_string(time) + "n frames, sizes in multiples of " + std::to_string(cell),
        {1 + std::max<int64_t>(0, frames - 1) / time * time, near(height), near(width)});
  }
  return {config_.z_dim, 1 + (frames - 1) / time, height / cell, width / cell};
}

Tensor WanVae::encode_chunk(const Tensor& pixels, FeatureCache& cache) const {
  const at::NoGradGuard no_grad;
  check_input(pixels.dim() == 4 && pixels.size(1) == (cache.chunks == 0 ? 1 : config_.time_stride()), "models.vae",
              "a chunk of " + std::to_string(pixels.dim() == 4 ? pixels.size(1) : 0) + " frames",
              "give the first frame alone, then " + std::to_string(config_.time_stride()) + " at a time");
  return run_chunk(encoder_, weights_.loaded(), in_range(pixels.to(device::here())), cache);
}

Tensor WanVae::decode_chunk(const Tensor& latent, FeatureCache& cache) const {
  const at::NoGradGuard no_grad;
  check_input(latent.dim() == 4 && latent.size(0) == config_.z_dim && latent.size(1) == 1, "models.vae",
              "a latent chunk must be one frame of " + std::to_string(config_.z_dim) + " channels",
              "give latent frames one at a time");
  return run_chunk(decoder_, weights_.loaded(), latent.to(device::here(), at::kFloat), cache);
}

Tensor WanVae::encode_tile(const Tensor& pixels) const {
  const auto [c, f, h, w] = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  const int64_t time = config_.time_stride();
  Tensor all = at::empty({2 * c, f, h, w}, at::kFloat);
  FeatureCache cache;
  for (int64_t i = 0; i < f; ++i)
    all.narrow(1, i, 1).copy_(
        encode_chunk(i == 0 ? pixels.narrow(1, 0, 1) : pixels.narrow(1, 1 + (i - 1) * time, time), cache));
  return all;
}

Tensor WanVae::decode_tile(const Tensor& latent) const {
  const int64_t f = latent.size(1), time = config_.time_stride(), cell = config_.stride();
  Tensor video = at::empty({3, 1 + (f - 1) * time, latent.size(2) * cell, latent.size(3) * cell}, at::kFloat);
  FeatureCache cache;
  for (int64_t i = 0; i < f; ++i) {
    const Tensor frames = decode_chunk(latent.narrow(1, i, 1), cache);
    video.narrow(1, i == 0 ? 0 : 1 + (i - 1) * time, frames.size(1)).copy_(frames);
  }
  return video;
}

Tensor WanVae::moments(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  check_pixels(pixels);
  const int64_t cell = config_.stride();
  const auto [c, f, h, w] = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  return blend_tiles(tiling_, cell, h, w, 1, [&](const Span& y, const Span& x) {
    return encode_tile(
        pixels.narrow(2, y.begin * cell, y.length() * cell).narrow(3, x.begin * cell, x.length() * cell));
  });
}

Posterior WanVae::posterior(const Tensor& pixels) const {
  const Tensor both = moments(pixels);
  return {both.narrow(0, 0, config_.z_dim), both.narrow(0, config_.z_dim, config_.z_dim)};
}

Tensor WanVae::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  // times the reciprocal, as the reference divides
  return (posterior(pixels).mean - per_channel(mean_)).mul_(per_channel(1 / std_));
}

Tensor WanVae::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  check_latent(latent, config_.z_dim);
  const Tensor unscaled = (latent.to(at::kFloat) / per_channel(1 / std_)).add_(per_channel(mean_));
  return blend_tiles(tiling_, config_.stride(), latent.size(2), latent.size(3), config_.stride(),
                     [&](const Span& y, const Span& x) {
                       return decode_tile(unscaled.narrow(2, y.begin, y.length()).narrow(3, x.begin, x.length()));
                     });
}

ChunkBytes WanVae::encode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const Tensor pixels = at::empty({3, config_.time_stride(), height, width}, on_meta(at::kByte));
  return chunk_bytes(encoder_, weights_.meta(), pixels, in_range, count);
}

ChunkBytes WanVae::decode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const int64_t cell = config_.stride();
  const Tensor latent = at::empty({config_.z_dim, 1, height / cell, width / cell}, on_meta(at::kFloat));
  return chunk_bytes(
      decoder_, weights_.meta(), latent, [](const Tensor& z) { return z; }, count);
}

namespace {

/// Peak bytes of a tiled pass: the work of a chunk, a tile's result and, with more than one tile, the sum of the
/// results and the weights.
int64_t with_tiles(const ChunkBytes& chunk, int64_t tile, int64_t whole, int64_t weights) {
  return chunk.total() + tile + (tile == whole ? 0 : whole + 2 * weights);
}

}  // namespace

int64_t WanVae::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride(), th = tile_length(tiling_, cell, h), tw = tile_length(tiling_, cell, w);
  const int64_t cells = 2 * c * f * 4;  // mean and log variance
  return with_tiles(encode_chunk_bytes(th * cell, tw * cell, count), cells * th * tw, cells * h * w, h * w * 4);
}

plan::UnitWork WanVae::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride();
  PassWork work(parameters(config_));
  for (const Span& y : tile_spans(tiling_, cell, h))
    for (const Span& x : tile_spans(tiling_, cell, w))
      add_work(encoder_, config_.time_stride(), frames, y.length() * cell, x.length() * cell, work);
  return work.work();
}

int64_t WanVae::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride(), th = tile_length(tiling_, cell, h), tw = tile_length(tiling_, cell, w);
  const int64_t unscaled = 2 * c * f * h * w * 4, frame = 3 * frames * cell * cell * 4;
  return unscaled + with_tiles(decode_chunk_bytes(th * cell, tw * cell, count), frame * th * tw, frame * h * w,
                               h * w * cell * cell * 4);
}

namespace {

const std::vector<std::string> kVaeNamings = {"official", "diffusers"};

/// Whether the names are those of Wan 2.2's autoencoder, whose levels are lists within a list.
bool is_22(const WeightSource& weights) {
  constexpr std::string_view kMarks[] = {"encoder.downsamples.0.downsamples.0.residual.2.weight",
                                         "encoder.down_blocks.0.resnets.0.conv1.weight"};
  return std::any_of(weights.names.begin(), weights.names.end(), [&](const std::string& name) {
    return std::any_of(std::begin(kMarks), std::end(kMarks),
                       [&](std::string_view mark) { return name.ends_with(mark); });
  });
}

/// Official names to those in the file.
class Stored {
 public:
  /// Names depend on the levels and their blocks alone, so `config` need not have the true widths yet.
  Stored(const Config& config, const WeightSource& weights)
      : map_(config.residual ? wan22_vae_names(config.num_res_blocks) : wan21_vae_names(config.num_res_blocks)) {
    std::vector<std::string> official;
    for (const auto& parameter : parameters(config)) official.push_back(parameter.name);
    const auto foreign = [this](const std::string& name, const std::string& naming) { return translate(name, naming); };
    naming_ = detect_naming(official, foreign, kVaeNamings, weights.names, weights.file);
  }
  std::string operator()(const std::string& official) const {
    return naming_.prefix + translate(official, naming_.naming);
  }

 private:
  std::string translate(const std::string& name, const std::string& naming) const {
    return naming == "official" ? name : to_foreign(map_, name);
  }
  const KeyMap& map_;
  Naming naming_;
};

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const bool sized = !config_text.empty(), two = is_22(weights);
  Config config = sized ? parse_config(config_text, config_file) : two ? wan22_config() : Config{};
  check_input(config.residual == two, "models.vae",
              weights.file + ": these are weights of Wan " + (two ? "2.2" : "2.1") + "'s autoencoder, " + config_file +
                  " is that of Wan " + config.version() + "'s",
              "put the config.json of these weights beside them, or none");
  const int64_t blocks = wan_vae_res_blocks([&](const std::string& name) { return has_tensor(weights, name); });
  if (!sized) config.num_res_blocks = blocks;
  const Stored stored(config, weights);
  if (!sized) {
    config = config_of_weights(
        two,
        [&](const std::string& name) {
          const std::string there = stored(name);
          return has_tensor(weights, there) ? weights.shape(there) : std::vector<int64_t>{};
        },
        weights.file);
    config.num_res_blocks = blocks;
  }

  const std::string hint = sized ? "does " + config_file + " belong to these weights?"
                                 : "these are not weights of Wan " + std::string(config.version()) + "'s autoencoder";
  for (const auto& parameter : parameters(config))
    expect_tensor(weights, stored(parameter.name), parameter.shape, hint);
  const auto read = [stored, values = weights.read](const std::string& official) { return values(stored(official)); };
  return std::make_unique<WanVae>(std::move(config), read, tiling);
}

/// A quarter, in whole cells of 16 or 8 pixels.
int64_t usual_overlap(int64_t tile) { return tile >= 64 ? tile / 64 * 16 : tile / 32 * 8; }

std::unique_ptr<VideoVae> released(const Config& config, const Tiling& tiling) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : parameters(config)) shapes[parameter.name] = parameter.shape;
  const auto read = [shapes](const std::string& name) { return random_tensor(name, shapes.at(name)); };
  return std::make_unique<WanVae>(config, read, tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = weight_forms(),
          .make = make,
          .usual_overlap = usual_overlap,
          .presets = {{"wan2.1-vae", [](const Tiling& tiling) { return released({}, tiling); }},
                      {"wan2.2-vae", [](const Tiling& tiling) { return released(wan22_config(), tiling); }}}};
}

}  // namespace tessera::models::wan_vae
