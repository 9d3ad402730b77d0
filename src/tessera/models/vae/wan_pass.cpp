#include "tessera/models/vae/wan_pass.h"

#include "tessera/base/check.h"
#include "tessera/ops/convolution.h"

namespace tessera::models::wan_vae {

using Kind = Layer::Kind;

namespace {

/// Feature maps are [T, H, W, C] here: frames are appended without moving others, a norm reads neighbours in memory,
/// and convolutions need no copy into another layout (channels last). Operands are freed as soon as they are read: at
/// full size each has gigabytes.
class Pass {
 public:
  Pass(const net::WeightMap& weights, FeatureCache& cache) : weights_(weights), cache_(cache) {}

  Tensor apply(const Layer& layer, Tensor x) {
    const std::string& name = layer.name;
    switch (layer.kind) {
      case Kind::patchify:
        return patchify(x, layer.scale);
      case Kind::unpatchify:
        return unpatchify(x, layer.scale);
      case Kind::conv:
        return causal(name, std::move(x));
      case Kind::pointwise:
        return linear(name, x);
      case Kind::residual:
        return residual(layer, std::move(x));
      case Kind::attention:
        return attention(name, x);
      case Kind::down:
        return down(layer, std::move(x));
      case Kind::up:
        return up(layer, std::move(x));
      case Kind::head:
        return causal(name + ".2", norm_silu(name + ".0", std::move(x)));
      case Kind::average:
        kept_ = averaged(layer, x);
        return x;
      case Kind::keep:
        kept_ = x;
        return x;
      case Kind::join:
        x.add_(std::exchange(kept_, {}));
        return x;
      case Kind::repeat:
        add_repeated(layer, x, std::exchange(kept_, {}));
        return x;
    }
    return x;
  }

 private:
  bool first() const { return cache_.chunks == 0; }

  const Tensor& weight(const std::string& name) const {
    const auto it = weights_.find(name);
    check_internal(it != weights_.end(), "models.vae", "no weight " + name);
    return it->second;
  }

  /// A 1x1x1 convolution, over channels only.
  Tensor linear(const std::string& site, const Tensor& x) const {
    return at::linear(x, weight(site + ".weight").flatten(1), weight(site + ".bias"));
  }

  /// Allocates as conv() does: a reordered kernel and one packed in blocks of 16 channels, oneDNN's bookkeeping (8 KiB
  /// were measured), and the result.
  static Tensor conv_on_meta(const Tensor& x, const Tensor& kernel, at::IntArrayRef padding, at::IntArrayRef stride) {
    constexpr int64_t kNotes = 64 << 10;
    const int64_t out = kernel.size(0), in = kernel.size(1);
    const int64_t packed = (in * out + round_up(in, 16) * round_up(out, 16)) * kernel[0][0].numel();
    const Tensor scratch = at::empty({packed * 4 + kNotes}, x.options().dtype(at::kByte));
    const auto side = [&](int64_t dim) {
      return (x.size(dim) + 2 * padding[dim] - kernel.size(dim + 2)) / stride[dim] + 1;
    };
    return at::empty({side(0), side(1), side(2), out}, x.options());
  }

  /// A 2-D kernel is applied to each frame.
  Tensor conv(const std::string& site, const Tensor& x, at::IntArrayRef padding, at::IntArrayRef stride = {1, 1, 1}) {
    const Tensor &w = weight(site + ".weight"), &bias = weight(site + ".bias");
    const Tensor kernel = w.dim() == 5 ? w : w.unsqueeze(2);
    if (x.is_meta()) return conv_on_meta(x, kernel, padding, stride);
    const Tensor in = x.unsqueeze(0).permute({0, 4, 1, 2, 3});  // [1, C, T, H, W], channels last
    // LibTorch picks an im2col with 27 copies of its input for small single samples; oneDNN has no need of one
    const Tensor out = x.is_cpu() && at::globalContext().hasMKLDNN()
                           ? at::mkldnn_convolution(in, kernel, bias, padding, stride, {1, 1, 1}, 1)
                           : ops::convolution(in, kernel, bias, stride, padding);
    return out.permute({0, 2, 3, 4, 1}).squeeze(0).contiguous();
  }

