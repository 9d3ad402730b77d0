// The rows of fused_kernels() that are no operators of LibTorch: fused.h on a CPU, a kernel of the device (device/backend.h)
// on a GPU, and on meta tensors what both allocate. What a kernel does not serve is left to LibTorch: rows beyond what fits
// registers, and more runs of tokens than its argument holds.
#include "tessera/ops/fused.h"

#include <algorithm>

#include "tessera/device/backend.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/session.h"

namespace tessera::ops {

namespace fused {

namespace {

bool has_form(const Tensor& t) { return t.scalar_type() == at::kFloat || is_half(t); }
Form form_of(at::ScalarType type) {
  return type == at::kFloat ? Form::fp32 : type == at::kBFloat16 ? Form::bf16 : Form::fp16;
}

/// Null for a tensor that is undefined or has no memory.
void* data_of(const Tensor& t) { return t.defined() && !t.is_meta() ? address(t) : nullptr; }
float* floats_of(const Tensor& t) { return static_cast<float*>(data_of(t)); }
RowsIn in(const Tensor& t) { return {data_of(t), t.defined() ? form_of(t.scalar_type()) : Form::fp32}; }
RowsOut out(const Tensor& t) { return {data_of(t), t.defined() ? form_of(t.scalar_type()) : Form::fp32}; }
RowTable table_of(const Tensor& t) {
  return {data_of(t), t.dim() == 2 ? t.stride(0) : 0, t.defined() ? form_of(t.scalar_type()) : Form::fp32};
}
Angles angles_of(const Tensor& cos, const Tensor& sin) {
  return cos.defined() ? Angles{floats_of(cos), floats_of(sin), cos.size(1)} : Angles{};
}

bool fits(const RowIndex* rows, int64_t tokens) {
  constexpr int64_t kMostTokens = int64_t{1} << 30;
  return tokens < kMostTokens && (!rows || rows->runs.size() <= static_cast<size_t>(kMostTableRuns));
}
TableRuns runs_of(const RowIndex* rows, int64_t tokens) {
  TableRuns runs;
  if (!rows && tokens > 0) runs.add(0, 0, tokens);
  if (rows)
    for (const RowRun& run : rows->runs) runs.add(run.row, run.begin, run.end);
  return runs;
}

/// Room for the sums of groups, which lives as long as the call: what a stream is given next may have its memory.
Tensor partials(const Tensor& like, int64_t groups, int64_t width) {
  return at::empty({groups, width}, like.options().dtype(at::kFloat));
}
/// `add`: to what the table has.
TableSums sums_of(const Tensor& table, const Tensor& partials, bool add = true) {
  const bool rows = table.dim() == 2;
  return {floats_of(table), rows ? table.stride(0) : 0, floats_of(partials), add ? 0 : rows ? table.size(0) : 1};
}
/// Whether sums for gradients of weights are collected, to be added together.
bool collects() { return session().sums.has_value(); }
/// The same of a weight that no rows share: left, or added by the kernel's own launch.
TableSums sums_of_weight(const Tensor& weight, const Tensor& partials, bool add) {
  return collects() ? TableSums{nullptr, 0, floats_of(partials)} : sums_of(weight, partials, add);
}
void leave(const Tensor& to, const Tensor& groups, bool add) {
  if (!collects() || !to.defined()) return;
  std::vector<LeftSums>& all = *session().sums;
  all.push_back({to, groups, add});
  if (all.size() == kMostGroupSums) session().add_sums();
}
/// Room for the sums of columns, where they are wanted.
float* columns_of(Tensor* columns, const Tensor& like, int64_t groups, int64_t width) {
  if (!columns || groups == 0) return nullptr;
  *columns = partials(like, groups, width);
  return floats_of(*columns);
}

Tensor layer_norm(const Tensor& x, const NormTables& tables, double eps, at::ScalarType type, Tensor& stats) {
  const int64_t tokens = x.size(0), width = x.size(1);
  if (width > kMostRowWidth || !fits(tables.rows, tokens) || !has_form(x))
    return aten::layer_norm(x, tables, eps, type, stats);
  const Tensor y = at::empty(x.sizes(), x.options().dtype(type));
  const bool known = stats.defined();
  if (!known) stats = at::empty({tokens, 2}, x.options().dtype(at::kFloat));
  run_at(x, ops::layer_norm, &device::Backend::layer_norm,
         LayerNormRows{tokens, width, in(x), out(y), floats_of(stats), known, table_of(tables.scale),
                       table_of(tables.shift), runs_of(tables.rows, tokens), tables.one, static_cast<float>(eps)});
  return y;
}

Tensor layer_norm_backward(const Tensor& dy, const Tensor& x, const NormTables& tables, const Tensor& stats,
                           const NormSums& sums, bool wanted, const Tensor& beside) {
  const int64_t tokens = x.size(0), width = x.size(1);
  const bool of_tables = sums.scale.defined() || sums.shift.defined();
  if (!wanted && !of_tables) return {};
  if (width > kMostRowWidth || !fits(tables.rows, tokens) || !has_form(x))
    return aten::layer_norm_backward(dy, x, tables, stats, sums, wanted, beside);
  const TableRuns runs = runs_of(tables.rows, tokens);
  const Tensor dx = wanted ? at::empty_like(x) : Tensor();
  LayerNormGradients rows{
      tokens,     width,   in(dy), in(x), floats_of(stats), table_of(tables.scale), tables.one, runs,
      in(beside), out(dx), {},     {}};
  const bool of_weights = of_tables && !tables.rows && collects();
  Tensor scale, shift, of_scale, of_shift;
  if (of_weights) {
    of_scale = partials(x, runs.groups, width), of_shift = partials(x, runs.groups, width);
    rows.scale_sums = sums_of_weight({}, of_scale, false), rows.shift_sums = sums_of_weight({}, of_shift, false);
  } else if (of_tables) {
    const Tensor& either = sums.scale.defined() ? sums.scale : sums.shift;  // the kernel makes both
    scale = sums.scale.defined() ? sums.scale : at::empty_like(either);
    shift = sums.shift.defined() ? sums.shift : at::empty_like(either);
    of_scale = partials(x, runs.groups, width), of_shift = partials(x, runs.groups, width);
    rows.scale_sums = sums_of(scale, of_scale, sums.add_scale);
    rows.shift_sums = sums_of(shift, of_shift, sums.add_shift);
  }
  run_at(x, ops::layer_norm_gradients, &device::Backend::layer_norm_gradients, rows);
  if (of_weights) leave(sums.scale, of_scale, sums.add_scale), leave(sums.shift, of_shift, sums.add_shift);
  return dx;
}

Tensor rms_norm(const Tensor& x, const Tensor& w, const RotaryTables& rotary, double eps, int64_t width,
                const Tensor& squares, Tensor& stats) {
  if (x.size(1) > kMostRowWidth || !has_form(x)) return aten::rms_norm(x, w, rotary, eps, width, squares, stats);
  const Tensor y = at::empty_like(x);
  const bool known = stats.defined();
  if (!known) stats = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  run_at(x, ops::rms_norm, &device::Backend::rms_norm,
         RmsNormRows{x.size(0), x.size(1), in(x), out(y), floats_of(stats), known, in(w),
                     angles_of(rotary.cos, rotary.sin), floats_of(squares), static_cast<float>(width),
                     static_cast<float>(eps)});
  return y;
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                       const Tensor& stats, int64_t width, const Tensor& dots, const Tensor& dx, const Tensor& dw,
                       bool add, Tensor* columns) {
  if (x.size(1) > kMostRowWidth || !fits(nullptr, x.size(0)) || !has_form(x))
    return aten::rms_norm_backward(dy, x, w, rotary, stats, width, dots, dx, dw, add, nullptr);
  RmsNormGradients rows{x.size(0),
                        x.size(1),
                        in(dy),
                        in(x),
                        floats_of(stats),
                        in(w),
                        angles_of(rotary.cos, rotary.sin),
                        floats_of(dots),
                        static_cast<float>(width),
                        out(dx),
                        {}};
  const int64_t of_rows = runs_of(nullptr, x.size(0)).groups;
  Tensor groups;
  if (dw.defined()) {
    groups = partials(x, of_rows, x.size(1));
    rows.sums = sums_of_weight(dw, groups, add);
  }
  if (dx.defined()) rows.columns = columns_of(columns, x, of_rows, x.size(1));
  run_at(x, ops::rms_norm_gradients, &device::Backend::rms_norm_gradients, rows);
  if (dw.defined()) leave(dw, groups, add);
}

Tensor sum(const Tensor& x, const Tensor& y) {
  if (!has_form(x) || !has_form(y)) return aten::sum(x, y);
  const Tensor total = at::empty_like(x);
  run_at(x, ops::gated_sum, &device::Backend::gated_sum,
         GatedRows{x.size(0), x.size(1), in(x), in(y), {}, {}, out(total)});
  return total;
}

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows, Tensor* rounded) {
  if (!fits(&rows, x.size(0)) || !has_form(y)) return aten::gated_residual(x, y, gate, rows, nullptr);
  const Tensor total = at::empty_like(x);
  if (rounded) *rounded = at::empty(x.sizes(), x.options().dtype(at::kBFloat16));
  run_at(x, ops::gated_sum, &device::Backend::gated_sum,
         GatedRows{x.size(0), x.size(1), in(x), in(y), table_of(gate), runs_of(&rows, x.size(0)), out(total),
                   rounded ? out(*rounded) : RowsOut{}});
  return total;
}

void gated_residual_backward(const Tensor& up, const Tensor& y, const Tensor& gate, const RowIndex& rows,
                             const Tensor& dy, const Tensor& dgate, bool add, Tensor* columns) {
  if (!fits(&rows, up.size(0)) || !has_form(y))
    return aten::gated_residual_backward(up, y, gate, rows, dy, dgate, add, nullptr);
  const TableRuns runs = runs_of(&rows, up.size(0));
  GatedGradients n{up.size(0), up.size(1), in(up), in(y), table_of(gate), runs, out(dy), {}};
  Tensor groups;
  if (dgate.defined()) {
    groups = partials(up, runs.groups, up.size(1));
    n.sums = sums_of(dgate, groups, add);
  }
  if (dy.defined()) n.columns = columns_of(columns, up, runs.groups, up.size(1));
  run_at(up, ops::gated_gradients, &device::Backend::gated_gradients, n);
}

Tensor sum_backward(const Tensor& up, at::ScalarType type, Tensor* columns) {
  if (!has_form(up) || !fits(nullptr, up.size(0))) return aten::sum_backward(up, type, nullptr);
  const Tensor dy = at::empty(up.sizes(), up.options().dtype(type));
  const TableRuns runs = runs_of(nullptr, up.size(0));
  run_at(
      up, ops::gated_gradients, &device::Backend::gated_gradients,
      GatedGradients{
          up.size(0), up.size(1), in(up), {}, {}, runs, out(dy), {}, columns_of(columns, up, runs.groups, up.size(1))});
  return dy;
}

Tensor gelu_tanh(const Tensor& x) {
  if (!has_form(x) || !x.is_contiguous()) return aten::gelu_tanh(x);
  const Tensor y = at::empty_like(x);
  run_at(x, ops::gelu, &device::Backend::gelu, GeluRows{x.numel(), in(x), out(y)});
  return y;
}

bool fits_glu(const Tensor& x, const Tensor& gate) {
  return has_form(x) && x.is_contiguous() && gate.is_contiguous() && gate.scalar_type() == x.scalar_type();
}
Tensor silu_glu(const Tensor& x, const Tensor& gate) {
  if (!fits_glu(x, gate)) return aten::silu_glu(x, gate);
  const Tensor y = at::empty_like(x);
  run_at(x, ops::silu_glu, &device::Backend::silu_glu, GluRows{x.numel(), in(x), in(gate), out(y)});
  return y;
}
std::pair<Tensor, Tensor> silu_glu_gradients(const Tensor& dy, const Tensor& x, const Tensor& gate) {
  if (!fits_glu(x, gate)) return aten::silu_glu_gradients(dy, x, gate);
  const Tensor dx = at::empty_like(x), dgate = at::empty_like(gate);
  run_at(x, ops::silu_glu_gradients, &device::Backend::silu_glu_gradients,
         GluGradients{x.numel(), in(dy), in(x), in(gate), out(dx), out(dgate)});
  return {dx, dgate};
}

/// The gradient of x in `dx`, and gelu(x) in `y`, if it is defined.
void gelu_into(const Tensor& dx, const Tensor& y, const Tensor& dy, const Tensor& x, Tensor* columns) {
  const int64_t tokens = x.size(0), width = x.size(1);
  run_at(x, ops::gelu_gradients, &device::Backend::gelu_gradients,
         GeluGradients{tokens, width, in(dy), in(x), out(dx), out(y),
                       columns_of(columns, x, runs_of(nullptr, tokens).groups, width)});
}
bool fits_gelu(const Tensor& x) { return x.dim() == 2 && has_form(x) && x.is_contiguous() && fits(nullptr, x.size(0)); }

Tensor gelu_tanh_gradient(const Tensor& dy, const Tensor& x) {
  if (!fits_gelu(x) || dy.scalar_type() != x.scalar_type()) return aten::gelu_tanh_gradient(dy, x);
  const Tensor dx = at::empty_like(x);
  gelu_into(dx, {}, dy, x, nullptr);
  return dx;
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, bool gelu, at::ScalarType type) {
  return aten::linear(gelu ? fused::gelu_tanh(x) : x, w, bias, false, type);
}

Tensor linear_input_gradient(const Tensor& dy, const Tensor& w, const Tensor& x, bool gelu, bool in_place) {
  if (!gelu || !fits_gelu(x)) return aten::linear_input_gradient(dy, w, x, gelu, in_place);
  const Tensor dz = aten::linear_input_gradient(dy, w, x, false, false), dx = in_place ? x.detach() : dz;
  gelu_into(dx, {}, dz, x, nullptr);
  return dx;
}

void linear_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x, bool gelu, bool add) {
  aten::linear_weight_gradient(dw, dy, gelu ? fused::gelu_tanh(x) : x, false, add);
}

/// gelu(x) takes the place of its gradient once that is multiplied: x is read once for both.
Tensor gelu_linear_gradients(const Tensor& dy, const Tensor& w, const Tensor& x, bool in_place, const Tensor& dw,
                             bool add, Tensor* columns) {
  if (!fits_gelu(x)) return aten::gelu_linear_gradients(dy, w, x, in_place, dw, add, nullptr);
  const Tensor dz = aten::linear_input_gradient(dy, w, x, false, false), dx = in_place ? x.detach() : at::empty_like(x);
  gelu_into(dx, dz, dz, x, columns);
  aten::linear_weight_gradient(dw, dy, dz, false, add);
  return dx;
}

/// A thread adds all rows of its columns, one after the other: sums of groups, and a text's few rows.
void bias_gradient(const Tensor& db, const Tensor& dy, bool add) {
  const int64_t most = is_half(dy) ? 640 : 4096;
  if (!has_form(dy) || !dy.is_contiguous() || dy.size(0) > most) return aten::bias_gradient(db, dy, add);
  if (collects()) return leave(db, dy, add);
  std::vector<LeftSums> one = {{db, dy, add}};
  add_left_sums(one);
}

Fp8Lines fp8_lines(const Tensor& x, at::ScalarType format, bool turned, bool gelu) {
  if (!has_form(x) || !x.is_contiguous()) return aten::fp8_lines(x, format, turned, gelu);
  const Tensor z = gelu ? fused::gelu_tanh(x) : x;
  const int64_t lines = x.size(turned ? 1 : 0), stride = round_up(x.size(turned ? 0 : 1), kFp8Pad);
  const Fp8Lines made = {at::empty({lines, stride}, x.options().dtype(format)),
                         at::empty({lines}, x.options().dtype(at::kFloat))};
  run_at(
      x, ops::quantise_lines, &device::Backend::quantise_lines,
      QuantisedLines{x.size(0), x.size(1), in(z), turned, format == at::kFloat8_e5m2,
                     static_cast<uint8_t*>(data_of(made.codes)), floats_of(made.scales), stride, fp8_counts(format)});
  return made;
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split, float sign) {
  if (!has_form(x) || !x.is_contiguous()) return aten::rope(x, cos, sin, heads, half_split, sign);
  const Tensor y = at::empty_like(x);
  run_at(x, ops::rotate_rows, &device::Backend::rotate_rows,
         RotatedRows{x.size(0), x.size(1), in(x), out(y), angles_of(cos, sin), half_split, sign});
  return y;
}

TapTable taps_of(const Tensor& table, int64_t sources) {
  return {static_cast<const int32_t*>(data_of(table)), static_cast<int32_t>(table.size(0)), table.size(1), sources};
}
/// Whether there is a kernel of so many taps, over so many rows.
bool fits(const Tensor& x, const Tensor& table) {
  return has_form(x) && x.is_contiguous() && table.is_contiguous() && has_taps(table.size(0)) &&
         fits(nullptr, table.size(1));
}

Tensor convolved(const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias, at::ScalarType type,
                 bool silu, const Tensor& through, Tensor* columns) {
  const Tensor y = at::empty({table.size(1), x.size(1)}, x.options().dtype(type));
  float* sums = columns_of(columns, y, runs_of(nullptr, y.size(0)).groups, y.size(1));
  run_at(x, ops::depthwise, &device::Backend::depthwise,
         DepthwiseRows{x.size(1), taps_of(table, x.size(0)), in(x), in(w), in(bias), out(y), silu, in(through), sums});
  return y;
}

Tensor depthwise(const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias, at::ScalarType type,
                 bool silu) {
  if (!fits(x, table) || !has_form(w)) return aten::depthwise(x, table, w, bias, type, silu);
  return convolved(x, table, w, bias, type, silu, {}, nullptr);
}

Tensor depthwise_input_gradient(const Tensor& dy, const Tensor& table, const Tensor& w, int64_t source_rows,
                                at::ScalarType type, const Tensor& through, Tensor* columns) {
  if (!fits(dy, table) || !has_form(w))
    return aten::depthwise_input_gradient(dy, table, w, source_rows, type, through, nullptr);
  const Tensor inverse = at::empty({table.size(0), source_rows}, table.options());
  run_at(dy, ops::invert_taps, &device::Backend::invert_taps,
         InvertedTaps{taps_of(table, source_rows), static_cast<int32_t*>(data_of(inverse))});
  return convolved(dy, inverse, w, {}, type, /*silu=*/false, through, columns);
}

/// `rows` of a convolution whose result gates `value`.
DepthwiseRows gating(const Tensor& value, const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias,
                     bool silu, const Tensor& y) {
  return {.width = x.size(1),
          .table = taps_of(table, x.size(0)),
          .x = in(x),
          .w = in(w),
          .bias = in(bias),
          .y = out(y),
          .silu = silu,
          .value = in(value)};
}
bool fits(const Tensor& value, const Tensor& x, const Tensor& table, const Tensor& w) {
  return fits(x, table) && has_form(w) && has_form(value) && value.is_contiguous();
}

Tensor gated_depthwise(const Tensor& value, const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias,
                       bool silu) {
  if (!fits(value, x, table, w))
    return aten::silu_glu(value, aten::depthwise(x, table, w, bias, value.scalar_type(), silu));
  const Tensor y = at::empty_like(value);
  run_at(x, ops::depthwise, &device::Backend::depthwise, gating(value, x, table, w, bias, silu, y));
  return y;
}

std::pair<Tensor, Tensor> gated_depthwise_gradients(const Tensor& dy, const Tensor& value, const Tensor& x,
                                                    const Tensor& table, const Tensor& w, const Tensor& bias,
                                                    bool silu) {
  if (!fits(value, x, table, w) || !has_form(dy))
    return aten::silu_glu_gradients(dy, value, aten::depthwise(x, table, w, bias, value.scalar_type(), silu));
  const Tensor d_value = at::empty_like(value), d_gate = at::empty_like(value);
  DepthwiseRows rows = gating(value, x, table, w, bias, silu, d_gate);
  rows.up = in(dy), rows.d_value = out(d_value);
  run_at(x, ops::depthwise, &device::Backend::depthwise, rows);
  return {d_value, d_gate};
}

void depthwise_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& table, const Tensor& dw,
                               const Tensor& db, bool silu) {
  if (!fits(x, table) || !has_form(dy)) return aten::depthwise_weight_gradient(dy, x, table, dw, db, silu);
  DepthwiseGradients n{x.size(1), taps_of(table, x.size(0)), in(dy), in(x), floats_of(dw), floats_of(db), nullptr,
                       silu};
  const Tensor groups = partials(x, n.groups(), (table.size(0) + 1) * x.size(1));
  n.partials = floats_of(groups);
  run_at(x, ops::depthwise_gradients, &device::Backend::depthwise_gradients, n);
}

