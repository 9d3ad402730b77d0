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
#include "tessera/ops/fused.h"

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

TEST(OnCpu, AWordIsWritten) {
  uint32_t word = 0;
  EXPECT_EQ(cuda::launch_write_word(&word, 0xFFFFFFFE, nullptr), cudaSuccess);
  EXPECT_EQ(word, 0xFFFFFFFE);
}

TEST(OnCpu, EveryBlockOfAGridRunsOnce) {
  std::vector<unsigned> visits(3 * 4 * 5);
  TESSERA_LAUNCH(visit, dim3(3, 4, 5), 32, nullptr, &visits);
  EXPECT_EQ(visits, std::vector<unsigned>(3 * 4 * 5, 1));
}

/// What an operator in one pass says of itself: each operand once from memory, a table once for all tokens, and of the sums
/// over tokens a 64th of an fp32 operand. The backward of a LayerNorm reads dy again, from the cache.
class Traffic : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 128, kWidth = 2304, kValues = kTokens * kWidth;
  static constexpr int64_t kRow = 4 * kWidth, kPartials = 2 * kRow;  // of two groups

  void SetUp() override {
    runs.add(0, 0, kTokens);
    count_touches(true);
  }
  void TearDown() override { count_touches(false); }
  ops::RowsIn in(std::vector<float>& x) { return {x.data(), ops::Form::fp32}; }
  ops::RowsIn in(std::vector<uint16_t>& x) { return {x.data(), ops::Form::bf16}; }
  ops::RowsOut out(std::vector<float>& x) { return {x.data(), ops::Form::fp32}; }
  ops::RowsOut out(std::vector<uint16_t>& x) { return {x.data(), ops::Form::bf16}; }
  ops::TableSums sums(std::vector<float>& partials) { return {table.data(), kWidth, partials.data()}; }

  std::vector<float> wide = std::vector<float>(kValues, 1.0f), other = wide, third = wide;
  std::vector<uint16_t> half = std::vector<uint16_t>(kValues), second = half, last = half;
  std::vector<float> stats = std::vector<float>(2 * kTokens), table = std::vector<float>(kWidth), shift = table,
                     partials = std::vector<float>(2 * kWidth), more = partials;
  std::vector<float> cos = std::vector<float>(kTokens * 64), sin = cos;
  ops::TableRuns runs;
};

TEST_F(Traffic, OfALayerNormIsItsOperandsOnce) {
  ops::LayerNormRows n{kTokens,           kWidth, in(wide), out(half), stats.data(), false, {table.data(), 0},
                       {shift.data(), 0}, runs,   1,        1e-6f};
  ASSERT_EQ(cuda::launch_layer_norm(n, nullptr), cudaSuccess);
  const Touched forward = touched();
  EXPECT_EQ(forward.read_once, 4 * kValues + 2 * kRow);
  EXPECT_EQ(forward.written_once, 2 * kValues);
  EXPECT_EQ(forward.written, 2 * kValues);
  ops::LayerNormGradients g{kTokens, kWidth, in(half),  in(wide),   stats.data(),   {table.data(), 0},
                            1,       runs,   in(other), out(third), sums(partials), sums(more)};
  ASSERT_EQ(cuda::launch_layer_norm_gradients(g, nullptr), cudaSuccess);
  const Touched backward = touched();
  EXPECT_EQ(backward.read_once, 2 * kValues + 2 * 4 * kValues + kRow);
  EXPECT_EQ(backward.read, 2 * 2 * kValues + 2 * 4 * kValues + 2 * kTokens * kRow) << "dy and the table twice";
  EXPECT_EQ(backward.written, 4 * kValues + 2 * kPartials);
}

TEST_F(Traffic, OfAnRmsNormWithRotaryEmbeddingIsItsOperandsOnce) {
  const ops::Angles angles{cos.data(), sin.data(), 64};
  const int64_t of_angles = 2 * 4 * kTokens * 64;
  ops::RmsNormRows n{kTokens, kWidth,    in(half), out(second), stats.data(),
                     false,   in(table), angles,   nullptr,     static_cast<float>(kWidth),
                     1e-6f};
  ASSERT_EQ(cuda::launch_rms_norm(n, nullptr), cudaSuccess);
  const Touched forward = touched();
  EXPECT_EQ(forward.read_once, 2 * kValues + kRow + of_angles);
  EXPECT_EQ(forward.written, 2 * kValues);
  ops::RmsNormGradients g{kTokens,   kWidth,        in(second),
                          in(half),  stats.data(),  in(table),
                          angles,    nullptr,       static_cast<float>(kWidth),
                          out(last), sums(partials)};
  ASSERT_EQ(cuda::launch_rms_norm_gradients(g, nullptr), cudaSuccess);
  const Touched backward = touched();
  EXPECT_EQ(backward.read_once, 2 * 2 * kValues + kRow + of_angles);
  EXPECT_EQ(backward.written, 2 * kValues + kPartials);
}

