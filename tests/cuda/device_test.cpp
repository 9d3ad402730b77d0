// The CPU that stands in for a device (on_cpu/device.h) sees the faults that it is there for.
#include "on_cpu/device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

#include "tessera/cuda/kernels.h"

namespace tessera::on_cpu {
namespace {

__global__ void reverse(float* x, bool with_barrier) {
  __shared__ float values[64];
  values[threadIdx.x] = x[threadIdx.x];
  if (with_barrier) __syncthreads();
  x[threadIdx.x] = values[63 - threadIdx.x];
}

std::vector<float> reversed(bool with_barrier) {
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i);
  TESSERA_LAUNCH(reverse, 1, 64, nullptr, x.data(), with_barrier);
  return x;
}

TEST(OnCpu, AMissingBarrierLeavesNaNOfSharedMemoryInTheResult) {
  const auto right = reversed(true), wrong = reversed(false);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(right[i], static_cast<float>(63 - i));
  EXPECT_GT(std::count_if(wrong.begin(), wrong.end(), [](float x) { return std::isnan(x); }), 16);
}

__global__ void read_before_write(float* seen) {
  __shared__ float left_over;
  if (threadIdx.x == 0) seen[blockIdx.x] = left_over, left_over = 1;
}

TEST(OnCpu, SharedMemoryIsNaNAtTheStartOfEveryBlock) {
  std::vector<float> seen(5, 0.0f);
  TESSERA_LAUNCH(read_before_write, 5, 32, nullptr, seen.data());
  for (const float value : seen) EXPECT_TRUE(std::isnan(value));
}

__global__ void leave_early(unsigned threads_that_leave) {
  if (threadIdx.x < threads_that_leave) return;
  __syncthreads();
}

TEST(OnCpu, ABarrierThatSomeThreadsMissIsAnError) {
  TESSERA_LAUNCH(leave_early, 1, 64, nullptr, 0u);
  try {
    TESSERA_LAUNCH(leave_early, 1, 64, nullptr, 3u);
    FAIL() << "the barrier was passed without three threads";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "no thread of block 0,0 can go on: 61 wait at a barrier, 3 have ended");
  }
}

__global__ void shuffle(float* x, unsigned mask) {
  if (mask >> threadIdx.x % 32 & 1) x[threadIdx.x] = __shfl_xor_sync(mask, x[threadIdx.x], 1);
}

TEST(OnCpu, AShuffleExchangesWithinItsWarpAndMask) {
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i);
  TESSERA_LAUNCH(shuffle, 1, 64, nullptr, x.data(), 0x0000ffffu);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x[i], static_cast<float>(i % 32 < 16 ? i ^ 1 : i)) << i;
  EXPECT_THROW(TESSERA_LAUNCH(shuffle, 1, 64, nullptr, x.data(), 0x00007fffu), std::logic_error)
      << "lane 14 asks lane 15, which is outside the mask";
}

/// Each warp brings a number and all read both; without the second barrier a warp that is ahead overwrites its own.
__global__ void take_turns(float* sums, int turns, bool with_barrier) {
  __shared__ float warps[2];
  for (int turn = 0; turn < turns; ++turn) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = static_cast<float>(turn);
    __syncthreads();
    sums[threadIdx.x] += warps[0] + warps[1];
    if (with_barrier) __syncthreads();
  }
}

TEST(OnCpu, AWarpThatRunsAheadOverwritesWhatOthersHaveYetToRead) {
  for (const bool with_barrier : {true, false}) {
    std::vector<float> sums(64, 0.0f);
    TESSERA_LAUNCH(take_turns, 1, 64, nullptr, sums.data(), 4, with_barrier);
    const auto wrong = std::count_if(sums.begin(), sums.end(), [](float sum) { return sum != 12; });
    EXPECT_EQ(wrong == 0, with_barrier) << wrong << " of 64";
  }
}

__global__ void sign_in(std::vector<unsigned>* order) { order->push_back(threadIdx.x); }

TEST(OnCpu, ThreadsRunInAnOrderThatTheSeedChooses) {
  const auto order_of = [](uint32_t seed) {
    choose_order(seed);
    std::vector<unsigned> order;
    TESSERA_LAUNCH(sign_in, 1, 256, nullptr, &order);
    return order;
  };
  const auto first = order_of(1);
  EXPECT_EQ(first, order_of(1));
  EXPECT_NE(first, order_of(2));
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 256u);
}

__global__ void visit(std::vector<unsigned>* visits) {
  if (threadIdx.x == 0) ++(*visits)[blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)];
}

TEST(OnCpu, ASpinGoesOnForItsCycles) {
  const long long before = clock64();
  EXPECT_EQ(cuda::launch_spin(1000, nullptr), cudaSuccess);
  EXPECT_GE(clock64() - before, 1000);
}

TEST(OnCpu, EveryBlockOfAGridRunsOnce) {
  std::vector<unsigned> visits(3 * 4 * 5);
  TESSERA_LAUNCH(visit, dim3(3, 4, 5), 32, nullptr, &visits);
  EXPECT_EQ(visits, std::vector<unsigned>(3 * 4 * 5, 1));
}

}  // namespace
}  // namespace tessera::on_cpu
