#include "tessera/models/vae/dc_ae.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::dc_ae {

namespace {

constexpr double kNormEps = 1e-5, kAttentionEps = 1e-15;
constexpr Border kNone = {0, 0, 0, 0}, kOne = {1, 1, 1, 1}, kTwo = {2, 2, 2, 2};  // zeros on all sides: not causal

/// The names of tensors inside a block and at the ends of a network.
struct Names {
  const char *conv1, *conv2, *norm;                       // of a residual block
  std::vector<const char*> projections;                   // queries, keys and values
  const char *scale, *grouped, *out, *norm_out;           // of attention
  const char *inverted, *depthwise, *point, *point_norm;  // of the gated convolution
  const char *first, *squeeze, *widen, *head_norm, *head, *encoder, *decoder, *between, *down, *up;
};
const Names kPictures = {.conv1 = ".conv1",
                         .conv2 = ".conv2",
                         .norm = ".norm",
                         .projections = {".attn.to_q", ".attn.to_k", ".attn.to_v"},
                         .scale = ".attn.to_qkv_multiscale.0.proj_in",
                         .grouped = ".attn.to_qkv_multiscale.0.proj_out",
                         .out = ".attn.to_out",
                         .norm_out = ".attn.norm_out",
                         .inverted = ".conv_out.conv_inverted",
                         .depthwise = ".conv_out.conv_depth",
                         .point = ".conv_out.conv_point",
                         .point_norm = ".conv_out.norm",
                         .first = "encoder.conv_in",
                         .squeeze = "encoder.conv_out",
                         .widen = "decoder.conv_in",
                         .head_norm = "decoder.norm_out",
                         .head = "decoder.conv_out",
                         .encoder = "encoder.down_blocks.",
                         .decoder = "decoder.up_blocks.",
                         .between = ".",
                         .down = ".conv",
                         .up = ".conv"};
const Names kClips = {.conv1 = ".main.conv1.conv",
                      .conv2 = ".main.conv2.conv",
                      .norm = ".main.conv2.norm",
                      .projections = {".context_module.main.qkv.conv"},
                      .scale = ".context_module.main.aggreg.0.0",
                      .grouped = ".context_module.main.aggreg.0.1",
                      .out = ".context_module.main.proj.conv",
                      .norm_out = ".context_module.main.proj.norm",
                      .inverted = ".local_module.main.inverted_conv.conv",
                      .depthwise = ".local_module.main.depth_conv.conv",
                      .point = ".local_module.main.point_conv.conv",
                      .point_norm = ".local_module.main.point_conv.norm",
                      .first = "encoder.project_in.conv",
                      .squeeze = "encoder.project_out.main.op_list.0.conv",
                      .widen = "decoder.project_in.main.conv",
                      .head_norm = "decoder.project_out.op_list.0",
                      .head = "decoder.project_out.op_list.2.conv",
                      .encoder = "encoder.stages.",
                      .decoder = "decoder.stages.",
                      .between = ".op_list.",
                      .down = ".main.conv",
                      .up = ".main.conv.conv"};

/// What one of the two networks has everywhere.
struct Net {
  const Names& names;
  bool clips;
  int64_t head_dim;

