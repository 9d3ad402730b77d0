#include "tessera/engine/ulysses.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tangent.h"

namespace tessera::engine {

namespace {

/// The rows of each member in a tensor of the block's tokens.
std::vector<Tensor> rows_by_member(const Tensor& block, int64_t tokens, const Parallel& parallel) {
  std::vector<Tensor> rows;
  for (int64_t at = 0, i = 0; i < parallel.sp(); ++i) {
    const int64_t count = parallel.part(tokens, static_cast<int>(i)).count();
    rows.push_back(block.narrow(0, at, count));
    at += count;
  }
  return rows;
}

}  // namespace

HeadsUnderWay scatter_heads(const Tensor& x, int64_t tokens, const Parallel& parallel) {
  HeadsUnderWay heads;
  const int n = parallel.sp();
  heads.received_ = x;
  if (n == 1) return heads;
  const int64_t width = div_exact(x.size(1), n, "engine.ulysses: columns / sp");
  const int64_t block = parallel.block(tokens, parallel.cp_rank()).count();
  heads.received_ = at::empty({block, width}, x.options());
  heads.sent_ = at::empty({n, x.size(0), width}, x.options());
  heads.sent_.copy_(x.view({x.size(0), n, width}).transpose(0, 1));
  heads.transfer_ = std::make_unique<Parallel::Transfer>(
      parallel.exchange_heads(heads.sent_.unbind(0), rows_by_member(heads.received_, tokens, parallel), plan::Rows::own,
                              bytes_of_row(heads.received_) * (n - 1)));
  return heads;
}

HeadsUnderWay gather_heads(const Tensor& x, int64_t tokens, const Parallel& parallel) {
  HeadsUnderWay heads;
  const int n = parallel.sp();
  heads.received_ = x;
  if (n == 1) return heads;
  heads.sent_ = x;
  heads.received_ = at::empty({n, parallel.part(tokens, parallel.sp_rank()).count(), x.size(1)}, x.options());
  heads.by_member_ = true;
  heads.transfer_ = std::make_unique<Parallel::Transfer>(parallel.exchange_heads(
      rows_by_member(x, tokens, parallel), heads.received_.unbind(0), plan::Rows::others, bytes_of_row(x)));
  return heads;
}

Tensor HeadsUnderWay::arrive() {
  if (transfer_) transfer_->wait();
  transfer_.reset();
  sent_ = Tensor();
  Tensor result = std::exchange(received_, Tensor());
  if (!by_member_) return result;
  const int64_t rows = result.size(1), width = result.size(0) * result.size(2);
  return result.transpose(0, 1).reshape({rows, width});
}

namespace {

using Journey = SentOperands::Journey;
using Shared = c10::intrusive_ptr<Journey>;

void save(ops::AutogradContext* ctx, const Shared& journey) {
  ctx->saved_data["journey"] = c10::IValue::make_capsule(journey);
}
Shared saved(ops::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Journey>(ctx->saved_data["journey"].toCapsule());
}

/// x -> the place of its heads. The backward waits for its gradient.
struct Depart : ops::Function<Depart> {
  static Tensor forward(ops::AutogradContext* ctx, const Tensor& x, int64_t tokens, const Parallel* parallel,
                        const Shared& journey) {
    journey->there.emplace(scatter_heads(x, tokens, *parallel));
    save(ctx, journey);
    return journey->there->place().detach();
  }
  static ops::variable_list backward(ops::AutogradContext* ctx, ops::variable_list) {
    const Shared journey = saved(ctx);
    check_internal(journey->back.has_value(), "engine.ulysses", "no gradient of this operand was sent");
    Tensor dx = journey->back->arrive();
    journey->back.reset();
    return {dx, {}, {}, {}};
  }
};

/// The place -> the heads, which are there. The backward sends their gradient.
struct Arrive : ops::Function<Arrive> {
  static Tensor forward(ops::AutogradContext* ctx, const Tensor& place, int64_t tokens, const Parallel* parallel,
                        const Shared& journey) {
    journey->there->arrive();
    journey->there.reset();
    save(ctx, journey);
    ctx->saved_data["tokens"] = tokens;
    ctx->saved_data["parallel"] = reinterpret_cast<int64_t>(parallel);
    return place.detach();
  }
  static ops::variable_list backward(ops::AutogradContext* ctx, ops::variable_list grads) {
    const Tensor d = grads[0].contiguous();
    saved(ctx)->back.emplace(gather_heads(d, ctx->saved_data["tokens"].toInt(),
                                          *reinterpret_cast<const Parallel*>(ctx->saved_data["parallel"].toInt())));
    return {d, {}, {}, {}};
  }
};

}  // namespace

Tensor SentOperands::send(const Tensor& x, int64_t tokens, const Parallel& parallel) {
  if (parallel.sp() == 1 || ops::moves(x)) return x;  // what moves goes with its tangent: arrive()
  Sent sent{{}, {x.size(0), x.size(1)}, c10::make_intrusive<Journey>()};
  if (ops::wants_graph({&x})) {
    sent.wide = Depart::apply(x, tokens, &parallel, sent.journey);
  } else {
    sent.journey->there.emplace(scatter_heads(x, tokens, parallel));
    sent.wide = sent.journey->there->place();
  }
  sent_.push_back(std::move(sent));
  return sent_.back().wide;
}

const SentOperands::Sent* SentOperands::find(const Tensor& wide) const {
  const auto at = std::ranges::find_if(sent_, [&](const Sent& sent) { return sent.wide.is_same(wide); });
  return at == sent_.end() ? nullptr : &*at;
}

std::array<int64_t, 2> SentOperands::sizes(const Tensor& x) const {
  const Sent* sent = find(x);
  return sent ? sent->sizes : std::array<int64_t, 2>{x.size(0), x.size(1)};
}

ops::AttentionInputs SentOperands::arrive(const Tensor& q, const Tensor& k, const Tensor& v, int64_t tokens,
                                          const Parallel& parallel) {
  if (parallel.sp() == 1) return {q, k, v};
  const auto both = [&](const Tensor& x) {
    return ops::moving_linearly(x, [&](const Tensor& t) { return scatter_heads(t, tokens, parallel).arrive(); });
  };
  const auto place = [&](const Tensor& x) { return find(x) ? x : ops::moves(x) ? both(x) : send(x, tokens, parallel); };
  std::array<Tensor, 3> operands = {place(q), place(k), place(v)};
  for (Sent& sent : sent_) {
    if (!sent.wide.requires_grad() || !at::GradMode::is_enabled()) {
      sent.journey->there->arrive();
      continue;
    }
    const Tensor there = Arrive::apply(sent.wide, tokens, &parallel, sent.journey);
    for (Tensor& operand : operands)
      if (operand.is_same(sent.wide)) operand = there;
  }
  sent_.clear();
  return {operands[0], operands[1], operands[2]};
}

}  // namespace tessera::engine
