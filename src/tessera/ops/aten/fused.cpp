// The rows of fused_kernels() that are no operators of LibTorch: fused.h on a CPU, a kernel of the device (device/backend.h)
// on a GPU, and on meta tensors what both allocate. What a kernel does not serve is left to LibTorch: rows beyond what fits
// registers, and more runs of tokens than its argument holds.
#include "tessera/ops/fused.h"

#include "tessera/device/backend.h"
#include "tessera/ops/aten/aten.h"
#include "tessera/ops/half.h"
#include "tessera/ops/ranges.h"

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
RowTable table_of(const Tensor& t) { return {floats_of(t), t.dim() == 2 ? t.stride(0) : 0}; }
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

/// On the CPU, or by the device's function.
template <class Rows>
void run(const Tensor& x, void (*here)(const Rows&), void (*device::Backend::*there)(const Rows&), const Rows& rows) {
  if (x.is_meta()) return;
  x.is_cpu() ? here(rows) : (device::used()->*there)(rows);
}

/// Room for the sums of groups, which lives as long as the call: what a stream is given next may have its memory.
Tensor partials(const Tensor& like, int64_t groups, int64_t width) {
  return at::empty({groups, width}, like.options().dtype(at::kFloat));
}
TableSums sums_of(const Tensor& table, const Tensor& partials) {
  return {floats_of(table), table.dim() == 2 ? table.stride(0) : 0, floats_of(partials)};
}

Tensor layer_norm(const Tensor& x, const NormTables& tables, double eps, at::ScalarType type, Tensor& stats) {
  const int64_t tokens = x.size(0), width = x.size(1);
  if (width > kMostRowWidth || !fits(tables.rows, tokens) || !has_form(x))
    return aten::layer_norm(x, tables, eps, type, stats);
  const Tensor y = at::empty(x.sizes(), x.options().dtype(type));
  const bool known = stats.defined();
  if (!known) stats = at::empty({tokens, 2}, x.options().dtype(at::kFloat));
  run(x, ops::layer_norm, &device::Backend::layer_norm,
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
  Tensor scale, shift, of_scale, of_shift;
  if (of_tables) {
    const Tensor& either = sums.scale.defined() ? sums.scale : sums.shift;  // the kernel makes both
    scale = sums.scale.defined() ? sums.scale : at::empty_like(either);
    shift = sums.shift.defined() ? sums.shift : at::empty_like(either);
    of_scale = partials(x, runs.groups, width), of_shift = partials(x, runs.groups, width);
    rows.scale_sums = sums_of(scale, of_scale), rows.shift_sums = sums_of(shift, of_shift);
  }
  run(x, ops::layer_norm_gradients, &device::Backend::layer_norm_gradients, rows);
  return dx;
}

Tensor rms_norm(const Tensor& x, const Tensor& w, const RotaryTables& rotary, double eps, int64_t width,
                const Tensor& squares, Tensor& stats) {
  if (x.size(1) > kMostRowWidth || !has_form(x)) return aten::rms_norm(x, w, rotary, eps, width, squares, stats);
  const Tensor y = at::empty_like(x);
  const bool known = stats.defined();
  if (!known) stats = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  run(x, ops::rms_norm, &device::Backend::rms_norm,
      RmsNormRows{x.size(0), x.size(1), in(x), out(y), floats_of(stats), known, floats_of(w),
                  angles_of(rotary.cos, rotary.sin), floats_of(squares), static_cast<float>(width),
                  static_cast<float>(eps)});
  return y;
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                       const Tensor& stats, int64_t width, const Tensor& dots, const Tensor& dx, const Tensor& dw) {
  if (x.size(1) > kMostRowWidth || !fits(nullptr, x.size(0)) || !has_form(x))
    return aten::rms_norm_backward(dy, x, w, rotary, stats, width, dots, dx, dw);
  RmsNormGradients rows{x.size(0),
                        x.size(1),
                        in(dy),
                        in(x),
                        floats_of(stats),
                        floats_of(w),
                        angles_of(rotary.cos, rotary.sin),
                        floats_of(dots),
                        static_cast<float>(width),
                        out(dx),
                        {}};
  Tensor groups;
  if (dw.defined()) {
    groups = partials(x, runs_of(nullptr, x.size(0)).groups, x.size(1));
    rows.sums = sums_of(dw, groups);
  }
  run(x, ops::rms_norm_gradients, &device::Backend::rms_norm_gradients, rows);
}

Tensor sum(const Tensor& x, const Tensor& y) {
  if (!has_form(x) || !has_form(y)) return aten::sum(x, y);
  const Tensor total = at::empty_like(x);
  run(x, ops::gated_sum, &device::Backend::gated_sum,
      GatedRows{x.size(0), x.size(1), in(x), in(y), {}, {}, out(total)});
  return total;
}

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows) {
  if (!fits(&rows, x.size(0)) || !has_form(y)) return aten::gated_residual(x, y, gate, rows);
  const Tensor total = at::empty_like(x);
  run(x, ops::gated_sum, &device::Backend::gated_sum,
      GatedRows{x.size(0), x.size(1), in(x), in(y), table_of(gate), runs_of(&rows, x.size(0)), out(total)});
  return total;
}

void gated_residual_backward(const Tensor& up, const Tensor& y, const Tensor& gate, const RowIndex& rows,
                             const Tensor& dy, const Tensor& dgate) {
  if (!fits(&rows, up.size(0)) || !has_form(y)) return aten::gated_residual_backward(up, y, gate, rows, dy, dgate);
  const TableRuns runs = runs_of(&rows, up.size(0));
  GatedGradients n{up.size(0), up.size(1), in(up), in(y), table_of(gate), runs, out(dy), {}};
  Tensor groups;
  if (dgate.defined()) {
    groups = partials(up, runs.groups, up.size(1));
    n.sums = sums_of(dgate, groups);
  }
  run(up, ops::gated_gradients, &device::Backend::gated_gradients, n);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split, float sign) {
  if (!has_form(x) || !x.is_contiguous()) return aten::rope(x, cos, sin, heads, half_split, sign);
  const Tensor y = at::empty_like(x);
  run(x, ops::rotate_rows, &device::Backend::rotate_rows,
      RotatedRows{x.size(0), x.size(1), in(x), out(y), angles_of(cos, sin), half_split, sign});
  return y;
}

}  // namespace

}  // namespace fused

const Kernels& fused_kernels() {
  static const Kernels table = [] {
    Kernels all = aten_kernels();
    all.name = "fused";
    all.layer_norm = fused::layer_norm;
    all.layer_norm_backward = fused::layer_norm_backward;
    all.rms_norm = fused::rms_norm;
    all.rms_norm_backward = fused::rms_norm_backward;
    all.sum = fused::sum;
    all.gated_residual = fused::gated_residual;
    all.gated_residual_backward = fused::gated_residual_backward;
    all.rope = fused::rope;
    return all;
  }();
  return table;
}

}  // namespace tessera::ops
