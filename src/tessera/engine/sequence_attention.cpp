#include "tessera/engine/sequence_attention.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/engine/ulysses.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rows.h"
#include "tessera/ops/session.h"
#include "tessera/ops/tangent.h"

namespace tessera::engine {

namespace {

/// The samples that two blocks have in common; in each block their tokens are consecutive.
struct Common {
  plan::TokenRange queries, keys;   // rows within the blocks
  std::vector<int64_t> q_at, k_at;  // where each sample starts among those rows
  bool none() const { return q_at.size() < 2; }
};

int64_t longest_run(const std::vector<int64_t>& at) {
  int64_t run = 0;
  for (size_t s = 0; s + 1 < at.size(); ++s) run = std::max(run, at[s + 1] - at[s]);
  return run;
}

Common common_samples(plan::TokenRange queries, plan::TokenRange keys, const std::vector<int64_t>& offsets) {
  Common c;
  const auto rows = [](plan::TokenRange block, int64_t at) {
    return std::clamp<int64_t>(at - block.begin, 0, block.count());
  };
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const plan::TokenRange q{rows(queries, offsets[s]), rows(queries, offsets[s + 1])};
    const plan::TokenRange k{rows(keys, offsets[s]), rows(keys, offsets[s + 1])};
    if (q.count() == 0 || k.count() == 0) continue;
    if (c.q_at.empty()) c.queries = q, c.keys = k, c.q_at = {0}, c.k_at = {0};
    c.queries.end = q.end, c.keys.end = k.end;
    c.q_at.push_back(q.end - c.queries.begin), c.k_at.push_back(k.end - c.keys.begin);
  }
  return c;
}

Tensor block_rows(const Tensor& t, plan::TokenRange range) { return t.narrow(0, range.begin, range.count()); }
Tensor columns_of(const Tensor& t, plan::TokenRange range) { return t.narrow(1, range.begin, range.count()); }

/// The message of the ring: two matrices [rows, width] in one buffer. It is allocated for the largest block, so that
/// every rank takes the memory that was measured on one.
class Pair {
 public:
  Pair(int64_t rows, int64_t most, const Tensor& like, at::ScalarType type) {
    const int64_t width = like.size(1);
    const Tensor flat = at::empty({2 * most * width}, like.options().dtype(type));
    both_ = flat.narrow(0, 0, 2 * rows * width).view({2, rows, width});
  }
  Pair(const Tensor& first, const Tensor& second, int64_t most)
      : Pair(first.size(0), most, first, first.scalar_type()) {
    both_[0].copy_(first), both_[1].copy_(second);
  }
  Tensor first() const { return both_[0]; }
  Tensor second() const { return both_[1]; }
  const Tensor& both() const { return both_; }

 private:
  Tensor both_;
};

/// The block that this rank works on at each step of the ring.
class RingSteps {
 public:
  /// `measures`: on meta tensors there are no other ranks, and this one stands for all.
  RingSteps(const Parallel& parallel, const std::vector<int64_t>& offsets, bool measures)
      : parallel_(parallel), offsets_(offsets), measures_(measures) {}
  int count() const { return parallel_.cp(); }
  int64_t most() const { return of(count() - 1).count(); }  ///< tokens of the largest block
  plan::TokenRange block(int step) const { return of(before(parallel_.cp_rank(), step)); }

  /// The samples that this rank's queries share with the block of a step. They differ by rank, and the scratch memory
  /// of attention grows with their longest runs: measurement takes the longest of any rank.
  Common common(int step) const {
    if (!measures_ || step == 0) return common_samples(block(0), block(step), offsets_);
    int64_t queries = 0, keys = 0;
    for (int rank = 0; rank < count(); ++rank) {
      const Common c = common_samples(of(rank), of(before(rank, step)), offsets_);
      queries = std::max(queries, longest_run(c.q_at)), keys = std::max(keys, longest_run(c.k_at));
    }
    queries = std::min(queries, block(0).count()), keys = std::min(keys, block(step).count());
    if (queries == 0) return {};
    return {.queries = {0, queries}, .keys = {0, keys}, .q_at = {0, queries}, .k_at = {0, keys}};
  }

