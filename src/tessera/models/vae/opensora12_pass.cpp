#include "tessera/models/vae/opensora12_pass.h"

#include "tessera/base/check.h"

namespace tessera::models::opensora12_vae {

using Kind = Layer::Kind;

namespace {

constexpr Border kNone = {.front = 0, .before = 0, .after = 0};
constexpr Border kFrame = {.front = 0};                       // around a picture
constexpr Border kBelow = {.front = 0, .before = 0};          // and where it is halved
constexpr Border kCausal = {}, kCausalHalved = {.front = 1};  // in time

/// [T, H, W, C * 2] -> [T * 2, H, W, C]: channel 2 c + i is channel c of the frame i of two.
Tensor paired_frames(const Tensor& x) {
  const int64_t t = x.size(0), h = x.size(1), w = x.size(2);
  return x.view({t, h, w, -1, 2}).permute({0, 4, 1, 2, 3}).reshape({2 * t, h, w, -1}).contiguous();
}

class Pass {
 public:
  Pass(const net::WeightMap& weights, const Norms& norms, int64_t chunk)
      : maps_(weights, norms.groups, norms.eps, chunk) {}

  Tensor apply(const Layer& layer, const Tensor& x) const {
    const std::string& name = layer.name;
    const auto plain = [&](const MapInput& in) { return maps_.conv(name, in, same(name)); };
    switch (layer.kind) {
      case Kind::conv:
        return plain({x});
      case Kind::pointwise:
        return maps_.linear(name, x);
      case Kind::residual:
        return residual(layer, x);
      case Kind::attention:
        return maps_.attention(
            {name + ".group_norm", name + ".to_q", name + ".to_k", name + ".to_v", name + ".to_out.0"}, x, mix);
      case Kind::down:
        return maps_.conv(name, {x}, {.border = kBelow, .stride = 2});
      case Kind::up:
        return plain({.map = x, .doubled = true});
      case Kind::shrink:
        return maps_.conv(name, {x}, {.border = kCausalHalved, .time_stride = 2});
      case Kind::stretch:
        return paired_frames(plain({x}));
      case Kind::head:
      case Kind::point_head:
        return plain({x, maps_.norm(layer.norm, x)});
    }
    return x;
  }

 private:
  /// Keeps frames, height and width; a kernel of a picture has no frames in front of it.
  ConvForm same(const std::string& name) const {
    const Tensor& kernel = maps_.weight(name + ".weight");
    if (kernel.size(2) == 1) return {.border = kNone};
    return {.border = kernel.dim() == 4 ? kFrame : kCausal};
  }

  Tensor residual(const Layer& layer, const Tensor& x) const {
    const std::string& name = layer.name;
    const bool time = name.find("res_blocks.") != name.npos;
    const std::string conv = time ? ".conv" : "", shortcut = time ? ".conv3.conv" : ".conv_shortcut";
    return maps_.residual({name + ".norm1", name + ".conv1" + conv, name + ".norm2", name + ".conv2" + conv,
                           layer.in == layer.out ? "" : name + shortcut},
                          x, same(name + ".conv1" + conv));
  }

  static void mix(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to) {
    if (q.is_meta())  // the kernel's tiles are small
      at::empty(to.sizes(), to.options());
    else
      to.copy_(at::scaled_dot_product_attention(q, k, v));
  }

  const MapLayers maps_;
};

}  // namespace

Tensor run_layers(const std::vector<Layer>& layers, const Norms& norms, const net::WeightMap& weights,
                  const Tensor& input, int64_t chunk) {
  check_internal(input.dim() == 4 && input.size(0) == layers.front().in, "models.vae", "a clip of other channels");
  const Pass pass(weights, norms, chunk);
  Tensor x = to_map(input);
  for (const Layer& layer : layers) x = pass.apply(layer, x);
  return from_map(x);
}

}  // namespace tessera::models::opensora12_vae
