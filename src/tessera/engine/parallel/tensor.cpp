#include "tessera/engine/parallel/tensor.h"

#include "tessera/base/check.h"
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

/// The rows of each rank of tp within those of the place.
std::vector<Tensor> shares_of(const Tensor& rows, int64_t tokens, const Parallel& parallel) {
  const int64_t first = parallel.place(tokens).begin;
  std::vector<Tensor> shares;
  for (int i = 0; i < parallel.tp(); ++i) {
    const plan::TokenRange rest = parallel.rest(tokens, i);
    shares.push_back(rows.narrow(0, rest.begin - first, rest.count()));
  }
  return shares;
}

int64_t row_bytes(const Tensor& rows) { return rows.size(1) * static_cast<int64_t>(rows.element_size()); }

Tensor gather(const Tensor& x, int64_t tokens, const Parallel& parallel) {
  const Tensor mine = x.contiguous();
  const Tensor place = at::empty({parallel.place(tokens).count(), x.size(1)}, x.options());
  parallel.exchange_tokens(std::vector<Tensor>(parallel.tp(), mine), shares_of(place, tokens, parallel), "all_gather",
                           plan::Rows::share, row_bytes(x) * (parallel.tp() - 1));
  return place;
}

/// The sum, in the order of the ranks, whichever they are.
Tensor sum(const Tensor& rows, int64_t tokens, const Parallel& parallel) {
  const std::vector<Tensor> out = shares_of(rows.contiguous(), tokens, parallel);
  const int self = parallel.tp_rank();
  const Tensor parts = at::empty({parallel.tp(), out[self].size(0), rows.size(1)}, rows.options());
  parallel.exchange_tokens(out, parts.unbind(0), "reduce_scatter", plan::Rows::rest, row_bytes(rows));
  return parts.sum(0);
}

struct GatherPlace : Function<GatherPlace> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, int64_t tokens, const Parallel* parallel) {
    ctx->saved_data["tokens"] = tokens;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    return gather(x, tokens, *parallel);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {sum(grads[0], ctx->saved_data["tokens"].toInt(), parallel_of(ctx)), {}, {}};
  }
};

Tensor sum_and_bias(const Tensor& y, int64_t tokens, const Parallel& parallel, const ops::WeightSite* bias) {
  Tensor own = sum(y, tokens, parallel);
  if (bias) own.add_(bias->value);
  return own;
}

struct SumToShares : Function<SumToShares> {
  static Tensor forward(AutogradContext* ctx, const Tensor& y, const Tensor& anchor, int64_t tokens,
                        const Parallel* parallel, Handle bias) {
    ctx->saved_data["tokens"] = tokens;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    ctx->saved_data["bias"] = bias;
    return sum_and_bias(y, tokens, *parallel, ops::site_of(bias));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor dy = grads[0].contiguous();
    ops::WeightSite* bias = ops::site_of(ctx, "bias");
    if (bias) ops::open_gradient(*bias);
    if (bias && bias->grad.defined()) {
      const bool fresh = std::exchange(bias->fresh, false);
      const Tensor sums = dy.sum(0);
      if (fresh)
        bias->grad.copy_(sums);
      else
        bias->grad.add_(sums);
    }
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}, {}, {}};
    return {gather(dy, ctx->saved_data["tokens"].toInt(), parallel_of(ctx)), {}, {}, {}, {}};
  }
};

}  // namespace

Tensor gather_place(const Tensor& x, int64_t tokens, const Parallel& parallel) {
  check_internal(x.size(0) == parallel.share(tokens).count(), "engine.tensor", "these rows are not this rank's share");
  if (ops::wants_graph({&x})) return GatherPlace::apply(x, tokens, &parallel);
  return gather(x, tokens, parallel);
}

Tensor sum_to_shares(const Tensor& y, int64_t tokens, const Parallel& parallel, ops::WeightSite* bias,
                     const Tensor& anchor) {
  check_internal(y.size(0) == parallel.place(tokens).count(), "engine.tensor", "these rows are not those of the place");
  if (ops::wants_graph({&y, &anchor})) return SumToShares::apply(y, anchor, tokens, &parallel, ops::handle(bias));
  return sum_and_bias(y, tokens, parallel, bias);
}

}  // namespace tessera::engine
