// Every operator of ops with the kernels of GPUs (ops/aten), on the device beside the CPU.
#include "../ops/operators.h"
#include "same_bits.h"
#include "tessera/ops/kernels.h"

namespace tessera::testing {

namespace {

class AtenTable : public ::testing::TestWithParam<std::tuple<at::ScalarType, Operator>> {};

/// The value, the gradients of the inputs, those of the weights.
Tensors run(const Operator& op, at::ScalarType type, at::Device device) {
  const auto move = [&](const Tensor& t) { return t.to(device, /*non_blocking=*/false, /*copy=*/true); };
  Tensors inputs, constants, wanted;
  for (const Tensor& t : op.inputs)  // tables of modulations, alone of three dims, are always fp32
    inputs.push_back(move(t.dim() == 3 ? t : t.to(type)).requires_grad_());
  for (const Tensor& t : op.constants) constants.push_back(move(t));
  Sites sites;
  for (const Tensor& w : op.weights) sites.sites.push_back({move(w.to(type)), at::full_like(move(w), NAN), true});
  sites.anchor = at::zeros({1}, at::TensorOptions(device)).requires_grad_();
  const Tensor y = op.fast(inputs, sites, constants);
  const Tensor dy = move(at::randn(y.sizes(), at::detail::createCPUGenerator(8), at::kFloat).to(y.scalar_type()));
  wanted = inputs;
  wanted.push_back(sites.anchor);
  Tensors out = torch::autograd::grad({y}, wanted, {dy}, {}, false, /*allow_unused=*/true);
  out.pop_back();
  out.insert(out.begin(), y);
  for (const auto& site : sites.sites) out.push_back(site.grad);
  return out;
}

TEST_P(AtenTable, HasTheBitsOfTheCpu) {
  const auto& [type, op] = GetParam();
  simulated_device();
  // LibTorch's, and the fused ones once the process computes on the device.
  const ops::CpuKernelsScope scope(ops::kernels(at::empty({1}, at::kPrivateUse1)));
  const Tensors expected = run(op, type, at::kCPU), found = run(op, type, at::kPrivateUse1);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) expect_same_bits(found[i], expected[i], "result " + std::to_string(i));
}

INSTANTIATE_TEST_SUITE_P(
    , AtenTable, ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16), ::testing::ValuesIn(all_operators())),
    [](const auto& info) { return std::get<1>(info.param).name + "_" + c10::toString(std::get<0>(info.param)); });

}  // namespace

}  // namespace tessera::testing