constexpr int64_t kStateRows = kStateHead + 1;

/// Whether operands [tokens, heads * channels] have heads of the kernels' width, in samples that their argument holds.
bool fits(std::initializer_list<const Tensor*> operands, int64_t heads, const Offsets& at) {
  return at.size() <= static_cast<size_t>(kMostTableRuns) &&
         std::all_of(operands.begin(), operands.end(), [&](const Tensor* x) {
           return has_form(*x) && x->is_contiguous() && x->size(1) == heads * kStateHead && fits(nullptr, x->size(0));
         });
}
TableRuns runs_of(const Offsets& at) {
  TableRuns runs;
  for (size_t s = 0; s + 1 < at.size(); ++s)
    if (at[s] < at[s + 1]) runs.add(static_cast<int64_t>(s), at[s], at[s + 1]);
  return runs;
}
/// A state for each sample, its rows those of all heads.
RowTable states_at(const Tensor& states) { return {floats_of(states), states.stride(0)}; }
void add_to_states(const Tensor& states, StateSums rows, const Tensor& like) {
  const Tensor groups = partials(like, rows.runs.groups, states.stride(0));
  rows.sums = {floats_of(states), states.stride(0), floats_of(groups)};
  run_at(like, ops::add_states, &device::Backend::add_states, rows);
}

