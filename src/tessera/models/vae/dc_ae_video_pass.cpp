#include "tessera/models/vae/dc_ae_video_pass.h"

#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::dc_ae_video {

using Kind = Layer::Kind;

namespace {

constexpr double kNormEps = 1e-5, kAttentionEps = 1e-15;
constexpr Border kNone = {0, 0, 0, 0}, kOne = {1, 1, 1, 1}, kTwo = {2, 2, 2, 2};  // zeros on all sides: not causal

/// Feature maps are [T, H, W, C]. Operands are freed as soon as they are read: those of a tile of 32 frames have a
/// gigabyte each at the finest resolution.
class Pass {
 public:
  Pass(const net::WeightMap& weights, int64_t head_dim, int64_t chunk)
      : maps_(weights, 1, kNormEps, chunk), head_dim_(head_dim) {}

  Tensor apply(const Layer& layer, Tensor x) const {
    const std::string& name = layer.name;
    switch (layer.kind) {
      case Kind::conv:
        return conv(name, x);
      case Kind::residual:
        return residual(name + ".main", x);
      case Kind::attention:
        return gated_conv(name + ".local_module.main", attention(name + ".context_module.main", std::move(x)));
      case Kind::down:
        return down(layer, x);
      case Kind::up:
        return up(layer, x);
      case Kind::squeeze:
        return conv(name, x).add_(x.unflatten(3, {layer.out, -1}).mean(-1));
      case Kind::widen: {
        Tensor y = conv(name, x);
        y.unflatten(3, {layer.in, -1}).add_(x.unsqueeze(4));
        return y;
      }
      case Kind::head:
        return conv(name + ".2.conv", norm_(name + ".0", std::move(x)).clamp_min_(0));
    }
    return x;
  }

 private:
  Tensor conv(const std::string& site, const Tensor& x) const { return maps_.conv(site, {x}, {.border = kOne}); }

  /// RMSNorm over channels with a bias, in place.
  Tensor norm_(const std::string& site, Tensor x) const {
    const Tensor length = at::linalg_vector_norm(x, 2, at::IntArrayRef{3}, /*keepdim=*/true);
    const Tensor factor = length.square_().div_(static_cast<double>(x.size(3))).add_(kNormEps).rsqrt_();
    return x.mul_(factor).mul_(maps_.weight(site + ".weight")).add_(maps_.weight(site + ".bias"));
  }

  Tensor residual(const std::string& name, const Tensor& x) const {
    Tensor y = conv(name + ".conv1.conv", x);
    at::silu_(y);
    y = conv(name + ".conv2.conv", y);
    return norm_(name + ".conv2.norm", y).add_(x);
  }

  /// Queries, keys and values of all heads, [T * H * W, heads, 3, head_dim]: a projection and, beside it, what a 5x5x5
  /// and a grouped 1x1x1 convolution make of it. Each run of 3 * head_dim channels is a head.
  Tensor projections(const std::string& name, const Tensor& x) const {
    const Tensor one = maps_.linear(name + ".qkv.conv", x);  // [T, H, W, 3C]
    const int64_t channels = one.size(3);
    Tensor wide = maps_.conv(name + ".aggreg.0.0", {one}, {.border = kTwo, .groups = channels});
    wide = maps_.conv(name + ".aggreg.0.1", {wide}, {.border = kNone, .groups = channels / head_dim_});
    return at::cat({one, wide}, 3).view({-1, 2 * channels / (3 * head_dim_), 3, head_dim_});
  }

  /// Always the linear form, of pictures with few cells too.
  Tensor attention(const std::string& name, const Tensor& x) const {
    Tensor all = projections(name, x);
    const auto heads = [&](int64_t part) { return all.select(2, part).transpose(0, 1); };  // [heads, n, head_dim]
    const Tensor q = heads(0).clamp_min(0), k = heads(1).clamp_min(0), v = heads(2);
    Tensor mixed = at::bmm(q, at::bmm(k.transpose(1, 2), v));
    Tensor sum = at::bmm(q, k.sum(1).unsqueeze(2));  // [heads, n, 1]
    mixed.div_(sum.add_(kAttentionEps));
    all.reset();
    const Tensor joined = mixed.transpose(0, 1).reshape({x.size(0), x.size(1), x.size(2), -1});  // [.., 2C]
    return norm_(name + ".proj.norm", maps_.linear(name + ".proj.conv", joined)).add_(x);
  }

  Tensor gated_conv(const std::string& name, const Tensor& x) const {
    Tensor wide = maps_.linear(name + ".inverted_conv.conv", x);  // [T, H, W, 8C]
    at::silu_(wide);
    wide = maps_.conv(name + ".depth_conv.conv", {wide}, {.border = kOne, .groups = wide.size(3)});
    const int64_t half = wide.size(3) / 2;
    Tensor gated = at::silu(wide.narrow(3, half, half)).mul_(wide.narrow(3, 0, half));
    wide.reset();
    gated = maps_.linear(name + ".point_conv.conv", gated);
    return norm_(name + ".point_conv.norm", gated).add_(x);
  }

  static int64_t time_step(const Layer& layer, const Tensor& x) { return layer.temporal && x.size(0) > 1 ? 2 : 1; }

  /// Blocks of pixels become channels, their places after the channel, of which neighbours are averaged in groups until
  /// there are as many as the convolution makes.
  Tensor down(const Layer& layer, const Tensor& x) const {
    const int64_t step = time_step(layer, x), h = x.size(1) / 2, w = x.size(2) / 2;
    Tensor y = maps_.conv(layer.name, {x}, {.border = kOne, .time_stride = step, .stride = 2});
    for (int64_t i = 0; i < (x.is_meta() ? 1 : y.size(0)); ++i) {
      const Tensor block = x.narrow(0, i * step, step)
                               .view({step, h, 2, w, 2, layer.in})
                               .permute({1, 3, 5, 0, 2, 4})  // [h, w, C, frame, row, column]
                               .reshape({h, w, layer.out, -1});
      y.select(0, i).add_(block.mean(-1));
    }
    return y;
  }

  /// The inverse: every channel, repeated, becomes blocks of pixels.
  Tensor up(const Layer& layer, const Tensor& x) const {
    const int64_t step = time_step(layer, x), h = x.size(1), w = x.size(2), repeats = step * 4 * layer.out / layer.in;
    Tensor y = maps_.conv(
        layer.name, {.map = x, .doubled = true, .time = step == 2 ? MapInput::Time::doubled : MapInput::Time::kept},
        {.border = kOne});
    for (int64_t i = 0; i < (x.is_meta() ? 1 : x.size(0)); ++i) {
      const Tensor blocks = x.select(0, i)
                                .unsqueeze(3)
                                .expand({h, w, layer.in, repeats})
                                .reshape({h, w, layer.out, step, 2, 2})
                                .permute({3, 0, 4, 1, 5, 2});  // [frame, h, row, w, column, out]
      y.narrow(0, i * step, step).view({step, h, 2, w, 2, layer.out}).add_(blocks);
    }
    return y;
  }

  const MapLayers maps_;
  const int64_t head_dim_;
};

}  // namespace

Tensor run_layers(const std::vector<Layer>& layers, int64_t head_dim, const net::WeightMap& weights,
                  const Tensor& input, int64_t chunk) {
  check_internal(input.dim() == 4 && input.size(0) == layers.front().in, "models.vae", "a clip of other channels");
  const Pass pass(weights, head_dim, chunk);
  Tensor x = to_map(input);
  for (const Layer& layer : layers) x = pass.apply(layer, std::move(x));
  return from_map(x);
}

}  // namespace tessera::models::dc_ae_video
