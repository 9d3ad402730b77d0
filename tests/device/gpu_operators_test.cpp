// Every operator of ops on a GPU against its reference in fp64: fp32, and the 16-bit ways (products with fp32 results, flash
// attention) that no CPU takes. New memory is NaN there, so that a result which nobody wrote is seen. The same file runs on the
// simulated device (ops_simulated); without any device it is skipped.
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "../ops/operators.h"
#include "tessera/device/open.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/convolution.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/session.h"

namespace tessera::testing {

namespace {

/// Pieces of one block of the driver's memory, all bits set when they are taken. The driver itself would wait for the device at
/// each tensor that goes, a millisecond on a virtual machine; here all that uses a piece is of one stream.
class Poisoned final : public c10::Allocator {
 public:
  /// Larger requests are refused, as by a budget that is used up.
  static inline size_t largest = std::numeric_limits<size_t>::max();
  static inline int refused = 0;
  /// Of all requests since it was cleared.
  static inline std::vector<int64_t> requests;

  Poisoned() {
    bytes_ = std::min(kBlock, table().properties(0).free / 2);
    reserve_.emplace(table().take(bytes_), bytes_);
    only = this;
  }
  static int64_t block() { return only->bytes_; }

  c10::DataPtr allocate(size_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    const bool allowed = bytes <= largest && device::WorkspaceLimit::allows(size);
    void* data = allowed && bytes > 0 ? take(size) : nullptr;
    refused += bytes > 0 && !data;
    TORCH_CHECK_WITH(OutOfMemoryError, data || bytes == 0, "a tensor of ", bytes, " bytes has no room");
    if (data) table().fill(data, 0xff, size);
    return {data, data, &give, c10::Device(table().type, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    table().copy(to, from, static_cast<int64_t>(bytes));
  }

 private:
  static constexpr int64_t kBlock = int64_t{4} << 30;
  static const device::Backend& table() { return *device::open().table; }
  void* take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    requests.push_back(bytes);
    return reserve_->take(bytes);
  }
  static void give(void* data) {
    if (!data) return;
    const std::lock_guard lock(only->mutex_);
    only->reserve_->give(data);
  }

  static inline Poisoned* only = nullptr;
  std::mutex mutex_;
  int64_t bytes_ = 0;
  std::optional<engine::Reserve> reserve_;
};

/// The library comes before LibTorch is asked for anything, and the allocator before the first tensor.
class FirstThings final : public ::testing::Environment {
  void SetUp() override {
    if (!device::open().table) return;
    device::open().table->place(0);
    device::open().table->allocate_by(new Poisoned);  // outlives every tensor
    device::use(*device::open().table, 0);
  }
};
[[maybe_unused]] const auto* const first_things = ::testing::AddGlobalTestEnvironment(new FirstThings);

/// Of the largest value of a result: sums in fp32; several roundings to 8 bits in bf16, to 11 in fp16.
double bound_of(at::ScalarType type) { return type == at::kFloat ? 1e-5 : 4 * (type == at::kHalf ? 0x1p-11 : 0x1p-8); }

void expect_close(const Tensor& found, const Tensor& expected, at::ScalarType type, const std::string& what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_EQ(found.device(), device::here()) << what;
  const Tensor got = found.detach().cpu().to(at::kDouble), want = expected.detach();
  EXPECT_LE((got - want).abs().max().item<double>(), bound_of(type) * want.abs().max().item<double>())
      << what;  // NaN too
}

Tensor on_device(const Tensor& t) { return t.to(device::here(), /*non_blocking=*/false, /*copy=*/true); }
Tensor on_cpu(const Tensor& t) { return t.to(at::kDouble).requires_grad_(); }

class GpuOperators : public ::testing::TestWithParam<std::tuple<at::ScalarType, Operator>> {
 protected:
  void SetUp() override {
    if (!device::open().table) GTEST_SKIP() << device::open().absence;
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);  // as the engine's backward
  }
};

/// As stored: tables of modulations, alone of three dims, are always fp32.
Tensor rounded(const Tensor& t, at::ScalarType type) { return t.dim() == 3 ? t : t.to(type); }

/// An operator's operands on the device.
struct Operands {
  Tensors inputs, constants;
  Sites sites;

