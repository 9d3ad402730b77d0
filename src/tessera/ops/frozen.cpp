#include "tessera/ops/frozen.h"

#include <numeric>

#include "tessera/base/check.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/fp8.h"
#include "tessera/ops/int8.h"
#include "tessera/ops/node.h"

namespace tessera::ops {

using at::Tensor;

namespace {

constexpr int64_t kPanelElements = int64_t{1} << 20;  // 4 MiB of fp32

int64_t out_dim(const WeightSite& w) { return w.value.size(0); }
int64_t in_dim(const WeightSite& w) { return w.value.numel() / w.value.size(0); }
bool is_fp32(const WeightSite& w) { return w.value.scalar_type() == at::kFloat; }

/// A run of consecutive elements as 8-bit floats with a scale for each block.
Fp8Tiles blocks(int64_t count) { return {.rows = 1, .cols = count, .tile_rows = 1, .tile_cols = kQuantBlock}; }

/// The weight as the fp32 matrix it is.
Tensor matrix(const WeightSite& w) { return w.value.view({out_dim(w), in_dim(w)}); }

/// Calls body(panel [n, in], first, n) for all rows of W; the whole of it where it is fp32.
template <class Body>
void each_panel(const WeightSite& weight, const Body& body) {
  if (is_fp32(weight)) return body(matrix(weight), 0, out_dim(weight));
  const int64_t rows = panel_rows(weight);
  const Tensor panel = at::empty({rows, in_dim(weight)}, weight.value.options().dtype(at::kFloat));
  if (weight.value.is_meta()) return;
  for (int64_t first = 0; first < out_dim(weight); first += rows) {
    const int64_t n = std::min(rows, out_dim(weight) - first);
    const Tensor part = panel.narrow(0, 0, n);
    widen_rows(part, weight, first);
    body(part, first, n);
  }
}

}  // namespace

WeightSite freeze(const Tensor& source, at::ScalarType form) {
  const Tensor x = source.contiguous();
  WeightSite site;
  if (form == at::kFloat || form == at::kBFloat16) {
    site.value = x.to(form);
    return site;
  }
  check_internal(form == at::kChar || form == at::kFloat8_e4m3fn, "ops.freeze", "no form of a frozen weight");
  site.value = at::empty(x.sizes(), x.options().dtype(form));
  site.scales = at::empty({div_up(x.numel(), kQuantBlock)}, x.options());
  if (x.is_meta()) return site;
  if (form == at::kChar)
    quantise_int8(site.value.mutable_data_ptr<int8_t>(), out_data(site.scales), data(x), x.numel());
  else
    quantise_fp8(static_cast<uint8_t*>(site.value.mutable_data_ptr()), out_data(site.scales), data(x),
                 blocks(x.numel()));
  return site;
}

int64_t panel_rows(const WeightSite& weight) {
  const int64_t step = kQuantBlock / std::gcd(kQuantBlock, in_dim(weight));
  return std::min(round_up(std::max<int64_t>(kPanelElements / in_dim(weight), 1), step),
                  round_up(out_dim(weight), step));
}

void widen_rows(const Tensor& out, const WeightSite& weight, int64_t first) {
  const int64_t begin = first * in_dim(weight), count = out.numel();
  const auto* bytes = static_cast<const char*>(weight.value.const_data_ptr()) + begin * weight.value.element_size();
  float* to = out_data(out);
  switch (weight.value.scalar_type()) {
    case at::kFloat:
      std::copy_n(reinterpret_cast<const float*>(bytes), count, to);
      return;
    case at::kBFloat16:
      return from_bf16(to, reinterpret_cast<const uint16_t*>(bytes), count);
    case at::kChar:
    case at::kFloat8_e4m3fn:
      break;
    default:
      throw InternalError("ops.frozen", "no form of a frozen weight");
  }
  check_internal(begin % kQuantBlock == 0 && weight.scales.defined(), "ops.frozen",
                 "a panel must begin with a block, and the blocks need scales");
  const float* scales = data(weight.scales) + begin / kQuantBlock;
  if (weight.value.scalar_type() == at::kChar)
    dequantise_int8(to, reinterpret_cast<const int8_t*>(bytes), scales, count);
  else
    dequantise_fp8(to, reinterpret_cast<const uint8_t*>(bytes), scales, blocks(count));
}

void frozen_product(const Tensor& y, const Tensor& x, const WeightSite& weight, bool add, Map x_map) {
  check_internal(weight.value.defined(), "ops.frozen", "the weight is used while it is not gathered");
  each_panel(weight, [&](const Tensor& panel, int64_t first, int64_t n) {
    gemm(y.narrow(1, first, n), x, panel.t(), add, x_map);
  });
}

void frozen_product_back(const Tensor& dx, const Tensor& dy, const WeightSite& weight, bool add) {
  check_internal(weight.value.defined(), "ops.frozen", "the weight is used while it is not gathered");
  each_panel(weight, [&](const Tensor& panel, int64_t first, int64_t n) {
    gemm(dx, dy.narrow(1, first, n), panel, add || first > 0);
  });
}

}  // namespace tessera::ops