Tensor linear_attention_states(const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads,
                               const Offsets& at) {
  if (!fits({&rotated, &k, &v}, heads, at)) return aten::linear_attention_states(rotated, k, v, heads, at);
  const Tensor states =
      at::zeros({static_cast<int64_t>(at.size()) - 1, heads, kStateRows, kStateHead}, k.options().dtype(at::kFloat));
  const Tensor sums = rotated.is_same(k) ? Tensor() : k;
  add_to_states(states, {k.size(0), heads, in(rotated), in(v), in(sums), nullptr, nullptr, runs_of(at), {}}, k);
  return states;
}

Kernels::StatesGradients linear_attention_states_backward(const Tensor& up, const Tensor& rotated, const Tensor& k,
                                                          const Tensor& v, bool same, int64_t heads,
                                                          const Offsets& at) {
  if (!fits({&rotated, &k, &v}, heads, at))
    return aten::linear_attention_states_backward(up, rotated, k, v, same, heads, at);
  const Tensor d_rotated = at::empty_like(rotated), d_v = at::empty_like(v),
               d_k = same ? d_rotated : at::empty_like(rotated);
  run_at(v, ops::state_gradients, &device::Backend::state_gradients,
         StateGradients{v.size(0), heads, in(rotated), in(v), in(same ? Tensor() : k), states_at(up), runs_of(at),
                        out(d_rotated), out(d_v), out(same ? Tensor() : d_k)});
  return {d_rotated, d_k, d_v};
}

