#include "tessera/tools/probe/signatures.h"

#include <algorithm>

#include "tessera/ops/kernels.h"
#include "tessera/ops/session.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using plan::Rate;

constexpr double kOfAPoint =
    0.15;  // of the time of a measurement: there are many points, and all of them together are sustained

int64_t whole(double size) { return static_cast<int64_t>(size); }

/// What a call writes and reads anew each time.
struct Weights {
  Tensor value, grad, bias, bias_grad;
};

/// Operands of equal calls, in turn.
class Turns {
 public:
  Turns(int64_t in, int64_t out, size_t bytes, at::ScalarType type) {
    const Tensor values = normal({out, in}, type);
    const at::TensorOptions grads = values.options().dtype(at::kFloat);
    const size_t count = std::max<size_t>(bytes / values.nbytes(), 1);
    for (size_t i = 0; i < count; ++i)
      list_.push_back({values.clone(), at::zeros({out, in}, grads), normal({out}, type), at::zeros({out}, grads)});
  }
  Weights& next() { return list_[turn_++ % list_.size()]; }

 private:
  std::vector<Weights> list_;
  size_t turn_ = 0;
};

plan::TimeGrid products(Clock& clock, const Sizes::OfType& of, size_t bytes) {
  const std::vector<double>&rows = of.rows, &widths = of.widths;
  plan::TimeGrid grid{.axes = {rows, widths, widths}};
  const auto& kernels = ops::kernels(normal({1}));
  const size_t sides = widths.size();
  for (size_t i = 0; i < sides; ++i)
    for (size_t o = 0; o < sides; ++o) {
      const int64_t in = whole(widths[i]), out = whole(widths[o]);
      Turns turns(in, out, bytes, of.type);  // one for all rows: to fill it takes longer than the calls of a point
      for (size_t r = 0; r < rows.size(); ++r) {
        const Tensor x = normal({whole(rows[r]), in}, of.type), dy = normal({whole(rows[r]), out}, of.type);
        const auto set = [&](const char* kind, const Call& call) {
          std::vector<double>& seconds = grid.seconds[kind];
          seconds.resize(rows.size() * sides * sides);
          seconds[(r * sides + i) * sides + o] = clock.seconds(call, kOfAPoint);
        };
        set("forward", [&] {
          const Weights& w = turns.next();
          kernels.linear(x, w.value, w.bias, false, of.type);
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

/// Of 64 values of a head, whatever heads are measured.
plan::TimeGrid attentions(Clock& clock, const Sizes::OfType& of, const Sizes& sizes, plan::Attention kernel) {
  const ops::AttentionScope scope(kernel);
  plan::TimeGrid grid{.axes = {of.spans, of.spans}};
  const double heads_of_64 = static_cast<double>(sizes.heads * sizes.head) / 64;
  for (const double queries : of.spans)
    for (const double keys : of.spans) {
      const auto leaf = [&](double rows) {
        return normal({whole(rows), sizes.heads * sizes.head}, of.type).requires_grad_();
      };
      const Tensor q = leaf(queries), k = leaf(keys), v = leaf(keys);
      const std::vector<int64_t> q_at = {0, whole(queries)}, k_at = {0, whole(keys)};
      const Both both =
          time_both(clock, kOfAPoint, [&] { return ops::attention(q, k, v, sizes.heads, q_at, k_at); }, {q, k, v});
      grid.seconds["forward"].push_back(both.forward / heads_of_64);
      grid.seconds["backward"].push_back(both.backward / heads_of_64);
    }
  return grid;
}

/// An operator on some rows, ready to be called.
struct Operator {
  std::function<Tensor()> forward;
  std::vector<Tensor> leaves;
};

/// `value`: bytes that a forward reads and writes of each element.
plan::OperatorRates rates(Clock& clock, const Sizes& sizes, double value,
                          const std::function<Operator(int64_t rows)>& make) {
  const auto measure = [&](int64_t rows) {
    const Operator op = make(rows);
    return time_both(clock, kOfAPoint, op.forward, op.leaves);
  };
  const auto bytes = [&](int64_t rows) { return value * static_cast<double>(rows * sizes.width); };
  const auto [few_rows, many_rows] = sizes.rows;
  const Both few = measure(few_rows), many = measure(many_rows);
  return {line(bytes(few_rows), few.forward, bytes(many_rows), many.forward),
          line(bytes(few_rows), few.backward, bytes(many_rows), many.backward)};
}

/// As units call them that compute in the dtype that trains: the residual stream is fp32.
std::map<std::string, plan::OperatorRates> operators(Clock& clock, const Sizes& sizes) {
  const at::ScalarType type = sizes.types.front().type;
  const int64_t width = sizes.width, head = sizes.head;
  const auto leaf = [&](int64_t rows, at::ScalarType of) { return normal({rows, width}, of).requires_grad_(); };
  const Tensor table = normal({1, width}).requires_grad_(), anchor = normal({1}).requires_grad_();
  ops::WeightSite weight;
  weight.value = normal({width}, type), weight.grad = normal({width});
  const auto one_row = [](int64_t rows) { return std::make_shared<ops::RowIndex>(one_row_of(rows)); };
  constexpr double kWhole = sizeof(float);
  const auto own = static_cast<double>(at::elementSize(type));
  std::map<std::string, plan::OperatorRates> found;
  found["norm"] = rates(clock, sizes, kWhole + own, [&](int64_t rows) {
    const Tensor x = leaf(rows, at::kFloat);
    return Operator{[=, at = one_row(rows)] { return ops::modulated_norm(x, table, table, *at, 1e-6, type); },
                    {x, table}};
  });
  found["residual"] = rates(clock, sizes, 2 * kWhole + own, [&](int64_t rows) {
    const Tensor x = leaf(rows, at::kFloat), y = leaf(rows, type);
    return Operator{[=, at = one_row(rows)] { return ops::gated_residual(x, y, table, *at); }, {x, y, table}};
  });
  found["rms_norm"] = rates(clock, sizes, 2 * own, [&](int64_t rows) {
    const Tensor x = leaf(rows, type);
    return Operator{[=, &weight] { return ops::rms_norm(x, weight, 1e-6, anchor); }, {x, anchor}};
  });
  found["rms_norm_rope"] = rates(clock, sizes, 2 * own, [&](int64_t rows) {
    const Tensor x = leaf(rows, type), cos = normal({rows, head / 2}), sin = normal({rows, head / 2});
    return Operator{[=, &weight] { return ops::rms_norm_rope(x, weight, cos, sin, width / head, 1e-6, anchor); },
                    {x, anchor}};
  });
  found["gelu"] = rates(clock, sizes, 2 * own, [&](int64_t rows) {
    const Tensor x = leaf(rows, type);
    return Operator{[=] { return ops::gelu_tanh(x); }, {x}};
  });
  return found;
}

/// Of a CPU what is left of a product of nothing to speak of without its kernel; of a GPU what its host takes for such a call.
double dispatch(Clock& clock) {
  ops::WeightSite weight;
  weight.value = normal({8, 8}), weight.grad = normal({8, 8});
  const Tensor x = normal({8, 8}).requires_grad_(), anchor = normal({1}).requires_grad_();
  const Call call = [&] { ops::linear(x, weight, nullptr, anchor); };
  if (device::used()) return clock.dispatch(call);
  const auto& kernels = ops::kernels(x);
  const Tensor plain = x.detach();
  const double whole = clock.seconds(call, kOfAPoint),
               bare =
                   clock.seconds([&] { kernels.linear(plain, weight.value, Tensor(), false, at::kFloat); }, kOfAPoint);
  return std::max(0.0, whole - bare);
}

}  // namespace

std::string rates_of(at::ScalarType type, plan::Attention kernel) {
  return (type == at::kBFloat16 ? "bf16" : "fp32") +
         std::string(kernel == plan::Attention::cudnn ? plan::kByCudnn : std::string_view());
}

std::vector<plan::Attention> kernels_of(at::ScalarType type) {
  std::vector<plan::Attention> all = {plan::Attention::flash};
  if (type != at::kFloat && ops::why_no_cudnn_attention().empty()) all.push_back(plan::Attention::cudnn);
  return all;
}

Rate line(double small_work, double small_seconds, double large_work, double large_seconds) {
  const bool rises = large_seconds > small_seconds;  // else noise: no start-up is seen
  const double top = rises ? (large_work - small_work) / (large_seconds - small_seconds) : large_work / large_seconds;
  return {top, std::max(0.0, small_seconds * top - small_work)};
}

Both time_both(Clock& clock, double share, const std::function<Tensor()>& forward, const std::vector<Tensor>& leaves) {
  const Tensor out = forward(), up = normal(out.sizes(), out.scalar_type());
  const double once = clock.seconds([&] { forward(); }, share);
  const double both = clock.seconds(
      [&] {
        // weights' gradients go to their sites, so an anchor among the leaves gets none
        torch::autograd::grad({forward()}, leaves, {up}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
      },
      share);
  return {once, std::max(both - once, 0.1 * once)};
}

ops::RowIndex one_row_of(int64_t rows) {
  ops::RowIndex index(at::zeros({rows}, at::kInt));
  index.of_token = index.of_token.to(device::here());
  return index;
}

void measure_signatures(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes) {
  for (const Sizes::OfType& of : sizes.types) {
    const std::string name = rates_of(of.type);
    device.products[name] = products(clock, of, sizes.cached > 0 ? sizes.cached : sizes.uncached);
    if (sizes.cached > 0) device.uncached_products[name] = products(clock, of, sizes.uncached);
    for (const plan::Attention kernel : kernels_of(of.type))
      device.attentions[rates_of(of.type, kernel)] = attentions(clock, of, sizes, kernel);
  }
  if (sizes.cached > 0)
    device.cached = static_cast<double>(sizes.cached), device.uncached = static_cast<double>(sizes.uncached);
  device.operators = operators(clock, sizes);
  device.dispatch = dispatch(clock);
}

namespace {

/// Whether it is so on every rank.
bool everywhere(const Clock& clock, bool here) { return clock.mean(here ? 1 : 0) == 1; }

std::optional<ops::ProductAlgorithm> fastest(Clock& clock, const device::ProductLibrary& library,
                                             const ops::ProductCall& call) {
  const std::vector<ops::ProductAlgorithm> all = library.candidates(call, ops::kMostAlgorithms);
  const auto count = static_cast<double>(all.size());
  if (!everywhere(clock, clock.mean(count) == count)) return std::nullopt;
  std::optional<ops::ProductAlgorithm> best;
  double least = 0;
  for (const ops::ProductAlgorithm& one : all) {
    if (!everywhere(clock, library.multiply(call, one).empty())) continue;
    const double seconds = clock.seconds([&] { library.multiply(call, one); }, kOfAPoint);
    if (!best || seconds < least) best = one, least = seconds;
  }
  return best;
}

}  // namespace

plan::ProductChoices measure_algorithms(Clock& clock, const std::vector<ops::ProductShape>& shapes) {
  plan::ProductChoices found;
  const device::Backend* gpu = device::used();
  if (!gpu || !gpu->products) return found;
  found.library = gpu->products->version();
  if (!everywhere(clock, !found.library.empty())) return {};
  for (const ops::ProductShape& shape : shapes) {
    const ops::ProductOperands operands = ops::operands_of(shape, normal);
    if (const auto best = fastest(clock, *gpu->products, operands.call)) found.chosen[shape.name()] = best->text();
  }
  return found;
}

}  // namespace tessera::tools
