#include "tessera/models/vae/dc_ae_pass.h"

#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::dc_ae {

using Kind = Layer::Kind;

namespace {

constexpr double kNormEps = 1e-5, kAttentionEps = 1e-15;

/// Feature maps are [1, H, W, C]: a norm reads neighbours in memory, 1x1 convolutions are products of matrices, and the
/// others need no copy into another layout. Operands are freed as soon as they are read: at 1024 x 1024 pixels each of
/// the finest ones has half a gigabyte.
class Pass {
 public:
  Pass(const net::WeightMap& weights, int64_t head_dim) : weights_(weights), head_dim_(head_dim) {}

  Tensor apply(const Layer& layer, Tensor x) const {
    switch (layer.kind) {
      case Kind::conv:
        return conv(layer.name, x);
      case Kind::residual:
        return residual(layer.name, x);
      case Kind::attention:
        return gated_conv(layer.name + ".conv_out", attention(layer.name + ".attn", std::move(x)));
      case Kind::down:
        return down(layer, std::move(x));
      case Kind::up:
        return up(layer, std::move(x));
      case Kind::squeeze:
        return conv(layer.name, x).add_(x.unflatten(3, {layer.out, -1}).mean(-1));
      case Kind::widen:
        return widen(layer, x);
      case Kind::head:
        return conv(layer.name + ".conv_out", norm_(layer.name + ".norm_out", std::move(x)).clamp_min_(0));
    }
    return x;
  }

 private:
  const Tensor* find(const std::string& name) const {
    const auto it = weights_.find(name);
    return it == weights_.end() ? nullptr : &it->second;
  }
  const Tensor& weight(const std::string& name) const {
    const Tensor* found = find(name);
    check_internal(found != nullptr, "models.vae", "no weight " + name);
    return *found;
  }

  /// A 1x1 convolution, over channels only.
  Tensor linear(const std::string& site, const Tensor& x) const {
    const Tensor* bias = find(site + ".bias");
    return at::linear(x, weight(site + ".weight").flatten(1), bias ? *bias : Tensor());
  }

  /// Allocates as conv() does: a reordered kernel and one packed in blocks of 16 channels, oneDNN's bookkeeping, and
  /// the result.
  static Tensor conv_on_meta(const Tensor& x, const Tensor& kernel, int64_t stride, int64_t groups) {
    constexpr int64_t kNotes = 64 << 10;
    const int64_t out = kernel.size(0), in = kernel.size(1), taps = kernel.size(2) * kernel.size(3);
    const int64_t blocks = groups > 1 ? out * in : round_up(in, 16) * round_up(out, 16);
    const Tensor scratch = at::empty({(in * out + blocks) * taps * 4 + kNotes}, x.options().dtype(at::kByte));
    return at::empty({1, x.size(1) / stride, x.size(2) / stride, out}, x.options());
  }

  /// Keeps height and width, or with stride 2 halves them.
  Tensor conv(const std::string& site, const Tensor& x, int64_t stride = 1, int64_t groups = 1) const {
    const Tensor& kernel = weight(site + ".weight");
    if (x.is_meta()) return conv_on_meta(x, kernel, stride, groups);
    const Tensor* given = find(site + ".bias");
    const Tensor bias = given ? *given : Tensor();
    const int64_t pad = kernel.size(2) / 2;
    const Tensor in = x.permute({0, 3, 1, 2});  // [1, C, H, W], channels last
    const std::vector<int64_t> padding = {pad, pad}, strides = {stride, stride}, dilation = {1, 1};
    const Tensor out = x.is_cpu() && at::globalContext().hasMKLDNN()
                           ? at::mkldnn_convolution(in, kernel, bias, padding, strides, dilation, groups)
                           : at::conv2d(in, kernel, bias, strides, padding, dilation, groups);
    return out.permute({0, 2, 3, 1}).contiguous();
  }

  /// RMSNorm over channels with a bias, in place.
  Tensor norm_(const std::string& site, Tensor x) const {
    const Tensor length = at::linalg_vector_norm(x, 2, at::IntArrayRef{3}, /*keepdim=*/true);
    const Tensor factor = length.square_().div_(static_cast<double>(x.size(3))).add_(kNormEps).rsqrt_();
    return x.mul_(factor).mul_(weight(site + ".weight")).add_(weight(site + ".bias"));
  }

  Tensor residual(const std::string& name, const Tensor& x) const {
    Tensor y = conv(name + ".conv1", x);
    y = conv(name + ".conv2", at::silu_(y));
    return norm_(name + ".norm", y).add_(x);
  }

