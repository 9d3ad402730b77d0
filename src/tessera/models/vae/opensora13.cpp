#include "tessera/models/vae/opensora13.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::opensora13_vae {

namespace {

constexpr double kNormEps = 1e-6, kUpNormEps = 1e-5;

/// Each token sees itself and those before it, row by row and frame by frame.
double mix(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to, int64_t /*cells*/) {
  const auto tokens = static_cast<double>(q.size(2));
  const double pairs = tokens * (tokens + 1) / 2;
  if (q.is_meta()) {  // the kernel's tiles are small
    at::empty(to.sizes(), to.options());
    return pairs;
  }
  if (q.is_cpu()) {
    to.copy_(at::scaled_dot_product_attention(q, k, v, {}, 0, /*is_causal=*/true));
    return pairs;
  }
  // kernels of GPUs that need no table of scores are for narrower heads: some queries at a time bound it
  constexpr int64_t kQueries = 1024;
  for (int64_t begin = 0; begin < q.size(2); begin += kQueries) {
    const int64_t count = std::min(kQueries, q.size(2) - begin), end = begin + count;
    const Tensor seen = at::ones({count, end}, q.options().dtype(at::kBool)).tril_(begin);
    to.narrow(2, begin, count)
        .copy_(at::scaled_dot_product_attention(q.narrow(2, begin, count), k.narrow(2, 0, end), v.narrow(2, 0, end),
                                                seen));
  }
  return pairs;
}

/// u + silu(norm(y) + u) for each frame, u the enlarged input, written over y.
Tensor add_enlarged(const MapInput& enlarged, const Affine& norm, const Tensor& y) {
  for (int64_t i = 0; i < (y.is_meta() ? 1 : y.size(0)); ++i) {
    const Tensor u = at::empty(y.sizes().slice(1), y.options());
    enlarged.copy_frame(i, u);
    Tensor sum = at::addcmul(norm.shift, y.select(0, i), norm.scale);
    sum.add_(u);
    at::silu_(sum);
    y.select(0, i).copy_(sum.add_(u));
  }
  return y;
}

/// Cells and frames are repeated; two convolutions, each normalised and activated after it, are added.
Layer up_time(const Config& config, const std::string& name, int64_t width) {
  ParameterList parameters;
  for (const char* number : {"1", "2"})
    parameters.kernel({name + ".conv" + number + ".conv", width, width}).norm(name + ".norm" + number, width);
  return {parameters.all, [name, norm = GroupNorm{config.groups, kUpNormEps}](LayerRunner& run, const Tensor& x) {
            const MapInput enlarged = {.map = x, .doubled = true, .time = MapInput::Time::doubled};
            Tensor y = run.conv(name + ".conv1.conv", enlarged);
            y = run.conv(name + ".conv2.conv", {y, run.norm(norm, name + ".norm1", y)}, {}, y);
            return add_enlarged(enlarged, run.norm(norm, name + ".norm2", y), y);
          }};
}

void add_block(std::vector<Layer>& layers, const Config& config, const std::string& name, int64_t in, int64_t out) {
  layers.push_back(residual({config.groups, kNormEps}, name + ".norm1", {name + ".conv1.conv", in, out},
                            name + ".norm2", {name + ".conv2.conv", out, out},
                            {name + ".nin_shortcut.conv", in, out, {1, 1, 1}}, {}));
}

void add_blocks(std::vector<Layer>& layers, const Config& config, const std::string& name, int64_t in, int64_t out,
                int64_t count) {
  for (int64_t i = 0; i < count; ++i, in = out)
    add_block(layers, config, name + ".block." + std::to_string(i), in, out);
}

/// One head over all cells of a piece, between residual blocks.
void add_middle(std::vector<Layer>& layers, const Config& config, const std::string& name, int64_t width) {
  const std::string at = name + ".attn_1";
  add_block(layers, config, name + ".block_1", width, width);
  layers.push_back(attention({config.groups, kNormEps}, at + ".norm",
                             {at + ".q.conv", at + ".k.conv", at + ".v.conv", at + ".proj_out.conv"}, width, {1, 1, 1},
                             mix));
  add_block(layers, config, name + ".block_2", width, width);
}

Layer last(const Config& config, const std::string& half, const std::string& site, int64_t in, int64_t out) {
  return head({config.groups, kNormEps}, half + ".norm_out", {site, in, out});
}

/// [3, ..] to mean and log variance [2 * latent_channels, ..].
std::vector<Layer> encoder_layers(const Config& config) {
  const std::vector<int64_t>& widths = config.widths;
  std::vector<Layer> layers = {conv({"encoder.conv_in.conv", 3, config.first})};
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "encoder.down." + std::to_string(level);
    const int64_t width = widths[level];
    add_blocks(layers, config, name, level == 0 ? config.first : widths[level - 1], width, config.layers);
    if (level == 0)
      layers.push_back(conv({name + ".downsample.conv", width, width, {3, 3}},
                            {.border = {.front = 0, .before = 0}, .stride = 2}));  // each frame
    if (level > 0 && level + 1 < widths.size())
      layers.push_back(conv({name + ".downsample.conv.conv", width, width}, {.time_stride = 2, .stride = 2}));
  }
  add_middle(layers, config, "encoder.mid", widths.back());
  layers.push_back(last(config, "encoder", "encoder.conv_out.conv", widths.back(), 2 * config.latent_channels));
  return layers;
}