  /// Keeps the size. That of pictures runs whole.
  Tensor conv(LayerRunner& run, const std::string& site, const Tensor& x, const Border& border = kOne,
              int64_t groups = 1) const {
    if (clips) return run.conv(site, {x}, {.border = border, .groups = groups});
    return run.conv_whole(site, x, {border.before, border.after}, {1, 1}, groups);
  }
  std::vector<int64_t> sides(int64_t side) const { return std::vector<int64_t>(clips ? 3 : 2, side); }
  Kernel kernel(const std::string& site, int64_t in, int64_t out, int64_t side = 3, bool biased = true) const {
    return {site, in, out, sides(side), biased};
  }
  /// A projection without a bias: of pictures a matrix.
  Kernel projection(const std::string& site, int64_t in, int64_t out) const {
    return {site, in, out, clips ? sides(1) : std::vector<int64_t>{}, false};
  }
};

/// RMSNorm over channels with a bias, in place.
Tensor norm_(LayerRunner& run, const std::string& site, Tensor x) {
  run.now().stream(7 * x.numel(), 4);  // it reads the map for the length, and changes it three times
  const Tensor length = at::linalg_vector_norm(x, 2, at::IntArrayRef{3}, /*keepdim=*/true);
  const Tensor factor = length.square_().div_(static_cast<double>(x.size(3))).add_(kNormEps).rsqrt_();
  return x.mul_(factor).mul_(run.weight(site + ".weight")).add_(run.weight(site + ".bias"));
}

Tensor normed_sum(LayerRunner& run, const std::string& norm, Tensor y, const Tensor& x) {
  y = norm_(run, norm, std::move(y)).add_(x);
  run.now().add(y.numel());
  return y;
}

/// conv, SiLU, conv, norm, added to the input.
Layer residual(const Net& net, const std::string& name, int64_t width) {
  const std::string conv1 = name + net.names.conv1, conv2 = name + net.names.conv2, norm = name + net.names.norm;
  return {ParameterList()
              .kernel(net.kernel(conv1, width, width))
              .kernel(net.kernel(conv2, width, width, 3, /*biased=*/false))
              .norm(norm, width)
              .all,
          [=](LayerRunner& run, const Tensor& x) {
            Tensor y = net.conv(run, conv1, x);
            run.now().change(y.numel());
            y = net.conv(run, conv2, at::silu_(y));
            return normed_sum(run, norm, std::move(y), x);
          }};
}

/// Queries, keys and values of all heads, [T * H * W, heads, 3, head_dim]: the projections and, beside them, what a
/// convolution of five cells a side and a grouped 1x1 one make of them. Each run of 3 * head_dim channels is a head, so
/// the projections are not queries, keys and values of their own.
Tensor heads_of(const Net& net, LayerRunner& run, const std::string& name, const Tensor& x) {
  std::vector<Tensor> projected;
  for (const char* site : net.names.projections) projected.push_back(run.linear(name + site, x));
  if (projected.size() > 1) run.now().change(3 * x.numel());                       // joined
  const Tensor one = projected.size() > 1 ? at::cat(projected, 3) : projected[0];  // [T, H, W, 3C]
  projected.clear();
  const int64_t channels = one.size(3);
  Tensor wide = net.conv(run, name + net.names.scale, one, kTwo, channels);
  wide = net.conv(run, name + net.names.grouped, wide, kNone, channels / net.head_dim);
  run.now().change(6 * x.numel());
  return at::cat({one, wide}, 3).view({x.numel() / x.size(3), -1, 3, net.head_dim});
}

/// Linear attention of two scales over all cells, added to its input.
Tensor attend(const Net& net, LayerRunner& run, const std::string& name, const Tensor& x) {
  Tensor all = heads_of(net, run, name, x);
  const int64_t cells = all.size(0), width = net.head_dim;
  run.now().stream(8 * x.numel(), 2);  // queries and keys, not below 0
  const auto heads = [&](int64_t part) { return all.select(2, part).transpose(0, 1); };  // [heads, n, head_dim]
  const Tensor q = heads(0).clamp_min(0), k = heads(1).clamp_min(0), v = heads(2);
  const auto h = static_cast<double>(all.size(1)), n = static_cast<double>(cells), d = static_cast<double>(width);
  Tensor mixed, sum;
  if (cells > width || net.clips) {
    run.now().attention(h * n * d * (4 * d + 2));
    mixed = at::bmm(q, at::bmm(k.transpose(1, 2), v));
    sum = at::bmm(q, k.sum(1).unsqueeze(2));  // [heads, n, 1]
    mixed.div_(sum.add_(kAttentionEps));
  } else {  // so few that the scores are smaller; normalised before they are used, as in the reference
    run.now().attention(h * n * n * 4 * d);
    Tensor scores = at::bmm(q, k.transpose(1, 2));  // [heads, query, key]
    sum = scores.sum(2, /*keepdim=*/true);
    mixed = at::bmm(scores.div_(sum.add_(kAttentionEps)), v);
  }
  all.reset();
  const Tensor joined = mixed.transpose(0, 1).reshape({x.size(0), x.size(1), x.size(2), -1});  // [.., 2C]
  return normed_sum(run, name + net.names.norm_out, run.linear(name + net.names.out, joined), x);
}

/// A convolution of each channel among eight times as many, of which one half is activated and multiplies the other.
Tensor gated_conv(const Net& net, LayerRunner& run, const std::string& name, const Tensor& x) {
  Tensor wide = run.linear(name + net.names.inverted, x);  // [T, H, W, 8C]
  run.now().change(wide.numel());
  at::silu_(wide);
  wide = net.conv(run, name + net.names.depthwise, wide, kOne, wide.size(3));
  const int64_t half = wide.size(3) / 2;
  run.now().change(wide.numel() / 2), run.now().add(wide.numel() / 2);
  Tensor gated = at::silu(wide.narrow(3, half, half)).mul_(wide.narrow(3, 0, half));
  wide.reset();
  gated = run.linear(name + net.names.point, gated);
  return normed_sum(run, name + net.names.point_norm, std::move(gated), x);
}

Layer attention(const Net& net, const std::string& name, int64_t c) {
  const Names& names = net.names;
  ParameterList parameters;
  for (const char* site : names.projections)
    parameters.kernel(net.projection(name + site, c, 3 * c / static_cast<int64_t>(names.projections.size())));
  parameters.kernel(net.kernel(name + names.scale, 1, 3 * c, 5, false))
      .kernel(net.kernel(name + names.grouped, net.head_dim, 3 * c, 1, false))
      .kernel(net.projection(name + names.out, 2 * c, c))
      .norm(name + names.norm_out, c)
      .kernel(net.kernel(name + names.inverted, c, 8 * c, 1))
      .kernel(net.kernel(name + names.depthwise, 1, 8 * c))
      .kernel(net.kernel(name + names.point, 4 * c, c, 1, false))
      .norm(name + names.point_norm, c);
  return {parameters.all,
          [=](LayerRunner& run, const Tensor& x) { return gated_conv(net, run, name, attend(net, run, name, x)); }};
}

/// Squares of 2 x 2 pixels become channels (4 neighbours for each), of which neighbours are averaged in groups until
/// there are `out`.
Tensor averaged(const Tensor& x, int64_t out) {
  const int64_t h = x.size(1) / 2, w = x.size(2) / 2, in = x.size(3), group = 4 * in / out;
  const Tensor squares = x.view({h, 2, w, 2, in}).permute({0, 2, 4, 1, 3});  // [h, w, C, row, column]
  const Tensor mean = group == 4 ? squares.mean({3, 4}) : group == 2 ? squares.mean(4) : squares;
  return mean.reshape({1, h, w, out});
}

Tensor down_picture(LayerRunner& run, const std::string& site, const Tensor& x, int64_t out) {
  const Tensor kept = averaged(x, out);
  run.now().stream(x.numel() + kept.numel());
  return run.conv_whole(site, x, {1, 1}, {2, 2}).add_(kept);
}

/// The same a frame at a time, of blocks of 1 or 2 frames.
Tensor down_clip(LayerRunner& run, const std::string& site, const Tensor& x, int64_t out, bool temporal) {
  const int64_t step = temporal && x.size(0) > 1 ? 2 : 1, h = x.size(1) / 2, w = x.size(2) / 2;
  Tensor y = run.conv(site, {x}, {.border = kOne, .time_stride = step, .stride = 2});
  run.now().change(x.numel());  // blocks, whose mean is added
  for (int64_t i = 0; i < (x.is_meta() ? 1 : y.size(0)); ++i) {
    const Tensor block = x.narrow(0, i * step, step)
                             .view({step, h, 2, w, 2, x.size(3)})
                             .permute({1, 3, 5, 0, 2, 4})  // [h, w, C, frame, row, column]
                             .reshape({h, w, out, -1});
    y.select(0, i).add_(block.mean(-1));
  }
  return y;
}

/// conv of half the height and width, and of half the frames of a clip where `temporal` (a picture stays one), added to
/// the pixels' mean in groups of channels.
Layer down(const Net& net, const std::string& site, int64_t in, int64_t out, bool temporal) {
  return {ParameterList().kernel(net.kernel(site, in, out)).all, [=](LayerRunner& run, const Tensor& x) {
            Tensor y = net.clips ? down_clip(run, site, x, out, temporal) : down_picture(run, site, x, out);
            run.now().add(y.numel());
            return y;
          }};
}

Tensor up_picture(LayerRunner& run, const std::string& site, const Tensor& x, int64_t out) {
  const int64_t h = x.size(1), w = x.size(2), c = x.size(3);
  Tensor twice = x.view({h, 1, w, 1, c}).expand({h, 2, w, 2, c}).reshape({1, 2 * h, 2 * w, c});
  Tensor y = run.conv_whole(site, twice, {1, 1}, {1, 1});
  twice.reset();
  // every channel, repeated to 4 * out of them, becomes squares of 2 x 2 pixels
  const int64_t shared = c / out;  // channels that make up one square: 1, 2 or 4
  const Tensor squares = x.view({h, w, out, shared, 1})
                             .expand({h, w, out, shared, 4 / shared})
                             .reshape({h, w, out, 2, 2})  // a view: nothing is copied
                             .permute({0, 3, 1, 4, 2});   // [h, row, w, column, out]
  y.view({h, 2, w, 2, out}).add_(squares);
  return y;
}

Tensor up_clip(LayerRunner& run, const std::string& site, const Tensor& x, int64_t out, bool temporal) {
  const int64_t step = temporal && x.size(0) > 1 ? 2 : 1, h = x.size(1), w = x.size(2), in = x.size(3);
  Tensor y =
      run.conv(site, {.map = x, .doubled = true, .time = step == 2 ? MapInput::Time::doubled : MapInput::Time::kept},
               {.border = kOne});
  for (int64_t i = 0; i < (x.is_meta() ? 1 : x.size(0)); ++i) {
    const Tensor blocks = x.select(0, i)
                              .unsqueeze(3)
                              .expand({h, w, in, step * 4 * out / in})
                              .reshape({h, w, out, step, 2, 2})
                              .permute({3, 0, 4, 1, 5, 2});  // [frame, h, row, w, column, out]
    y.narrow(0, i * step, step).view({step, h, 2, w, 2, out}).add_(blocks);
  }
  return y;
}

/// The inverse: conv of repeated cells, added to repeated channels that become pixels.
Layer up(const Net& net, const std::string& site, int64_t in, int64_t out, bool temporal) {
  return {ParameterList().kernel(net.kernel(site, in, out)).all, [=](LayerRunner& run, const Tensor& x) {
            return net.clips ? up_clip(run, site, x, out, temporal) : up_picture(run, site, x, out);
          }};
}

/// conv to the latent, added to the mean of groups of channels.
Layer squeeze(const Net& net, int64_t in, int64_t out) {
  const std::string site = net.names.squeeze;
  return {ParameterList().kernel(net.kernel(site, in, out)).all, [=](LayerRunner& run, const Tensor& x) {
            Tensor y = net.conv(run, site, x).add_(x.unflatten(3, {out, -1}).mean(-1));
            run.now().stream(x.numel() + y.numel());
            run.now().add(y.numel());
            return y;
          }};
}

/// conv of the latent, added to its repeated channels.
Layer widen(const Net& net, int64_t in, int64_t out) {
  const std::string site = net.names.widen;
  return {ParameterList().kernel(net.kernel(site, in, out)).all, [=](LayerRunner& run, const Tensor& x) {
            Tensor y = net.conv(run, site, x);
            y.unflatten(3, {in, -1}).add_(x.unsqueeze(4));
            return y;
          }};
}

/// Norm, ReLU, conv.
Layer head(const Net& net, int64_t in) {
  const std::string norm = net.names.head_norm, site = net.names.head;
  return {ParameterList().norm(norm, in).kernel(net.kernel(site, in, 3)).all, [=](LayerRunner& run, Tensor x) {
            return net.conv(run, site, norm_(run, norm, std::move(x)).clamp_min_(0));
          }};
}

Net net_of(const Half& half) { return {half.clips ? kClips : kPictures, half.clips, half.head_dim}; }

/// The blocks of a stage, numbered from `first` on.
void add_blocks(std::vector<Layer>& layers, const Net& net, const Stage& stage, const std::string& name,
                int64_t first) {
  for (int64_t i = first; i < first + stage.depth; ++i) {
    const std::string block = name + std::to_string(i);
    layers.push_back(stage.attention ? attention(net, block, stage.width) : residual(net, block, stage.width));
  }
}

}  // namespace