  /// x with the cached frames in front (zeros in the first chunk); puts its last frames in the cache.
  Tensor with_past(const std::string& site, Tensor x, int64_t count) {
    Tensor& past = cache_.frames[site];
    if (!past.defined()) past = at::zeros({count, x.size(1), x.size(2), x.size(3)}, x.options());
    Tensor all = at::cat({past, x});  // [count + T, H, W, C]
    x.reset();
    past.copy_(all.narrow(0, all.size(0) - count, count));
    return all;
  }

  Tensor causal(const std::string& site, Tensor x, at::IntArrayRef padding = {0, 1, 1}) {
    return conv(site, with_past(site, std::move(x), 2), padding);
  }

  /// x / |x| * sqrt(C) * gamma, the norm over channels.
  Tensor norm(const std::string& site, const Tensor& x) {
    const double root = std::sqrt(static_cast<double>(x.size(3)));
    const Tensor length = at::linalg_vector_norm(x, 2, at::IntArrayRef{3}, /*keepdim=*/true).clamp_min_(1e-12);
    return at::div(x, length).mul_(weight(site + ".gamma").flatten() * root);
  }

  Tensor norm_silu(const std::string& site, Tensor x) {
    Tensor y = norm(site, x);
    x.reset();
    return at::silu_(y);
  }

  Tensor residual(const Layer& layer, Tensor x) {
    Tensor h = norm(layer.name + ".residual.0", x);
    h = causal(layer.name + ".residual.2", std::move(at::silu_(h)));
    h = norm_silu(layer.name + ".residual.3", std::move(h));
    h = causal(layer.name + ".residual.6", std::move(h));
    if (layer.in != layer.out) x = linear(layer.name + ".shortcut", x);
    return h.add_(x);
  }

  Tensor attention(const std::string& name, const Tensor& x) {
    const int64_t t = x.size(0), c = x.size(3);
    const Tensor qkv = linear(name + ".to_qkv", norm(name + ".norm", x)).view({t, 1, -1, 3, c});  // [T, 1, HW, 3, C]
    const auto part = [&](int64_t i) { return qkv.select(3, i); };
    const Tensor mixed = x.is_meta() ? at::empty({t, 1, qkv.size(2), c}, x.options())  // its tiles are small
                                     : at::scaled_dot_product_attention(part(0), part(1), part(2));  // [T, 1, HW, C]
    return linear(name + ".proj", mixed.reshape(x.sizes())).add_(x);
  }

  Tensor down(const Layer& layer, Tensor x) {
    x = at::constant_pad_nd(x, {0, 0, 0, 1, 0, 1});                        // right and bottom
    Tensor y = conv(layer.name + ".resample.1", x, {0, 0, 0}, {1, 2, 2});  // [T, H/2, W/2, C]
    x.reset();
    if (!layer.temporal) return y;
    const std::string site = layer.name + ".time_conv";
    if (first()) {
      cache_.frames[site] = y.clone();
      return y;
    }
    return conv(site, with_past(site, std::move(y), 1), {0, 0, 0}, {2, 1, 1});
  }

  Tensor up(const Layer& layer, Tensor x) {
    if (layer.temporal && !first()) {
      const int64_t t = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3);
      const Tensor pairs = causal(layer.name + ".time_conv", std::move(x), {0, 0, 0});  // [T, H, W, 2C]
      x = pairs.view({t, h, w, 2, c}).permute({0, 3, 1, 2, 4}).reshape({2 * t, h, w, c});
    }
    const int64_t t = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3);
    x = x.view({t, h, 1, w, 1, c}).expand({t, h, 2, w, 2, c}).reshape({t, 2 * h, 2 * w, c});
    return conv(layer.name + ".resample.1", x, {0, 1, 1});
  }

