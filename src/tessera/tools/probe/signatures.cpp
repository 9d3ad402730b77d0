#include "tessera/tools/probe/signatures.h"

#include <algorithm>

#include "tessera/ops/kernels.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using plan::Rate;

// Bytes of weights that calls take turns with, and of gradients as well: of a small model a large cache holds all of them
// from step to step, of others none. A cold gradient is written three times as slowly.
constexpr size_t kCached = size_t{24} << 20, kNotCached = size_t{128} << 20;
constexpr int64_t kWidth = 512, kHead = 64;  // of operators between products; of a head of attention
const std::vector<double> kRows = {1, 4, 16, 64, 256, 1024}, kSizes = {128, 512, 2048}, kSpans = {16, 64, 256, 1024};

Tensor normal(at::IntArrayRef shape) { return at::randn(shape, at::kFloat); }
int64_t whole(double size) { return static_cast<int64_t>(size); }

/// What a call writes and reads anew each time.
struct Weights {
  Tensor value, grad, bias, bias_grad;
};

/// Operands of equal calls, in turn.
class Turns {
 public:
  Turns(int64_t in, int64_t out, size_t bytes) {
    const size_t count = std::max<size_t>(bytes / (static_cast<size_t>(in * out) * sizeof(float)), 1);
    const Tensor values = normal({out, in});
    for (size_t i = 0; i < count; ++i)
      list_.push_back({values.clone(), at::zeros({out, in}), normal({out}), at::zeros({out})});
  }
  Weights& next() { return list_[turn_++ % list_.size()]; }

 private:
  std::vector<Weights> list_;
  size_t turn_ = 0;
};

plan::TimeGrid products(const Timer& time, size_t bytes) {
  plan::TimeGrid grid{.axes = {kRows, kSizes, kSizes}};
  const auto& kernels = ops::kernels(normal({1}));
  const size_t sizes = kSizes.size();
  for (size_t i = 0; i < sizes; ++i)
    for (size_t o = 0; o < sizes; ++o) {
      const int64_t in = whole(kSizes[i]), out = whole(kSizes[o]);
      Turns turns(in, out, bytes);  // one for all rows: to fill it takes longer than the calls of a point
      for (size_t r = 0; r < kRows.size(); ++r) {
        const Tensor x = normal({whole(kRows[r]), in}), dy = normal({whole(kRows[r]), out});
        const auto set = [&](const char* kind, const Call& call) {
          std::vector<double>& seconds = grid.seconds[kind];
          seconds.resize(kRows.size() * sizes * sizes);
          seconds[(r * sizes + i) * sizes + o] = time(call);
        };
        set("forward", [&] {
          const Weights& w = turns.next();
          kernels.linear(x, w.value, w.bias, false, at::kFloat);
        });
        set("input_gradient", [&] { kernels.linear_input_gradient(dy, turns.next().value, x, false, false); });
        set("weight_gradient", [&] {
          const Weights& w = turns.next();
          kernels.linear_weight_gradient(w.grad, dy, x, false, false);
          kernels.bias_gradient(w.bias_grad, dy, false);
        });
      }
    }
  return grid;
}

/// Seconds of a forward with a graph, and of its backward.
struct Both {
  double forward, backward;
};

