#include "tessera/engine/parallel/slice.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/ops/tensor.h"

namespace tessera::engine {

namespace {

constexpr int64_t kAligned = 64;

}  // namespace

void Uploads::reserve(int64_t bytes) {
  if (bytes <= memory_.size()) return;
  for (const Part& part : under_way_) part.copied.await();
  under_way_.clear();
  memory_.reserve(bytes);
}

/// Where so many bytes go that no copy under way reads: behind the newest part, or at the beginning again.
int64_t Uploads::place(int64_t bytes) {
  if (bytes > memory_.size()) reserve(2 * bytes);
  for (;; under_way_.front().copied.await()) {
    while (!under_way_.empty() && under_way_.front().copied.passed()) under_way_.pop_front();
    if (under_way_.empty()) return 0;
    const int64_t oldest = under_way_.front().begin, next = under_way_.back().end;
    const bool wrapped = next <= oldest;
    if (next + bytes <= (wrapped ? oldest : memory_.size())) return next;
    if (!wrapped && bytes <= oldest) return 0;
  }
}

at::Tensor Uploads::bring(const at::Tensor& here, at::Device device) {
  if (device.is_cpu()) return here;
  const at::Tensor from = here.contiguous(), there = at::empty(from.sizes(), from.options().device(device));
  const auto bytes = static_cast<int64_t>(from.nbytes());
  if (bytes == 0) return there;
  const int64_t size = round_up(bytes, kAligned), at = place(size);
  char* by = memory_.at(at);
  device::host_uses(by, bytes, /*writes=*/true);
  std::memcpy(by, from.const_data_ptr(), static_cast<size_t>(bytes));
  device::used()->enqueue_copy(there.mutable_data_ptr(), by, bytes);
  under_way_.push_back({at, at + size, {}});
  under_way_.back().copied.record();
  return there;
}

namespace {

Tensor copy_of(const Tensor& t) { return t.defined() ? t.clone() : t; }

/// A copy, so that the whole tensor can be freed.
Tensor rows_of(const Tensor& t, int64_t begin, int64_t end) {
  return t.defined() ? t.slice(0, begin, end).clone(at::MemoryFormat::Contiguous) : t;
}

/// Reduces a space to the rows among this rank's tokens. Ranks of tp rotate some heads of all rows of the tp group, and
/// so the rotary tables keep all of these rows.
void cut_space(net::Space& space, plan::TokenRange here, plan::TokenRange tp_group) {
  const plan::TokenRange rows = space.within(here), rotated = space.within(tp_group);
  if (space.rows.defined()) {
    space.rows = space.rows.slice(rows.begin, rows.end);
    space.rows.of_token = space.rows.of_token.clone();
  }
  for (Tensor* table : {&space.cos, &space.sin}) *table = rows_of(*table, rotated.begin, rotated.end);
  space.begin = rows.begin, space.end = rows.end;
}

/// The queries of a block, in their segments' order.
void cut_segments(net::Segments& segments, plan::TokenRange block) {
  if (!segments.order.defined()) return;
  const Tensor order = segments.order.to(at::kCPU).contiguous();
  const auto* at = ops::host_pointer<const int64_t>(order);
  std::vector<int64_t> local, before = {0};  // before[i]: the block's rows among the first i
  for (int64_t i = 0; i < order.numel(); ++i) {
    if (at[i] >= block.begin && at[i] < block.end) local.push_back(at[i] - block.begin);
    before.push_back(static_cast<int64_t>(local.size()));
  }
  segments.local_order = at::tensor(local, at::kLong).to(segments.order.device());
  segments.local_offsets.clear();
  for (const auto& range : segments.ranges) segments.local_offsets.push_back(before[range[0]]);
  segments.local_offsets.push_back(static_cast<int64_t>(local.size()));
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
  for (int input = 0; input < static_cast<int>(batch.inputs.size()); ++input) {
    Tensor& t = batch.inputs[input];
    if (std::find(batch.token_inputs.begin(), batch.token_inputs.end(), input) == batch.token_inputs.end()) {
      t = copy_of(t);
      continue;
    }
    check_internal(t.size(0) == total, "engine.slice", "input " + std::to_string(input) + " has no row for each token");
    cut(t);
  }
  const plan::TokenRange tp_group = parallel.tp_group(total);
  for (net::Space& space : tokens.spaces)
    if (space.ranges.empty())
      for (Tensor* table : {&space.rows.of_token, &space.cos, &space.sin}) *table = copy_of(*table);
    else
      cut_space(space, here, tp_group);
  cut_space(tokens, here, tp_group);
  for (net::Segments& segments : tokens.segments) segments.order = copy_of(segments.order);
  if (parallel.cp() > 1)
    for (net::Segments& segments : tokens.segments) cut_segments(segments, parallel.block(total, parallel.cp_rank()));
  return batch;
}

net::Batch copy_of(net::Batch batch) {
  for (Tensor& input : batch.inputs) input = copy_of(input);
  batch.tokens.change_tables([](const Tensor& t) { return t.clone(); });
  return batch;
}

net::Batch on_device(net::Batch batch, at::Device device, Uploads& uploads) {
  const auto moved = [&](const Tensor& t) { return uploads.bring(t, device); };
  for (Tensor& input : batch.inputs)
    if (input.defined()) input = moved(input);
  batch.tokens.change_tables(moved);
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
      grads[i] = at::zeros_like(input);  // no token of this rank needs the input, but all ranks take part in the sum
    if (!grads[i].defined()) continue;
    if (has_rows)
      grads[i] = parallel.gather_tokens(grads[i], batch.tokens.total());
    else
      parallel.sum(grads[i] = grads[i].contiguous());
  }
  return grads;
}

}  // namespace tessera::engine
