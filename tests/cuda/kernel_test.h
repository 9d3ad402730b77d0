#pragma once
// What the tests of kernels share. They are built twice: as test_cuda, where kernels run on the CPU (on_cpu/device.h), and
// where nvcc is found as test_cuda_gpu, which needs a device.
//
//   class Sum : public KernelTest {};
//   TEST_F(Sum, ...) {
//     DeviceArray<float> x(values), out(values.size());   // out begins as NaN
//     check(cuda::launch_...(out.data(), x.data(), ...));
//     expect_same(out.values(), expected, "out");
//   }
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/base/random.h"

namespace tessera::cuda {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

class KernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  }
};

/// Values in the device's memory, `offset` values behind an address that a 16-byte access may have.
template <class T>
class DeviceArray {
 public:
  /// All bits set: NaN in every float format, and no value that a kernel would write by chance.
  explicit DeviceArray(size_t n, size_t offset = 0) : n_(n), offset_(offset) {
    check(cudaMalloc(&memory_, bytes() + offset_ * sizeof(T)));
    if (n_) check(cudaMemset(memory_, 0xff, bytes() + offset_ * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values, size_t offset = 0) : DeviceArray(values.size(), offset) {
    if (n_) check(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(memory_); }

  T* data() { return static_cast<T*>(memory_) + offset_; }
  std::vector<T> values() {
    std::vector<T> values(n_);
    check(cudaDeviceSynchronize());
    if (n_) check(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t bytes() const { return n_ * sizeof(T); }

  void* memory_ = nullptr;
  size_t n_, offset_;
};

inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}
inline bool same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}
inline bool same(int a, int b) { return a == b; }

/// Equal to the bit; which of the NaNs a float is does not matter.
template <class T>
void expect_same(const std::vector<T>& device, const std::vector<T>& cpu, const std::string& what) {
  ASSERT_EQ(device.size(), cpu.size()) << what;
  for (size_t i = 0; i < cpu.size(); ++i)
    ASSERT_TRUE(same(device[i], cpu[i])) << what << "[" << i << "]: " << +device[i] << " on the device, " << +cpu[i]
                                         << " on the CPU, of " << cpu.size();
}

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kSubnormal = std::numeric_limits<float>::denorm_min();

/// Magnitudes over twelve decades; from the third block of 256 on, every second block also has what arithmetic treats apart.
inline std::vector<float> test_values(int64_t n, uint64_t seed) {
  const RandomKey key(seed, Purpose::test);
  std::vector<float> x(static_cast<size_t>(n));
  key.normal(x.data(), 0, x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::pow(10.0f, static_cast<float>(key.below(i, 13)) - 9.0f);
  const std::vector<std::vector<float>> apart = {{kNaN, -kNaN, 0.0f, -0.0f},
                                                 {kSubnormal, -kSubnormal, 1e-40f, -3e-39f},
                                                 {kInfinity, 1.0f, -kInfinity},
                                                 {std::numeric_limits<float>::max(), -0.0f}};
  for (size_t block = 2, kind = 0; block * 256 < x.size(); block += 2, ++kind)
    for (size_t i = 0; i < 64 && block * 256 + i * 4 + block % 4 < x.size(); ++i)
      x[block * 256 + i * 4 + block % 4] = apart[kind % apart.size()][i % apart[kind % apart.size()].size()];
  return x;
}

inline const std::vector<int64_t> kSizes = {1, 7, 8, 255, 256, 257, 2047, 2049, 4001};

}  // namespace tessera::cuda
