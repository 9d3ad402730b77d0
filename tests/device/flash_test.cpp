// Attention of many samples by the flash kernels of a GPU, here stand-ins of them with their shapes: a few calls whatever the
// number of samples, each sample's values, and gradients.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cmath>
#include <numeric>

#include "simulated.h"
#include "tessera/ops/kernels.h"

namespace tessera::testing {
namespace {

using at::Tensor;
using Offsets = std::vector<int64_t>;

struct Calls {
  int alike = 0, unlike = 0;
};
Calls calls;

/// Of one sample on the CPU, [heads, rows, d] in fp32.
std::pair<Tensor, Tensor> plain(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const Tensor scores = q.bmm(k.transpose(1, 2)) * scale, lse = scores.logsumexp({2});
  return {(scores - lse.unsqueeze(2)).exp().bmm(v), lse};
}
struct Gradients {
  Tensor q, k, v;
};
Gradients plain_backward(const Tensor& up, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse, double scale) {
  const Tensor p = (q.bmm(k.transpose(1, 2)) * scale - lse.unsqueeze(2)).exp();
  const Tensor d = (up.bmm(v.transpose(1, 2)) - (up * out).sum(2, true)) * p * scale;
  return {d.bmm(k), d.transpose(1, 2).bmm(q), p.transpose(1, 2).bmm(up)};
}

Tensor host(const Tensor& x) { return x.cpu().to(at::kFloat); }
Tensor there(const Tensor& x, const Tensor& like) { return x.to(like.scalar_type()).to(like.device()); }

// The kernels. LibTorch's take [samples, heads, rows, d]; for samples of different lengths [rows, heads, d] and where each
// begins, int32.

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& q, const Tensor& k, const Tensor& v, double, bool, bool, std::optional<double> scale) {
  ++calls.alike;
  TORCH_CHECK(q.dim() == 4 && q.stride(3) == 1 && k.stride(3) == 1 && q.size(0) == k.size(0));
  std::vector<Tensor> outs, sums;
  for (int64_t s = 0; s < q.size(0); ++s) {
    const auto [out, lse] = plain(host(q[s]), host(k[s]), host(v[s]), *scale);
    outs.push_back(out), sums.push_back(lse);
  }
  return {there(at::stack(outs), q), at::stack(sums).to(q.device()), {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& up, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& lse, const Tensor&, const Tensor&,
                                                  c10::SymInt most_q, c10::SymInt most_k, double, bool, const Tensor&,
                                                  const Tensor&, std::optional<double> scale) {
  ++calls.alike;
  TORCH_CHECK(most_q == q.size(2) && most_k == k.size(2) && lse.is_contiguous());
  std::vector<Tensor> dq, dk, dv;
  for (int64_t s = 0; s < q.size(0); ++s) {
    const Gradients g =
        plain_backward(host(up[s]), host(q[s]), host(k[s]), host(v[s]), host(out[s]), host(lse[s]), *scale);
    dq.push_back(g.q), dk.push_back(g.k), dv.push_back(g.v);
  }
  return {there(at::stack(dq), q), there(at::stack(dk), k), there(at::stack(dv), v)};
}

/// Rows [begin, end) of sample s of x [rows, heads, d], as [heads, rows, d].
Tensor sample(const Tensor& x, const Tensor& begins, int64_t s) {
  return host(x.slice(0, begins[s].item<int>(), begins[s + 1].item<int>())).transpose(0, 1);
}
void check_begins(const Tensor& begins, int64_t rows, const c10::SymInt& most) {
  TORCH_CHECK(begins.scalar_type() == at::kInt && begins.is_contiguous() && !begins.is_cpu());
  const Tensor at = begins.cpu();
  TORCH_CHECK(at[0].item<int>() == 0 && at[-1].item<int>() == rows && at.diff().max().item<int>() == most);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_of_unlike(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& q_begins,
    const std::optional<Tensor>& k_begins, c10::SymInt most_q, c10::SymInt most_k, double, bool, bool,
    std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>, const std::optional<Tensor>&,
    const std::optional<Tensor>&) {
  ++calls.unlike;
  check_begins(*q_begins, q.size(0), most_q), check_begins(*k_begins, k.size(0), most_k);
  const Tensor q_at = q_begins->cpu(), k_at = k_begins->cpu();
  std::vector<Tensor> outs, sums;
  for (int64_t s = 0; s + 1 < q_at.size(0); ++s) {
    const auto [out, lse] = plain(sample(q, q_at, s), sample(k, k_at, s), sample(v, k_at, s), *scale);
    outs.push_back(out.transpose(0, 1)), sums.push_back(lse);
  }
  return {there(at::cat(outs), q), at::cat(sums, 1).to(q.device()), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward_of_unlike(const Tensor& up, const Tensor& q, const Tensor& k,
                                                            const Tensor& v, const Tensor& out, const Tensor& lse,
                                                            const Tensor& q_begins, const Tensor& k_begins,
                                                            c10::SymInt most_q, c10::SymInt most_k, double, bool,
                                                            const Tensor&, const Tensor&, std::optional<double> scale,
                                                            std::optional<c10::SymInt>, std::optional<c10::SymInt>) {
  ++calls.unlike;
  check_begins(q_begins, q.size(0), most_q), check_begins(k_begins, k.size(0), most_k);
  const Tensor q_at = q_begins.cpu(), k_at = k_begins.cpu();
  std::vector<Tensor> dq, dk, dv;
  for (int64_t s = 0; s + 1 < q_at.size(0); ++s) {
    const Tensor sums = host(lse.slice(1, q_at[s].item<int>(), q_at[s + 1].item<int>()));
    const Gradients g = plain_backward(sample(up, q_at, s), sample(q, q_at, s), sample(k, k_at, s), sample(v, k_at, s),
                                       sample(out, q_at, s), sums, *scale);
    dq.push_back(g.q.transpose(0, 1)), dk.push_back(g.k.transpose(0, 1)), dv.push_back(g.v.transpose(0, 1));
  }
  return {there(at::cat(dq), q), there(at::cat(dk), k), there(at::cat(dv), v)};
}

/// The device has the kernels from before its first attention on.
class FirstThings final : public ::testing::Environment {
  void SetUp() override {
    at::set_num_threads(1);  // thousands of small products
    device::use(simulated_device(), 0);
    auto* aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    aten->impl("_scaled_dot_product_flash_attention", &flash);
    aten->impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
    aten->impl("_flash_attention_forward", &flash_of_unlike);
    aten->impl("_flash_attention_backward", &flash_backward_of_unlike);
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
    for (Tensor* t : {&found.out, &found.lse, &found.dq, &found.dk, &found.dv}) *t = t->cpu();
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
  Calls forward;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Flash : public ::testing::TestWithParam<Case> {};

TEST_P(Flash, HasEachSamplesValuesInAFewCalls) {
  const Case& c = GetParam();
  const Batch batch(c.queries, c.keys, at::kBFloat16);
  const ops::CpuKernelsScope scope(ops::aten_kernels());
  const Batch::Found expected = batch.each_alone(at::kCPU);
  calls = {};
  const Batch::Found found = batch.run(device::here());
  EXPECT_EQ(calls.alike, 2 * c.forward.alike);
  EXPECT_EQ(calls.unlike, 2 * c.forward.unlike);
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