TEST_F(Traffic, OfASumWithAGateIsItsOperandsOnce) {
  ops::GatedRows n{kTokens, kWidth, in(wide), in(half), {table.data(), 0}, runs, out(other)};
  ASSERT_EQ(cuda::launch_gated_sum(n, nullptr), cudaSuccess);
  const Touched forward = touched();
  EXPECT_EQ(forward.read_once, 6 * kValues + kRow);
  EXPECT_EQ(forward.written, 4 * kValues);
  n.rounded = out(last);
  ASSERT_EQ(cuda::launch_gated_sum(n, nullptr), cudaSuccess);
  const Touched rounded = touched();
  EXPECT_EQ(rounded.read, forward.read);
  EXPECT_EQ(rounded.written, 6 * kValues);
  ops::GatedGradients g{kTokens, kWidth, in(wide), in(half), {table.data(), 0}, runs, out(second), sums(partials)};
  ASSERT_EQ(cuda::launch_gated_gradients(g, nullptr), cudaSuccess);
  const Touched backward = touched();
  EXPECT_EQ(backward.read, 6 * kValues + 2 * (kWidth / 256) * 32 * 8 * 4) << "the gate once for each group";
  EXPECT_EQ(backward.written, 2 * kValues + kPartials);
}

TEST_F(Traffic, OfGeluAndBothOfItsResultsIsItsOperandsOnce) {
  ASSERT_EQ(cuda::launch_gelu({kValues, in(half), out(second)}, nullptr), cudaSuccess);
  const Touched forward = touched();
  EXPECT_EQ(forward.read, 2 * kValues);
  EXPECT_EQ(forward.written, 2 * kValues);
  ops::GeluGradients g{kTokens, kWidth, in(second), in(half), out(half), out(second), partials.data()};
  ASSERT_EQ(cuda::launch_gelu_gradients(g, nullptr), cudaSuccess);
  const Touched backward = touched();
  EXPECT_EQ(backward.read, 2 * 2 * kValues);
  EXPECT_EQ(backward.written, 2 * 2 * kValues + kPartials);
}

TEST_F(Traffic, OfAConvolutionByTapsIsItsOperandsOnce) {
  std::vector<int32_t> table;  // the row before, the row itself and the one after
  for (int64_t tap = -1; tap <= 1; ++tap)
    for (int64_t r = 0; r < kTokens; ++r) table.push_back(static_cast<int32_t>(r + tap < kTokens ? r + tap : -1));
  const ops::TapTable taps{table.data(), 3, kTokens, kTokens};
  std::vector<uint16_t> w(3 * kWidth);
  ops::DepthwiseRows n{kWidth, taps, in(half), in(w), in(shift), out(second)};
  ASSERT_EQ(cuda::launch_depthwise(n, nullptr), cudaSuccess);
  const Touched forward = touched();
  EXPECT_EQ(forward.read_once, 2 * kValues + 2 * 3 * kWidth + kRow);
  EXPECT_EQ(forward.written, 2 * kValues);
  n.value = in(last);
  ASSERT_EQ(cuda::launch_depthwise(n, nullptr), cudaSuccess);
  const Touched gated = touched();
  EXPECT_EQ(gated.read_once, forward.read_once + 2 * kValues) << "what it gates as well";
  EXPECT_EQ(gated.written, 2 * kValues);
  n.value = {}, n.columns = partials.data();
  ASSERT_EQ(cuda::launch_depthwise(n, nullptr), cudaSuccess);
  const Touched summed = touched();
  EXPECT_EQ(summed.read_once, forward.read_once);
  EXPECT_EQ(summed.written, 2 * kValues + kPartials);
  std::vector<float> dw(3 * kWidth), db(kWidth), of_groups(2 * 4 * kWidth);
  ops::DepthwiseGradients g{kWidth, taps, in(second), in(half), dw.data(), db.data(), of_groups.data()};
  ASSERT_EQ(cuda::launch_depthwise_gradients(g, nullptr), cudaSuccess);
  const Touched backward = touched();
  EXPECT_EQ(backward.read_once, 2 * 2 * kValues);
  EXPECT_EQ(backward.written, 4 * kPartials) << "three taps and the bias";
}

}  // namespace
}  // namespace tessera::on_cpu
