// Attention by the kernels of a GPU, here stand-ins of them with their shapes (attention.h): by flash a few calls whatever the
// number of samples, by cuDNN what it serves, and each sample's values and gradients.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "attention.h"
#include "simulated.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/session.h"
#include "timeline.h"

namespace tessera::testing {
namespace {

using at::Tensor;
using Offsets = std::vector<int64_t>;

/// The device has the kernels from before its first attention on.
class FirstThings final : public ::testing::Environment {
  void SetUp() override {
    at::set_num_threads(1);  // thousands of small products
    device::use(simulated_device(), 0);
    register_attention();
  }
};
[[maybe_unused]] const auto* const first_things = ::testing::AddGlobalTestEnvironment(new FirstThings);

constexpr int64_t kHeads = 2, kDim = 16, kWidth = kHeads * kDim;

Offsets offsets_of(const std::vector<int64_t>& lengths) {
  Offsets at = {0};
  for (const int64_t n : lengths) at.push_back(at.back() + n);
  return at;
}

/// Attention of a batch and its gradients, with the table of the tensors' device.
struct Batch {
  Offsets q_at, k_at;
  Tensor q, k, v, up;

  Batch(const std::vector<int64_t>& queries, const std::vector<int64_t>& keys, at::ScalarType type,
        int64_t heads = kHeads)
      : q_at(offsets_of(queries)), k_at(offsets_of(keys)), heads(heads) {
    const auto drawn = [&](int64_t rows, uint64_t seed) {
      return at::randn({rows, heads * kDim}, at::detail::createCPUGenerator(seed), at::kFloat).to(type);
    };
    q = drawn(q_at.back(), 1), k = drawn(k_at.back(), 2), v = drawn(k_at.back(), 3), up = drawn(q_at.back(), 4);
  }