std::vector<Layer> encoder_layers(const Half& half) {
  const Net net = net_of(half);
  const std::vector<Stage>& stages = half.stages;
  const std::string first = net.names.first;
  std::vector<Layer> layers = {{ParameterList().kernel(net.kernel(first, 3, stages.front().width)).all,
                                [net, first](LayerRunner& run, const Tensor& x) { return net.conv(run, first, x); }}};
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::string name = net.names.encoder + std::to_string(s) + net.names.between;
    add_blocks(layers, net, stages[s], name, 0);
    if (s + 1 < stages.size())
      layers.push_back(down(net, name + std::to_string(stages[s].depth) + net.names.down, stages[s].width,
                            stages[s + 1].width, stages[s].halves_time));
  }
  layers.push_back(squeeze(net, stages.back().width, half.latent_channels));
  return layers;
}

std::vector<Layer> decoder_layers(const Half& half) {
  const Net net = net_of(half);
  const std::vector<Stage>& stages = half.stages;
  std::vector<Layer> layers = {widen(net, half.latent_channels, stages.back().width)};
  for (size_t s = stages.size(); s-- > 0;) {
    const std::string name = net.names.decoder + std::to_string(s) + net.names.between;
    const bool coarsest = s + 1 == stages.size();
    if (!coarsest)
      layers.push_back(up(net, name + "0" + net.names.up, stages[s + 1].width, stages[s].width, stages[s].halves_time));
    add_blocks(layers, net, stages[s], name, coarsest ? 0 : 1);
  }
  layers.push_back(head(net, stages.front().width));
  return layers;
}

}  // namespace tessera::models::dc_ae

