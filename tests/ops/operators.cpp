#include "operators.h"

#include "tessera/ops/activations.h"
#include "tessera/ops/reference.h"
#include "tessera/ops/rows.h"

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

/// Of the modulated operators, with their index on whichever device.
const std::vector<int64_t> kRowLengths = {1, 60, 29};
ops::RowIndex row_index(const Tensor& of_token) {
  ops::RowIndex index(rows_of(kRowLengths));
  index.of_token = of_token;
  return index;
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

/// Three linears, each of which passes its input on to the next, which adds its gradient to the product of the one before.
Operator linears_of_one_input(int64_t tokens, int64_t in, int64_t out) {
  Operator op{"linears_of_one_input", {normal({tokens, in})}, {}, {}, {}, {}};
  for (int i = 0; i < 3; ++i) op.weights.push_back(normal({out, in}));
  op.fast = [](const Tensors& x, Sites& w, const Tensors&) {
    Tensor input = x[0];
    Tensors made;
    for (size_t i = 0; i < 3; ++i) {
      Tensor passed;
      made.push_back(ops::linear(input, w[i], nullptr, w.anchor, input.scalar_type(), ops::When::at_once, &passed));
      if (passed.defined()) input = passed;
    }
    return at::cat(made, 1);
  };
  op.reference = [](const Tensors& x, const Tensors& w, const Tensors&) {
    Tensors made;
    for (const Tensor& weight : w) made.push_back(ops::reference::linear(x[0], weight, {}));
    return at::cat(made, 1);
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

/// Channels that turn together, [rows, heads, d / 2] each, from halves of each head.
Operator half_split_rope(int64_t rows, int64_t heads, int64_t pairs) {
  const Tensor angle = normal({rows, pairs});
  return {"rope_of_halves",
          {normal({rows, heads * 2 * pairs})},
          {},
          {angle.cos(), angle.sin()},
          [=](const Tensors& x, Sites&, const Tensors& c) { return ops::rope(x[0], c[0], c[1], heads, true); },
          [=](const Tensors& x, const Tensors&, const Tensors& c) {
            const Tensors halves = x[0].reshape({rows, heads, -1}).chunk(2, -1);
            const Tensor cos = c[0].unsqueeze(1), sin = c[1].unsqueeze(1);
            return at::cat({halves[0] * cos - halves[1] * sin, halves[0] * sin + halves[1] * cos}, -1)
                .reshape(x[0].sizes());
          }};
}

/// A picture of 3 x 3 windows, nothing beyond its edges.
Operator depthwise_of_picture(int64_t height, int64_t wide, int64_t width, bool silu) {
  std::vector<int32_t> table;
  for (int64_t i = -1; i <= 1; ++i)
    for (int64_t j = -1; j <= 1; ++j)
      for (int64_t r = 0; r < height * wide; ++r) {
        const int64_t y = r / wide + i, x = r % wide + j;
        table.push_back(static_cast<int32_t>(y < 0 || y >= height || x < 0 || x >= wide ? -1 : y * wide + x));
      }
  return {silu ? "depthwise_of_silu" : "depthwise_of_picture",
          {normal({height * wide, width})},
          {normal({width, 1, 3, 3}), normal({width})},
          {at::tensor(table, at::kInt).view({9, height * wide})},
          [=](const Tensors& x, Sites& w, const Tensors& c) {
            return ops::depthwise(x[0], c[0], w[0], &w[1], w.anchor, at::kFloat, silu);
          },
          [=](const Tensors& x, const Tensors& w, const Tensors&) {
            const Tensor picture = (silu ? at::silu(x[0]) : x[0]).t().reshape({1, width, height, wide});
            return at::conv2d(picture, w[0], w[1], 1, 1, 1, width).flatten(2).squeeze(0).t().contiguous();
          }};
}

/// The same as the gate of what else there is.
Operator gated_depthwise_of_picture(int64_t height, int64_t wide, int64_t width) {
  Operator op = depthwise_of_picture(height, wide, width, true);
  op.name = "gated_depthwise";
  op.inputs.push_back(normal({height * wide, width}));
  op.fast = [](const Tensors& x, Sites& w, const Tensors& c) {
    return ops::gated_depthwise(x[1], x[0], c[0], w[0], &w[1], w.anchor, /*silu=*/true);
  };
  op.reference = [gate = op.reference](const Tensors& x, const Tensors& w, const Tensors& c) {
    return x[1] * at::silu(gate(x, w, c));
  };
  return op;
}

/// A row of 9 in one dimension: three taps, nothing beyond its ends.
Operator depthwise_of(int64_t rows, int64_t width) {
  std::vector<int32_t> table;
  for (int64_t tap = -1; tap <= 1; ++tap)
    for (int64_t r = 0; r < rows; ++r) table.push_back(static_cast<int32_t>(r + tap < rows ? r + tap : -1));
  return {
      "depthwise",
      {normal({rows, width})},
      {normal({width, 1, 3}), normal({width})},
      {at::tensor(table, at::kInt).view({3, rows})},
      [](const Tensors& x, Sites& w, const Tensors& c) { return ops::depthwise(x[0], c[0], w[0], &w[1], w.anchor); },
      [=](const Tensors& x, const Tensors& w, const Tensors&) {
        return at::conv1d(x[0].t().unsqueeze(0), w[0], w[1], 1, 1, 1, width).squeeze(0).t().contiguous();
      }};
}

/// Each row of 9 with the one before and the one after it.
Operator unfold_of(int64_t rows, int64_t width) {
  std::vector<int32_t> table;
  for (int64_t tap = -1; tap <= 1; ++tap)
    for (int64_t r = 0; r < rows; ++r) table.push_back(static_cast<int32_t>(r + tap < rows ? r + tap : -1));
  return {"unfold",
          {normal({rows, width})},
          {},
          {at::tensor(table, at::kInt).view({3, rows})},
          [](const Tensors& x, Sites&, const Tensors& c) { return ops::unfold(x[0], c[0]); },
          [=](const Tensors& x, const Tensors&, const Tensors&) {
            return at::constant_pad_nd(x[0], {0, 0, 1, 1}).unfold(0, 3, 1).reshape({rows, 3 * width});
          }};
}

/// The middle one of three samples has no rows. `turned`: q and k in the products with values are others than in what
/// these are divided by.
Operator attention_without_softmax(int64_t heads, int64_t d, bool turned) {
  const std::vector<int64_t> at = {0, 30, 30, 71};
  // a seventh is below 0, in no head all, and none so near it that a difference of two passes over it
  const auto keys = [&] {
    const Tensor below = at::arange(at.back() * heads * d).remainder(7).eq(0).view({at.back(), heads * d});
    return normal({at.back(), heads * d}).abs().add_(0.1).mul_(1 - 2 * below.to(at::kFloat));
  };
  Operator op{"attention_without_softmax" + std::string(turned ? "_of_turned" : "") + (d == 32 ? "_of_32" : ""),
              {keys(), keys(), normal({at.back(), heads * d})},
              {},
              {},
              {},
              {}};
  if (turned)
    for (int i = 0; i < 2; ++i) op.inputs.push_back(normal({at.back(), heads * d}));
  op.fast = [=](const Tensors& x, Sites&, const Tensors&) {
    const Tensor states = ops::linear_attention_states(x[turned ? 4 : 1], x[1], x[2], heads, at);
    return ops::linear_attention_result(x[turned ? 3 : 0], x[0], states, heads, at, 1e-3);
  };
  op.reference = [=](const Tensors& x, const Tensors&, const Tensors&) {
    Tensors samples;
    for (const auto& [begin, end] : {std::pair(at[0], at[1]), {at[2], at[3]}}) {
      const auto of = [&, begin = begin, end = end](const Tensor& t) {
        return t.slice(0, begin, end).reshape({end - begin, heads, d}).transpose(0, 1);
      };
      const Tensor q = at::relu(of(x[0])), k = at::relu(of(x[1]));
      const Tensor up = at::matmul(turned ? of(x[3]) : q, (turned ? of(x[4]) : k).transpose(1, 2));  // [heads, n, n]
      const Tensor down = at::matmul(q, k.transpose(1, 2)).sum(-1, true) + 1e-3;
      samples.push_back((at::matmul(up, of(x[2])) / down).transpose(0, 1).reshape({end - begin, heads * d}));
    }
    return at::cat(samples);
  };
  return op;
}

/// Of rows.h and activations.h.
std::vector<Operator> row_operators() {
  const Tensor order = at::randperm(67, at::detail::createCPUGenerator(9), at::kLong);
  return {half_split_rope(67, 3, 5),
          depthwise_of(9, 71),
          depthwise_of_picture(7, 11, 37, false),
          depthwise_of_picture(7, 11, 40, true),
          gated_depthwise_of_picture(7, 11, 40),
          unfold_of(9, 71),
          attention_without_softmax(3, 5, false),
          attention_without_softmax(3, 5, true),
          attention_without_softmax(2, 32, false),
          attention_without_softmax(2, 32, true),
          {"silu_glu",
           {normal({67, 71}), normal({67, 71})},
           {},
           {},
           [](const Tensors& x, Sites&, const Tensors&) { return ops::silu_glu(x[0], x[1]); },
           [](const Tensors& x, const Tensors&, const Tensors&) { return x[0] * at::silu(x[1]); }},
          {"relu",
           {normal({67, 71})},
           {},
           {},
           [](const Tensors& x, Sites&, const Tensors&) { return ops::relu(x[0]); },
           [](const Tensors& x, const Tensors&, const Tensors&) { return at::relu(x[0]); }},
          {"take_rows",
           {normal({67, 71})},
           {},
           {order},
           [](const Tensors& x, Sites&, const Tensors& c) { return ops::take_rows(x[0], c[0]); },
           [](const Tensors& x, const Tensors&, const Tensors& c) { return x[0].index_select(0, c[0]); }},
          {"put_rows",
           {normal({67, 71})},
           {},
           {order},
           [](const Tensors& x, Sites&, const Tensors& c) { return ops::put_rows(x[0], c[0]); },
           [](const Tensors& x, const Tensors&, const Tensors& c) { return x[0].index_select(0, at::argsort(c[0])); }}};
}

/// A column of a modulation table [R, 6, D]: a strided view, as models use it.
Tensor column(const Tensor& table, int64_t i) { return table.select(1, i); }

}  // namespace

std::vector<Operator> all_operators() {
  std::vector<Operator> all = {
      linear_of("linear", 67, 70, 131, true, false),
      linear_of("linear_without_bias", 300, 600, 65, false, false),
      linear_of("linear_of_few_rows", 3, 70, 131, true, false),
      linears_of_one_input(67, 70, 31),
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
                 {rows_of(kRowLengths)},
                 [](const Tensors& x, Sites&, const Tensors& c) {
                   return ops::modulated_norm(x[0], column(x[1], 0), column(x[2], 1), row_index(c[0]), 1e-6);
                 },
                 [](const Tensors& x, const Tensors&, const Tensors& c) {
                   return ops::reference::modulated_norm(x[0], column(x[1], 0), column(x[2], 1), c[0], 1e-6);
                 }});
  all.push_back({"gated_residual",
                 {normal({90, 71}), normal({90, 71}), normal({3, 6, 71})},
                 {},
                 {rows_of(kRowLengths)},
                 [](const Tensors& x, Sites&, const Tensors& c) {
                   return ops::gated_residual(x[0], x[1], column(x[2], 2), row_index(c[0]));
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
  all.push_back({"param_plus",
                 {normal({3, 6, 71})},
                 {normal({1, 6, 71})},
                 {},
                 [](const Tensors& x, Sites& w, const Tensors&) { return ops::param_plus(w[0], x[0], w.anchor); },
                 [](const Tensors& x, const Tensors& w, const Tensors&) { return x[0] + w[0]; }});
  all.push_back({"embedding",
                 {},
                 {normal({11, 70})},
                 {at::arange(40, at::kLong) * 7 % 11},
                 [](const Tensors&, Sites& w, const Tensors& c) { return ops::embedding(c[0], w[0], w.anchor); },
                 [](const Tensors&, const Tensors& w, const Tensors& c) { return at::embedding(w[0], c[0]); }});
  for (Operator& op : row_operators()) all.push_back(std::move(op));
  return all;
}

}  // namespace tessera::testing
