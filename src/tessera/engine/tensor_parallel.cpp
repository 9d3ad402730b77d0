#include "tessera/engine/tensor_parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tangent.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/weight.h"

namespace tessera::engine {

namespace {

using ops::AutogradContext;
using ops::Function;
using ops::Handle;
using ops::variable_list;

const Parallel& parallel_of(AutogradContext* ctx) {
  return *reinterpret_cast<const Parallel*>(ctx->saved_data["parallel"].toInt());
}

/// In a form that autograd can save, and back.
std::vector<int64_t> flat(const TpGroupRows& rows) {
  std::vector<int64_t> all = {rows.part[0], rows.part[1]};
  all.insert(all.end(), rows.counts.begin(), rows.counts.end());
  return all;
}
TpGroupRows rows_of(AutogradContext* ctx) {
  const std::vector<int64_t> all = ctx->saved_data["rows"].toIntVector();
  return {{all.begin() + 2, all.end()}, {all[0], all[1]}};
}

/// The rows of each rank of tp within those of the tp group.
std::vector<Tensor> shares_of(const Tensor& group, const TpGroupRows& rows) {
  std::vector<Tensor> shares;
  int64_t at = 0;
  for (const int64_t count : rows.counts) shares.push_back(group.narrow(0, std::exchange(at, at + count), count));
  return shares;
}

int64_t row_bytes(const Tensor& rows) { return rows.size(1) * static_cast<int64_t>(rows.element_size()); }

Tensor gather(const Tensor& x, const TpGroupRows& rows, const Parallel& parallel) {
  const Tensor mine = x.contiguous();
  const Tensor group = at::empty({rows.total(), x.size(1)}, x.options());
  parallel.exchange_tokens(std::vector<Tensor>(parallel.tp(), mine), shares_of(group, rows), "all_gather",
                           plan::Rows::share, row_bytes(x) * (parallel.tp() - 1), rows.part);
  return group;
}

/// The sum over tp in rank order, and the bias (null: none). 16-bit summands are sent in 16 bits and summed in fp32.
Tensor sum(const Tensor& y, const TpGroupRows& rows, const Parallel& parallel, const ops::WeightSite* bias = nullptr) {
  const std::vector<Tensor> out = shares_of(y.contiguous(), rows);
  const int self = parallel.tp_rank();
  const Tensor parts = at::empty({parallel.tp(), out[self].size(0), y.size(1)}, y.options());
  parallel.exchange_tokens(out, parts.unbind(0), "reduce_scatter", plan::Rows::rest, row_bytes(y), rows.part);
  if (ops::is_half(y)) return ops::kernels(parts).sum_of_halves(parts, bias ? bias->value : Tensor());
  Tensor total = parts.sum(0);
  if (bias) total.add_(bias->value);
  return total;
}

struct GatherOverTp : Function<GatherOverTp> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const TpGroupRows& rows, const Parallel* parallel) {
    ctx->saved_data["rows"] = flat(rows);
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    return gather(x, rows, *parallel);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {sum(grads[0], rows_of(ctx), parallel_of(ctx)), {}, {}};
  }
};

struct SumToShares : Function<SumToShares> {
  static Tensor forward(AutogradContext* ctx, const Tensor& y, const Tensor& anchor, const TpGroupRows& rows,
                        const Parallel* parallel, Handle bias, const Tensor* known) {
    ctx->saved_data["rows"] = flat(rows);
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    ctx->saved_data["bias"] = bias;
    if (known) return known->detach();
    return sum(y, rows, *parallel, ops::site_of(bias));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor dy = grads[0].contiguous();
    ops::WeightSite* bias = ops::site_of(ctx, "bias");
    if (bias) ops::open_gradient(*bias);
    if (bias && bias->grad.defined() && ops::is_half(dy)) {
      ops::bias_gradient(dy, *bias);
    } else if (bias && bias->grad.defined()) {
      const bool fresh = std::exchange(bias->fresh, false);
      const Tensor sums = dy.sum(0);
      if (fresh)
        bias->grad.copy_(sums);
      else
        bias->grad.add_(sums);
    }
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}, {}, {}, {}};
    return {gather(dy, rows_of(ctx), parallel_of(ctx)), {}, {}, {}, {}, {}};
  }
};

}  // namespace