  Operands(const Operator& op, at::ScalarType type) {
    for (const Tensor& t : op.inputs) inputs.push_back(on_device(rounded(t, type)).requires_grad_());
    for (const Tensor& w : op.weights)
      sites.sites.push_back({on_device(w.to(type)), on_device(at::full_like(w, NAN)), true});
    for (const Tensor& c : op.constants) constants.push_back(on_device(c));
    sites.anchor = at::zeros({1}, at::TensorOptions(device::here())).requires_grad_();
  }
  /// Of the inputs, and of the anchor; those of weights go to their sites.
  Tensors gradients(const Tensor& y, const Tensor& dy) const {
    Tensors of = inputs;
    of.push_back(sites.anchor);
    return torch::autograd::grad({y}, of, {dy}, {}, false, /*allow_unused=*/true);
  }
};

TEST_P(GpuOperators, AreTheReference) {
  const auto& [type, op] = GetParam();
  Operands operands(op, type);
  auto& [inputs, constants, sites] = operands;
  Tensors leaves, reference_constants;
  for (const Tensor& t : op.inputs) leaves.push_back(on_cpu(rounded(t, type)));
  for (const Tensor& w : op.weights) leaves.push_back(on_cpu(w.to(type)));
  for (const Tensor& c : op.constants) reference_constants.push_back(c.is_floating_point() ? c.to(at::kDouble) : c);

  const auto count = static_cast<std::ptrdiff_t>(inputs.size());
  const Tensor expected = op.reference({leaves.begin(), leaves.begin() + count}, {leaves.begin() + count, leaves.end()},
                                       reference_constants);
  const Tensor y = op.fast(inputs, sites, constants);
  expect_close(y, expected, type, "value");
  const Tensor dy = at::randn(expected.sizes(), at::detail::createCPUGenerator(8), at::kFloat).to(y.scalar_type());
  const Tensors wanted = torch::autograd::grad({expected}, leaves, {dy.to(at::kDouble)});
  const Tensors found = operands.gradients(y, on_device(dy));
  for (size_t i = 0; i < inputs.size(); ++i)
    expect_close(found[i], wanted[i], type, "gradient of input " + std::to_string(i));
  for (size_t w = 0; w < sites.sites.size(); ++w)
    expect_close(sites[w].grad, wanted[inputs.size() + w], type, "gradient of weight " + std::to_string(w));
}

INSTANTIATE_TEST_SUITE_P(, GpuOperators,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::ValuesIn(all_operators())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_" + c10::toString(std::get<0>(info.param));
                         });

/// Ranks of sp and cp have the rows' products with the output's gradient and not the output ([Note: delta for flash]), keys
/// in parts, and heads of every size: those that the flash kernel takes, and others.
class GpuAttention : public ::testing::TestWithParam<std::tuple<at::ScalarType, int64_t>> {
 protected:
  void SetUp() override {
    if (!device::open().table) GTEST_SKIP() << device::open().absence;
  }
};

TEST_P(GpuAttention, OfKeysInPartsIsThatOfAll) {
  const auto& [type, head_dim] = GetParam();
  const int64_t heads = 3, width = heads * head_dim, queries = 150, keys = 333, cut = 128;
  const auto drawn = [&, type = type](int64_t rows, uint64_t seed) {
    return at::randn({rows, width}, at::detail::createCPUGenerator(seed), at::kFloat).to(type);
  };
  const Tensor q = drawn(queries, 1), k = drawn(keys, 2), v = drawn(keys, 3), dy = drawn(queries, 4);
  const auto heads_of = [&](const Tensor& t) { return t.view({t.size(0), heads, -1}).transpose(0, 1); };
  const Tensors leaves = {on_cpu(q), on_cpu(k), on_cpu(v)};
  const Tensor scores =
      heads_of(leaves[0]).bmm(heads_of(leaves[1]).transpose(1, 2)) / std::sqrt(static_cast<double>(head_dim));
  const Tensor expected = scores.softmax(2).bmm(heads_of(leaves[2])).transpose(0, 1).reshape({queries, width});
  const Tensors wanted = torch::autograd::grad({expected}, leaves, {dy.to(at::kDouble)});

  const at::TensorOptions wide = at::TensorOptions(at::kFloat).device(device::here());
  const Tensor dq = on_device(q), dk = on_device(k), dv = on_device(v),
               up = on_device(dy);  // their copies on the device
  const auto result = [&] {
    return ops::AttentionResult{at::empty({queries, width}, wide), at::empty({heads, queries}, wide)};
  };
  const std::pair<int64_t, int64_t> parts[] = {{0, cut}, {cut, keys - cut}};
  const ops::AttentionResult sum = result(), part = result();
  for (const auto& [first, count] : parts) {
    ops::attention_forward({dq, dk.narrow(0, first, count), dv.narrow(0, first, count)}, heads, {0, queries},
                           {0, count}, first == 0 ? sum : part);
    if (first > 0) ops::merge_attention(sum, part, heads);
  }
  expect_close(sum.out, expected, type, "value");
  const Tensor delta = ops::attention_delta(sum.out.to(type), up, heads), grad_q = at::zeros({queries, width}, wide);
  const ops::AttentionInputs grads = {at::empty({queries, width}, wide), at::empty({keys, width}, wide),
                                      at::empty({keys, width}, wide)};
  for (const auto& [first, count] : parts) {
    ops::attention_backward({dq, dk.narrow(0, first, count), dv.narrow(0, first, count)}, up, sum.lse, delta, heads,
                            {0, queries}, {0, count},
                            {grads.q, grads.k.narrow(0, first, count), grads.v.narrow(0, first, count)});
    Tensor(grad_q).add_(grads.q);
  }
  expect_close(grad_q, wanted[0], type, "gradient of the queries");
  expect_close(grads.k, wanted[1], type, "gradient of the keys");
  expect_close(grads.v, wanted[2], type, "gradient of the values");
}

INSTANTIATE_TEST_SUITE_P(, GpuAttention,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Values(20, 64, 72, 128, 256)),
                         [](const auto& info) {
                           return std::string(c10::toString(std::get<0>(info.param))) + "_of_" +
                                  std::to_string(std::get<1>(info.param));
                         });

