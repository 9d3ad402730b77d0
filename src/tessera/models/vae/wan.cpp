#include "tessera/models/vae/wan.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::wan_vae {

namespace {

constexpr int64_t kColours = 3;

bool first(LayerRunner& run) { return run.cache().chunks == 0; }

/// x with the cached frames in front (zeros in the first chunk); puts its last frames in the cache.
Tensor with_past(LayerRunner& run, const std::string& site, Tensor x, int64_t count) {
  Tensor& past = run.cache().frames[site];
  if (!past.defined()) past = at::zeros({count, x.size(1), x.size(2), x.size(3)}, x.options());
  Tensor all = at::cat({past, x});  // [count + T, H, W, C]
  x.reset();
  past.copy_(all.narrow(0, all.size(0) - count, count));
  return all;
}

Tensor causal(LayerRunner& run, const std::string& site, Tensor x, at::IntArrayRef padding = {0, 1, 1}) {
  const Tensor all = with_past(run, site, std::move(x), 2);
  run.now().change(all.numel());
  return run.conv_whole(site, all, padding, {1, 1, 1});
}

/// x / |x| * sqrt(C) * gamma, the norm over channels.
Tensor norm(LayerRunner& run, const std::string& site, const Tensor& x) {
  run.now().stream(5 * x.numel(), 3);
  const double root = std::sqrt(static_cast<double>(x.size(3)));
  return channel_normed(x, run.weight(site + ".gamma").flatten() * root);
}

Tensor norm_silu(LayerRunner& run, const std::string& site, Tensor x) {
  Tensor y = norm(run, site, x);
  x.reset();
  run.now().change(y.numel());
  return at::silu_(y);
}

Tensor sum(LayerRunner& run, const Tensor& y, const Tensor& x) {
  run.now().add(y.numel());
  return y.add_(x);
}

Parameter gamma(const std::string& site, int64_t channels) { return {site + ".gamma", {channels, 1, 1, 1}}; }

/// Causal 3x3x3.
Layer causal_layer(const Kernel& kernel) {
  return {ParameterList().kernel(kernel).all,
          [site = kernel.site](LayerRunner& run, Tensor x) { return causal(run, site, std::move(x)); }};
}

/// Norm, SiLU, conv, norm, SiLU, conv, added to the input (1x1x1 when the channels differ).
Layer residual(const std::string& name, int64_t in, int64_t out) {
  const std::string conv1 = name + ".residual.2", conv2 = name + ".residual.6", norm1 = name + ".residual.0",
                    norm2 = name + ".residual.3", shortcut = name + ".shortcut";
  ParameterList parameters{{gamma(norm1, in)}};
  parameters.kernel({conv1, in, out}).all.push_back(gamma(norm2, out));
  parameters.kernel({conv2, out, out});
  if (in != out) parameters.kernel({shortcut, in, out, {1, 1, 1}});
  return {parameters.all, [=](LayerRunner& run, Tensor x) {
            Tensor h = norm(run, norm1, x);
            run.now().change(h.numel());
            h = causal(run, conv1, std::move(at::silu_(h)));
            h = norm_silu(run, norm2, std::move(h));
            h = causal(run, conv2, std::move(h));
            if (in != out) x = run.linear(shortcut, x);
            return sum(run, h, x);
          }};
}

/// Within each frame, one head.
Layer attention(const std::string& name, int64_t c) {
  ParameterList parameters{{{name + ".norm.gamma", {c, 1, 1}}}};
  parameters.kernel({name + ".to_qkv", c, 3 * c, {1, 1}}).kernel({name + ".proj", c, c, {1, 1}});
  return {parameters.all, [name, c](LayerRunner& run, const Tensor& x) {
            const int64_t t = x.size(0), cells = x.size(1) * x.size(2);
            const Tensor qkv =
                run.linear(name + ".to_qkv", norm(run, name + ".norm", x)).view({t, 1, -1, 3, c});  // [T, 1, HW, 3, C]
            const auto part = [&](int64_t i) { return qkv.select(3, i); };
            run.now().attention(4.0 * static_cast<double>(x.numel()) * static_cast<double>(cells));
            const Tensor mixed = x.is_meta() ? at::empty({t, 1, cells, c}, x.options())  // its tiles are small
                                             : at::scaled_dot_product_attention(part(0), part(1), part(2));
            return sum(run, run.linear(name + ".proj", mixed.reshape(x.sizes())), x);
          }};
}

/// Half the height and width; `temporal`: then half the time.
Layer down(const std::string& name, int64_t width, bool temporal) {
  const std::string side = name + ".resample.1", time = name + ".time_conv";
  ParameterList parameters;
  parameters.kernel({side, width, width, {3, 3}});
  if (temporal) parameters.kernel({time, width, width, {3, 1, 1}});
  return {parameters.all, [=](LayerRunner& run, Tensor x) {
            run.now().change(x.numel());
            x = at::constant_pad_nd(x, {0, 0, 0, 1, 0, 1});            // right and bottom
            Tensor y = run.conv_whole(side, x, {0, 0, 0}, {1, 2, 2});  // [T, H/2, W/2, C]
            x.reset();
            if (!temporal) return y;
            run.now().change(y.numel());  // the frames that the next chunk sees
            if (first(run)) {
              run.cache().frames[time] = y.clone();
              return y;
            }
            return run.conv_whole(time, with_past(run, time, std::move(y), 1), {0, 0, 0}, {2, 1, 1});
          }};
}

/// `temporal`: twice the time; then twice the height and width.
Layer up(const std::string& name, int64_t in, int64_t out, bool temporal) {
  const std::string side = name + ".resample.1", time = name + ".time_conv";
  ParameterList parameters;
  parameters.kernel({side, in, out, {3, 3}});
  if (temporal) parameters.kernel({time, in, 2 * in, {3, 1, 1}});
  return {parameters.all, [=](LayerRunner& run, Tensor x) {
            if (temporal && !first(run)) {
              const int64_t t = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3);
              const Tensor pairs = causal(run, time, std::move(x), {0, 0, 0});  // [T, H, W, 2C]
              x = pairs.view({t, h, w, 2, c}).permute({0, 3, 1, 2, 4}).reshape({2 * t, h, w, c});
            }
            const int64_t t = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3);
            x = x.view({t, h, 1, w, 1, c}).expand({t, h, 2, w, 2, c}).reshape({t, 2 * h, 2 * w, c});
            return run.conv_whole(side, x, {0, 1, 1}, {1, 1, 1});
          }};
}