  /// Queries, keys and values of all heads, [H * W, heads, 3, head_dim]: the three projections and, beside them, what a
  /// 5x5 and a grouped 1x1 convolution make of them. Each run of 3 * head_dim channels is a head, so the projections
  /// are not queries, keys and values of their own.
  Tensor projections(const std::string& name, const Tensor& x) const {
    const std::string scale = name + ".to_qkv_multiscale.0";
    const auto project = [&](const char* site) { return linear(name + site, x); };
    const Tensor one = at::cat({project(".to_q"), project(".to_k"), project(".to_v")}, 3);  // [1, H, W, 3C]
    const int64_t channels = one.size(3);
    Tensor wide = conv(scale + ".proj_in", one, 1, channels);
    wide = conv(scale + ".proj_out", wide, 1, channels / head_dim_);
    return at::cat({one, wide}, 3).view({x.size(1) * x.size(2), -1, 3, head_dim_});
  }

  Tensor attention(const std::string& name, const Tensor& x) const {
    Tensor all = projections(name, x);
    const int64_t n = all.size(0);
    const auto heads = [&](int64_t part) { return all.select(2, part).transpose(0, 1); };  // [heads, n, head_dim]
    const Tensor q = heads(0).clamp_min(0), k = heads(1).clamp_min(0), v = heads(2);
    Tensor mixed, sum;
    if (n > head_dim_) {
      mixed = at::bmm(q, at::bmm(k.transpose(1, 2), v));
      sum = at::bmm(q, k.sum(1).unsqueeze(2));  // [heads, n, 1]
      mixed.div_(sum.add_(kAttentionEps));
    } else {  // so few that the scores are smaller; normalised before they are used, as in the reference
      Tensor scores = at::bmm(q, k.transpose(1, 2));  // [heads, query, key]
      sum = scores.sum(2, /*keepdim=*/true);
      mixed = at::bmm(scores.div_(sum.add_(kAttentionEps)), v);
    }
    all.reset();
    const Tensor joined = mixed.transpose(0, 1).reshape({1, x.size(1), x.size(2), -1});  // [1, H, W, 2C]
    return norm_(name + ".norm_out", linear(name + ".to_out", joined)).add_(x);
  }

  Tensor gated_conv(const std::string& name, const Tensor& x) const {
    Tensor wide = linear(name + ".conv_inverted", x);  // [1, H, W, 8C]
    wide = conv(name + ".conv_depth", at::silu_(wide), 1, wide.size(3));
    const int64_t half = wide.size(3) / 2;
    Tensor gated = at::silu(wide.narrow(3, half, half)).mul_(wide.narrow(3, 0, half));
    wide.reset();
    gated = linear(name + ".conv_point", gated);
    return norm_(name + ".norm", gated).add_(x);
  }

  /// Squares of 2 x 2 pixels become channels (4 neighbours for each), of which neighbours are averaged in groups until
  /// there are `out`.
  static Tensor averaged(const Layer& layer, const Tensor& x) {
    const int64_t h = x.size(1) / 2, w = x.size(2) / 2, group = 4 * layer.in / layer.out;
    const Tensor squares = x.view({h, 2, w, 2, layer.in}).permute({0, 2, 4, 1, 3});  // [h, w, C, row, column]
    const Tensor mean = group == 4 ? squares.mean({3, 4}) : group == 2 ? squares.mean(4) : squares;
    return mean.reshape({1, h, w, layer.out});
  }

  Tensor down(const Layer& layer, const Tensor& x) const {
    const Tensor kept = averaged(layer, x);
    return conv(layer.name + ".conv", x, 2).add_(kept);
  }

  Tensor up(const Layer& layer, const Tensor& x) const {
    const int64_t h = x.size(1), w = x.size(2), c = layer.in, out = layer.out;
    Tensor twice = x.view({h, 1, w, 1, c}).expand({h, 2, w, 2, c}).reshape({1, 2 * h, 2 * w, c});
    Tensor y = conv(layer.name + ".conv", twice);
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

  Tensor widen(const Layer& layer, const Tensor& x) const {
    Tensor y = conv(layer.name, x);
    y.view({x.size(1), x.size(2), layer.in, -1}).add_(x.view({x.size(1), x.size(2), layer.in, 1}));
    return y;
  }

  const net::WeightMap& weights_;
  const int64_t head_dim_;
};

}  // namespace

Tensor run_layers(const std::vector<Layer>& layers, int64_t head_dim, const net::WeightMap& weights,
                  const Tensor& input) {
  check_internal(input.dim() == 3 && input.size(0) == layers.front().in, "models.vae", "a picture of other channels");
  const Pass pass(weights, head_dim);
  Tensor x = input.permute({1, 2, 0}).contiguous().unsqueeze(0);
  for (const Layer& layer : layers) x = pass.apply(layer, std::move(x));
  return x.squeeze(0).permute({2, 0, 1});
}

}  // namespace tessera::models::dc_ae