int64_t TpGroupRows::total() const {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

SamplePart part_of(const net::Tokens& tokens, int space) {
  const auto& ranges = tokens.space(space).ranges;
  if (ranges.empty()) return kWholeSample;
  // behind rows of a grid, which are as many as the sample's shape has, a place depends on the shape
  const auto moves = [&](size_t s, int64_t place) {
    return std::ranges::any_of(tokens.spaces, [&](const net::Space& other) {
      return !other.ranges.empty() && !other.shapes.empty() && place >= other.ranges[s][1];
    });
  };
  SamplePart part = kWholeSample;
  for (size_t s = 0; s < ranges.size(); ++s) {
    const auto [begin, end] = ranges[s];
    const int64_t first = begin - tokens.offsets[s], last = end - tokens.offsets[s];
    SamplePart own = {moves(s, begin) ? plan::moving_first(first) : first, -1};
    if (end != tokens.offsets[s + 1]) own[1] = moves(s, end) ? plan::moving_last(last) : last;
    if (own[0] < 0 || own[1] < -1) return own;  // the first sample's: others may have another
    check_internal(s == 0 || own == part, "engine.tensor",
                   "samples of a micro-batch differ in the part that a space is");
    part = own;
  }
  return part;
}

TpGroupRows tp_group_rows(const net::Tokens& tokens, int space, const Parallel& parallel) {
  TpGroupRows rows{{}, part_of(tokens, space)};
  for (int i = 0; i < parallel.tp(); ++i)
    rows.counts.push_back(tokens.space(space).within(parallel.tp_share(tokens.total(), i)).count());
  return rows;
}

Tensor gather_over_tp(const Tensor& x, const TpGroupRows& rows, const Parallel& parallel) {
  check_internal(x.size(0) == rows.counts.at(parallel.tp_rank()), "engine.tensor",
                 "these rows are not this rank's share");
  if (ops::moves(x)) return ops::moving_linearly(x, [&](const Tensor& t) { return gather(t, rows, parallel); });
  if (ops::wants_graph({&x})) return GatherOverTp::apply(x, rows, &parallel);
  return gather(x, rows, parallel);
}

Tensor sum_to_shares(const Tensor& y, const TpGroupRows& rows, const Parallel& parallel, ops::WeightSite* bias,
                     const Tensor& anchor, const Tensor* known) {
  check_internal(y.size(0) == rows.total(), "engine.tensor", "these rows are not those of the tp group");
  if (const auto [value, tangent] = ops::parts(y); tangent.defined())
    return ops::moving(sum(value, rows, parallel, bias), sum(tangent, rows, parallel));
  if (ops::wants_graph({&y, &anchor})) return SumToShares::apply(y, anchor, rows, &parallel, ops::handle(bias), known);
  return known ? *known : sum(y, rows, parallel, bias);
}

namespace {

using ops::AutogradContext;
using ops::Function;
using ops::variable_list;

Tensor within(const Tensor& rows, int64_t first, plan::TokenRange range) {
  return rows.narrow(0, range.count() > 0 ? range.begin - first : 0, range.count());
}

/// The rows of `owner` that `reader` needs.
plan::TokenRange reached(const Reach& r, size_t owner, size_t reader) {
  return plan::overlap(r.rows[owner], plan::widened(r.rows[reader], r.farthest));
}

Tensor widen(const Tensor& x, const Reach& r, const Parallel& parallel) {
  const auto self = static_cast<size_t>(r.self);
  const Tensor mine = x.contiguous(), wide = at::empty({r.wide().count(), x.size(1)}, x.options());
  std::vector<Tensor> out, in;
  for (size_t i = 0; i < r.rows.size(); ++i) {
    out.push_back(within(mine, r.own().begin, reached(r, self, i)));
    in.push_back(within(wide, r.wide().begin, reached(r, i, self)));
  }
  parallel.exchange_reach(out, in, r.over_tp, plan::Rows::reach, r.farthest, bytes_of_row(x), r.part);
  return wide;
}

Tensor narrow(const Tensor& d_wide, const Reach& r, const Parallel& parallel) {
  const auto self = static_cast<size_t>(r.self);
  const Tensor up = d_wide.contiguous();
  const Tensor sum = at::zeros({r.own().count(), up.size(1)}, up.options());
  std::vector<Tensor> out, in;
  for (size_t i = 0; i < r.rows.size(); ++i) {
    out.push_back(within(up, r.wide().begin, reached(r, i, self)));
    in.push_back(at::empty({reached(r, self, i).count(), up.size(1)}, up.options()));
  }
  parallel.exchange_reach(out, in, r.over_tp, plan::Rows::reached, r.farthest, bytes_of_row(up), r.part);
  for (size_t i = 0; i < in.size(); ++i)
    if (in[i].size(0) > 0) within(sum, r.own().begin, reached(r, self, i)).add_(in[i]);
  return sum;
}

struct ReachRows : Function<ReachRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Reach& reach, const Parallel* parallel) {
    std::vector<int64_t> flat = {reach.self, reach.total, reach.farthest, reach.over_tp, reach.part[0], reach.part[1]};
    for (const plan::TokenRange& range : reach.rows) flat.insert(flat.end(), {range.begin, range.end});
    ctx->saved_data["reach"] = flat;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    return widen(x, reach, *parallel);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const std::vector<int64_t> flat = ctx->saved_data["reach"].toIntVector();
    Reach reach{{}, static_cast<int>(flat[0]), flat[1], flat[2], flat[3] != 0, {flat[4], flat[5]}};
    for (size_t i = 6; i < flat.size(); i += 2) reach.rows.push_back({flat[i], flat[i + 1]});
    return {narrow(grads[0], reach, *reinterpret_cast<const Parallel*>(ctx->saved_data["parallel"].toInt())), {}, {}};
  }
};

}  // namespace

