#pragma once
// The magnitude of a frozen linear with an adapter (DoRA, lora.h): y = (m / |W'|) (x W'^T) + b, on CPUs.
//
//   scale_columns(y, y, gains(norms, pair), bias);
#include "tessera/ops/adapter.h"

namespace tessera::ops::cpu {

/// m / |W'| [out], fp32.
at::Tensor gains(const at::Tensor& norms, const Adapter& pair);
/// out = x * gain + shift by columns, fp32; undefined shift: 0.
void scale_columns(const at::Tensor& out, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift);

/// Adds dm = sum over rows of dy * x W'^T / |W'| to the site's gradient, where x W'^T / |W'| = (y - b) / m.
void magnitude_gradient(const at::Tensor& dy, const at::Tensor& y, const WeightSite* bias, WeightSite& magnitude);
/// The same for some rows: sums [cols] += the sum of dy * (y - bias); undefined bias: 0.
void add_magnitude_gradient(const at::Tensor& dy, const at::Tensor& y, const at::Tensor& bias, const at::Tensor& sums);

}  // namespace tessera::ops::cpu
