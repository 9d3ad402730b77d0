#include "tessera/engine/parallel/attention.h"

#include "tessera/base/check.h"
#include "tessera/engine/parallel/ring.h"
#include "tessera/engine/parallel/ulysses.h"
#include "tessera/ops/node.h"

namespace tessera::engine {

namespace {

using ops::AutogradContext;
using ops::Function;
using ops::variable_list;
using Offsets = std::vector<int64_t>;

ops::AttentionInputs scattered(const Tensor& q, const Tensor& k, const Tensor& v, int64_t tokens,
                               const Parallel& parallel) {
  std::vector<Tensor> wide = scatter_heads({q, k, v}, tokens, parallel);
  return {std::move(wide[0]), std::move(wide[1]), std::move(wide[2])};
}

/// The pass itself; the output is that of the tokens here.
ops::AttentionResult attend(const ops::AttentionInputs& wide, int64_t heads, const Offsets& offsets,
                            const Parallel& parallel) {
  ops::AttentionResult result = ring_forward(wide, heads / parallel.sp(), offsets, parallel);
  result.out = gather_heads({std::exchange(result.out, Tensor())}, offsets.back(), parallel)[0];
  return result;
}

struct SequenceAttention : Function<SequenceAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                        const Offsets& offsets, const Parallel* parallel, const ops::AttentionResult* known) {
    const ops::AttentionInputs wide = scattered(q, k, v, offsets.back(), *parallel);
    const ops::AttentionResult result = known ? *known : attend(wide, heads, offsets, *parallel);
    const Tensor out = known ? result.out.detach() : result.out;
    ctx->save_for_backward({wide.q, wide.k, wide.v, out, result.lse.unsqueeze(-1)});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["offsets"] = offsets;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], lse = saved[4].squeeze(-1);
    const int64_t heads = ctx->saved_data["heads"].toInt();
    const Offsets offsets = ctx->saved_data["offsets"].toIntVector();
    const Parallel& parallel = *reinterpret_cast<const Parallel*>(ctx->saved_data["parallel"].toInt());
    Tensor d_out = grads[0].contiguous();
    Tensor delta = ops::attention_delta(out, d_out, heads);  // [heads, tokens here]
    if (parallel.sp() > 1) {
      std::vector<Tensor> wide = scatter_heads({delta.t(), d_out}, offsets.back(), parallel);
      d_out = std::move(wide[1]);
      delta = wide[0].t().contiguous();  // [heads / sp, tokens of the block], fp32
    }
    ops::AttentionInputs d = ring_backward({q, k, v}, d_out, lse, delta, heads / parallel.sp(), offsets, parallel);
    d_out = Tensor();
    const std::vector<Tensor> own =
        gather_heads({std::move(d.q), std::move(d.k), std::move(d.v)}, offsets.back(), parallel);
    return {own[0], own[1], own[2], {}, {}, {}, {}};
  }
};

}  // namespace

Tensor sequence_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const net::Tokens& tokens,
                          const Parallel& parallel, ops::AttentionResult* keep, const ops::AttentionResult* known) {
  div_exact(heads, parallel.sp(), "engine.parallel: heads / sp");
  check_internal(!known || (known->out.defined() && known->out.sizes() == q.sizes()), "engine.parallel",
                 "the known result is not that of these queries");
  if (ops::wants_graph({&q, &k, &v})) {
    check_internal(!keep, "engine.parallel", "a result is kept of a pass without a graph only");
    return SequenceAttention::apply(q, k, v, heads, tokens.offsets, &parallel, known);
  }
  if (known) return known->out;
  const ops::AttentionResult result =
      attend(scattered(q, k, v, tokens.total(), parallel), heads, tokens.offsets, parallel);
  if (keep) *keep = result;
  return result.out;
}

}  // namespace tessera::engine