/// Norm, SiLU, conv.
Layer head(const std::string& name, int64_t in, int64_t out) {
  ParameterList parameters{{gamma(name + ".0", in)}};
  return {parameters.kernel({name + ".2", in, out}).all, [name](LayerRunner& run, Tensor x) {
            return causal(run, name + ".2", norm_silu(run, name + ".0", std::move(x)));
          }};
}

/// Squares of p x p pixels to channels, the offset within a row of pixels before that within a column: [T, H, W, C] ->
/// [T, H/p, W/p, C * p * p].
Layer patchify(int64_t p) {
  return {{}, [p](LayerRunner& run, const Tensor& x) {
            const int64_t t = x.size(0), h = x.size(1) / p, w = x.size(2) / p, c = x.size(3);
            run.now().change(x.numel());
            return x.view({t, h, p, w, p, c}).permute({0, 1, 3, 5, 4, 2}).reshape({t, h, w, c * p * p});
          }};
}

Layer unpatchify(int64_t p) {
  return {{}, [p](LayerRunner&, const Tensor& x) {
            const int64_t t = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3) / (p * p);
            return x.view({t, h, w, c, p, p}).permute({0, 1, 5, 2, 4, 3}).reshape({t, h * p, w * p, c});
          }};
}

// Wan 2.2: each level has a shortcut from its input to its output.

/// Keeps the input, averaged to the shape of the level's output: blocks of 1 or 2 frames x s x s pixels become channels,
/// of which neighbours are averaged until there are `out`. A frame that has no other to be halved with (the first one)
/// is halved with zeros before it.
Layer average(int64_t out, bool temporal, int64_t s) {
  return {{}, [=](LayerRunner& run, const Tensor& x) {
            const int64_t time = temporal ? 2 : 1, c = x.size(3);
            run.kept = x;
            if (s == 1 && time == 1 && c == out) return x;
            run.now().change(x.numel());
            const Tensor even = x.size(0) % time == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, 0, 1, 0});
            const int64_t t = even.size(0) / time, h = x.size(1) / s, w = x.size(2) / s;
            run.kept = even.view({t, time, h, s, w, s, c})
                           .permute({0, 2, 4, 6, 1, 3, 5})  // [t, h, w, C, time, s, s]
                           .reshape({t, h, w, out, c * time * s * s / out})
                           .mean(-1);
            return x;
          }};
}

/// Adds what average() kept.
Layer join() {
  return {{}, [](LayerRunner& run, const Tensor& x) { return sum(run, x, std::exchange(run.kept, {})); }};
}

Layer keep() {
  return {{}, [](LayerRunner& run, const Tensor& x) { return run.kept = x; }};
}