 private:
  plan::TokenRange of(int rank) const { return parallel_.block(offsets_.back(), rank); }
  int before(int rank, int step) const { return ((rank - step) % count() + count()) % count(); }

  const Parallel& parallel_;
  const std::vector<int64_t>& offsets_;
  const bool measures_;
};

int64_t pair_row_bytes(const Tensor& k, at::ScalarType type) {
  return 2 * k.size(1) * static_cast<int64_t>(c10::elementSize(type));
}

/// The dtype of partial results: fp32 if several blocks are merged, else that of the operands.
at::ScalarType sum_type(const RingSteps& ring, const Tensor& of) {
  return ring.count() > 1 ? at::kFloat : of.scalar_type();
}

/// Rounds a final sum to the dtype of its operands.
void round_as(Tensor& sum, const Tensor& operand) {
  if (sum.scalar_type() != operand.scalar_type()) sum = sum.to(operand.scalar_type());
}

}  // namespace

ops::AttentionResult ring_forward(const ops::AttentionInputs& in, int64_t heads, const std::vector<int64_t>& offsets,
                                  const Parallel& parallel) {
  const RingSteps ring(parallel, offsets, in.q.is_meta());
  const plan::TokenRange own = ring.block(0);
  const auto wide = in.q.options().dtype(at::kFloat), whole = wide.dtype(sum_type(ring, in.q));
  const auto result = [&] {
    return ops::AttentionResult{at::empty(in.q.sizes(), whole), at::empty({heads, own.count()}, wide)};
  };
  ops::AttentionResult sum = result();
  std::optional<Pair> now, next;  // keys and values
  ops::AttentionResult part;
  int64_t sent = 0;
  if (ring.count() > 1) now.emplace(in.k, in.v, ring.most()), part = result();
  for (int step = 0; step < ring.count(); ++step) {
    const bool more = step + 1 < ring.count();
    if (more) next.emplace(ring.block(step + 1).count(), ring.most(), in.k, in.k.scalar_type());
    Parallel::Transfer transfer = more ? parallel.pass_on(now->both(), next->both(), sent) : Parallel::Transfer();
    const Common c = ring.common(step);
    if (step == 0) {
      ops::attention_forward(in, heads, c.q_at, c.k_at, sum);  // every query has a key in its own block: sum is filled
    } else if (!c.none()) {
      const ops::AttentionResult to = {block_rows(part.out, c.queries), columns_of(part.lse, c.queries)};
      ops::attention_forward(
          {block_rows(in.q, c.queries), block_rows(now->first(), c.keys), block_rows(now->second(), c.keys)}, heads,
          c.q_at, c.k_at, to);
      ops::merge_attention({block_rows(sum.out, c.queries), columns_of(sum.lse, c.queries)}, to, heads);
    }
    transfer.wait();
    now = std::move(next);
  }
  if (ring.count() > 1) parallel.note_ring(plan::Rows::keys, pair_row_bytes(in.k, in.k.scalar_type()), sent);
  part = {};
  round_as(sum.out, in.q);
  return sum;
}

