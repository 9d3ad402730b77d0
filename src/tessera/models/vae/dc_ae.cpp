#include "tessera/models/vae/dc_ae.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/dc_ae_config.h"
#include "tessera/models/vae/vae_weights.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae {

int64_t usual_overlap(int64_t tile) { return tile == 0 ? 0 : std::max<int64_t>(32, tile / 8 / 32 * 32); }

DcAe::DcAe(Config config, ReadWeight read, const Tiling& tiling)
    : config_(std::move(config)),
      weights_(parameters(config_), std::move(read)),
      tiles_(grid_in_cells(tiling, config_.stride(), "512 pixels that share 64 are usual")),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)),
      mean_(at::zeros({config_.latent_channels}, at::kFloat)),
      std_(at::full({config_.latent_channels}, 1 / config_.scaling_factor, at::kFloat)) {}

std::string DcAe::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  uint64_t hash = weights_.hash();
  hash = hash_tensor(hash, std_);
  char text[64];
  std::snprintf(text, sizeof text, "dc-ae-%016llx-v1", static_cast<unsigned long long>(hash));
  fingerprint_ = text + tiles_text(tiles_, config_.stride());
  return fingerprint_;
}

std::array<int64_t, 4> DcAe::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const int64_t cell = config_.stride();
  if (frames < 1 || height < 1 || height % cell != 0 || width < 1 || width % cell != 0) {
    const auto near = [cell](int64_t n) { return std::max(cell, n / cell * cell); };
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes sizes in multiples of " + std::to_string(cell),
                {std::max<int64_t>(1, frames), near(height), near(width)});
  }
  return {config_.latent_channels, frames, height / cell, width / cell};
}

Tensor DcAe::encode_frame(const Tensor& pixels, const net::WeightMap& weights) const {
  const int64_t cell = config_.stride(), h = pixels.size(1) / cell, w = pixels.size(2) / cell;
  const auto run = [&](const Part& y, const Part& x) {
    const Tensor part = pixels.narrow(1, y.begin * cell, y.length * cell).narrow(2, x.begin * cell, x.length * cell);
    return run_layers(encoder_, config_.head_dim, weights, in_range(part.to(device::here()))).cpu();
  };
  return applies(tiles_, h, w) ? stitch_tiles(tiles_, h, w, 1, run) : run({0, h}, {0, w});
}

Tensor DcAe::decode_frame(const Tensor& latent, const net::WeightMap& weights) const {
  const int64_t h = latent.size(1), w = latent.size(2);
  const auto run = [&](const Part& y, const Part& x) {
    return run_layers(decoder_, config_.head_dim, weights,
                      latent.narrow(1, y.begin, y.length).narrow(2, x.begin, x.length).to(device::here()))
        .cpu();
  };
  return applies(tiles_, h, w) ? stitch_tiles(tiles_, h, w, config_.stride(), run) : run({0, h}, {0, w});
}

Posterior DcAe::posterior(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  check_input(pixels.dim() == 4 && pixels.size(0) == 3, "models.vae", "pixels of another shape than [3, F, H, W]",
              "give pictures of three colours in [-1, 1]");
  const auto shape = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  Tensor latent = at::empty(shape, at::kFloat);
  for (int64_t i = 0; i < pixels.size(1); ++i)
    latent.select(1, i).copy_(encode_frame(pixels.select(1, i), weights_.loaded()));
  return {latent, {}};
}

Tensor DcAe::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  return posterior(pixels).mean.mul_(config_.scaling_factor);
}

Tensor DcAe::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  check_latent(latent, config_.latent_channels);
  const int64_t cell = config_.stride();
  const Tensor unscaled = latent.to(at::kFloat) / config_.scaling_factor;
  Tensor pixels = at::empty({3, latent.size(1), latent.size(2) * cell, latent.size(3) * cell}, at::kFloat);
  for (int64_t i = 0; i < latent.size(1); ++i)
    pixels.select(1, i).copy_(decode_frame(unscaled.select(1, i), weights_.loaded()));
  return pixels;
}

int64_t DcAe::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride();
  const auto [y, x] = parts_of(tiles_, h, w);
  const Tensor pixels =
      at::empty({3, longest(y) * cell, longest(x) * cell}, at::TensorOptions(at::kByte).device(at::kMeta));
  const net::WeightMap meta = weights_.meta();
  const int64_t pass = count([&] { run_layers(encoder_, config_.head_dim, meta, in_range(pixels)); });
  return pass + 4 * c * f * h * w + (applies(tiles_, h, w) ? stitched_bytes(tiles_, c, h, w) : 0);
}