Both time_both(const Timer& time, const std::function<Tensor()>& forward, const std::vector<Tensor>& leaves) {
  const Tensor up = at::randn_like(forward());
  const double once = time([&] { forward(); });
  const double both = time([&] {
    // weights' gradients go to their sites, so an anchor among the leaves gets none
    torch::autograd::grad({forward()}, leaves, {up}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  });
  return {once, std::max(both - once, 0.1 * once)};
}

plan::TimeGrid attentions(const Timer& time) {
  constexpr int64_t kHeads = 8;
  plan::TimeGrid grid{.axes = {kSpans, kSpans}};
  for (const double queries : kSpans)
    for (const double keys : kSpans) {
      const auto leaf = [](double rows) { return normal({whole(rows), kHeads * kHead}).requires_grad_(); };
      const Tensor q = leaf(queries), k = leaf(keys), v = leaf(keys);
      const std::vector<int64_t> q_at = {0, whole(queries)}, k_at = {0, whole(keys)};
      const Both both = time_both(time, [&] { return ops::attention(q, k, v, kHeads, q_at, k_at); }, {q, k, v});
      grid.seconds["forward"].push_back(both.forward / kHeads);
      grid.seconds["backward"].push_back(both.backward / kHeads);
    }
  return grid;
}

/// The rate through two points: seconds = (work + half) / top.
Rate line(double small_work, double small_seconds, double large_work, double large_seconds) {
  const bool rises = large_seconds > small_seconds;  // else noise: no start-up is seen
  const double top = rises ? (large_work - small_work) / (large_seconds - small_seconds) : large_work / large_seconds;
  return {top, std::max(0.0, small_seconds * top - small_work)};
}

/// An operator on `rows` rows of kWidth, ready to be called.
struct Operator {
  std::function<Tensor()> forward;
  std::vector<Tensor> leaves;
};

plan::OperatorRates rates(const Timer& time, double tensors, const std::function<Operator(int64_t rows)>& make) {
  constexpr int64_t kFew = 32, kMany = 1024;
  const auto measure = [&](int64_t rows) {
    const Operator op = make(rows);
    return time_both(time, op.forward, op.leaves);
  };
  const auto bytes = [&](int64_t rows) { return tensors * static_cast<double>(rows * kWidth) * sizeof(float); };
  const Both few = measure(kFew), many = measure(kMany);
  return {line(bytes(kFew), few.forward, bytes(kMany), many.forward),
          line(bytes(kFew), few.backward, bytes(kMany), many.backward)};
}

std::map<std::string, plan::OperatorRates> operators(const Timer& time) {
  const auto leaf = [](int64_t rows) { return normal({rows, kWidth}).requires_grad_(); };
  const Tensor table = normal({1, kWidth}).requires_grad_(), anchor = at::zeros({1}).requires_grad_();
  ops::WeightSite weight;
  weight.value = normal({kWidth}), weight.grad = at::zeros({kWidth});
  const auto one_row = [](int64_t rows) { return std::make_shared<ops::RowIndex>(at::zeros({rows}, at::kInt)); };
  std::map<std::string, plan::OperatorRates> found;
  found["norm"] = rates(time, 2, [&](int64_t rows) {
    const Tensor x = leaf(rows);
    return Operator{[=, at = one_row(rows)] { return ops::modulated_norm(x, table, table, *at, 1e-6); }, {x, table}};
  });
  found["residual"] = rates(time, 3, [&](int64_t rows) {
    const Tensor x = leaf(rows), y = leaf(rows);
    return Operator{[=, at = one_row(rows)] { return ops::gated_residual(x, y, table, *at); }, {x, y, table}};
  });
  found["rms_norm"] = rates(time, 2, [&](int64_t rows) {
    const Tensor x = leaf(rows);
    return Operator{[=, &weight] { return ops::rms_norm(x, weight, 1e-6, anchor); }, {x, anchor}};
  });
  found["rms_norm_rope"] = rates(time, 2, [&](int64_t rows) {
    const Tensor x = leaf(rows), cos = normal({rows, kHead / 2}), sin = normal({rows, kHead / 2});
    return Operator{[=, &weight] { return ops::rms_norm_rope(x, weight, cos, sin, kWidth / kHead, 1e-6, anchor); },
                    {x, anchor}};
  });
  found["gelu"] = rates(time, 2, [&](int64_t rows) {
    const Tensor x = leaf(rows);
    return Operator{[=] { return ops::gelu_tanh(x); }, {x}};
  });
  return found;
}

}  // namespace

void measure_signatures(plan::DeviceProfile& device, const Timer& time) {
  device.products["fp32"] = products(time, kCached);
  device.uncached_products["fp32"] = products(time, kNotCached);
  device.cached = kCached, device.uncached = kNotCached;
  device.attentions["fp32"] = attentions(time);
  device.operators = operators(time);
  // A product of nothing to speak of: what is left is its call.
  ops::WeightSite weight;
  weight.value = normal({8, 8}), weight.grad = at::zeros({8, 8});
  const Tensor x = normal({8, 8}).requires_grad_(), anchor = at::zeros({1}).requires_grad_();
  const Both call = time_both(time, [&] { return ops::linear(x, weight, nullptr, anchor); }, {x, anchor});
  const auto& kernels = ops::kernels(x);
  const Tensor plain = x.detach();
  const double bare = time([&] { kernels.linear(plain, weight.value, Tensor(), false, at::kFloat); });
  device.dispatch = std::max(0.0, call.forward - bare);
}

}  // namespace tessera::tools
