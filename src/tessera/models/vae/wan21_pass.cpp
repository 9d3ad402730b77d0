#include "tessera/models/vae/wan21_pass.h"

#include "tessera/base/check.h"

namespace tessera::models::wan21 {

using Kind = Layer::Kind;

namespace {

/// Feature maps are [T, H, W, C] here: frames append without moving others, a norm reads neighbours, and convolutions
/// take them as they lie (channels last) instead of copying them into blocks. Operands are let go of as soon as they
/// are read, for at full size each is gigabytes; work_of() below adds up the same.
class Pass {
 public:
  Pass(const net::WeightMap& weights, FeatureCache& cache) : weights_(weights), cache_(cache) {}

  Tensor apply(const Layer& layer, Tensor x) {
    const std::string& name = layer.name;
    switch (layer.kind) {
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
    }
    return x;
  }

 private:
  bool first() const { return cache_.chunks == 0; }

  const Tensor& weight(const std::string& name) const {
    const auto it = weights_.find(name);
    check_internal(it != weights_.end(), "wan21.pass", "no weight " + name);
    return it->second;
  }

  /// A 1x1x1 convolution, over channels only.
  Tensor linear(const std::string& site, const Tensor& x) const {
    return at::linear(x, weight(site + ".weight").flatten(1), weight(site + ".bias"));
  }

  /// A 2-d kernel works on each frame.
  Tensor conv(const std::string& site, const Tensor& x, at::IntArrayRef padding, at::IntArrayRef stride = {1, 1, 1}) {
    const Tensor &w = weight(site + ".weight"), &bias = weight(site + ".bias");
    const Tensor kernel = w.dim() == 5 ? w : w.unsqueeze(2);
    const Tensor in = x.unsqueeze(0).permute({0, 4, 1, 2, 3});  // [1, C, T, H, W], channels last
    // LibTorch picks an im2col with 27 copies of its input for small single samples; oneDNN has no need of one
    const Tensor out = x.is_cpu() && at::globalContext().hasMKLDNN()
                           ? at::mkldnn_convolution(in, kernel, bias, padding, stride, {1, 1, 1}, 1)
                           : at::conv3d(in, kernel, bias, stride, padding);
    return out.permute({0, 2, 3, 4, 1}).squeeze(0).contiguous();
  }

  /// x with the remembered frames in front, zeros where there are none yet; remembers its last ones.
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
    const Tensor mixed = at::scaled_dot_product_attention(part(0), part(1), part(2));  // [T, 1, HW, C]
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

  const net::WeightMap& weights_;
  FeatureCache& cache_;
};

}  // namespace

int64_t FeatureCache::bytes() const {
  int64_t total = 0;
  for (const auto& [site, tensor] : frames) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

Tensor run_chunk(const std::vector<Layer>& layers, const net::WeightMap& weights, Tensor x, FeatureCache& cache) {
  check_internal(x.dim() == 4 && x.size(0) == layers.front().in, "wan21.pass", "a chunk of other channels");
  Pass pass(weights, cache);
  x = x.permute({1, 2, 3, 0}).contiguous();
  for (const Layer& layer : layers) x = pass.apply(layer, std::move(x));
  ++cache.chunks;
  return x.permute({3, 0, 1, 2});
}

namespace {

/// fp32 bytes of a feature map; what a layer sees and makes.
struct Map {
  int64_t channels, frames, height, width;
  int64_t bytes(int64_t more_frames = 0) const { return channels * (frames + more_frames) * height * width * 4; }
};

/// What a convolution takes beside its operands: its kernel laid out anew and packed in blocks of 16 channels, and
/// oneDNN's notes (8 KiB were seen).
int64_t kernel_bytes(int64_t in, int64_t out, int64_t taps) {
  constexpr int64_t kNotes = 64 << 10;
  return (in * out + round_up(in, 16) * round_up(out, 16)) * taps * 4 + kNotes;
}

/// The largest sum of tensors of a layer that are there together, its output included; `x` becomes the output. The
/// lines follow the functions of Pass.
int64_t work_of(const Layer& layer, Map& x) {
  const int64_t in = x.bytes(), past = x.bytes(2);
  x.channels = layer.out;
  const int64_t out = x.bytes(), out_past = x.bytes(2);
  const int64_t taps = kernel_bytes(layer.in, layer.out, 27), plane = kernel_bytes(layer.in, layer.out, 9);
  switch (layer.kind) {
    case Kind::conv:
      return past + std::max(in, out + taps);
    case Kind::pointwise:
      return in + out;
    case Kind::head:
      return past + std::max(in, out + taps);
    case Kind::residual:
      return std::max(
          {2 * in + past, in + past + out + taps, in + out_past + out + kernel_bytes(layer.out, layer.out, 27)});
    case Kind::attention:
      return 8 * in;
    case Kind::down: {
      const int64_t padded = Map{layer.in, x.frames, x.height + 1, x.width + 1}.bytes();
      x.height /= 2, x.width /= 2;
      const int64_t halved = x.bytes(), with_last = x.bytes(1), space = padded + std::max(in, halved + plane);
      if (!layer.temporal) return space;
      x.frames = div_up(x.frames, 2);
      return std::max(space, with_last + std::max(halved, x.bytes() + kernel_bytes(layer.out, layer.out, 3)));
    }
    case Kind::up: {
      int64_t time = 0, large = in;
      if (layer.temporal) {
        x.frames *= 2, large = 2 * in;
        // with their past, then the pairs, then the pairs in order
        time = std::max({in + past, past + large + kernel_bytes(layer.in, 2 * layer.in, 3), 2 * large});
      }
      x.height *= 2, x.width *= 2;
      return std::max({time, 5 * large, 4 * large + x.bytes() + plane});  // the picture beside the one twice as large
    }
  }
  return 0;
}

}  // namespace

ChunkBytes chunk_bytes(const std::vector<Layer>& layers, int64_t frames, int64_t height, int64_t width) {
  ChunkBytes bytes;
  Map x{layers.front().in, frames, height, width};
  for (const Layer& layer : layers) {
    const Map before = x;
    bytes.work = std::max(bytes.work, work_of(layer, x));
    // what is remembered has the size of the layer's input; after a step down it is already halved
    const int64_t cell = layer.kind == Kind::down ? x.height * x.width : before.height * before.width;
    for (const Memory& m : memories(layer)) bytes.cache += m.channels * m.frames * cell * 4;
  }
  return bytes;
}

}  // namespace tessera::models::wan21