  struct Found {
    Tensor out, lse, dq, dk, dv;
    std::vector<Tensor> all() const { return {out, lse, dq, dk, dv}; }
  };
  /// The log-sum-exp and its gradients lie in wider tensors, as those of ranks that share tokens.
  Found run(at::Device device) const {
    const Tensor a = q.to(device), b = k.to(device), c = v.to(device), d = up.to(device);
    const at::TensorOptions wide = at::TensorOptions(at::kFloat).device(device);
    const Tensor sums = at::zeros({heads, a.size(0) + 5}, wide).narrow(1, 3, a.size(0));
    Found found = {at::empty_like(a), sums, at::empty(a.sizes(), wide), at::empty(b.sizes(), wide),
                   at::empty(b.sizes(), wide)};
    const double scale = 1 / std::sqrt(static_cast<double>(kDim));
    const ops::Kernels& table = ops::kernels(a);
    table.attention({a, b, c}, {}, heads, scale, q_at, k_at, {found.out, found.lse});
    table.attention_backward({a, b, c}, found.out, d, found.lse, {}, heads, q_at, k_at, {found.dq, found.dk, found.dv});
    for (Tensor* t : {&found.out, &found.lse, &found.dq, &found.dk, &found.dv})
      if (!t->is_meta()) *t = t->cpu();
    return found;
  }
  /// Each sample alone.
  Found each_alone(at::Device device) const {
    Found all;
    std::vector<std::vector<Tensor>> parts(5);
    for (size_t s = 0; s + 1 < q_at.size(); ++s) {
      Batch one = *this;
      const auto rows = [s](const Tensor& x, const Offsets& at) { return x.slice(0, at[s], at[s + 1]); };
      one.q = rows(q, q_at), one.k = rows(k, k_at), one.v = rows(v, k_at), one.up = rows(up, q_at);
      one.q_at = {0, q_at[s + 1] - q_at[s]}, one.k_at = {0, k_at[s + 1] - k_at[s]};
      const std::vector<Tensor> found = one.run(device).all();
      for (size_t i = 0; i < found.size(); ++i) parts[i].push_back(found[i]);
    }
    return {at::cat(parts[0]), at::cat(parts[1], 1), at::cat(parts[2]), at::cat(parts[3]), at::cat(parts[4])};
  }
  int64_t heads;
};

constexpr const char* kNames[] = {"value", "log-sum-exp", "gradient of queries", "of keys", "of values"};

/// Of bf16 values, whose results were rounded to 8 bits.
void expect_close(const Batch::Found& found, const Batch::Found& expected) {
  for (size_t i = 0; i < 5; ++i) {
    const Tensor got = found.all()[i].to(at::kDouble), want = expected.all()[i].to(at::kDouble);
    ASSERT_EQ(got.sizes(), want.sizes()) << kNames[i];
    EXPECT_LE((got - want).abs().max().item<double>(), 0x1p-7 * want.abs().max().item<double>()) << kNames[i];
  }
}

std::vector<int64_t> many(int64_t count, int64_t each) {
  return std::vector<int64_t>(static_cast<size_t>(count), each);
}

struct Case {
  const char* name;
  std::vector<int64_t> queries, keys;
  AttentionCalls forward;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Flash : public ::testing::TestWithParam<Case> {};

TEST_P(Flash, HasEachSamplesValuesInAFewCalls) {
  const Case& c = GetParam();
  const Batch batch(c.queries, c.keys, at::kBFloat16);
  const ops::CpuKernelsScope scope(ops::aten_kernels());
  const Batch::Found expected = batch.each_alone(at::kCPU);
  attention_calls() = {};
  const Batch::Found found = batch.run(device::here());
  EXPECT_EQ(attention_calls().alike, 2 * c.forward.alike);
  EXPECT_EQ(attention_calls().unlike, 2 * c.forward.unlike);
  expect_close(found, expected);
}

INSTANTIATE_TEST_SUITE_P(
    , Flash,
    ::testing::Values(Case{"one", {333}, {77}, {1, 0}},
                      Case{"a_sample_for_each_place", many(100, 7), many(100, 7), {1, 0}},
                      Case{"more_than_a_call_has", many(530, 2), many(530, 3), {2, 0}},  // 512 and 18
                      Case{"of_several_lengths", {5, 9, 1, 30}, {3, 8, 64, 30}, {0, 1}},
                      Case{"of_many_lengths", {150, 150, 150, 7, 7, 9}, {20, 20, 20, 20, 21, 21}, {0, 1}},
                      Case{"one_without_queries", {5, 0, 7, 0, 0, 2}, {4, 6, 4, 3, 3, 9}, {3, 0}},
                      Case{"large_ones_alone", {33'000, 33'000}, {2, 2}, {2, 0}}),
    [](const auto& info) { return std::string(info.param.name); });

struct CudnnCase {
  const char* name;
  std::vector<int64_t> queries, keys;
  AttentionCalls forward;  // with how many plans
  const char* taken;
};
void PrintTo(const CudnnCase& c, std::ostream* out) { *out << c.name; }

class Cudnn : public ::testing::TestWithParam<CudnnCase> {};

/// Values, calls and notes: many keys go to cuDNN, a call for samples of one length; the rest to flash.
TEST_P(Cudnn, ComputesManyKeysAndFlashTheRest) {
  const CudnnCase& c = GetParam();
  const Batch batch(c.queries, c.keys, at::kBFloat16);
  const ops::CpuKernelsScope scope(ops::aten_kernels());
  const Batch::Found expected = batch.each_alone(at::kCPU);
  for (const bool flat : {false, true}) {  // forms of the statistics
    shape_statistics_flat(flat);
    attention_calls() = {};
    plan::AttentionUse use;
    {
      const ops::AttentionScope asked(plan::Attention::cudnn, &use);
      ops::session().site = "self_attn";
      expect_close(batch.run(device::here()), expected);
    }
    EXPECT_EQ(attention_calls().cudnn, 2 * c.forward.cudnn);
    EXPECT_EQ(attention_calls().alike, 2 * c.forward.alike);
    EXPECT_EQ(attention_calls().unlike, 2 * c.forward.unlike);
    EXPECT_EQ(use.text(), c.taken);
    EXPECT_EQ(use.shapes.size(), static_cast<size_t>(c.forward.plans));
  }
  shape_statistics_flat(false);
}

INSTANTIATE_TEST_SUITE_P(
    , Cudnn,
    ::testing::Values(
        CudnnCase{"one", {1100}, {1100}, {.cudnn = 1, .plans = 1}, "cuDNN at self_attn"},
        CudnnCase{"of_one_length", {70, 70, 70}, {1024, 1024, 1024}, {.cudnn = 1, .plans = 1}, "cuDNN at self_attn"},
        CudnnCase{"of_two_lengths", {60, 70}, {1100, 1200}, {.cudnn = 2, .plans = 2}, "cuDNN at self_attn"},
        CudnnCase{"a_text", {1100}, {512}, {.alike = 1}, "flash at self_attn (fewer than 1024 keys)"},
        CudnnCase{"short_ones_beside_a_long_one",
                  {60, 5, 7, 60},
                  {1100, 6, 8, 1100},
                  {.unlike = 1, .cudnn = 2, .plans = 1},
                  "cuDNN at self_attn; flash at self_attn (fewer than 1024 keys)"},
        CudnnCase{
            "one_without_queries", {40, 0, 40}, {1100, 1100, 1100}, {.cudnn = 2, .plans = 1}, "cuDNN at self_attn"}),
    [](const auto& info) { return std::string(info.param.name); });

/// Around the tiles of its kernels, and where a maximum that starts at zero would lose all scores.
TEST(CudnnLengths, OfEachRemainderHaveTheCpusValuesAlsoFarFromZero) {
  const ops::CpuKernelsScope scope(ops::aten_kernels());
  const ops::AttentionScope asked(plan::Attention::cudnn);
  for (const int64_t more : {0, 8, 24, 64, 120})
    for (const bool far : {false, true}) {
      Batch batch({64 + more}, {1024 + more}, at::kBFloat16);
      const double shift = std::sqrt(100 / std::sqrt(static_cast<double>(kDim)));
      if (far) batch.q.add_(shift), batch.k.sub_(shift);  // scores around -100
      attention_calls() = {};
      const Batch::Found found = batch.run(device::here());
      EXPECT_EQ(attention_calls().cudnn, 2);
      if (far) {
        EXPECT_LT(found.lse.max().item<double>(), -30) << "the case is what it says";
      }
      expect_close(found, batch.run(at::kCPU));
    }
}

/// What it does not serve, by the same rule for a plan and a run.
TEST(CudnnRule, LeavesOtherHeadsToFlashAndOtherDtypesToProducts) {
  plan::AttentionUse use;
  const ops::AttentionScope asked(plan::Attention::cudnn, &use);
  const auto run = [&](int64_t head, at::ScalarType type) {
    const at::TensorOptions options = at::TensorOptions(type).device(device::here());
    const Tensor q = at::ones({8, head}, options), k = at::ones({1030, head}, options);
    const ops::AttentionResult to = {at::empty_like(q), at::empty({1, 8}, options.dtype(at::kFloat))};
    use = {}, attention_calls() = {};
    ops::session().site = "a";
    ops::kernels(q).attention({q, k, k}, {}, 1, 1, {0, 8}, {0, 1030}, to);
    return use.text();
  };
  EXPECT_EQ(run(128, at::kHalf), "cuDNN at a");
  EXPECT_EQ(run(136, at::kBFloat16), "flash at a (heads of 136)");
  EXPECT_EQ(attention_calls().cudnn, 0);
  EXPECT_EQ(run(12, at::kBFloat16), "products at a (heads of 12)");
  EXPECT_EQ(run(264, at::kBFloat16), "products at a (heads of 264)");
  EXPECT_EQ(run(64, at::kFloat), "products at a (fp32)");
}

/// Results that have no place of their own are the same, and where one call makes all of them they stay where it put them.
TEST(ResultsOfAttention, AreTheKernelsOwnWhereNoPlaceIsGiven) {
  struct Packed {
    Batch batch;
    bool one_call;
  };
  const at::Device device = device::here();
  for (const auto& [batch, one_call] :
       {Packed{Batch({70}, {41}, at::kBFloat16), true}, Packed{Batch(many(3, 64), many(3, 40), at::kHalf), true},
        Packed{Batch({5, 90}, {40, 7}, at::kBFloat16), false}, Packed{Batch({0, 33}, {9, 33}, at::kBFloat16), false}}) {
    const Tensor q = batch.q.to(device), k = batch.k.to(device), v = batch.v.to(device), up = batch.up.to(device);
    const double scale = 1 / std::sqrt(static_cast<double>(kDim));
    timeline().label("here");
    (void)timeline().take_launches();
    const ops::AttentionResult made =
        ops::kernels(q).attention({q, k, v}, {}, batch.heads, scale, batch.q_at, batch.k_at, {});
    const ops::AttentionInputs grads = ops::kernels(q).attention_backward({q, k, v}, made.out, up, made.lse, {},
                                                                          batch.heads, batch.q_at, batch.k_at, {});
    const int64_t copied = timeline().take_launches()[{"here", "aten::copy_"}].written;
    timeline().label("");
    const Batch::Found placed = batch.run(device);
    const std::vector<Tensor> got = {made.out, made.lse, grads.q, grads.k, grads.v};
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), placed.all()[i].sizes()) << kNames[i];
      ASSERT_TRUE(got[i].is_contiguous()) << kNames[i];
      ASSERT_TRUE(got[i].cpu().to(at::kFloat).equal(placed.all()[i].to(at::kFloat))) << kNames[i];
    }
    const auto statistics = 2 * static_cast<int64_t>(made.lse.nbytes());  // of several samples, forward and backward
    EXPECT_EQ(copied <= (batch.q_at.size() > 2 ? statistics : 0), one_call) << copied;
  }
}

