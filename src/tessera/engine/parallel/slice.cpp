#include "tessera/engine/parallel/slice.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::engine {

namespace {

/// A copy, so that the whole can go.
Tensor rows_of(const Tensor& t, int64_t begin, int64_t end) {
  return t.defined() ? t.slice(0, begin, end).clone(at::MemoryFormat::Contiguous) : t;
}

/// Those of the tokens of frames that are here; their positions count from the first token here.
net::FrameTokens slice_frames(net::FrameTokens frames, int64_t begin, int64_t end) {
  int64_t before = 0, here = 0;  // tokens of frames ahead of this share, and in it
  for (auto& [from, to] : frames.ranges) {
    before += std::clamp(begin, from, to) - from;
    from = std::clamp(from, begin, end) - begin;
    to = std::clamp(to, begin, end) - begin;
    here += to - from;
  }
  std::erase_if(frames.ranges, [](const auto& range) { return range[0] == range[1]; });
  for (int64_t& at : frames.offsets) at = std::clamp<int64_t>(at - before, 0, here);
  frames.rows = rows_of(frames.rows, before, before + here);
  return frames;
}

}  // namespace

net::Batch slice(net::Batch batch, const Parallel& parallel) {
  if (!parallel.cuts_tokens()) return batch;
  net::Tokens& tokens = batch.tokens;
  const int64_t total = tokens.total(), ranks = plan::sequence_size(parallel.mesh());
  if (total < ranks)
    throw UserError(Exit::usage, "mesh",
                    "a micro-batch of " + std::to_string(total) + " tokens cannot be shared by " +
                        std::to_string(ranks) + " ranks (cp x sp x tp)",
                    "give cp, sp and tp a product of at most " + std::to_string(total));
  const plan::TokenRange here = parallel.share(total);
  const auto cut = [&](Tensor& t) { t = rows_of(t, here.begin, here.end); };
  for (int input : batch.token_inputs) {
    check_internal(batch.inputs.at(input).size(0) == total, "engine.slice",
                   "input " + std::to_string(input) + " has no row for each token");
    cut(batch.inputs[input]);
  }
  cut(tokens.rows);
  const plan::TokenRange place = parallel.place(total);  // ranks of tp turn the heads of all tokens of the place
  for (Tensor* table : {&tokens.cos, &tokens.sin}) *table = rows_of(*table, place.begin, place.end);
  tokens.frames = slice_frames(std::move(tokens.frames), here.begin, here.end);
  tokens.begin = here.begin, tokens.end = here.end;
  return batch;
}

Tensor whole_tokens(const Tensor& rows, const net::Tokens& tokens, const Parallel& parallel) {
  return tokens.cut() ? parallel.gather_tokens(rows, tokens.total()) : rows;
}

std::vector<Tensor> whole_input_grads(std::vector<Tensor> grads, const net::Batch& batch, const Parallel& parallel) {
  if (!parallel.cuts_tokens()) return grads;
  for (int i = 0; i < static_cast<int>(grads.size()); ++i) {
    const auto& by_token = batch.token_inputs;
    const bool has_rows = std::find(by_token.begin(), by_token.end(), i) != by_token.end();
    const Tensor& input = batch.inputs[static_cast<size_t>(i)];
    if (!has_rows && !grads[i].defined() && input.is_floating_point())
      grads[i] = at::zeros_like(input);  // none of this rank's tokens needs it: others sum all the same
    if (!grads[i].defined()) continue;
    if (has_rows)
      grads[i] = parallel.gather_tokens(grads[i], batch.tokens.total());
    else
      parallel.sum(grads[i] = grads[i].contiguous());
  }
  return grads;
}

}  // namespace tessera::engine