  /// [T, H, W, C] -> [T, H/p, W/p, C * p * p], the offset within a row of pixels before that within a column.
  static Tensor patchify(const Tensor& x, int64_t p) {
    const int64_t t = x.size(0), h = x.size(1) / p, w = x.size(2) / p, c = x.size(3);
    return x.view({t, h, p, w, p, c}).permute({0, 1, 3, 5, 4, 2}).reshape({t, h, w, c * p * p});
  }

  static Tensor unpatchify(const Tensor& x, int64_t p) {
    const int64_t t = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3) / (p * p);
    return x.view({t, h, w, c, p, p}).permute({0, 1, 5, 2, 4, 3}).reshape({t, h * p, w * p, c});
  }

  /// Blocks of 1 or 2 frames x scale x scale pixels become channels, of which neighbours are averaged until there are
  /// `out`. A frame that has no other to be halved with (the first one) is halved with zeros before it.
  static Tensor averaged(const Layer& layer, const Tensor& x) {
    const int64_t s = layer.scale, time = layer.temporal ? 2 : 1, c = x.size(3);
    if (s == 1 && time == 1 && layer.in == layer.out) return x;
    const Tensor even = x.size(0) % time == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, 0, 1, 0});
    const int64_t t = even.size(0) / time, h = x.size(1) / s, w = x.size(2) / s;
    return even.view({t, time, h, s, w, s, c})
        .permute({0, 2, 4, 6, 1, 3, 5})  // [t, h, w, C, time, s, s]
        .reshape({t, h, w, layer.out, c * time * s * s / layer.out})
        .mean(-1);
  }

  /// Adds `kept` [T, H, W, in] to x, each of its channels spread over the block of frames and pixels it becomes. The
  /// first frame of a clip becomes one frame, not two.
  void add_repeated(const Layer& layer, Tensor& x, const Tensor& kept) const {
    const int64_t s = layer.scale, time = layer.temporal ? 2 : 1, block = time * s * s;
    const int64_t t = kept.size(0), h = kept.size(1), w = kept.size(2);
    const int64_t shared = layer.in / layer.out;  // channels that make up one of the result: 1 or 2
    Tensor spread = kept.view({t, h, w, layer.out, shared, 1})
                        .expand({t, h, w, layer.out, shared, block / shared})
                        .reshape({t, h, w, layer.out, time, s, s})  // a view: nothing is copied
                        .permute({0, 4, 1, 5, 2, 6, 3});            // [T, time, H, s, W, s, out]
    if (first()) spread = spread.narrow(1, time - 1, 1);
    x.view({t, spread.size(1), h, s, w, s, layer.out}).add_(spread);
  }

  const net::WeightMap& weights_;
  FeatureCache& cache_;
  Tensor kept_;  // the shortcut of the current level
};

}  // namespace

int64_t FeatureCache::bytes() const {
  int64_t total = 0;
  for (const auto& [site, tensor] : frames) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

Tensor run_chunk(const std::vector<Layer>& layers, const net::WeightMap& weights, Tensor x, FeatureCache& cache) {
  check_internal(x.dim() == 4 && x.size(0) == layers.front().in, "models.vae", "a chunk of other channels");
  Pass pass(weights, cache);
  x = x.permute({1, 2, 3, 0}).contiguous();
  for (const Layer& layer : layers) x = pass.apply(layer, std::move(x));
  ++cache.chunks;
  return x.permute({3, 0, 1, 2});
}

ChunkBytes chunk_bytes(const std::vector<Layer>& layers, const net::WeightMap& meta_weights, const Tensor& chunk,
                       const std::function<Tensor(const Tensor&)>& prepare, const CountBytes& count) {
  FeatureCache cache;
  run_chunk(layers, meta_weights, prepare(chunk.narrow(1, 0, 1)), cache);
  run_chunk(layers, meta_weights, prepare(chunk), cache);  // the first chunk that fills every entry of the cache
  ChunkBytes bytes;
  bytes.work = count([&] { run_chunk(layers, meta_weights, prepare(chunk), cache); });
  bytes.cache = cache.bytes();
  return bytes;
}

}  // namespace tessera::models::wan_vae
