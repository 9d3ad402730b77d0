// Products by algorithms that a profile names: what `tessera probe --recipe` asks of a device's library and keeps, and what
// training then takes.
#include "tessera/ops/products.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "simulated.h"
#include "stand_in.h"
#include "tessera/base/log.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/session.h"
#include "tessera/tools/probe/signatures.h"

namespace tessera::testing {
namespace {

using ops::ProductShape;

const tools::Ranks kOneRank = {.mean = [](double mine) { return mine; }, .meet = [] {}};

/// x [32, 64] W^T + bias, W [48, 64]; and the gradient of W, added to.
ProductShape forward() {
  return {.of = at::kBFloat16,
          .to = at::kBFloat16,
          .m = 32,
          .n = 48,
          .k = 64,
          .a_turned = false,
          .b_turned = true,
          .a_stride = 64,
          .b_stride = 64,
          .out_stride = 48,
          .bias = true,
          .add = false};
}
ProductShape weight_gradient() {
  return {.of = at::kBFloat16,
          .to = at::kFloat,
          .m = 48,
          .n = 64,
          .k = 32,
          .a_turned = true,
          .b_turned = false,
          .a_stride = 48,
          .b_stride = 64,
          .out_stride = 64,
          .bias = false,
          .add = true};
}

struct Operands {
  at::Tensor x = tools::normal({32, 64}, at::kBFloat16), w = tools::normal({48, 64}, at::kBFloat16),
             bias = tools::normal({48}, at::kBFloat16), dy = tools::normal({32, 48}, at::kBFloat16),
             before = tools::normal({48, 64});
  at::Tensor result() const { return ops::kernels(x).linear(x, w, bias, false, at::kBFloat16).cpu(); }
  at::Tensor gradient() const {
    const at::Tensor dw = before.clone();
    ops::kernels(x).linear_weight_gradient(dw, dy, x, false, true);
    return dw.cpu();
  }
};

class Products : public ::testing::Test {
  void SetUp() override {
    at::set_num_threads(1);  // threads that wait for each other are slow where others compute too
    products_asked() = {};
    ops::use_algorithms({});
  }
  void TearDown() override { SetUp(); }
};

plan::ProductChoices measured(const std::vector<ProductShape>& shapes) {
  return tools::measure_algorithms(*tools::clock_of(device::used(), kOneRank, 0.001, 1 << 12), shapes);
}

ops::ProductAlgorithms chosen_of(const plan::ProductChoices& choices) {
  ops::ProductAlgorithms all;
  for (const auto& [product, text] : choices.chosen) all[product] = ops::algorithm_of(text).value();
  return all;
}

TEST_F(Products, EachOfEightAlgorithmsIsMeasuredInTurnAndTheFastestIsKept) {
  const plan::ProductChoices found = measured({forward()});
  ProductsAsked& asked = products_asked();
  EXPECT_EQ(asked.most, 8);
  std::vector<uint64_t> in_turn = asked.algorithms;
  in_turn.erase(std::unique(in_turn.begin(), in_turn.end()), in_turn.end());
  EXPECT_EQ(in_turn, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(found.library, "stand-in 1.0.0");
  ASSERT_EQ(found.chosen.size(), 1u);
  EXPECT_EQ(found.chosen.begin()->first, "bf16 32x48x64 nt 64 64 48 bias");
  EXPECT_EQ(ops::algorithm_of(found.chosen.begin()->second)->words[0], 6u);
  asked.fastest = 2;
  EXPECT_EQ(ops::algorithm_of(measured({forward()}).chosen.at(forward().name()))->words[0], 2u);
}

TEST_F(Products, AnAlgorithmThatTheLibraryRefusesIsNotChosen) {
  products_asked().refused = {6};
  const uint64_t taken = ops::algorithm_of(measured({forward()}).chosen.at(forward().name()))->words[0];
  EXPECT_TRUE(taken >= 1 && taken <= 8 && taken != 6) << taken;
  products_asked().refused = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_TRUE(measured({forward()}).chosen.empty());
}

TEST_F(Products, ALibraryThatIsNotThereHasNoChoices) {
  products_asked().version = "";
  EXPECT_EQ(measured({forward()}), plan::ProductChoices());
}

TEST_F(Products, TheChoicesOfAProfileAreThoseOfItsFile) {
  plan::Profile profile = plan::find_profile("1xh200");
  profile.algorithms = measured({forward(), weight_gradient()});
  ASSERT_EQ(profile.algorithms.chosen.size(), 2u);
  const plan::Profile again = plan::parse_profile(profile.to_toml(), "again.toml");
  EXPECT_EQ(again.algorithms, profile.algorithms);
  EXPECT_EQ(chosen_of(again.algorithms).at("bf16-fp32 48x64x32 tn 48 64 64 add").words[0], 6u);
}

TEST_F(Products, OperatorsTakeTheProfilesAlgorithmForTheirShapesAlone) {
  const Operands on;
  const at::Tensor y = on.result(), dw = on.gradient();
  EXPECT_TRUE(products_asked().algorithms.empty()) << "nothing was chosen";
  ops::use_algorithms({{forward().name(), {{3, 32, 48}}}});
  EXPECT_TRUE(on.result().equal(y));
  EXPECT_EQ(products_asked().algorithms, std::vector<uint64_t>{3});
  EXPECT_TRUE(on.gradient().equal(dw));
  EXPECT_EQ(products_asked().algorithms.size(), 1u) << "the gradient's shape has no entry";
  ops::use_algorithms({{weight_gradient().name(), {{5, 48, 64}}}});
  EXPECT_TRUE(on.gradient().equal(dw));
  EXPECT_EQ(products_asked().algorithms.back(), 5u);
}

TEST_F(Products, ARefusedAlgorithmIsSaidOnceAndLibTorchMultiplies) {
  const Operands on;
  const at::Tensor y = on.result();
  ops::use_algorithms({{forward().name(), {{3, 32, 48}}}});
  products_asked().refused = {3};
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(on.result().equal(y));
  EXPECT_TRUE(on.result().equal(y));
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string words = "refuses the profile's algorithm for the product bf16 32x48x64";
  const size_t first = said.find(words);
  EXPECT_NE(first, said.npos) << said;
  EXPECT_EQ(said.find(words, first + 1), said.npos) << said;
  EXPECT_TRUE(products_asked().algorithms.empty());
}

TEST_F(Products, ShapesOfAStepAreThoseThatMetaTensorsAskFor) {
  std::set<ProductShape> all;
  {
    const ops::AskedProductsScope scope(&all);
    const auto meta = [](at::IntArrayRef sizes, at::ScalarType type) {
      return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
    };
    const at::Tensor x = meta({32, 64}, at::kBFloat16), w = meta({48, 64}, at::kBFloat16);
    ops::kernels(x).linear(x, w, meta({48}, at::kBFloat16), false, at::kBFloat16);
    ops::kernels(x).linear_weight_gradient(meta({48, 64}, at::kFloat), meta({32, 48}, at::kBFloat16), x, false, true);
  }
  EXPECT_EQ(all, (std::set<ProductShape>{forward(), weight_gradient()}));
}

TEST_F(Products, TextsOfAlgorithmsAreReadOrRefused) {
  const ops::ProductAlgorithm one{{1, ~uint64_t{0}, 0x0123456789abcdef}};
  EXPECT_EQ(ops::algorithm_of(one.text()), one);
  EXPECT_EQ(ops::algorithm_of(""), std::nullopt);
  EXPECT_EQ(ops::algorithm_of(one.text() + "0"), std::nullopt);
  std::string wrong = one.text();
  wrong[7] = 'g';
  EXPECT_EQ(ops::algorithm_of(wrong), std::nullopt);
}

}  // namespace
}  // namespace tessera::testing