/// Adds what keep() kept, each of its channels spread over the block of frames and pixels it becomes. The first frame of
/// a clip becomes one frame, not two.
Layer repeat(int64_t in, int64_t out, bool temporal, int64_t s) {
  return {{}, [=](LayerRunner& run, const Tensor& x) {
            const Tensor kept = std::exchange(run.kept, {});
            const int64_t time = temporal ? 2 : 1, block = time * s * s;
            const int64_t t = kept.size(0), h = kept.size(1), w = kept.size(2);
            const int64_t shared = in / out;  // channels that make up one of the result: 1 or 2
            Tensor spread = kept.view({t, h, w, out, shared, 1})
                                .expand({t, h, w, out, shared, block / shared})
                                .reshape({t, h, w, out, time, s, s})  // a view: nothing is copied
                                .permute({0, 4, 1, 5, 2, 6, 3});      // [T, time, H, s, W, s, out]
            if (first(run)) spread = spread.narrow(1, time - 1, 1);
            x.view({t, spread.size(1), h, s, w, s, out}).add_(spread);
            return x;
          }};
}

void add_middle(std::vector<Layer>& layers, const std::string& side, int64_t channels) {
  layers.push_back(residual(side + ".middle.0", channels, channels));
  layers.push_back(attention(side + ".middle.1", channels));
  layers.push_back(residual(side + ".middle.2", channels, channels));
}

/// Names of the layers of one side: a single list in Wan 2.1, a list for each level in Wan 2.2.
class Names {
 public:
  Names(std::string list, bool nested) : list_(std::move(list)), nested_(nested) {}
  void begin_level() {
    if (nested_) ++level_, index_ = 0;
  }
  std::string next() {
    const std::string name = list_.substr(list_.find('.'));  // ".downsamples"
    return list_ + (nested_ ? "." + std::to_string(level_) + name : "") + "." + std::to_string(index_++);
  }

 private:
  const std::string list_;
  const bool nested_;
  int64_t level_ = -1, index_ = 0;
};

/// [3, ..] to mean and log variance [2 * z_dim, ..].
std::vector<Layer> encoder_layers(const Config& c) {
  const int64_t colours = kColours * c.patch * c.patch, moments = 2 * c.z_dim;
  std::vector<Layer> layers;
  if (c.patch > 1) layers.push_back(patchify(c.patch));
  layers.push_back(causal_layer({"encoder.conv1", colours, c.dim}));
  int64_t channels = c.dim;
  Names names("encoder.downsamples", c.residual);
  for (int64_t level = 0; level < c.levels(); ++level) {
    const int64_t width = c.dim * c.dim_mult[level];
    const bool halves = level + 1 < c.levels(), in_time = halves && c.temporal_downsample[level];
    names.begin_level();
    if (c.residual) layers.push_back(average(width, in_time, halves ? 2 : 1));
    for (int64_t block = 0; block < c.num_res_blocks; ++block, channels = width)
      layers.push_back(residual(names.next(), channels, width));
    if (halves) layers.push_back(down(names.next(), width, in_time));
    if (c.residual) layers.push_back(join());
  }
  add_middle(layers, "encoder", channels);
  layers.push_back(head("encoder.head", channels, moments));
  layers.push_back(pointwise({"conv1", moments, moments, {1, 1, 1}}));
  return layers;
}

/// [z_dim, ..] to [3, ..].
std::vector<Layer> decoder_layers(const Config& c) {
  int64_t channels = c.decoder_dim * c.dim_mult.back();
  std::vector<Layer> layers = {pointwise({"conv2", c.z_dim, c.z_dim, {1, 1, 1}}),
                               causal_layer({"decoder.conv1", c.z_dim, channels})};
  add_middle(layers, "decoder", channels);
  Names names("decoder.upsamples", c.residual);
  for (int64_t level = c.levels() - 1; level >= 0; --level) {
    const int64_t width = c.decoder_dim * c.dim_mult[level], before = channels;
    const bool doubles = level > 0, in_time = doubles && c.temporal_downsample[level - 1];
    names.begin_level();
    if (c.residual && doubles) layers.push_back(keep());
    for (int64_t block = 0; block <= c.num_res_blocks; ++block, channels = width)
      layers.push_back(residual(names.next(), channels, width));
    if (!doubles) break;
    channels = c.residual ? width : width / 2;
    layers.push_back(up(names.next(), width, channels, in_time));
    if (c.residual) layers.push_back(repeat(before, width, in_time, 2));
  }
  layers.push_back(head("decoder.head", channels, kColours * c.patch * c.patch));
  if (c.patch > 1) layers.push_back(unpatchify(c.patch));
  return layers;
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_layers(config), decoder_layers(config)});
}

WanVae::WanVae(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = std::string("wan") + config.version() + "-vae",
                .scaling = {.mean = constants(config.mean),
                            .std = constants(config.std),
                            .times = [values = config.std] { return 1 / constants(values); }},
                .parameters = wan_vae::parameters(config),
                .read = std::move(read),
                .cell = config.stride(),
                .tiling = tiling}),
      config_(std::move(config)),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)) {}

