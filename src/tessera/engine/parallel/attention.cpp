#include "tessera/engine/parallel/attention.h"

#include "tessera/base/check.h"
#include "tessera/engine/parallel/ring.h"
#include "tessera/engine/parallel/ulysses.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rows.h"
#include "tessera/ops/session.h"

namespace tessera::engine {

namespace {

using ops::AutogradContext;
using ops::Function;
using ops::variable_list;
using Offsets = std::vector<int64_t>;

/// Sends the output's gradient and its row-wise product with the output, delta [heads, tokens here], to the ranks of the
/// heads; computes meanwhile the weight gradients of the linear that reads the output. delta is then [tokens of the block,
/// heads / sp].
void send_output_gradient(Tensor& d_out, Tensor& delta, int64_t tokens, const Parallel& parallel) {
  delta = delta.t();
  HeadsUnderWay first = scatter_heads(delta, tokens, parallel), second = scatter_heads(d_out, tokens, parallel);
  if (parallel.sp() > 1) delta = d_out = Tensor();
  ops::session().run_late();
  delta = first.arrive(), d_out = second.arrive();
}

/// The ring, and the exchange of its output: the result has the output of this rank's tokens.
ops::AttentionResult attend(const ops::AttentionInputs& wide, int64_t heads, const Offsets& offsets,
                            const Parallel& parallel) {
  ops::AttentionResult result = ring_forward(wide, heads / parallel.sp(), offsets, parallel);
  result.out = gather_heads(std::exchange(result.out, Tensor()), offsets.back(), parallel).arrive();
  return result;
}

struct SequenceAttention : Function<SequenceAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                        const Offsets& offsets, const Parallel* parallel, const ops::AttentionResult* known) {
    const ops::AttentionInputs wide = {q, k, v};
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
    send_output_gradient(d_out, delta, offsets.back(), parallel);
    delta = delta.t().contiguous();  // [heads / sp, tokens of the block], fp32
    const ops::AttentionInputs d =
        ring_backward({q, k, v}, d_out, lse, delta, heads / parallel.sp(), offsets, parallel);
    return {d.q, d.k, d.v, {}, {}, {}, {}};
  }
};

/// Segments as seen by this rank: offsets and order of its block's queries and of all keys.
struct Ordered {
  Offsets q_at, k_at;
  Tensor q_order, k_order;  // undefined: the rows' own order
};

Ordered ordered(const net::Tokens& tokens, const net::Segments& segments, const Parallel& parallel) {
  net::SegmentOffsets offsets = net::segment_offsets(tokens, segments);
  const plan::TokenRange block = parallel.block(tokens.total(), parallel.cp_rank());
  Ordered result{{}, std::move(offsets.k_offsets), segments.order, segments.order};
  if (segments.local_order.defined()) {
    result.q_at = segments.local_offsets, result.q_order = segments.local_order;
  } else {
    for (const int64_t at : offsets.q_offsets)
      result.q_at.push_back(std::clamp<int64_t>(at - block.begin, 0, block.count()));
  }
  return result;
}

Tensor in_order(const Tensor& x, const Tensor& order) { return order.defined() ? ops::take_rows(x, order) : x; }
Tensor out_of_order(const Tensor& x, const Tensor& order) { return order.defined() ? ops::put_rows(x, order) : x; }

/// Gathers the rows of all blocks, [T, w], from those of this one. The tensors are sent one after the other.
std::vector<Tensor> gather_blocks(const std::vector<Tensor>& own, int64_t tokens, const Parallel& parallel) {
  if (parallel.cp() == 1) return own;
  std::vector<Tensor> whole;
  for (const Tensor& t : own) {
    whole.push_back(at::empty({tokens, t.size(1)}, t.options()));
    std::vector<Tensor> out(parallel.cp(), t), in;
    for (int i = 0; i < parallel.cp(); ++i) {
      const plan::TokenRange block = parallel.block(tokens, i);
      in.push_back(whole.back().narrow(0, block.begin, block.count()));
    }
    parallel.exchange_blocks(out, in, "all_gather", plan::Rows::block,
                             t.size(1) * static_cast<int64_t>(t.element_size()));
  }
  return whole;
}

/// The transpose of gather_blocks: this block's rows of the sum over the ranks. fp32.
Tensor sum_blocks(const Tensor& whole, const Parallel& parallel) {
  if (parallel.cp() == 1) return whole;
  const int64_t tokens = whole.size(0), mine = parallel.block(tokens, parallel.cp_rank()).count();
  const Tensor parts = at::empty({parallel.cp(), mine, whole.size(1)}, whole.options());
  std::vector<Tensor> out;
  for (int i = 0; i < parallel.cp(); ++i) {
    const plan::TokenRange block = parallel.block(tokens, i);
    out.push_back(whole.narrow(0, block.begin, block.count()));
  }
  parallel.exchange_blocks(out, parts.unbind(0), "reduce_scatter", plan::Rows::gradients,
                           whole.size(1) * static_cast<int64_t>(whole.element_size()));
  return parts.sum(0);
}

ops::AttentionInputs ordered_inputs(const ops::AttentionInputs& wide, const Ordered& order, int64_t tokens,
                                    const Parallel& parallel) {
  std::vector<Tensor> keys = gather_blocks({wide.k, wide.v}, tokens, parallel);
  return {in_order(wide.q, order.q_order), in_order(keys[0], order.k_order), in_order(keys[1], order.k_order)};
}