plan::UnitWork DcAe::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride();
  const GridParts parts = parts_of(tiles_, h, w);
  PassWork work(parameters(config_));
  for (int64_t frame = 0; frame < f; ++frame)
    for (const Part& y : parts.y)
      for (const Part& x : parts.x) add_work(encoder_, config_.head_dim, y.length * cell, x.length * cell, work);
  return work.work();
}

int64_t DcAe::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride(), square = cell * cell;
  const auto [y, x] = parts_of(tiles_, h, w);
  const Tensor latent = at::empty({c, longest(y), longest(x)}, at::TensorOptions(at::kFloat).device(at::kMeta));
  const net::WeightMap meta = weights_.meta();
  const int64_t pass = count([&] { run_layers(decoder_, config_.head_dim, meta, latent); });
  const int64_t whole = 4 * f * h * w * (c + 3 * square);  // the unscaled latent and the pixels
  return pass + whole + (applies(tiles_, h, w) ? stitched_bytes(tiles_, 3 * square, h, w) : 0);
}

namespace {

const std::string kEfficientvit = "efficientvit";

/// The tensors of a file under diffusers' names, whatever it calls them.
class Stored {
 public:
  explicit Stored(WeightSource weights) : weights_(std::move(weights)) {
    const auto foreign = [](const std::string& name, const std::string& naming) {
      return naming == kEfficientvit ? in_efficientvit(name).name : name;
    };
    // these two tell the naming; which others there are depends on the sizes
    naming_ = detect_naming({"encoder.conv_in.weight", "decoder.conv_in.weight"}, foreign, {"diffusers", kEfficientvit},
                            weights_.names, weights_.file);
  }

  /// Empty for a tensor that is not there.
  std::vector<int64_t> shape(const std::string& name) const {
    const StoredRows rows = place(name);
    if (!has_tensor(weights_, rows.name)) return {};
    std::vector<int64_t> shape = weights_.shape(rows.name);
    if (shape.empty() || shape[0] % rows.parts != 0) return shape;
    shape[0] /= rows.parts;
    if (pointwise(name) && shape.size() == 4) shape.resize(2);  // a linear here, a 1x1 convolution there
    return shape;
  }

  void expect(const Parameter& parameter, const std::string& hint) const {
    const StoredRows rows = place(parameter.name);
    std::vector<int64_t> whole = parameter.shape;
    whole[0] *= rows.parts;
    if (pointwise(parameter.name)) whole.insert(whole.end(), {1, 1});
    expect_tensor(weights_, rows.name, whole, hint);
  }

  Tensor read(const std::string& name) const {
    const StoredRows rows = place(name);
    const Tensor whole = weights_.read(rows.name);
    const int64_t count = whole.size(0) / rows.parts;
    const Tensor part = rows.parts == 1 ? whole : whole.narrow(0, rows.part * count, count).clone();
    return pointwise(name) ? part.flatten(1) : part;
  }

 private:
  bool original() const { return naming_.naming == kEfficientvit; }
  StoredRows place(const std::string& name) const {
    StoredRows rows = original() ? in_efficientvit(name) : StoredRows{name};
    rows.name.insert(0, naming_.prefix);
    return rows;
  }
  /// Linear in diffusers and a convolution in this file.
  bool pointwise(const std::string& name) const {
    return original() && name.find(".attn.to_") != name.npos && name.find("multiscale") == name.npos;
  }

  const WeightSource weights_;
  Naming naming_;
};

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const auto stored = std::make_shared<const Stored>(weights);
  Config config = config_of_weights([&](const std::string& name) { return stored->shape(name); }, weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  for (const Parameter& parameter : parameters(config))
    stored->expect(parameter, "these are not weights of DC-AE f32c32 as Sana uses it");
  return std::make_unique<DcAe>(
      std::move(config), [stored](const std::string& name) { return stored->read(name); }, tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<DcAe>(Config{}, random_weights(parameters({})), tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = weight_forms(),
          .make = make,
          .usual_overlap = usual_overlap,
          .picture_cases = {"dc_ae", "dc_ae_tiled"},
          .presets = {{"dc-ae-f32c32", released}}};
}

}  // namespace tessera::models::dc_ae