/// Ranks of sp and cp have the output's products with its gradient and not the output, and gradients in fp32.
TEST(CudnnBackward, TakesTheProductsOfTheOutputInItsPlace) {
  const Batch batch({130}, {1100}, at::kBFloat16);
  const ops::CpuKernelsScope scope(ops::aten_kernels());
  const auto gradients = [&](at::Device device) {
    const Tensor q = batch.q.to(device), k = batch.k.to(device), v = batch.v.to(device), up = batch.up.to(device);
    const at::TensorOptions wide = at::TensorOptions(at::kFloat).device(device);
    const ops::AttentionResult result = {at::empty(q.sizes(), wide), at::empty({kHeads, q.size(0)}, wide)};
    ops::attention_forward({q, k, v}, kHeads, batch.q_at, batch.k_at, result);
    const Tensor delta = ops::attention_delta(result.out.to(q.scalar_type()), up, kHeads);
    const ops::AttentionInputs grads = {at::empty(q.sizes(), wide), at::empty(k.sizes(), wide),
                                        at::empty(v.sizes(), wide)};
    ops::attention_backward({q, k, v}, up, result.lse, delta, kHeads, batch.q_at, batch.k_at, grads);
    return std::vector<Tensor>{grads.q.cpu(), grads.k.cpu(), grads.v.cpu()};
  };
  const ops::AttentionScope asked(plan::Attention::cudnn);
  attention_calls() = {};
  const std::vector<Tensor> found = gradients(device::here()), expected = gradients(at::kCPU);
  EXPECT_EQ(attention_calls().cudnn, 2);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(), 0x1p-6 * expected[i].abs().max().item<double>())
        << i;
}

