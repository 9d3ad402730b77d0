#pragma once
// 16-bit values in the tests of kernels.
//
//   const std::vector<uint16_t> halves = narrowed(test_values(n, seed), at::kHalf);
//   expect_same_halves(out.values(), halves, at::kHalf, "halves");
#include "kernel_test.h"
#include "tessera/cuda/kernels.h"
#include "tessera/ops/widen.h"

namespace tessera::cuda {

inline HalfType type_of(c10::ScalarType half) { return half == at::kHalf ? HalfType::fp16 : HalfType::bf16; }

inline std::string half_name(const ::testing::TestParamInfo<c10::ScalarType>& info) {
  return info.param == at::kHalf ? "fp16" : "bf16";
}

inline std::vector<uint16_t> narrowed(const std::vector<float>& x, c10::ScalarType half) {
  std::vector<uint16_t> halves(x.size());
  ops::narrow(halves.data(), x.data(), half, static_cast<int64_t>(x.size()));
  return halves;
}

inline std::vector<float> widened(const std::vector<uint16_t>& halves, c10::ScalarType half) {
  std::vector<float> x(halves.size());
  ops::widen(x.data(), halves.data(), half, static_cast<int64_t>(halves.size()));
  return x;
}

/// Compared as the numbers they are: which NaN a value is, is the processor's.
inline void expect_same_halves(const std::vector<uint16_t>& device, const std::vector<uint16_t>& cpu,
                               c10::ScalarType half, const std::string& what) {
  expect_same(widened(device, half), widened(cpu, half), what);
}

}  // namespace tessera::cuda