Tensor linear_attention_result(const Tensor& rotated, const Tensor& q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps, Tensor& down) {
  if (!fits({&rotated, &q}, heads, at)) return aten::linear_attention_result(rotated, q, states, heads, at, eps, down);
  const Tensor y = at::empty_like(q);
  down = at::empty({q.size(0), heads}, states.options());
  run_at(q, ops::state_results, &device::Backend::state_results,
         StateResults{q.size(0), heads, in(rotated.is_same(q) ? Tensor() : rotated), in(q), states_at(states),
                      runs_of(at), static_cast<float>(eps), out(y), floats_of(down)});
  return y;
}

Kernels::ResultGradients linear_attention_result_backward(const Tensor& dy, const Kernels::SavedResult& saved,
                                                          bool same, int64_t heads, const Offsets& at) {
  if (!fits({&dy, &saved.rotated, &saved.q, &saved.out}, heads, at))
    return aten::linear_attention_result_backward(dy, saved, same, heads, at);
  const Tensor &q = saved.q, d_q = at::empty_like(q), d_rotated = same ? d_q : at::empty_like(q),
               slope = at::empty_like(saved.down), d_states = at::zeros(saved.states.sizes(), saved.states.options());
  run_at(q, ops::state_result_gradients, &device::Backend::state_result_gradients,
         StateResultGradients{q.size(0), heads, in(dy), in(saved.out), in(q), floats_of(saved.down),
                              states_at(saved.states), runs_of(at), out(same ? Tensor() : d_rotated), out(d_q),
                              floats_of(slope)});
  add_to_states(d_states,
                {q.size(0),
                 heads,
                 in(saved.rotated),
                 in(dy),
                 in(same ? Tensor() : q),
                 floats_of(saved.down),
                 floats_of(slope),
                 runs_of(at),
                 {}},
                q);
  return {d_rotated, d_q, d_states};
}

}  // namespace

}  // namespace fused

