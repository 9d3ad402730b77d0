#include "operators.h"

#include "tessera/ops/reference.h"

namespace tessera::testing {

namespace {

Tensor normal(at::IntArrayRef shape) {
  static auto generator = at::detail::createCPUGenerator(7);
  return at::randn(shape, generator, at::kFloat);
}

Tensor rows_of(std::vector<int64_t> lengths) {
  Tensors rows;
  for (size_t r = 0; r < lengths.size(); ++r) rows.push_back(at::full({lengths[r]}, static_cast<int64_t>(r), at::kInt));
  return at::cat(rows);
}

Operator linear_of(const std::string& name, int64_t tokens, int64_t in, int64_t out, bool bias, bool gelu) {
  Operator op{name, {normal({tokens, in})}, {normal({out, in})}, {}, {}, {}};
  if (bias) op.weights.push_back(normal({out}));
  op.fast = [=](const Tensors& x, Sites& w, const Tensors&) {
    ops::WeightSite* b = bias ? &w[1] : nullptr;
    return gelu ? ops::gelu_linear(x[0], w[0], b, w.anchor, x[0].scalar_type())
                : ops::linear(x[0], w[0], b, w.anchor, x[0].scalar_type());
  };
  op.reference = [=](const Tensors& x, const Tensors& w, const Tensors&) {
    return (gelu ? ops::reference::gelu_linear : ops::reference::linear)(x[0], w[0], bias ? w[1] : Tensor());
  };
  return op;
}

Operator attention_of(const std::string& name, int64_t heads, int64_t d, std::vector<int64_t> q_at,
                      std::vector<int64_t> k_at) {
  const auto tokens = [&](const std::vector<int64_t>& at) { return normal({at.back(), heads * d}); };
  return {name,
          {tokens(q_at), tokens(k_at), tokens(k_at)},
          {},
          {},
          [=](const Tensors& x, Sites&, const Tensors&) { return ops::attention(x[0], x[1], x[2], heads, q_at, k_at); },
          [=](const Tensors& x, const Tensors&, const Tensors&) {
            return ops::reference::attention(x[0], x[1], x[2], heads, q_at, k_at);
          }};
}

/// A column of a modulation table [R, 6, D]: a strided view, as models use it.
Tensor column(const Tensor& table, int64_t i) { return table.select(1, i); }

}  // namespace

std::vector<Operator> all_operators() {
  std::vector<Operator> all = {
      linear_of("linear", 67, 70, 131, true, false),
      linear_of("linear_without_bias", 300, 600, 65, false, false),
      linear_of("linear_of_few_rows", 3, 70, 131, true, false),
      linear_of("gelu_linear", 301, 530, 97, true, true),
      linear_of("gelu_linear_of_few_rows", 5, 9, 7, true, true),
      attention_of("attention", 3, 10, {0, 1, 70, 201}, {0, 40, 41, 130}),
      attention_of("attention_of_one_sample", 2, 64, {0, 130}, {0, 130}),
      attention_of("attention_to_text", 2, 16, {0, 150, 155}, {0, 7, 84}),
  };
  all.push_back(
      {"layer_norm",
       {normal({67, 71})},
       {normal({71}), normal({71})},
       {},
       [](const Tensors& x, Sites& w, const Tensors&) { return ops::layer_norm(x[0], w[0], w[1], 1e-6, w.anchor); },
       [](const Tensors& x, const Tensors& w, const Tensors&) {
         return ops::reference::layer_norm(x[0], w[0], w[1], 1e-6);
       }});
  all.push_back(
      {"rms_norm",
       {normal({67, 71})},
       {normal({71})},
       {},
       [](const Tensors& x, Sites& w, const Tensors&) { return ops::rms_norm(x[0], w[0], 1e-6, w.anchor); },
       [](const Tensors& x, const Tensors& w, const Tensors&) { return ops::reference::rms_norm(x[0], w[0], 1e-6); }});
  const Tensor angle = normal({67, 5});
  all.push_back({"rms_norm_rope",
                 {normal({67, 30})},
                 {normal({30})},
                 {angle.cos(), angle.sin()},
                 [](const Tensors& x, Sites& w, const Tensors& c) {
                   return ops::rms_norm_rope(x[0], w[0], c[0], c[1], 3, 1e-6, w.anchor);
                 },
                 [](const Tensors& x, const Tensors& w, const Tensors& c) {
                   return ops::reference::rms_norm_rope(x[0], w[0], c[0], c[1], 3, 1e-6);
                 }});
  all.push_back({"modulated_norm",
                 {normal({90, 71}), normal({3, 6, 71}), normal({3, 6, 71})},
                 {},
                 {rows_of({1, 60, 29})},
                 [](const Tensors& x, Sites&, const Tensors& c) {
                   return ops::modulated_norm(x[0], column(x[1], 0), column(x[2], 1), c[0], 1e-6);
                 },
                 [](const Tensors& x, const Tensors&, const Tensors& c) {
                   return ops::reference::modulated_norm(x[0], column(x[1], 0), column(x[2], 1), c[0], 1e-6);
                 }});
  all.push_back({"gated_residual",
                 {normal({90, 71}), normal({90, 71}), normal({3, 6, 71})},
                 {},
                 {rows_of({1, 60, 29})},
                 [](const Tensors& x, Sites&, const Tensors& c) {
                   return ops::gated_residual(x[0], x[1], column(x[2], 2), c[0]);
                 },
                 [](const Tensors& x, const Tensors&, const Tensors& c) {
                   return ops::reference::gated_residual(x[0], x[1], column(x[2], 2), c[0]);
                 }});
  all.push_back({"sum",
                 {normal({90, 71}), normal({90, 71})},
                 {},
                 {},
                 [](const Tensors& x, Sites&, const Tensors&) { return ops::sum(x[0], x[1]); },
                 [](const Tensors& x, const Tensors&, const Tensors&) { return x[0] + x[1]; }});
  all.push_back({"gelu_tanh",
                 {normal({67, 71}) * 4},
                 {},
                 {},
                 [](const Tensors& x, Sites&, const Tensors&) { return ops::gelu_tanh(x[0]); },
                 [](const Tensors& x, const Tensors&, const Tensors&) { return ops::reference::gelu_tanh(x[0]); }});
  all.push_back({"param",
                 {},
                 {normal({1, 6, 71})},
                 {},
                 [](const Tensors&, Sites& w, const Tensors&) { return ops::param(w[0], w.anchor); },
                 [](const Tensors&, const Tensors& w, const Tensors&) { return w[0].clone(); }});
  all.push_back({"embedding",
                 {},
                 {normal({11, 70})},
                 {at::arange(40, at::kLong) * 7 % 11},
                 [](const Tensors&, Sites& w, const Tensors& c) { return ops::embedding(c[0], w[0], w.anchor); },
                 [](const Tensors&, const Tensors& w, const Tensors& c) { return at::embedding(w[0], c[0]); }});
  return all;
}

}  // namespace tessera::testing