struct SegmentAttention : Function<SegmentAttention> {
  static ops::AttentionResult run(const ops::AttentionInputs& wide, int64_t heads, const Ordered& order, int64_t tokens,
                                  const Parallel& parallel) {
    const ops::AttentionInputs in = ordered_inputs(wide, order, tokens, parallel);
    ops::AttentionResult result = {at::empty_like(in.q),
                                   at::empty({heads, in.q.size(0)}, in.q.options().dtype(at::kFloat))};
    ops::attention_forward(in, heads, order.q_at, order.k_at, result);
    result.out = out_of_order(std::exchange(result.out, Tensor()), order.q_order);
    result.out = gather_heads(std::exchange(result.out, Tensor()), tokens, parallel).arrive();
    return result;
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                        const Ordered& order, int64_t tokens, const Parallel* parallel,
                        const ops::AttentionResult* known) {
    const ops::AttentionInputs wide = {q, k, v};
    const ops::AttentionResult result = known ? *known : run(wide, heads / parallel->sp(), order, tokens, *parallel);
    const Tensor out = known ? result.out.detach() : result.out;
    ctx->save_for_backward({wide.q, wide.k, wide.v, out, result.lse.unsqueeze(-1), order.q_order, order.k_order});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["q_at"] = order.q_at, ctx->saved_data["k_at"] = order.k_at;
    ctx->saved_data["tokens"] = tokens;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &out = saved[3], lse = saved[4].squeeze(-1);
    const int64_t heads = ctx->saved_data["heads"].toInt(), tokens = ctx->saved_data["tokens"].toInt();
    const Ordered order{ctx->saved_data["q_at"].toIntVector(), ctx->saved_data["k_at"].toIntVector(), saved[5],
                        saved[6]};
    const Parallel& parallel = *reinterpret_cast<const Parallel*>(ctx->saved_data["parallel"].toInt());
    Tensor d_out = grads[0].contiguous();
    Tensor delta = ops::attention_delta(out, d_out, heads);  // [heads, tokens here]
    send_output_gradient(d_out, delta, tokens, parallel);
    d_out = in_order(d_out, order.q_order);
    delta = in_order(delta.contiguous(), order.q_order).t().contiguous();
    ops::AttentionInputs in = ordered_inputs({saved[0], saved[1], saved[2]}, order, tokens, parallel);
    const auto sums = [&](const Tensor& t) {
      return at::empty(t.sizes(), t.options().dtype(parallel.cp() > 1 ? at::kFloat : t.scalar_type()));
    };
    ops::AttentionInputs d = {at::empty_like(in.q), sums(in.k), sums(in.v)};
    ops::attention_backward(in, d_out, lse, delta, heads / parallel.sp(), order.q_at, order.k_at, d);
    in = {}, d_out = Tensor();
    const at::ScalarType type = saved[0].scalar_type();
    d.q = out_of_order(std::exchange(d.q, Tensor()), order.q_order);
    for (Tensor* t : {&d.k, &d.v})
      *t = sum_blocks(out_of_order(std::exchange(*t, Tensor()), order.k_order), parallel).to(type);
    return {d.q, d.k, d.v, {}, {}, {}, {}, {}};
  }
};

struct SumStates : Function<SumStates> {
  static Tensor run(const Tensor& states, bool over_tp, const Parallel& parallel) {
    const Tensor sum = states.clone();
    parallel.sum_states(sum, over_tp);
    return sum;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& states, bool over_tp, const Parallel* parallel) {
    ctx->saved_data["over_tp"] = over_tp;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    return run(states, over_tp, *parallel);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {run(grads[0].contiguous(), ctx->saved_data["over_tp"].toBool(),
                *reinterpret_cast<const Parallel*>(ctx->saved_data["parallel"].toInt())),
            {},
            {}};
  }
};

}  // namespace

Tensor sequence_attention(const ops::AttentionInputs& wide, int64_t heads, const net::Tokens& tokens,
                          const Parallel& parallel, ops::AttentionResult* keep, const ops::AttentionResult* known) {
  div_exact(heads, parallel.sp(), "engine.parallel: heads / sp");
  check_internal(!known || (known->out.defined() && known->out.size(1) == wide.q.size(1) * parallel.sp() &&
                            known->lse.size(1) == wide.q.size(0)),
                 "engine.parallel", "the known result is not that of these queries");
  if (ops::wants_graph({&wide.q, &wide.k, &wide.v})) {
    check_internal(!keep, "engine.parallel", "a result is kept of a pass without a graph only");
    return SequenceAttention::apply(wide.q, wide.k, wide.v, heads, tokens.offsets, &parallel, known);
  }
  if (known) return known->out;
  const ops::AttentionResult result = attend(wide, heads, tokens.offsets, parallel);
  if (keep) *keep = result;
  return result.out;
}

Tensor segment_attention(const ops::AttentionInputs& wide, int64_t heads, const net::Tokens& tokens,
                         const net::Segments& segments, const Parallel& parallel, ops::AttentionResult* keep,
                         const ops::AttentionResult* known) {
  div_exact(heads, parallel.sp(), "engine.parallel: heads / sp");
  const Ordered order = ordered(tokens, segments, parallel);
  if (ops::wants_graph({&wide.q, &wide.k, &wide.v})) {
    check_internal(!keep, "engine.parallel", "a result is kept of a pass without a graph only");
    return SegmentAttention::apply(wide.q, wide.k, wide.v, heads, order, tokens.total(), &parallel, known);
  }
  if (known) return known->out;
  const ops::AttentionResult result =
      SegmentAttention::run(wide, heads / parallel.sp(), order, tokens.total(), parallel);
  if (keep) *keep = result;
  return result.out;
}

Tensor sum_states(const Tensor& states, bool over_tp, const Parallel& parallel) {
  if (parallel.sharers(over_tp) == 1) return states;
  return ops::wants_graph({&states}) ? SumStates::apply(states, over_tp, &parallel)
                                     : SumStates::run(states, over_tp, parallel);
}

}  // namespace tessera::engine
