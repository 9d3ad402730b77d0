#include "tessera/models/vae/hunyuan_pass.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::hunyuan_vae {

using Kind = Layer::Kind;

namespace {

constexpr double kNormEps = 1e-6;

/// A norm over groups of channels as one product and one sum for each channel, [C]; undefined: none.
struct Affine {
  Tensor scale, shift;
};

/// What a convolution reads: a feature map, normalised and activated, or with its cells repeated.
struct Input {
  const Tensor& map;  // [T, H, W, C]
  Affine norm = {};
  bool doubled = false, doubled_in_time = false;

  int64_t frames() const { return doubled_in_time ? 2 * map.size(0) - 1 : map.size(0); }
  int64_t height() const { return map.size(1) * (doubled ? 2 : 1); }
  int64_t width() const { return map.size(2) * (doubled ? 2 : 1); }

  /// Writes frame `i` to `to` [H, W, C]; frames before the first are it again.
  void copy_frame(int64_t i, const Tensor& to) const {
    i = std::max<int64_t>(0, i);
    const Tensor frame = map.select(0, doubled_in_time ? (i + 1) / 2 : i);
    if (norm.scale.defined()) {
      Tensor y = at::addcmul(norm.shift, frame, norm.scale);
      to.copy_(at::silu_(y));
    } else if (doubled) {
      const int64_t h = frame.size(0), w = frame.size(1), c = frame.size(2);
      to.unflatten(1, {w, 2}).unflatten(0, {h, 2}).copy_(frame.view({h, 1, w, 1, c}));
    } else {
      to.copy_(frame);
    }
  }
};

struct Strides {
  int64_t time = 1, space = 1;
};

/// The border of [H, W, C] becomes its neighbours.
void fill_border(const Tensor& frame) {
  for (const int64_t dim : {0, 1}) {
    const int64_t last = frame.size(dim) - 1;
    frame.select(dim, 0).copy_(frame.select(dim, 1));
    frame.select(dim, last).copy_(frame.select(dim, last - 1));
  }
}

/// Feature maps are [T, H, W, C]: 1x1 convolutions are products of matrices, and the others need no copy into another
/// layout. Operands are freed as soon as they are read: at full size each has gigabytes.
class Pass {
 public:
  Pass(const net::WeightMap& weights, int64_t groups, int64_t chunk)
      : weights_(weights), groups_(groups), chunk_(chunk) {}

  Tensor apply(const Layer& layer, Tensor x) const {
    const std::string& name = layer.name;
    switch (layer.kind) {
      case Kind::conv:
        return conv(name + ".conv", {x});
      case Kind::pointwise:
        return linear(name, x);
      case Kind::residual:
        return residual(layer, x);
      case Kind::attention:
        return attention(name, x);
      case Kind::down:
        return conv(name + ".conv", {x}, {layer.temporal ? 2 : 1, 2});
      case Kind::up:
        return conv(name + ".conv", {.map = x, .doubled = true, .doubled_in_time = layer.temporal});
      case Kind::head:
        return conv(name + ".conv_out.conv", {x, norm(name + ".conv_norm_out", x)});
    }
    return x;
  }

 private:
  const Tensor& weight(const std::string& name) const {
    const auto it = weights_.find(name);
    check_internal(it != weights_.end(), "models.vae", "no weight " + name);
    return it->second;
  }

  Tensor linear(const std::string& site, const Tensor& x) const {
    return at::linear(x, weight(site + ".weight").flatten(1), weight(site + ".bias"));
  }

  /// Over each group of channels in all frames.
  Affine norm(const std::string& site, const Tensor& x) const {
    const int64_t c = x.size(3);
    const Tensor grouped = x.view({-1, groups_, c / groups_});
    const Tensor none = at::empty({groups_}, x.options());
    const auto [variance, mean] =
        x.is_meta()  // which lacks this operator
            ? std::tuple(none, none)
            : at::var_mean(grouped, at::IntArrayRef{0, 2}, /*correction=*/0, /*keepdim=*/false);
    const auto each = [&](const Tensor& of_group) {
      return of_group.view({groups_, 1}).expand({groups_, c / groups_}).reshape(c);
    };
    const Tensor scale = each((variance + kNormEps).rsqrt_()) * weight(site + ".weight");
    return {scale, weight(site + ".bias") - each(mean) * scale};
  }

  /// The frames of `out` from `begin` on, `count` of them, with stride and padding done here.
  Tensor chunk(const std::string& site, const Input& in, const Strides& stride, int64_t begin, int64_t count) const {
    const Tensor &kernel = weight(site + ".weight"), &bias = weight(site + ".bias");
    const int64_t frames = (count - 1) * stride.time + 3, h = in.height(), w = in.width();
    Tensor padded = at::empty({frames, h + 2, w + 2, in.map.size(3)}, in.map.options());
    for (int64_t i = 0; i < (padded.is_meta() ? 1 : frames); ++i) {
      const Tensor frame = padded.select(0, i);
      in.copy_frame(begin * stride.time + i - 2, frame.narrow(0, 1, h).narrow(1, 1, w));
      fill_border(frame);
    }
    const Tensor x = padded.unsqueeze(0).permute({0, 4, 1, 2, 3});  // [1, C, T, H, W], channels last
    const std::vector<int64_t> strides = {stride.time, stride.space, stride.space};
    if (x.is_meta()) return on_meta(padded, kernel, count, stride);
    // LibTorch picks an im2col with 27 copies of its input for small single samples; oneDNN has no need of one
    const Tensor out = x.is_cpu() && at::globalContext().hasMKLDNN()
                           ? at::mkldnn_convolution(x, kernel, bias, {0, 0, 0}, strides, {1, 1, 1}, 1)
                           : at::conv3d(x, kernel, bias, strides, {0, 0, 0});
    return out.squeeze(0).permute({1, 2, 3, 0}).contiguous();
  }