/// A step calls what was compiled before it.
TEST(CudnnPlans, AreCompiledOnceForAShape) {
  plan::AttentionUse use;
  const Batch batch({90, 90}, {1090, 1090}, at::kBFloat16);
  {
    const ops::TargetScope target(tessera::target("sm_90", "test"));
    const ops::AttentionScope asked(plan::Attention::cudnn, &use);
    batch.run(at::kMeta);
  }
  ASSERT_EQ(use.shapes.size(), 1u) << "without values the same is noted";
  attention_calls() = {};
  ops::compile_attention(use, at::kBFloat16, device::here());
  EXPECT_EQ(attention_calls().plans, 2) << "forward and backward";
  attention_calls() = {};
  const ops::AttentionScope asked(plan::Attention::cudnn);
  batch.run(device::here());
  EXPECT_EQ(attention_calls().cudnn, 2);
  EXPECT_EQ(attention_calls().plans, 0);
}

/// The stand-in refuses what cuDNN does: else the tests above would prove little.
TEST(CudnnStandIn, RefusesOtherLayoutsMasksLengthsAndStatistics) {
  const at::TensorOptions half = at::TensorOptions(at::kBFloat16).device(device::here());
  const auto tokens_outside = [&](int64_t rows, int64_t head = 16) {
    return at::zeros({1, rows, 2, head}, half).transpose(1, 2);
  };
  const Tensor x = tokens_outside(32), none;
  const auto forward = [&](const Tensor& q, const Tensor& k, const std::optional<Tensor>& mask = {}) {
    return at::_scaled_dot_product_cudnn_attention(q, k, k, mask, true, 0.0, false, false, 0.25);
  };
  EXPECT_NO_THROW(forward(x, x));
  EXPECT_THROW(forward(at::zeros({1, 2, 32, 16}, half), x), c10::Error) << "heads outside";
  EXPECT_THROW(forward(tokens_outside(64).slice(2, 0, 64, 2), x), c10::Error) << "every other row";
  EXPECT_THROW(forward(x, tokens_outside(1)), c10::Error) << "one key";
  EXPECT_THROW(forward(x, tokens_outside(0)), c10::Error) << "no key";
  EXPECT_THROW(forward(tokens_outside(32, 136), tokens_outside(32, 136)), c10::Error) << "wide heads";
  EXPECT_THROW(forward(x, x, at::zeros({1, 1, 32, 32}, half)), c10::Error) << "a mask";
  EXPECT_THROW(forward(x.to(at::kFloat), x.to(at::kFloat)), c10::Error) << "fp32";
  const Tensor lse = at::zeros({1, 2, 32, 1}, half.dtype(at::kFloat)), seed = at::zeros({}, half.dtype(at::kLong));
  const auto backward = [&](const Tensor& up, const Tensor& statistics) {
    return at::_scaled_dot_product_cudnn_attention_backward(up, x, x, x, x, statistics, seed, seed, none, none, none,
                                                            32, 32, 0.0, false, 0.25);
  };
  EXPECT_NO_THROW(backward(x, lse));
  EXPECT_THROW(backward(at::zeros({1, 2, 32, 16}, half), lse), c10::Error) << "a gradient of another layout";
  EXPECT_THROW(backward(x, lse.squeeze(3)), c10::Error);
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_THROW(backward(x, lse), c10::Error) << "which it is not";
  at::globalContext().setDeterministicAlgorithms(false, false);
}

/// Of products and a softmax, by which a CPU and fp32 on a GPU compute: samples share a call there too, and change no bit.
TEST(AttentionOfManySamples, HasTheBitsOfEachAlone) {
  const ops::CpuKernelsScope scope(ops::aten_kernels());
  struct Sizes {
    std::vector<int64_t> queries, keys;
  };
  for (const Sizes& sizes : {Sizes{many(80, 7), many(80, 7)},
                             {many(20, 30), many(20, 30)},
                             {many(3, 64), many(3, 300)},
                             {many(2, 600), many(2, 20)},
                             {{5, 5, 0, 9, 1}, {3, 3, 4, 8, 1}}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int64_t heads : {1, 3}) {
        const Batch batch(sizes.queries, sizes.keys, type, heads);
        const Batch::Found all = batch.run(at::kCPU), alone = batch.each_alone(at::kCPU);
        for (size_t i = 0; i < 5; ++i)
          EXPECT_TRUE(at::equal(all.all()[i], alone.all()[i]))
              << kNames[i] << ", " << sizes.queries[0] << " queries, " << heads << " heads, " << type;
      }
}

}  // namespace
}  // namespace tessera::testing