namespace tessera::models::dc_ae {

namespace {

std::vector<Layer> encoder_of(const Config& config) {
  return encoder_layers({config.encoder, config.latent_channels, config.head_dim, false});
}
std::vector<Layer> decoder_of(const Config& config) {
  return decoder_layers({config.decoder, config.latent_channels, config.head_dim, false});
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_of(config), decoder_of(config)});
}

DcAe::DcAe(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = "dc-ae",
                .scaling = {.std = at::full({config.latent_channels, 1}, 1 / config.scaling_factor, at::kFloat),
                            .times =
                                [factor = config.scaling_factor] {
                                  return at::full({1, 1}, factor, at::kFloat);
                                }},
                .parameters = dc_ae::parameters(config),
                .read = std::move(read),
                .cell = config.stride(),
                .tiling = tiling,
                .usual_tiles = "512 pixels that share 64 are usual"}),
      config_(std::move(config)),
      encoder_(encoder_of(config_)),
      decoder_(decoder_of(config_)) {}

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

Tensor DcAe::moments(const Tensor& pixels, LayerRunner& run) const {
  Tensor latent = empty_result(latent_shape(pixels.size(1), pixels.size(2), pixels.size(3)), pixels);
  for (int64_t i = 0; i < pixels.size(1); ++i)
    latent.narrow(1, i, 1).copy_(
        encode_tiles(pixels.narrow(1, i, 1),
                     [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(encoder_, tile)); }));
  return latent;
}