/// [latent_channels, f, ..] to [3, 4f, ..], of which the first three frames are no part of the clip.
std::vector<Layer> decoder_layers(const Config& config) {
  const std::vector<int64_t>& widths = config.decoder_widths;
  std::vector<Layer> layers = {conv({"decoder.conv_in.conv", config.latent_channels, widths.back()})};
  add_middle(layers, config, "decoder.mid", widths.back());
  for (size_t level = widths.size(); level-- > 0;) {
    const std::string name = "decoder.up." + std::to_string(level);
    const int64_t width = widths[level];
    add_blocks(layers, config, name, widths[level + 1 == widths.size() ? level : level + 1], width,
               config.decoder_layers + 1);
    if (level > 1) layers.push_back(up_time(config, name + ".upsample.conv3d", width));
    if (level == 1)
      layers.push_back(enlarged({name + ".upsample.conv", width, width, {3, 3}}, {.border = {.front = 0}}));
  }
  layers.push_back(last(config, "decoder", "decoder.conv_out", widths.front(), 3));
  return layers;
}

/// What the code decodes to less than 4 frames a latent frame: as many as it has of the first.
constexpr int64_t kLead = kTimeStride - 1;

/// Of a side: it is halved rounding down, then twice rounding up.
int64_t cells_of(int64_t pixels) { return div_up(div_up(pixels / 2, 2), 2); }
int64_t latents_of(int64_t frames) { return (frames - 1) / kTimeStride + 1; }
int64_t shown(int64_t latents) { return latents * kTimeStride - kLead; }

template <size_t n>
Tensor published(const std::array<float, n>& values, int64_t frames) {
  return at::tensor(at::ArrayRef<float>(values.data(), n), at::kFloat).view({-1, frames});
}

/// [C, frames] of the normalization.
Tensor of_channels(const Config& config, bool mean) {
  switch (config.normalization) {
    case Normalization::video:
      return published(mean ? kMean : kStd, 1);
    case Normalization::video_5frames:
      return published(mean ? kMeanOfFrames : kStdOfFrames, kFrames);
    case Normalization::none:
      break;
  }
  return at::full({config.latent_channels, 1}, mean ? 0.0 : 1.0, at::kFloat);
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_layers(config), decoder_layers(config)});
}

OpenSoraVae13::OpenSoraVae13(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = "opensora1.3-vae",
                .settings = {at::tensor({config.groups, config.piece, int64_t{config.overlap}}, at::kLong)},
                .scaling = {.mean = of_channels(config, true), .std = of_channels(config, false)},
                .parameters = opensora13_vae::parameters(config),
                .read = std::move(read),
                .cell = kStride,
                .tiling = tiling}),
      config_(std::move(config)),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)) {}

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

Tensor OpenSoraVae13::moments(const Tensor& pixels, LayerRunner& run) const {
  return encode_tiles(pixels, [&](const Tensor& tile, const Part& y, const Part& x) {
    const int64_t frames = pixels.size(1);
    Tensor result = empty_result({2 * config_.latent_channels, latent_frames(frames), y.length, x.length}, tile);
    int64_t done = 0;
    for (const Part& part : pieces(frames)) {
      const int64_t count = latents_of(part.length);
      result.narrow(1, done, count).copy_(run.run(encoder_, tile.narrow(1, part.begin, part.length)));
      done += count;
    }
    return result;
  });
}

Tensor OpenSoraVae13::decoded(const Tensor& unscaled, LayerRunner& run) const {
  const int64_t f = unscaled.size(1);
  const Tensor video = at::empty({3, frames_of(f), unscaled.size(2) * kStride, unscaled.size(3) * kStride}, at::kFloat);
  int64_t done = 0;
  for (const Part& part : latent_pieces(f)) {
    Tensor frames = run.run(decoder_, unscaled.narrow(1, part.begin, part.length)).narrow(1, kLead, shown(part.length));
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

Tensor OpenSoraVae13::pixels(const Tensor& unscaled, LayerRunner& run) const {
  return decode_tiles(unscaled, [&](const Tensor& tile, const Part&, const Part&) { return decoded(tile, run); });
}

int64_t OpenSoraVae13::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [rows, columns] = largest_tile_pixels(height, width);
  return pass_bytes(encoder_, on_meta({3, pieces(frames).front().length, rows, columns}, at::kByte), count) +
         tile_bytes(2 * c * f, h, w);
}

int64_t OpenSoraVae13::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile(h, w);
  return 4 * c * f * h * w + tile_bytes(3 * kStride * kStride * frames, h, w) +
         pass_bytes(decoder_, on_meta({c, latent_pieces(f).front().length, tile_h, tile_w}), count);
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
          .usual_overlap = quarter_of_tile<kStride>,
          .clip_cases = {"opensora_vae13"},
          .presets = {{"opensora1.3-vae", released}}};
}

}  // namespace tessera::models::opensora13_vae