  /// Allocates as the convolution does: a reordered kernel and one packed in blocks of 16 channels, oneDNN's
  /// bookkeeping, and the result.
  static Tensor on_meta(const Tensor& padded, const Tensor& kernel, int64_t count, const Strides& stride) {
    constexpr int64_t kNotes = 64 << 10;
    const int64_t out = kernel.size(0), in = kernel.size(1);
    const int64_t packed = (in * out + round_up(in, 16) * round_up(out, 16)) * kernel[0][0].numel();
    const Tensor scratch = at::empty({packed * 4 + kNotes}, padded.options().dtype(at::kByte));
    const auto side = [&](int64_t dim) { return (padded.size(dim) - 3) / stride.space + 1; };
    return at::empty({count, side(1), side(2), out}, padded.options());
  }

  /// Causal: a frame sees itself and the two before it. `over`: a map of the result's shape that `in` reads, which
  /// becomes the result: the last frames are made first, and no later one reads them.
  Tensor conv(const std::string& site, const Input& in, const Strides& stride = {}, const Tensor& over = {}) const {
    const int64_t channels = weight(site + ".weight").size(0), frames = (in.frames() - 1) / stride.time + 1;
    const int64_t h = (in.height() - 1) / stride.space + 1, w = (in.width() - 1) / stride.space + 1;
    const int64_t frame = std::max(in.height() * in.width() * in.map.size(3), h * w * channels);
    const int64_t most = std::max<int64_t>(1, chunk_ / frame);
    if (most >= frames) return chunk(site, in, stride, 0, frames);
    Tensor out = over.defined() ? over : at::empty({frames, h, w, channels}, in.map.options());
    for (int64_t end = frames; end > 0; end -= std::min(most, end)) {
      const int64_t count = std::min(most, end);
      out.narrow(0, end - count, count).copy_(chunk(site, in, stride, end - count, count));
      if (out.is_meta()) break;  // the others are no larger
    }
    return out;
  }

  Tensor residual(const Layer& layer, const Tensor& x) const {
    const std::string& name = layer.name;
    Tensor y = conv(name + ".conv1.conv", {x, norm(name + ".norm1", x)});
    y = conv(name + ".conv2.conv", {y, norm(name + ".norm2", y)}, {}, y);
    if (layer.in == layer.out) return y.add_(x);
    for (int64_t i = 0; i < (x.is_meta() ? 1 : x.size(0)); ++i)
      y.select(0, i).add_(linear(name + ".conv_shortcut.conv", x.select(0, i)));
    return y;
  }

  Tensor attention(const std::string& name, const Tensor& x) const {
    const int64_t t = x.size(0), cells = x.size(1) * x.size(2), c = x.size(3);
    const Affine affine = norm(name + ".group_norm", x);
    Tensor in = at::addcmul(affine.shift, x, affine.scale);
    const auto project = [&](const char* site) { return linear(name + site, in).view({1, 1, t * cells, c}); };
    Tensor q = project(".to_q"), k = project(".to_k"), v = project(".to_v");
    in.reset();
    Tensor mixed = at::empty_like(q);
    for (int64_t i = 0; i < t; ++i) {
      const Tensor to = mixed.narrow(2, i * cells, cells);
      if (x.is_meta()) {  // the kernel's tiles are small
        at::empty(to.sizes(), to.options());
        break;
      }
      const auto seen = [&](const Tensor& all) { return all.narrow(2, 0, (i + 1) * cells); };
      to.copy_(at::scaled_dot_product_attention(q.narrow(2, i * cells, cells), seen(k), seen(v)));
    }
    for (Tensor* used : {&q, &k, &v}) used->reset();
    return linear(name + ".to_out.0", mixed.view(x.sizes())).add_(x);
  }

  const net::WeightMap& weights_;
  const int64_t groups_, chunk_;
};

}  // namespace

Tensor run_layers(const std::vector<Layer>& layers, int64_t groups, const net::WeightMap& weights, const Tensor& input,
                  int64_t chunk) {
  check_internal(input.dim() == 4 && input.size(0) == layers.front().in, "models.vae", "a clip of other channels");
  const Pass pass(weights, groups, chunk);
  Tensor x = input.permute({1, 2, 3, 0}).contiguous();
  for (const Layer& layer : layers) x = pass.apply(layer, std::move(x));
  return x.permute({3, 0, 1, 2});
}

}  // namespace tessera::models::hunyuan_vae