Tensor DcAe::pixels(const Tensor& unscaled, LayerRunner& run) const {
  const int64_t cell = config_.stride(), frames = unscaled.size(1);
  Tensor pixels = at::empty({3, frames, unscaled.size(2) * cell, unscaled.size(3) * cell}, at::kFloat);
  for (int64_t i = 0; i < frames; ++i)
    pixels.narrow(1, i, 1).copy_(
        decode_tiles(unscaled.narrow(1, i, 1),
                     [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(decoder_, tile)); }));
  return pixels;
}

int64_t DcAe::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [rows, columns] = largest_tile_pixels(height, width);
  return pass_bytes(encoder_, on_meta({3, 1, rows, columns}, at::kByte), count) + 4 * c * f * h * w +
         stitching_bytes(c, h, w);
}

int64_t DcAe::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile(h, w);
  const int64_t cell = 3 * config_.stride() * config_.stride();
  return pass_bytes(decoder_, on_meta({c, 1, tile_h, tile_w}), count) +
         4 * f * h * w * (c + cell) +  // the unscaled latent and the pixels
         stitching_bytes(cell, h, w);
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

/// 64 pixels for tiles of 512.
int64_t usual_overlap(int64_t tile) { return tile == 0 ? 0 : std::max<int64_t>(32, tile / 8 / 32 * 32); }

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = weight_forms(),
          .make = make,
          .usual_overlap = usual_overlap,
          .picture_cases = {"dc_ae", "dc_ae_tiled"},
          .presets = {{"dc-ae-f32c32", released}}};
}

}  // namespace tessera::models::dc_ae

