#pragma once
// What a magnitude adds to a frozen linear and its pair (DoRA, lora.h): y = (m / |W'|) (x W'^T) + b. Internal to the
// room but for adapted_norms.
//
//   scale_columns(y, y, gains(norms, pair), bias);
#include "tessera/ops/adapter.h"

namespace tessera::ops {

/// |W + s B A| of each row [out]: where a magnitude starts.
at::Tensor adapted_norms(const WeightSite& weight, const Adapter& adapter);

/// m / |W'| [out], fp32.
at::Tensor gains(const at::Tensor& norms, const Adapter& pair);
/// out = x * gain + shift by columns, fp32; shift undefined: 0.
void scale_columns(const at::Tensor& out, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift);

/// dm = sum over rows of dy * x W'^T / |W'|, where x W'^T / |W'| = (y - b) / m: added to the site's gradient.
void magnitude_gradient(const at::Tensor& dy, const at::Tensor& y, const WeightSite* bias, WeightSite& magnitude);
/// A part of that, for some rows: sums [cols] += the sum of dy * (y - bias); bias undefined: 0.
void add_magnitude_gradient(const at::Tensor& dy, const at::Tensor& y, const at::Tensor& bias, const at::Tensor& sums);

}  // namespace tessera::ops
