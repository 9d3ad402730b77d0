#include "tessera/models/vae/hunyuan_pass.h"

#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::hunyuan_vae {

using Kind = Layer::Kind;

namespace {

constexpr double kNormEps = 1e-6;
constexpr Border kRepeated = {.repeats = true};
constexpr ConvForm kCausal = {.border = kRepeated};

/// Over the cells of a frame and of those before it.
void mix_by_frame(int64_t cells, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mixed) {
  for (int64_t i = 0; i < q.size(2) / cells; ++i) {
    const Tensor to = mixed.narrow(2, i * cells, cells);
    if (q.is_meta()) {  // the kernel's tiles are small
      at::empty(to.sizes(), to.options());
      break;
    }
    const auto seen = [&](const Tensor& all) { return all.narrow(2, 0, (i + 1) * cells); };
    to.copy_(at::scaled_dot_product_attention(q.narrow(2, i * cells, cells), seen(k), seen(v)));
  }
}

Tensor apply(const MapLayers& layers, const Layer& layer, const Tensor& x) {
  const std::string& name = layer.name;
  switch (layer.kind) {
    case Kind::conv:
      return layers.conv(name + ".conv", {x}, kCausal);
    case Kind::pointwise:
      return layers.linear(name, x);
    case Kind::residual:
      return layers.residual({name + ".norm1", name + ".conv1.conv", name + ".norm2", name + ".conv2.conv",
                              layer.in == layer.out ? "" : name + ".conv_shortcut.conv"},
                             x, kCausal);
    case Kind::attention: {
      const int64_t cells = x.size(1) * x.size(2);
      return layers.attention(
          {name + ".group_norm", name + ".to_q", name + ".to_k", name + ".to_v", name + ".to_out.0"}, x,
          [cells](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to) {
            mix_by_frame(cells, q, k, v, to);
          });
    }
    case Kind::down:
      return layers.conv(name + ".conv", {x},
                         {.border = kRepeated, .time_stride = layer.temporal ? 2 : 1, .stride = 2});
    case Kind::up:
      return layers.conv(name + ".conv",
                         {.map = x,
                          .doubled = true,
                          .time = layer.temporal ? MapInput::Time::doubled_after_first : MapInput::Time::kept},
                         kCausal);
    case Kind::head:
      return layers.conv(name + ".conv_out.conv", {x, layers.norm(name + ".conv_norm_out", x)}, kCausal);
  }
  return x;
}

}  // namespace

Tensor run_layers(const std::vector<Layer>& layers, int64_t groups, const net::WeightMap& weights, const Tensor& input,
                  int64_t chunk) {
  check_internal(input.dim() == 4 && input.size(0) == layers.front().in, "models.vae", "a clip of other channels");
  const MapLayers maps(weights, groups, kNormEps, chunk);
  Tensor x = to_map(input);
  for (const Layer& layer : layers) x = apply(maps, layer, x);
  return from_map(x);
}

}  // namespace tessera::models::hunyuan_vae