namespace tessera::models::dc_ae_video {

namespace {

dc_ae::Half half_of(const Config& config, int64_t Stage::*depth) {
  dc_ae::Half half = {{}, config.latent_channels, config.head_dim, true};
  for (const Stage& stage : config.stages)
    half.stages.push_back({stage.width, stage.*depth, stage.attention, stage.halves_time});
  return half;
}

/// Where time is halved, for the fingerprint.
std::vector<Tensor> halvings(const Config& config) {
  std::vector<Tensor> all;
  for (const Stage& stage : config.stages) all.push_back(at::full({1}, stage.halves_time, at::kLong));
  return all;
}

}  // namespace

std::vector<Layer> encoder_layers(const Config& config) {
  return dc_ae::encoder_layers(half_of(config, &Stage::encoder_depth));
}
std::vector<Layer> decoder_layers(const Config& config) {
  return dc_ae::decoder_layers(half_of(config, &Stage::decoder_depth));
}

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_layers(config), decoder_layers(config)});
}

DcAeVideo::DcAeVideo(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = "dc-ae-video",
                .settings = halvings(config),
                .scaling = {.std = at::full({config.latent_channels, 1}, config.scaling_factor, at::kFloat)},
                .parameters = dc_ae_video::parameters(config),
                .read = std::move(read),
                .cell = config.stride(),
                .tiling = tiling,
                .cell_frames = config.time_stride(),
                .usual_frames = "32 frames that share 8 are usual"}),
      config_(std::move(config)),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)) {}

int64_t DcAeVideo::frames_of(int64_t latent_frames) const {
  if (!cut_in_time(latent_frames)) return shown(latent_frames);
  int64_t frames = 0;
  for (const Part& part : parts_of(time_tiles_, latent_frames))
    frames += std::min(time_tiles_.stride * config_.time_stride(), shown(part.length));
  return frames;
}

std::array<int64_t, 4> DcAeVideo::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const int64_t cell = config_.stride(), time = config_.time_stride();
  const auto comes_back = [&](int64_t n) { return n == 1 || (n > 0 && n % time == 0 && frames_of(n / time) == n); };
  if (!comes_back(frames) || height < 1 || height % cell != 0 || width < 1 || width % cell != 0) {
    const auto near = [cell](int64_t n) { return std::max(cell, n / cell * cell); };
    int64_t fewer = std::max<int64_t>(1, frames);
    while (!comes_back(fewer)) --fewer;
    const std::string four = std::to_string(time);
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes 1 frame or a multiple of " + four + " from " + std::to_string(2 * time) +
                    " on, whose last tile in time has more than " + four + ", sizes in multiples of " +
                    std::to_string(cell),
                {fewer, near(height), near(width)});
  }
  return {config_.latent_channels, frames == 1 ? 1 : frames / time, height / cell, width / cell};
}

