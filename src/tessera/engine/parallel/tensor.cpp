#include "tessera/engine/parallel/tensor.h"

#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/ops/bias.h"
#include "tessera/ops/half.h"
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

/// parts [n, rows, cols] of 16 bits, added up over n in fp32, and the bias (undefined: none), rounded once.
Tensor sum_of_halves(const Tensor& parts, const Tensor& bias) {
  const int64_t n = parts.size(0), rows = parts.size(1), cols = parts.size(2);
  const Tensor total = at::empty({rows, cols}, parts.options()), offset = bias.defined() ? ops::as_floats(bias) : bias;
  if (parts.is_meta()) return total;
  const ops::Values from(parts);
  const ops::Results to(total);
  at::parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
    float *sum = ops::half_scratch(0, cols), *space = ops::half_scratch(1, cols);
    for (int64_t r = begin; r < end; ++r) {
      from.read(r * cols, cols, sum);
      for (int64_t i = 1; i < n; ++i) {
        const float* part = from.read((i * rows + r) * cols, cols, space);
        for (int64_t c = 0; c < cols; ++c) sum[c] += part[c];
      }
      if (offset.defined())
        for (int64_t c = 0; c < cols; ++c) sum[c] += ops::data(offset)[c];
      to.store(r * cols, cols, sum);
    }
  });
  return total;
}

/// The sum, in the order of the ranks, whichever they are, and the bias (null: none). What is of 16 bits is exchanged
/// so, and added up in fp32.
Tensor sum(const Tensor& rows, int64_t tokens, const Parallel& parallel, const ops::WeightSite* bias = nullptr) {
  const std::vector<Tensor> out = shares_of(rows.contiguous(), tokens, parallel);
  const int self = parallel.tp_rank();
  const Tensor parts = at::empty({parallel.tp(), out[self].size(0), rows.size(1)}, rows.options());
  parallel.exchange_tokens(out, parts.unbind(0), "reduce_scatter", plan::Rows::rest, row_bytes(rows));
  if (ops::is_half(rows)) return sum_of_halves(parts, bias ? bias->value : Tensor());
  Tensor total = parts.sum(0);
  if (bias) total.add_(bias->value);
  return total;
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

struct SumToShares : Function<SumToShares> {
  static Tensor forward(AutogradContext* ctx, const Tensor& y, const Tensor& anchor, int64_t tokens,
                        const Parallel* parallel, Handle bias, const Tensor* known) {
    ctx->saved_data["tokens"] = tokens;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    ctx->saved_data["bias"] = bias;
    if (known) return known->detach();
    return sum(y, tokens, *parallel, ops::site_of(bias));
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
    return {gather(dy, ctx->saved_data["tokens"].toInt(), parallel_of(ctx)), {}, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor gather_place(const Tensor& x, int64_t tokens, const Parallel& parallel) {
  check_internal(x.size(0) == parallel.share(tokens).count(), "engine.tensor", "these rows are not this rank's share");
  if (ops::wants_graph({&x})) return GatherPlace::apply(x, tokens, &parallel);
  return gather(x, tokens, parallel);
}

Tensor sum_to_shares(const Tensor& y, int64_t tokens, const Parallel& parallel, ops::WeightSite* bias,
                     const Tensor& anchor, const Tensor* known) {
  check_internal(y.size(0) == parallel.place(tokens).count(), "engine.tensor", "these rows are not those of the place");
  if (ops::wants_graph({&y, &anchor}))
    return SumToShares::apply(y, anchor, tokens, &parallel, ops::handle(bias), known);
  return known ? *known : sum(y, tokens, parallel, bias);
}

}  // namespace tessera::engine
