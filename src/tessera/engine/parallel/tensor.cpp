#include "tessera/engine/parallel/tensor.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/ops/bias.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"

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
  if (ops::wants_graph({&x})) return GatherOverTp::apply(x, rows, &parallel);
  return gather(x, rows, parallel);
}

Tensor sum_to_shares(const Tensor& y, const TpGroupRows& rows, const Parallel& parallel, ops::WeightSite* bias,
                     const Tensor& anchor, const Tensor* known) {
  check_internal(y.size(0) == rows.total(), "engine.tensor", "these rows are not those of the tp group");
  if (ops::wants_graph({&y, &anchor})) return SumToShares::apply(y, anchor, rows, &parallel, ops::handle(bias), known);
  return known ? *known : sum(y, rows, parallel, bias);
}

}  // namespace tessera::engine