/// cuDNN's kernel beside flash's, as a step calls them: at the lengths of published models, around the tiles of both, and where
/// all scores are far from zero.
class GpuCudnn : public ::testing::TestWithParam<std::tuple<int64_t, bool>> {
 protected:
  void SetUp() override {
    if (!device::open().table) GTEST_SKIP() << device::open().absence;
    if (const std::string lacks = ops::why_no_cudnn_attention(); !lacks.empty()) GTEST_SKIP() << lacks;
  }
};

TEST_P(GpuCudnn, AgreesWithFlash) {
  const auto& [tokens, far] = GetParam();
  const bool simulated = device::open().table->type != c10::DeviceType::CUDA;
  if (simulated && tokens > 2048) GTEST_SKIP() << "one core computes";
  constexpr int64_t kHeads = 2, kHead = 128;
  const auto drawn = [&, tokens = tokens](uint64_t seed, double shift) {
    const Tensor values = at::randn({tokens, kHeads * kHead}, at::detail::createCPUGenerator(seed), at::kFloat);
    return on_device(values.add(shift).to(at::kBFloat16));
  };
  const double shift = far ? std::sqrt(100 / std::sqrt(static_cast<double>(kHead))) : 0;  // scores around -100
  const Tensor q = drawn(1, shift), k = drawn(2, -shift), v = drawn(3, 0), up = drawn(4, 0);
  const at::TensorOptions wide = q.options().dtype(at::kFloat);
  const auto run = [&, tokens = tokens](plan::Attention kernel) {
    plan::AttentionUse use;
    const ops::AttentionScope scope(kernel, &use);
    const ops::AttentionResult result = {at::empty_like(q), at::empty({kHeads, tokens}, wide)};
    const ops::AttentionInputs grads = {at::empty(q.sizes(), wide), at::empty(k.sizes(), wide),
                                        at::empty(v.sizes(), wide)};
    ops::kernels(q).attention({q, k, v}, {}, kHeads, 1 / std::sqrt(static_cast<double>(kHead)), {0, tokens},
                              {0, tokens}, result);
    ops::kernels(q).attention_backward({q, k, v}, result.out, up, result.lse, {}, kHeads, {0, tokens}, {0, tokens},
                                       grads);
    EXPECT_EQ(use.shapes.size(), kernel == plan::Attention::cudnn ? 1u : 0u);
    return Tensors{result.out, result.lse, grads.q, grads.k, grads.v};
  };
  const Tensors flash = run(plan::Attention::flash), cudnn = run(plan::Attention::cudnn);
  const char* names[] = {"value", "log-sum-exp", "gradient of the queries", "of the keys", "of the values"};
  for (size_t i = 0; i < flash.size(); ++i)
    expect_close(cudnn[i], flash[i].cpu().to(at::kDouble), at::kBFloat16, names[i]);
}