plan::TokenRange Reach::wide() const {
  if (own().count() == 0) return own();
  return {std::max<int64_t>(own().begin - farthest, 0), std::min(own().end + farthest, total)};
}

Reach reach_of(const net::Tokens& tokens, int space, const std::array<int64_t, 3>& kernel, const Parallel* parallel,
               bool over_tp) {
  const net::Space& rows = tokens.space(space);
  check_internal(rows.shapes.size() + 1 == rows.offsets.size(), "engine.reach", "these rows have no grid");
  Reach reach{.rows = {}, .total = rows.total(), .over_tp = over_tp};
  for (const int64_t size : kernel) check_internal(size % 2 == 1, "engine.reach", "a kernel of even size");
  for (const auto& [frames, height, width] : rows.shapes)
    reach.farthest = std::max(reach.farthest, kernel[0] / 2 * height * width + kernel[1] / 2 * width + kernel[2] / 2);
  if (!parallel || !tokens.cut() || (space > 0 && rows.ranges.empty())) {
    reach.rows = {{0, rows.total()}};
    return reach;
  }
  const int64_t total = tokens.total();
  for (int i = 0; i < parallel->sharers(over_tp); ++i)
    reach.rows.push_back(rows.within(plan::token_share(total, i, parallel->sharers(over_tp))));
  reach.self = parallel->sharer(over_tp);
  reach.part = part_of(tokens, space);
  return reach;
}

Tensor reach_rows(const Tensor& x, const Reach& reach, const Parallel* parallel) {
  check_internal(x.size(0) == reach.own().count(), "engine.reach", "these rows are not this rank's share");
  if (reach.rows.size() == 1) return x;
  if (ops::moves(x)) return ops::moving_linearly(x, [&](const Tensor& t) { return widen(t, reach, *parallel); });
  if (ops::wants_graph({&x})) return ReachRows::apply(x, reach, parallel);
  return widen(x, reach, *parallel);
}

Tensor tap_table(const Reach& reach, const net::Tokens& tokens, int index, const std::array<int64_t, 3>& kernel,
                 const Tensor& like) {
  const net::Space& space = tokens.space(index);
  const int64_t taps = kernel[0] * kernel[1] * kernel[2], rows = reach.own().count(), first = reach.wide().begin;
  const Tensor table =
      at::empty({taps, rows}, at::TensorOptions(at::kInt).device(like.is_meta() ? at::kMeta : at::kCPU));
  if (like.is_meta()) return table;
  auto* to = ops::host_pointer<int32_t>(table);
  size_t sample = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = reach.own().begin + r;
    while (space.offsets[sample + 1] <= row) ++sample;
    const auto [frames, height, width] = space.shapes[sample];
    const int64_t at = row - space.offsets[sample];
    const std::array<int64_t, 3> place = {at / (height * width), at / width % height, at % width};
    const int64_t begin = tokens.first_neighbour(sample, place[0]), end = space.chunk_of(sample, place[0])[1];
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t f = place[0] + t / (kernel[1] * kernel[2]) - kernel[0] / 2,
                    h = place[1] + t / kernel[2] % kernel[1] - kernel[1] / 2,
                    w = place[2] + t % kernel[2] - kernel[2] / 2;
      const bool inside = f >= begin && f < end && h >= 0 && h < height && w >= 0 && w < width;
      to[t * rows + r] =
          inside ? static_cast<int32_t>(space.offsets[sample] + (f * height + h) * width + w - first) : -1;
    }
  }
  return table;
}

}  // namespace tessera::engine