std::array<int64_t, 4> WanVae::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  return causal_latent(config_.z_dim, config_.time_stride(), config_.stride(), {frames, height, width});
}

Part WanVae::chunk_of(int64_t i) const {
  const int64_t time = config_.time_stride();
  return i == 0 ? Part{0, 1} : Part{1 + (i - 1) * time, time};
}

Tensor WanVae::encode_chunk(const Tensor& pixels, FeatureCache& cache) const {
  const at::NoGradGuard no_grad;
  const int64_t frames = pixels.dim() == 4 ? pixels.size(1) : 0;
  check_input(frames == (cache.chunks == 0 ? 1 : config_.time_stride()), "models.vae",
              "a chunk of " + std::to_string(frames) + " frames",
              "give the first frame alone, then " + std::to_string(config_.time_stride()) + " at a time");
  return LayerRunner(weights_).run(encoder_, pixels, &cache);
}

Tensor WanVae::decode_chunk(const Tensor& latent, FeatureCache& cache) const {
  const at::NoGradGuard no_grad;
  check_input(latent.dim() == 4 && latent.size(0) == config_.z_dim && latent.size(1) == 1, "models.vae",
              "a latent chunk must be one frame of " + std::to_string(config_.z_dim) + " channels",
              "give latent frames one at a time");
  return LayerRunner(weights_).run(decoder_, latent, &cache);
}

Tensor WanVae::encode_tile(const Tensor& pixels, LayerRunner& run) const {
  const auto [c, f, h, w] = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  Tensor all = empty_result({2 * c, f, h, w}, pixels);
  FeatureCache cache;
  for (int64_t i = 0; i < f; ++i) {
    const Part chunk = chunk_of(i);
    all.narrow(1, i, 1).copy_(run.run(encoder_, pixels.narrow(1, chunk.begin, chunk.length), &cache));
  }
  return all;
}

Tensor WanVae::decode_tile(const Tensor& latent, LayerRunner& run) const {
  const int64_t f = latent.size(1), cell = config_.stride();
  Tensor video =
      at::empty({3, 1 + (f - 1) * config_.time_stride(), latent.size(2) * cell, latent.size(3) * cell}, at::kFloat);
  FeatureCache cache;
  for (int64_t i = 0; i < f; ++i) {
    const Part chunk = chunk_of(i);
    video.narrow(1, chunk.begin, chunk.length).copy_(run.run(decoder_, latent.narrow(1, i, 1), &cache));
  }
  return video;
}

Tensor WanVae::moments(const Tensor& pixels, LayerRunner& run) const {
  const int64_t cell = config_.stride();
  const auto [c, f, h, w] = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  return blend_tiles(tiles_, h, w, 1, [&](const Span& y, const Span& x) {
    return encode_tile(pixels.narrow(2, y.begin * cell, y.length() * cell).narrow(3, x.begin * cell, x.length() * cell),
                       run);
  });
}

Tensor WanVae::pixels(const Tensor& unscaled, LayerRunner& run) const {
  return blend_tiles(tiles_, unscaled.size(2), unscaled.size(3), config_.stride(), [&](const Span& y, const Span& x) {
    return decode_tile(unscaled.narrow(2, y.begin, y.length()).narrow(3, x.begin, x.length()), run);
  });
}

/// Measured by running chunks on meta tensors: that is a chunk after the first.
ChunkBytes WanVae::chunk_bytes(const std::vector<Layer>& layers, const Tensor& chunk, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  LayerRunner run(weights_);
  FeatureCache cache;
  run.run(layers, chunk.narrow(1, 0, 1), &cache);
  run.run(layers, chunk, &cache);  // the first chunk that fills every entry of the cache
  ChunkBytes bytes;
  bytes.work = count([&] { run.run(layers, chunk, &cache); });
  bytes.cache = cache.bytes();
  return bytes;
}

ChunkBytes WanVae::encode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const {
  return chunk_bytes(encoder_, on_meta({3, config_.time_stride(), height, width}, at::kByte), count);
}

ChunkBytes WanVae::decode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const {
  const int64_t cell = config_.stride();
  return chunk_bytes(decoder_, on_meta({config_.z_dim, 1, height / cell, width / cell}), count);
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
  const int64_t cell = config_.stride(), th = longest_span(tiles_.y, h), tw = longest_span(tiles_.x, w);
  const int64_t cells = 2 * c * f * 4;  // mean and log variance
  return with_tiles(encode_chunk_bytes(th * cell, tw * cell, count), cells * th * tw, cells * h * w, h * w * 4);
}

int64_t WanVae::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride(), th = longest_span(tiles_.y, h), tw = longest_span(tiles_.x, w);
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
  return std::make_unique<WanVae>(config, random_weights(parameters(config)), tiling);
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