INSTANTIATE_TEST_SUITE_P(, GpuCudnn,
                         ::testing::Combine(::testing::Values(1024, 1032, 1048, 1088, 1144, 4096, 4104, 4120, 4160,
                                                              4216, 7800, 32'760, 51'480, 75'600),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_far" : "");
                         });

/// cuDNN's first choice may want a workspace beyond the budget: it then takes a way with less, and computes the same.
TEST(GpuMemory, AConvolutionWithoutRoomForItsWorkspaceIsComputedAllTheSame) {
  if (!device::open().table) GTEST_SKIP() << device::open().absence;
  const auto drawn = [](at::IntArrayRef shape, uint64_t seed) {
    return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
  };
  const Tensor x = drawn({1, 64, 6, 40, 40}, 1), w = drawn({64, 64, 3, 3, 3}, 2);
  const Tensor expected = at::conv3d(x.to(at::kDouble), w.to(at::kDouble), {}, 1, 1);
  const Tensor there = on_device(x), weight = on_device(w);
  Poisoned::largest = expected.nbytes() / 2, Poisoned::refused = 0;  // of its fp32 result
  expect_close(at::conv3d(there, weight, {}, 1, 1), expected, at::kFloat, "a convolution in three dimensions");
  RecordProperty("refused", Poisoned::refused);
  EXPECT_THROW(at::empty({static_cast<int64_t>(Poisoned::largest) + 1}, there.options().dtype(at::kByte)),
               c10::OutOfMemoryError);
  EXPECT_TRUE(at::ones({100}, there.options()).sum().item<float>() == 100) << "the device goes on";
  Poisoned::largest = std::numeric_limits<size_t>::max();
}

// Figures that a GPU alone can tell, a line of numbers each, which `make gpu` keeps.

/// MiB of the device that are taken beside the block of tensors, by whatever process.
double mib_beside() {
  device::used()->wait();
  const device::Properties now = device::used()->properties(0);
  return static_cast<double>(now.bytes - now.free - Poisoned::block()) / (1 << 20);
}

/// CUDA's context, and the kernels that each use is the first to load: what a plan counts beside its budget
/// (plan/simulate/libraries.cpp). It tells something as the only test of its process.
TEST(GpuFigures, MemoryAfterEachFirstUse) {
  if (!device::open().table) GTEST_SKIP() << device::open().absence;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  std::vector<double> mib = {mib_beside()};
  const at::TensorOptions halves = at::TensorOptions(at::kBFloat16).device(device::here());
  const Tensor x = at::ones({256, 256}, halves), product = x.mm(x);
  mib.push_back(mib_beside());
  EXPECT_EQ(product[3][5].item<float>(), 256);

  const Tensor lse = at::empty({4, 256}, halves.dtype(at::kFloat)), out = at::empty_like(x);
  ops::kernels(x).attention({x, x, x}, {}, 4, 0.125, {0, 256}, {0, 256}, {out, lse});
  const ops::AttentionInputs grads = {at::empty_like(x), at::empty_like(x), at::empty_like(x)};
  ops::kernels(x).attention_backward({x, x, x}, out, x, lse, {}, 4, {0, 256}, {0, 256}, grads);
  mib.push_back(mib_beside());
  EXPECT_EQ(out[7][9].item<float>(), 1) << "of equal values";

  for (const Operator& op : all_operators()) {  // those of every block
    Operands operands(op, at::kBFloat16);
    const Tensor y = op.fast(operands.inputs, operands.sites, operands.constants);
    const Tensors found = operands.gradients(y, at::ones_like(y));
    EXPECT_TRUE(operands.inputs.empty() || found[0].defined()) << op.name;
  }
  mib.push_back(mib_beside());

  constexpr int64_t kValues = 4096;
  const Tensor p = at::ones({kValues}, halves.dtype(at::kFloat)), m = at::zeros_like(p), v = at::zeros_like(p),
               squares = at::zeros({1}, halves.dtype(at::kDouble));
  const device::Backend& table = *device::used();
  table.sum_of_squares(squares.mutable_data_ptr<double>(), p.const_data_ptr<float>(), kValues);
  table.adamw({.fp32 = p.mutable_data_ptr<float>()}, {.fp32 = m.mutable_data_ptr<float>()},
              {.fp32 = v.mutable_data_ptr<float>()}, {.fp32 = x.to(at::kFloat).const_data_ptr<float>()}, kValues,
              {.step = 1});
  table.narrow(out.mutable_data_ptr(), p.const_data_ptr<float>(), at::kBFloat16, kValues);
  mib.push_back(mib_beside());
  EXPECT_EQ(squares.item<double>(), kValues);
  for (const double taken : mib) EXPECT_GE(taken, 0);
  std::printf(
      "{\"taken_mib\": %.0f, \"first_product_mib\": %.0f, \"first_attention_mib\": %.0f, \"first_block_mib\": %.0f, "
      "\"first_step_mib\": %.0f}\n",
      mib[0], mib[1] - mib[0], mib[2] - mib[1], mib[3] - mib[2], mib[4] - mib[3]);
}

/// What cuDNN takes for a convolution of Wan's autoencoder beside operands and result: at most so much where the allocator
/// refuses more, and else what CUDNN_CONV_WSCAP_DBG of the process may bound (base/target.h). TESSERA_CONVOLUTION_SIDE=240 is
/// the size of a chunk that is trained at.
TEST(GpuFigures, ConvolutionWorkspace) {
  if (!device::open().table) GTEST_SKIP() << device::open().absence;
  const char* wanted = std::getenv("TESSERA_CONVOLUTION_SIDE");
  const int64_t side = wanted && *wanted ? std::atoll(wanted) : 12;
  const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(device::here());
  const Tensor w = at::ones({96, 96, 3, 3, 3}, floats);
  const Tensor x = at::ones({1, 6, side, side * 26 / 15, 96}, floats).permute({0, 4, 1, 2, 3});
  const auto tensor_bytes = static_cast<int64_t>(x.nbytes());  // of the result too
  const auto largest = [&](const std::function<Tensor()>& convolve) {
    Poisoned::requests.clear(), Poisoned::refused = 0;
    const Tensor y = convolve();
    EXPECT_EQ(y[0][5][3][5][5].item<float>(), 96 * 27) << "of ones, away from every border";
    int64_t most = 0;
    for (const int64_t bytes : Poisoned::requests)
      if (bytes != tensor_bytes && bytes != static_cast<int64_t>(w.nbytes())) most = std::max(most, bytes);
    return most;
  };
  const auto plain = [&] { return at::conv3d(x, w, {}, 1, 1); };
  const char* cap = std::getenv("CUDNN_CONV_WSCAP_DBG");
  std::printf("{\"cudnn_conv_wscap\": %s, \"workspace_mib\": %.1f", cap && *cap ? cap : "null",
              static_cast<double>(largest(plain)) / (1 << 20));
  for (const int64_t mib : {64, 4096}) {
    const device::WorkspaceLimit limit(mib << 20, {tensor_bytes, static_cast<int64_t>(w.nbytes())});
    const int64_t most = largest(plain);
    EXPECT_LE(most, mib << 20);
    std::printf(", \"workspace_mib_of_%d\": %.1f, \"refused_of_%d\": %d", static_cast<int>(mib),
                static_cast<double>(most) / (1 << 20), static_cast<int>(mib), Poisoned::refused);
  }
  std::printf("}\n");
  EXPECT_GE(largest([&] { return ops::convolution(x, w, {}, {1, 1, 1}, {1, 1, 1}); }), 0);
}

/// What a backward notes by thread, weight gradients left for later and what a unit recomputes, is the caller's.
TEST(GpuAutograd, RunsABackwardOnTheThreadThatAskedForIt) {
  if (!device::open().table) GTEST_SKIP() << device::open().absence;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const Tensor x = at::ones({8}, at::TensorOptions(device::here())).requires_grad_(), y = x * 2;
  std::thread::id seen;
  y.register_hook([&](const Tensor&) { seen = std::this_thread::get_id(); });
  torch::autograd::grad({y.sum()}, {x});
  EXPECT_EQ(seen, std::this_thread::get_id());
}

}  // namespace

}  // namespace tessera::testing
