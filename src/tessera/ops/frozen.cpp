#include "tessera/ops/frozen.h"

#include <ATen/Parallel.h>

#include <cstring>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/fp8.h"
#include "tessera/ops/half.h"
#include "tessera/ops/host.h"
#include "tessera/ops/int8.h"
#include "tessera/ops/node.h"

namespace tessera::ops {

using at::Tensor;

namespace {

constexpr int64_t kPanelElements = int64_t{1} << 20;  // 4 MiB of fp32

bool in_blocks(at::ScalarType form) { return form == at::kChar || form == at::kFloat8_e4m3fn; }

/// One block as a row of 8-bit floats.
Fp8Tiles one_block(int64_t count) { return {.rows = 1, .cols = count, .tile_rows = 1, .tile_cols = kQuantBlock}; }

void write_block(uint8_t* block, const float* x, int64_t n, at::ScalarType form) {
  float scale = 0;
  if (form == at::kChar)
    quantise_int8(reinterpret_cast<int8_t*>(block), &scale, x, n);
  else
    quantise_fp8(block, &scale, x, one_block(n));
  std::memcpy(block + kQuantBlock, &scale, sizeof(scale));
}

void read_block(float* x, const uint8_t* block, int64_t n, at::ScalarType form) {
  float scale = 0;
  std::memcpy(&scale, block + kQuantBlock, sizeof(scale));
  if (form == at::kChar)
    dequantise_int8(x, reinterpret_cast<const int8_t*>(block), &scale, n);
  else
    dequantise_fp8(x, block, &scale, one_block(n));
}

/// Calls each(block, first element, count) for all blocks of `count` elements, on all threads.
template <class Each>
void each_frozen_block(int64_t count, const Each& each) {
  at::parallel_for(0, div_up(count, kQuantBlock), 64, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) each(b, b * kQuantBlock, std::min(kQuantBlock, count - b * kQuantBlock));
  });
}

/// Calls body(panel [n, in], first, n) for all rows of W; once for the whole matrix if products can read its dtype.
template <class Body>
void each_panel(const WeightSite& weight, const Body& body) {
  const int64_t out = out_dim(weight), in = in_dim(weight), rows = panel_rows(weight);
  if (!in_blocks(weight.value.scalar_type())) return body(weight.value.view({out, in}), 0, out);
  const Tensor panel = at::empty({rows, in}, weight.value.options().dtype(at::kFloat));
  if (weight.value.is_meta()) return;
  for (int64_t first = 0; first < out; first += rows) {
    const int64_t n = std::min(rows, out - first);
    const Tensor part = panel.narrow(0, 0, n);
    widen_rows(part, weight, first);
    body(part, first, n);
  }
}

}  // namespace

int64_t out_dim(const WeightSite& w) { return in_blocks(w.value.scalar_type()) ? w.blocks[0] : w.value.size(0); }
int64_t in_dim(const WeightSite& w) {
  return in_blocks(w.value.scalar_type()) ? w.blocks[1] : w.value.numel() / w.value.size(0);
}

void write_stored(void* to, const float* values, int64_t count, at::ScalarType form) {
  if (is_half(form)) return narrow(to, values, form, count);
  check_internal(in_blocks(form), "ops.frozen", "no form of a frozen weight");
  each_frozen_block(count, [&](int64_t b, int64_t first, int64_t n) {
    write_block(static_cast<uint8_t*>(to) + b * kFrozenBlock, values + first, n, form);
  });
}

void read_stored(float* values, const void* from, int64_t count, at::ScalarType form) {
  if (is_half(form)) return widen(values, from, form, count);
  check_internal(in_blocks(form), "ops.frozen", "no form of a frozen weight");
  each_frozen_block(count, [&](int64_t b, int64_t first, int64_t n) {
    read_block(values + first, static_cast<const uint8_t*>(from) + b * kFrozenBlock, n, form);
  });
}

WeightSite freeze(const Tensor& source, at::ScalarType form) {
  const Tensor x = source.contiguous();
  WeightSite site;
  site.frozen = true;
  if (form == at::kFloat || is_half(form)) {
    site.value = x.to(form);
    return site;
  }
  site.blocks = {x.size(0), x.numel() / x.size(0)};
  site.value = at::empty({div_up(x.numel(), kQuantBlock) * kFrozenBlock}, x.options().dtype(form));
  if (!x.is_meta()) write_stored(host_pointer<void>(site.value), data(x), x.numel(), form);
  return site;
}

int64_t panel_rows(const WeightSite& weight) {
  const int64_t in = in_dim(weight), step = kQuantBlock / std::gcd(kQuantBlock, in);
  return std::min(round_up(std::max<int64_t>(kPanelElements / in, 1), step), round_up(out_dim(weight), step));
}

void widen_rows(const Tensor& out, const WeightSite& weight, int64_t first) {
  const int64_t begin = first * in_dim(weight), count = out.numel();
  const auto* bytes = static_cast<const uint8_t*>(host_pointer<const void>(weight.value));
  const at::ScalarType form = weight.value.scalar_type();
  if (form == at::kFloat) {
    std::copy_n(data(weight.value) + begin, count, out_data(out));
    return;
  }
  check_internal(!in_blocks(form) || begin % kQuantBlock == 0, "ops.frozen", "a panel must begin with a block");
  read_stored(out_data(out), bytes + (in_blocks(form) ? begin / kQuantBlock * kFrozenBlock : begin * 2), count, form);
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
