// What src/tessera/cuda/products.cpp asks of cuBLASLt, whose header is the toolkit's and whose functions are a fake's.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <thread>

#include "fake_cublaslt.h"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {
namespace {

float memory[64];
const LibraryMemory kRoom{nullptr, memory, 4096};

/// out [5, 3] = a [5, 2] w^T + bias, w [3, 2].
LibraryProduct linear() {
  return {ops::Form::bf16, ops::Form::bf16, 5,           3,           2,    false, true, 2, 2, 3,
          memory,          memory + 16,     memory + 32, memory + 48, false};
}

/// On a thread of its own, whose descriptions end with it.
std::string multiplied(const LibraryProduct& product, const ProductWords& words) {
  std::string why;
  std::thread([&] { why = multiply(product, words, kRoom, nullptr); }).join();
  return why;
}

class CublasLt : public ::testing::Test {
  void SetUp() override { *fake_cublaslt() = {}; }
  void TearDown() override { EXPECT_EQ(fake_cublaslt()->alive, 0) << "descriptions that nobody destroyed"; }
};

TEST_F(CublasLt, SaysItsVersion) { EXPECT_EQ(product_library(), "cuBLASLt 13.1.0"); }

TEST_F(CublasLt, OffersEightAlgorithmsThatAddInFp32AndInOrder) {
  std::array<ProductWords, 8> words{};
  EXPECT_EQ(product_candidates(linear(), 8, kRoom, words.data()), 8);
  const FakeCublasLt& fake = *fake_cublaslt();
  EXPECT_EQ(fake.asked, 8);
  EXPECT_EQ(fake.workspace, 4096u);
  EXPECT_EQ(fake.reductions, static_cast<uint64_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  EXPECT_EQ(fake.alignment, 16u);
  EXPECT_EQ(fake.compute, CUBLAS_COMPUTE_32F);
  for (size_t i = 0; i < words.size(); ++i)
    EXPECT_EQ(words[i], (ProductWords{100 + i, 0, 0, 0, 0, 0, 0, ~uint64_t{0}}));
}

TEST_F(CublasLt, AResultOfTheHeuristicThatIsNoneIsLeftOut) {
  fake_cublaslt()->useless = 2;
  std::array<ProductWords, 8> words{};
  ASSERT_EQ(product_candidates(linear(), 8, kRoom, words.data()), 7);
  EXPECT_EQ(words[2][0], 103u);
}

TEST_F(CublasLt, RowsInMemoryAreItsColumns) {
  EXPECT_EQ(multiplied(linear(), {104}), "");
  const FakeCublasLt& fake = *fake_cublaslt();
  EXPECT_EQ(fake.products, 1);
  EXPECT_EQ(fake.algorithm, 104u);
  // out^T [3, 5] = w [3, 2] a^T [2, 5]
  EXPECT_EQ(fake.a.data, memory + 16);
  EXPECT_TRUE(fake.a.turned && fake.a.rows == 2 && fake.a.cols == 3 && fake.a.stride == 2);
  EXPECT_EQ(fake.b.data, memory);
  EXPECT_TRUE(!fake.b.turned && fake.b.rows == 2 && fake.b.cols == 5 && fake.b.stride == 2);
  EXPECT_TRUE(fake.d.rows == 3 && fake.d.cols == 5 && fake.d.stride == 3 && fake.d.type == CUDA_R_16BF);
  EXPECT_EQ(fake.bias, memory + 32);
  EXPECT_EQ(fake.epilogue, static_cast<uint64_t>(CUBLASLT_EPILOGUE_BIAS));
  EXPECT_EQ(fake.beta, 0);
}

/// dw [3, 2] fp32 += dy^T x, of dy [5, 3] and x [5, 2].
TEST_F(CublasLt, AWeightsGradientIsAddedInFp32) {
  LibraryProduct p = linear();
  p = {ops::Form::bf16, ops::Form::fp32, 3,       2,           5,   true, false, 3, 2, 2,
       memory,          memory + 16,     nullptr, memory + 48, true};
  EXPECT_EQ(multiplied(p, {100}), "");
  const FakeCublasLt& fake = *fake_cublaslt();
  EXPECT_TRUE(!fake.a.turned && fake.a.rows == 2 && fake.a.cols == 5 && fake.a.stride == 2);
  EXPECT_TRUE(fake.b.turned && fake.b.rows == 3 && fake.b.cols == 5 && fake.b.stride == 3);
  EXPECT_TRUE(fake.d.rows == 2 && fake.d.cols == 3 && fake.d.type == CUDA_R_32F);
  EXPECT_EQ(fake.beta, 1);
  EXPECT_TRUE(fake.in_place);
  EXPECT_EQ(fake.bias, nullptr);
}

TEST_F(CublasLt, AnAlgorithmThatItRefusesOrThatNeedsMoreMemoryMultipliesNothing) {
  fake_cublaslt()->refused = 104;
  EXPECT_EQ(multiplied(linear(), {104}), "the fake refuses");
  fake_cublaslt()->needs = 4097;
  EXPECT_NE(multiplied(linear(), {100}), "");
  EXPECT_EQ(fake_cublaslt()->products, 0);
}

TEST_F(CublasLt, AProductIsDescribedAndCheckedOnceAThread) {
  std::thread([] {
    const FakeCublasLt& fake = *fake_cublaslt();
    LibraryProduct p = linear();
    EXPECT_EQ(multiply(p, {104}, kRoom, nullptr), "");
    const int described = fake.alive;
    p.a = memory + 4, p.bias = memory + 40, p.add = true;
    EXPECT_EQ(multiply(p, {104}, kRoom, nullptr), "");
    EXPECT_EQ(fake.products, 2);
    EXPECT_EQ(fake.checks, 1);
    EXPECT_EQ(fake.alive, described);
    EXPECT_EQ(fake.b.data, memory + 4);
    EXPECT_EQ(fake.bias, memory + 40);
    EXPECT_EQ(fake.beta, 1);
    p.bias = nullptr;
    EXPECT_EQ(multiply(p, {104}, kRoom, nullptr), "") << "another description";
    EXPECT_EQ(fake.bias, nullptr);
    EXPECT_EQ(multiply(p, {105}, kRoom, nullptr), "") << "another algorithm";
    EXPECT_EQ(fake.algorithm, 105u);
    EXPECT_EQ(multiply(p, {105}, {nullptr, memory, 4095}, nullptr), "") << "other memory";
    EXPECT_EQ(fake.checks, 4);
    for (size_t i = 0; i < 2 * kMostKnownProducts; ++i) {
      p.m = static_cast<int64_t>(i) + 6;
      EXPECT_EQ(multiply(p, {104}, kRoom, nullptr), "");
      EXPECT_LE(fake.alive, described * static_cast<int>(kMostKnownProducts));
    }
  }).join();
}

}  // namespace
}  // namespace tessera::cuda
