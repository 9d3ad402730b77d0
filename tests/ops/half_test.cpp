// Operators on bf16 and fp16: they give what the reference gives of the rounded operands, rounded once.
#include "tessera/ops/half.h"

#include <gtest/gtest.h>

#include "operators.h"
#include "tables.h"

namespace tessera::testing {
namespace {

using Case = std::tuple<const ops::Kernels*, Operator, at::ScalarType>;

/// Half an ulp of the largest value. Gradients of weights are fp32; what enters them was rounded already.
double rounding(at::ScalarType type) { return type == at::kBFloat16 ? 1.0 / 256 : 1.0 / 2048; }

/// Which inputs may be of 16 bits: tables of a modulation never are, nor the sum that a branch is added to.
bool may_be_half(const Operator& op, size_t input) {
  if (op.name == "param_plus") return false;
  if (op.name == "gated_residual") return input == 1;
  return op.name != "modulated_norm" || input == 0;
}

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

void expect_near(const Tensor& got, const Tensor& expected, double relative, const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double bound = relative * expected.abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(), bound) << what;  // NaN fails too
}

class HalfOperators : public WithEachTable<Case> {};

TEST_P(HalfOperators, GiveTheReferenceOfTheirRoundedOperandsRoundedOnce) {
  const auto& [kernels, op, type] = GetParam();
  Tensors inputs, exact;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Tensor rounded = may_be_half(op, i) ? op.inputs[i].to(type) : op.inputs[i];
    inputs.push_back(leaf(rounded));
    exact.push_back(leaf(rounded.to(at::kDouble)));
  }
  Sites sites;
  sites.anchor = at::zeros({1}).requires_grad_();
  for (const Tensor& w : op.weights) {
    sites.sites.push_back({w.to(type), at::full_like(w, NAN), true});
    exact.push_back(leaf(w.to(type).to(at::kDouble)));
  }
  Tensors constants;
  for (const Tensor& c : op.constants) constants.push_back(c.is_floating_point() ? c.to(at::kDouble) : c);

  const Tensor y = op.fast(inputs, sites, op.constants);
  const Tensors few(exact.begin(), exact.begin() + static_cast<int64_t>(inputs.size()));
  const Tensors weights(exact.begin() + static_cast<int64_t>(inputs.size()), exact.end());
  const Tensor expected = op.reference(few, weights, constants);
  // Two roundings where one goes through another: attention's backward reads its rounded result, gelu's its product.
  const double bound = 2 * rounding(type);
  // LibTorch's operators round gelu(x) as well, before the product that makes its weight's gradient.
  // The gradient of a gate is rounded as that of any result, before the sums of its convolution's weight.
  const bool exact_weights = op.name != "gated_depthwise" && (ours || op.name.find("gelu") == std::string::npos);
  const double of_weights = exact_weights ? 1e-5 : bound;
  expect_near(y.detach(), expected.detach(), bound, "value");

  const Tensor dy = at::randn(y.sizes(), at::detail::createCPUGenerator(8), at::kFloat).to(y.scalar_type());
  Tensors wanted = inputs;
  wanted.push_back(sites.anchor);
  const auto got = torch::autograd::grad({y}, wanted, {dy}, true, false, true);
  const auto should = torch::autograd::grad({expected}, exact, {dy.to(at::kDouble)});
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), inputs[i].scalar_type());
    expect_near(got[i], should[i], bound, "gradient of input " + std::to_string(i));
  }
  for (size_t w = 0; w < op.weights.size(); ++w) {
    EXPECT_EQ(sites[w].grad.scalar_type(), at::kFloat);
    expect_near(sites[w].grad, should[inputs.size() + w], of_weights, "gradient of weight " + std::to_string(w));
  }
}

INSTANTIATE_TEST_SUITE_P(, HalfOperators,
                         ::testing::Combine(each_table(), ::testing::ValuesIn(all_operators()),
                                            ::testing::Values(at::kBFloat16, at::kHalf)),
                         [](const auto& info) {
                           return std::get<1>(info.param).name +
                                  (std::get<2>(info.param) == at::kHalf ? "_in_fp16_" : "_in_bf16_") +
                                  std::get<0>(info.param)->name;
                         });

TEST(Half, RoundsEveryKindOfNumberAsLibTorchDoes) {
  // All values of 16 bits and numbers between their neighbours: subnormal, huge, infinite, NaN.
  const Tensor bits = at::arange(65536, at::kInt).to(at::kShort);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Tensor values = bits.view(type), wide = at::empty({65536});
    ops::widen(wide.mutable_data_ptr<float>(), values.const_data_ptr(), type, 65536);
    EXPECT_TRUE(at::equal(wide.nan_to_num(0.5), values.to(at::kFloat).nan_to_num(0.5)));
    const Tensor between = wide * 1.0007, narrow = at::empty({65536}, type);
    ops::narrow(narrow.mutable_data_ptr(), between.const_data_ptr<float>(), type, 65536);
    EXPECT_TRUE(at::equal(narrow.to(at::kFloat).nan_to_num(0.5), between.to(type).to(at::kFloat).nan_to_num(0.5)));
  }
}

TEST(Half, WidensAndNarrowsInPlaceForAnyLength) {
  for (const int64_t n : {1, 2, 5, 1023, 1024, 1025, 5000})
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      const Tensor values = at::randn({n}, at::detail::createCPUGenerator(n), at::kFloat), memory = values.clone();
      ops::narrow_in_place(memory.mutable_data_ptr<float>(), type, n);
      EXPECT_TRUE(at::equal(memory.view(type).narrow(0, 0, n), values.to(type))) << n;
      memory.view(type).narrow(0, n, n).copy_(values.to(type));
      ops::widen_in_place(memory.mutable_data_ptr<float>(), type, n);
      EXPECT_TRUE(at::equal(memory, values.to(type).to(at::kFloat))) << n;
    }
}

}  // namespace
}  // namespace tessera::testing
