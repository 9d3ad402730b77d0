#pragma once
// Tensors of the simulated device beside those of the CPU.
#include <gtest/gtest.h>

#include <cstring>

#include "simulated.h"
#include "tessera/torch_headers.h"

namespace tessera::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;

inline at::Tensor on_device(const Tensor& t, int index = 0) {
  simulated_device();
  return t.to(at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)));
}
inline Tensors on_device(const Tensors& tensors) {
  Tensors out;
  for (const Tensor& t : tensors) out.push_back(on_device(t));
  return out;
}

/// `found` is on the device, and is `expected` bit for bit, with its dtype, sizes and strides.
inline void expect_same_bits(const Tensor& found, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  EXPECT_TRUE(found.is_privateuseone()) << what;
  ASSERT_EQ(found.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_EQ(found.strides(), expected.strides()) << what;
  const Tensor got = found.detach().cpu().contiguous(), want = expected.detach().contiguous();
  EXPECT_EQ(std::memcmp(got.const_data_ptr(), want.const_data_ptr(), want.nbytes()), 0)
      << what << ": largest difference " << (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace tessera::testing
