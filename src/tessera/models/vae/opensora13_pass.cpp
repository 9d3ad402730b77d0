#include "tessera/models/vae/opensora13_pass.h"

#include "tessera/base/check.h"

namespace tessera::models::opensora13_vae {

using Kind = Layer::Kind;

namespace {

constexpr double kNormEps = 1e-6, kUpNormEps = 1e-5;
constexpr ConvForm kFrames = {.border = {.front = 0}};  // each alone
constexpr ConvForm kHalved = {.border = {.front = 0, .before = 0}, .stride = 2};
constexpr ConvForm kHalvedInTime = {.time_stride = 2, .stride = 2};

/// Each token sees itself and those before it, row by row and frame by frame.
void mix(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to) {
  if (q.is_meta()) {  // the kernel's tiles are small
    at::empty(to.sizes(), to.options());
    return;
  }
  if (q.is_cpu()) {
    to.copy_(at::scaled_dot_product_attention(q, k, v, {}, 0, /*is_causal=*/true));
    return;
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

Tensor up_time(const MapLayers& maps, const std::string& name, const Tensor& x) {
  const MapInput enlarged = {.map = x, .doubled = true, .time = MapInput::Time::doubled};
  Tensor y = maps.conv(name + ".conv1.conv", enlarged);
  y = maps.conv(name + ".conv2.conv", {y, maps.norm(name + ".norm1", y, kUpNormEps)}, {}, y);
  return add_enlarged(enlarged, maps.norm(name + ".norm2", y, kUpNormEps), y);
}

Tensor apply(const MapLayers& maps, const Layer& layer, const Tensor& x) {
  const std::string& name = layer.name;
  switch (layer.kind) {
    case Kind::conv:
      return maps.conv(name, {x});
    case Kind::residual:
      return maps.residual({name + ".norm1", name + ".conv1.conv", name + ".norm2", name + ".conv2.conv",
                            layer.in == layer.out ? "" : name + ".nin_shortcut.conv"},
                           x);
    case Kind::attention:
      return maps.attention(
          {name + ".norm", name + ".q.conv", name + ".k.conv", name + ".v.conv", name + ".proj_out.conv"}, x, mix);
    case Kind::down:
      return maps.conv(name, {x}, kHalved);
    case Kind::down_time:
      return maps.conv(name, {x}, kHalvedInTime);
    case Kind::up:
      return maps.conv(name, {.map = x, .doubled = true}, kFrames);
    case Kind::up_time:
      return up_time(maps, name, x);
    case Kind::head:
      return maps.conv(name, {x, maps.norm(layer.norm, x)});
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

}  // namespace tessera::models::opensora13_vae