ops::AttentionInputs ring_backward(const ops::AttentionInputs& in, const Tensor& d_out, const Tensor& lse,
                                   const Tensor& delta, int64_t heads, const std::vector<int64_t>& offsets,
                                   const Parallel& parallel) {
  const RingSteps ring(parallel, offsets, in.q.is_meta());
  const plan::TokenRange own = ring.block(0);
  const at::ScalarType sums = sum_type(ring, in.q);
  const auto sum_like = [&](const Tensor& t) { return at::empty(t.sizes(), t.options().dtype(sums)); };
  ops::AttentionInputs grads = {sum_like(in.q), sum_like(in.k), sum_like(in.v)};
  if (ring.count() == 1) {
    const Common c = ring.common(0);
    ops::attention_backward(in, d_out, lse, delta, heads, c.q_at, c.k_at, grads);
    return grads;
  }
  const auto pair = [&](int64_t rows, at::ScalarType type) {
    return Pair(rows, rows > 0 ? ring.most() : 0, in.k, type);
  };
  Pair now(in.k, in.v, ring.most());
  Tensor dq = sum_like(in.q);  // of one step
  int64_t keys_sent = 0, gradients_sent = 0;
  std::optional<Pair> d_last;  // gradients of the previous block, which go to the next rank
  for (int step = 0; step < ring.count(); ++step) {
    const plan::TokenRange block = ring.block(step);
    const bool more = step + 1 < ring.count();
    // Sends this block on, and the gradients of the previous block, to which the next rank adds its own.
    Pair next = pair(more ? ring.block(step + 1).count() : 0, in.k.scalar_type());
    Parallel::Transfer keys = more ? parallel.pass_on(now.both(), next.both(), keys_sent) : Parallel::Transfer();
    Pair d_came = pair(d_last ? block.count() : 0, sums);
    Parallel::Transfer gradients =
        d_last ? parallel.pass_on(d_last->both(), d_came.both(), gradients_sent) : Parallel::Transfer();
    const Common c = ring.common(step);
    if (step == 0) {
      ops::attention_backward(in, d_out, lse, delta, heads, c.q_at, c.k_at, grads);
    } else {
      Pair d = pair(block.count(), sums);
      if (!c.none()) {
        ops::attention_backward(
            {block_rows(in.q, c.queries), block_rows(now.first(), c.keys), block_rows(now.second(), c.keys)},
            block_rows(d_out, c.queries), columns_of(lse, c.queries), columns_of(delta, c.queries), heads, c.q_at,
            c.k_at, {block_rows(dq, c.queries), block_rows(d.first(), c.keys), block_rows(d.second(), c.keys)});
        block_rows(grads.q, c.queries).add_(block_rows(dq, c.queries));
      }
      // Keys without a query on this rank have no gradient.
      for (const Tensor& t : {d.first(), d.second()}) {
        t.narrow(0, 0, c.keys.begin).zero_();
        t.narrow(0, c.keys.end, block.count() - c.keys.end).zero_();
      }
      gradients.wait();
      if (d_last) d.both().add_(d_came.both());
      d_last.emplace(std::move(d));
    }
    keys.wait();
    now = std::move(next);
  }
  // The last block belongs to the next rank: its gradients go home.
  const Pair home = pair(own.count(), sums);
  parallel.pass_on(d_last->both(), home.both(), gradients_sent).wait();
  grads.k.add_(home.first());
  grads.v.add_(home.second());
  parallel.note_ring(plan::Rows::keys, pair_row_bytes(in.k, in.k.scalar_type()), keys_sent);
  parallel.note_ring(plan::Rows::gradients, pair_row_bytes(in.k, sums), gradients_sent);
  for (auto [grad, operand] : {std::pair{&grads.q, &in.q}, {&grads.k, &in.k}, {&grads.v, &in.v}})
    round_as(*grad, *operand);
  return grads;
}