void add_left_sums(std::vector<LeftSums>& sums) {
  const std::vector<LeftSums> all = std::exchange(sums, {});
  for (size_t first = 0; first < all.size(); first += kMostGroupSums) {
    ManyGroupSums many;
    for (size_t i = first; i < std::min(all.size(), first + kMostGroupSums); ++i)
      many.at[many.count++] = {fused::in(all[i].groups), all[i].groups.size(0), all[i].groups.size(1),
                               fused::floats_of(all[i].to), !all[i].add};
    run_at(all[first].to, ops::add_sums, &device::Backend::add_sums, many);
  }
}

const Kernels& fused_kernels() {
  static const Kernels table = [] {
    Kernels all = aten_kernels();
    all.name = "fused";
    all.linear = fused::linear;
    all.linear_input_gradient = fused::linear_input_gradient;
    all.linear_weight_gradient = fused::linear_weight_gradient;
    all.gelu_linear_gradients = fused::gelu_linear_gradients;
    all.bias_gradient = fused::bias_gradient;
    all.fp8_lines = fused::fp8_lines;
    all.gelu_tanh = fused::gelu_tanh;
    all.gelu_tanh_gradient = fused::gelu_tanh_gradient;
    all.silu_glu = fused::silu_glu;
    all.silu_glu_gradients = fused::silu_glu_gradients;
    all.layer_norm = fused::layer_norm;
    all.layer_norm_backward = fused::layer_norm_backward;
    all.rms_norm = fused::rms_norm;
    all.rms_norm_backward = fused::rms_norm_backward;
    all.sum = fused::sum;
    all.sum_backward = fused::sum_backward;
    all.gated_residual = fused::gated_residual;
    all.gated_residual_backward = fused::gated_residual_backward;
    all.rope = fused::rope;
    all.depthwise = fused::depthwise;
    all.gated_depthwise = fused::gated_depthwise;
    all.gated_depthwise_gradients = fused::gated_depthwise_gradients;
    all.depthwise_input_gradient = fused::depthwise_input_gradient;
    all.depthwise_weight_gradient = fused::depthwise_weight_gradient;
    all.linear_attention_states = fused::linear_attention_states;
    all.linear_attention_states_backward = fused::linear_attention_states_backward;
    all.linear_attention_result = fused::linear_attention_result;
    all.linear_attention_result_backward = fused::linear_attention_result_backward;
    return all;
  }();
  return table;
}

}  // namespace tessera::ops