Tensor DcAeVideo::moments(const Tensor& pixels, LayerRunner& run) const {
  const int64_t time = config_.time_stride(), frames = pixels.size(1), f = frames == 1 ? 1 : frames / time;
  latent_shape(1, pixels.size(2), pixels.size(3));  // refuses sides
  check_input(frames == 1 || (frames > 0 && frames % time == 0), "models.vae",
              "a clip of " + std::to_string(frames) + " frames", "give 1, or a multiple of " + std::to_string(time));
  const auto of_frames = [&](const Tensor& clip) {
    return encode_tiles(clip,
                        [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(encoder_, tile)); });
  };
  if (!cut_in_time(f)) return of_frames(pixels);
  return stitch_parts(
      time_tiles_, f, time_tiles_.shared(), [](int64_t cells) { return cells; },
      [&](const Part& part) { return of_frames(pixels.narrow(1, part.begin * time, part.length * time)); });
}

Tensor DcAeVideo::pixels(const Tensor& unscaled, LayerRunner& run) const {
  const auto of_frames = [&](const Tensor& latent) {
    return decode_tiles(latent,
                        [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(decoder_, tile)); });
  };
  const int64_t f = unscaled.size(1);
  if (!cut_in_time(f)) return of_frames(unscaled);
  return stitch_parts(
      time_tiles_, f, time_tiles_.shared() * config_.time_stride(), [&](int64_t cells) { return shown(cells); },
      [&](const Part& part) { return of_frames(unscaled.narrow(1, part.begin, part.length)); });
}

int64_t DcAeVideo::stitching(const std::array<int64_t, 4>& latent, int64_t tile, int64_t all, int64_t shared) const {
  const auto [c, f, h, w] = latent;
  return stitching_bytes(tile, h, w) + (cut_in_time(f) ? 4 * h * w * (all + shared) : 0);
}

int64_t DcAeVideo::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const std::array<int64_t, 4> latent = latent_shape(frames, height, width);
  const auto [c, f, h, w] = latent;
  const auto [rows, columns] = largest_tile_pixels(height, width);
  const int64_t length = frames == 1 ? 1 : tile_frames(f) * config_.time_stride();
  return pass_bytes(encoder_, on_meta({3, length, rows, columns}, at::kByte), count) +
         stitching(latent, c * tile_frames(f), c * f, c * time_tiles_.shared());
}

int64_t DcAeVideo::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const std::array<int64_t, 4> latent = latent_shape(frames, height, width);
  const auto [c, f, h, w] = latent;
  const auto [tile_h, tile_w] = largest_tile(h, w);
  const int64_t cell = 3 * config_.stride() * config_.stride();
  return 4 * c * f * h * w + pass_bytes(decoder_, on_meta({c, tile_frames(f), tile_h, tile_w}), count) +
         stitching(latent, cell * shown(tile_frames(f)), cell * shown(f),
                   cell * time_tiles_.shared() * config_.time_stride());
}

namespace {

Tiling with_shared_frames(Tiling tiling, const Config& config) {
  const int64_t four = config.time_stride();
  if (tiling.shared_frames == Tiling::kUsual) tiling.shared_frames = tiling.frames / 4 / four * four;
  return tiling;
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.project_in.conv.weight", "decoder.project_in.main.conv.weight"},
                             "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  stored.expect(parameters(config), "Open-Sora 2.0's video DC-AE");
  const Tiling tiles = with_shared_frames(tiling, config);
  return std::make_unique<DcAeVideo>(std::move(config), stored.reader(), tiles);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<DcAeVideo>(Config{}, random_weights(parameters({})), with_shared_frames(tiling, {}));
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = quarter_of_tile<32>,
          .clip_cases = {"opensora_dc_ae"},
          .presets = {{"dc-ae-f32t4c128", released}}};
}

}  // namespace tessera::models::dc_ae_video