namespace {

/// The tangent of ring_forward's result, in a ring of its own: of keys and values, and of their tangents.
Tensor ring_tangent(const ops::Moving& q, const ops::Moving& k, const ops::Moving& v,
                    const ops::AttentionResult& result, int64_t heads, const std::vector<int64_t>& offsets,
                    const Parallel& parallel) {
  const RingSteps ring(parallel, offsets, q.value.is_meta());
  const ops::AttentionTangent tangent(q.value, heads);
  const auto moved = [](const ops::Moving& x) { return x.moves() ? x.tangent : at::zeros_like(x.value); };
  std::optional<Pair> now, turning;  // keys and values; their tangents
  now.emplace(k.value, v.value, ring.most()), turning.emplace(moved(k), moved(v), ring.most());
  int64_t sent = 0, turning_sent = 0;
  for (int step = 0; step < ring.count(); ++step) {
    const bool more = step + 1 < ring.count();
    std::optional<Pair> next, next_turning;
    for (std::optional<Pair>* to : {&next, &next_turning})
      if (more) to->emplace(ring.block(step + 1).count(), ring.most(), k.value, k.value.scalar_type());
    const auto start = [&](const std::optional<Pair>& from, const std::optional<Pair>& to, int64_t& bytes) {
      return more ? parallel.pass_on(from->both(), to->both(), bytes) : Parallel::Transfer();
    };
    Parallel::Transfer values = start(now, next, sent), tangents = start(turning, next_turning, turning_sent);
    if (const Common c = ring.common(step); !c.none()) {
      const auto of_queries = [&](const Tensor& x) { return x.defined() ? block_rows(x, c.queries) : x; };
      const auto of_keys = [&](const Tensor& x) { return block_rows(x, c.keys); };
      tangent.rows(c.queries.begin, c.queries.count())
          .add({of_queries(q.value), of_queries(q.tangent)}, {of_keys(now->first()), of_keys(turning->first())},
               {of_keys(now->second()), of_keys(turning->second())}, columns_of(result.lse, c.queries), c.q_at, c.k_at);
    }
    values.wait(), tangents.wait();
    now = std::move(next), turning = std::move(next_turning);
  }
  if (ring.count() > 1)
    for (const int64_t bytes : {sent, turning_sent})
      parallel.note_ring(plan::Rows::keys, pair_row_bytes(k.value, k.value.scalar_type()), bytes);
  return tangent.of(result.out);
}

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

/// The output of this rank's tokens, and its tangent.
Tensor gathered_moving(const Tensor& out, const Tensor& tangent, int64_t tokens, const Parallel& parallel) {
  const Tensor value = gather_heads(out, tokens, parallel).arrive();
  return ops::moving(value, gather_heads(tangent, tokens, parallel).arrive());
}

/// Segments in forward mode: the same exchanges of the values, and then of their tangents.
Tensor moving_segments(const ops::AttentionInputs& wide, int64_t heads, const Ordered& order, int64_t tokens,
                       const Parallel& parallel) {
  const ops::Moving q = ops::parts(wide.q), k = ops::parts(wide.k), v = ops::parts(wide.v);
  const auto moved = [](const ops::Moving& x) { return x.moves() ? x.tangent : at::zeros_like(x.value); };
  const ops::AttentionInputs in = ordered_inputs({q.value, k.value, v.value}, order, tokens, parallel),
                             d = ordered_inputs({moved(q), moved(k), moved(v)}, order, tokens, parallel);
  const ops::AttentionResult result = {at::empty_like(in.q),
                                       at::empty({heads, in.q.size(0)}, in.q.options().dtype(at::kFloat))};
  ops::attention_forward(in, heads, order.q_at, order.k_at, result);
  const ops::AttentionTangent tangent(in.q, heads);
  tangent.add({in.q, d.q}, {in.k, d.k}, {in.v, d.v}, result.lse, order.q_at, order.k_at);
  return gathered_moving(out_of_order(result.out, order.q_order), out_of_order(tangent.of(result.out), order.q_order),
                         tokens, parallel);
}

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
  if (ops::any_moves({&wide.q, &wide.k, &wide.v})) {
    const ops::Moving q = ops::parts(wide.q), k = ops::parts(wide.k), v = ops::parts(wide.v);
    const int64_t own = heads / parallel.sp();
    const ops::AttentionResult result = ring_forward({q.value, k.value, v.value}, own, tokens.offsets, parallel);
    const Tensor tangent = ring_tangent(q, k, v, result, own, tokens.offsets, parallel);
    return gathered_moving(result.out, tangent, tokens.total(), parallel);
  }
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
  if (ops::any_moves({&wide.q, &wide.k, &wide.v}))
    return moving_segments(wide, heads / parallel.sp(), order, tokens.total(), parallel);
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
  if (ops::moves(states))
    return ops::moving_linearly(states, [&](const Tensor& t) { return SumStates::run(t, over_tp, parallel); });
  return ops::wants_graph({&states}) ? SumStates::apply(states, over_tp, &parallel)
                                     : SumStates::run(states, over_tp, parallel);
}

}  // namespace tessera::engine
