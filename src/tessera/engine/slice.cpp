#include "tessera/engine/slice.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/ops/tensor.h"

namespace tessera::engine {

namespace {

constexpr int64_t kAligned = 64;

}  // namespace

Uploads::~Uploads() {
  if (beside_) device::used()->give(beside_);
}

void Uploads::reserve(int64_t bytes) {
  if (bytes <= memory_.size()) return;
  for (const Part& part : under_way_) part.done.await();
  under_way_.clear();
  memory_.reserve(bytes);
}

void Uploads::reserve_beside(int64_t bytes) {
  if (bytes <= beside_size_ || !device::has_streams()) return;
  untaken_.clear(), follows_ = false;
  if (beside_) device::used()->wait(), device::used()->give(std::exchange(beside_, nullptr));
  device::count_memory_request();
  beside_ = static_cast<char*>(device::used()->take(bytes));
  beside_size_ = beside_ ? bytes : 0;
}

/// Where so many bytes go that no copy under way reads: behind the newest part, or at the beginning again.
int64_t Uploads::place(int64_t bytes) {
  if (bytes > memory_.size()) reserve(2 * bytes);
  for (;; under_way_.front().done.await()) {
    while (!under_way_.empty() && under_way_.front().done.passed()) under_way_.pop_front();
    if (under_way_.empty()) return 0;
    const int64_t oldest = under_way_.front().begin, next = under_way_.back().end;
    const bool wrapped = next <= oldest;
    if (next + bytes <= (wrapped ? oldest : memory_.size())) return next;
    if (!wrapped && bytes <= oldest) return 0;
  }
}

/// The same in the device's memory, for the stream of the copies, which waits for the parts that lie there.
int64_t Uploads::place_beside(int64_t bytes) {
  int64_t at = untaken_.empty() ? 0 : untaken_.back().end;
  if (at + bytes > beside_size_) at = 0;
  const auto lies_there = [&](const Part& part) { return part.begin < at + bytes && at < part.end; };
  const auto last = std::find_if(untaken_.rbegin(), untaken_.rend(), lies_there);
  if (last == untaken_.rend()) return at;
  last->done.order();  // the compute lane took those before it earlier
  untaken_.erase(untaken_.begin(), last.base());
  return at;
}

void Uploads::go(Way way) {
  for (const Part& part : under_way_) part.done.await();
  under_way_.clear();
  untaken_.clear(), follows_ = false;  // marks of a graph mean nothing outside of it, nor others within
  way_ = way, next_ = 0;
}

int64_t Uploads::room(const at::Tensor& t) {
  return t.defined() ? round_up(static_cast<int64_t>(t.nbytes()), kAligned) : 0;
}

void Uploads::write(const at::Tensor& from, int64_t at) {
  const auto bytes = static_cast<int64_t>(from.nbytes());
  check_internal(at + bytes <= memory_.size(), "engine.uploads", "a captured step brings more than it reserved");
  if (bytes == 0) return;
  device::host_uses(memory_.at(at), bytes, /*writes=*/true);
  std::memcpy(memory_.at(at), from.const_data_ptr(), static_cast<size_t>(bytes));
}

/// From page-locked memory, where they lie one behind the other.
void Uploads::fetch(const std::vector<at::Tensor>& there, int64_t at, int64_t bytes) {
  const device::Backend& table = *device::used();
  Part copied{at, at + bytes, {}};
  const bool beside = bytes <= beside_size_;
  const char* from = memory_.at(at);
  int64_t via = 0;
  if (beside) {
    device::Mark before;
    if (!follows_) before.record();
    const device::SideStream::Scope scope(stream_);
    if (!std::exchange(follows_, true)) before.order();
    via = place_beside(bytes);
    table.enqueue_copy(beside_ + via, from, bytes);
    copied.done.record();
    from = beside_ + via;
  }
  if (beside) copied.done.order();
  for (const at::Tensor& t : there) {
    if (room(t) > 0) table.enqueue_copy(t.mutable_data_ptr(), from, static_cast<int64_t>(t.nbytes()));
    from += room(t);
  }
  if (beside) {
    untaken_.push_back({via, via + bytes, {}});
    untaken_.back().done.record();
  } else {
    copied.done.record();
  }
  if (way_ == Way::ring) under_way_.push_back(std::move(copied));
}

std::vector<at::Tensor> Uploads::bring(const std::vector<at::Tensor>& here, at::Device device) {
  if (device.is_cpu()) return here;
  std::vector<at::Tensor> from, there;
  int64_t bytes = 0;
  for (const at::Tensor& t : here) {
    from.push_back(t.defined() ? t.contiguous() : t);
    bytes += room(from.back());
    if (way_ == Way::repeated) continue;
    there.push_back(t.defined() ? at::empty(t.sizes(), t.options().device(device)) : t);
  }
  if (bytes == 0) return way_ == Way::repeated ? here : there;
  const int64_t first = way_ == Way::ring ? place(bytes) : std::exchange(next_, next_ + bytes);
  int64_t at = first;
  for (const at::Tensor& t : from) {
    if (t.defined()) write(t, at);
    at += room(t);
  }
  if (way_ == Way::repeated) return here;
  fetch(there, first, bytes);
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

int64_t upload_room(const net::Batch& batch) {
  int64_t room = 0;
  for (const Tensor& input : batch.inputs) room += Uploads::room(input);
  for (const Tensor& table : batch.tokens.tables()) room += Uploads::room(table);
  return room;
}

namespace {

/// Numbers and lists of them, in their order.
class Form {
 public:
  void add(int64_t number) { text_ += std::to_string(number) + ' '; }
  void add(const Tensor& t) {
    if (!t.defined()) return add(int64_t{-1});
    add(static_cast<int64_t>(t.scalar_type())), add(t.dim());
    for (const int64_t size : t.sizes()) add(size);
  }
  void add(const ops::RowRun& run) { add(run.row), add(run.begin), add(run.end); }
  template <size_t n>
  void add(const std::array<int64_t, n>& numbers) {
    for (const int64_t number : numbers) add(number);
  }
  template <class Entry>
  void add(const std::vector<Entry>& list) {
    add(static_cast<int64_t>(list.size()));
    for (const Entry& entry : list) add(entry);
  }
  void add(const net::Space& space) {
    add(space.offsets), add(space.shapes), add(space.ranges), add(space.rows.of_token), add(space.rows.runs);
    add(space.chunks), add(space.cos), add(space.sin), add(space.begin), add(space.end);
  }
  void add(const net::Segments& segments) {
    add(int64_t{segments.q}), add(int64_t{segments.k}), add(segments.ranges), add(segments.order);
    add(segments.local_order), add(segments.local_offsets);
  }
  std::string text() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

std::optional<std::string> form_of(const net::Batch& batch) {
  if (batch.tokens.history) return std::nullopt;
  Form form;
  form.add(batch.inputs), form.add(static_cast<const net::Space&>(batch.tokens)), form.add(batch.tokens.spaces);
  form.add(batch.tokens.segments), form.add(batch.shapes), form.add(batch.predicted);
  return form.text();
}

net::Batch copy_of(net::Batch batch) {
  for (Tensor& input : batch.inputs) input = copy_of(input);
  batch.tokens.change_tables([](const Tensor& t) { return t.clone(); });
  return batch;
}

net::Batch on_device(net::Batch batch, at::Device device, Uploads& uploads) {
  std::vector<Tensor> all = batch.inputs;
  batch.tokens.change_tables([&](const Tensor& t) { return all.emplace_back(t); });
  all = uploads.bring(all, device);
  std::copy_n(all.begin(), batch.inputs.size(), batch.inputs.begin());
  auto next = all.begin() + std::ssize(batch.inputs);
  batch.tokens.change_tables([&next](const Tensor&) { return *next++; });
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

namespace {

/// What a batch of two samples becomes with `more` of them, as that of one sample tells.
class Growth {
 public:
  explicit Growth(int64_t more) : more_(more) {}

  void grow(net::Batch& batch, const net::Batch& one) {
    for (size_t i = 0; i < batch.inputs.size(); ++i) grow(batch.inputs[i], one.inputs.at(i));
    grow(batch.shapes, one.shapes), grow(batch.predicted, one.predicted);
    net::Tokens& tokens = batch.tokens;
    grow(static_cast<net::Space&>(tokens), one.tokens);
    for (size_t s = 0; s < tokens.spaces.size(); ++s) grow(tokens.spaces[s], one.tokens.spaces.at(s));
    for (size_t s = 0; s < tokens.segments.size(); ++s) {
      grow(tokens.segments[s].ranges, one.tokens.segments.at(s).ranges);
      alike_ &= !tokens.segments[s].order.defined();  // whose values are read where cp cuts the tokens
    }
  }

  bool alike() const { return alike_; }  ///< each sample adds the same

 private:
  /// A number that is `one` with one sample and `two` with two of them, where that of the next sample is `next`: of the
  /// sample that is `further` on, with all of them.
  int64_t grown(int64_t one, int64_t two, int64_t next, int64_t further) const {
    return two + more_ * (two - one) + further * (next - two);
  }
  template <size_t n>
  std::array<int64_t, n> grown(std::array<int64_t, n> one, const std::array<int64_t, n>& two,
                               const std::array<int64_t, n>& next, int64_t further) const {
    for (size_t i = 0; i < n; ++i) one[i] = grown(one[i], two[i], next[i], further);
    return one;
  }
  ops::RowRun grown(const ops::RowRun& one, const ops::RowRun& two, const ops::RowRun& next, int64_t further) const {
    return {grown(one.row, two.row, next.row, further), grown(one.begin, two.begin, next.begin, further),
            grown(one.end, two.end, next.end, further)};
  }

  /// A list with entries for each sample, or as long for two samples as for one.
  template <class Entry>
  void grow(std::vector<Entry>& list, const std::vector<Entry>& one) {
    const std::vector<Entry> two = list;
    const size_t each = two.size() - one.size();
    alike_ &= two.size() >= one.size() && each <= one.size();
    if (!alike_) return;
    list.clear();
    for (size_t i = 0; i < one.size(); ++i) list.push_back(grown(one[i], two[i], two[i], 0));
    for (int64_t further = 1; each > 0 && further <= more_ + 1; ++further)
      for (size_t i = one.size() - each; i < one.size(); ++i)
        list.push_back(grown(one[i], two[i], two[i + each], further));
  }

  void grow(Tensor& tensor, const Tensor& one) {
    if (!tensor.defined()) return;
    alike_ &= tensor.dim() == one.dim() && tensor.is_contiguous();
    if (!alike_) return;
    std::vector<int64_t> sizes;
    for (int64_t d = 0; d < tensor.dim(); ++d) sizes.push_back(grown(one.size(d), tensor.size(d), 0, 0));
    tensor = at::empty(sizes, tensor.options().device(at::kMeta));
  }

  void grow(net::Space& space, const net::Space& one) {
    grow(space.offsets, one.offsets), grow(space.shapes, one.shapes), grow(space.ranges, one.ranges);
    grow(space.rows.runs, one.rows.runs), grow(space.rows.of_token, one.rows.of_token);
    grow(space.cos, one.cos), grow(space.sin, one.sin);
    if (!space.chunks.empty()) space.chunks.resize(space.chunks.size() + static_cast<size_t>(more_), one.chunks.at(0));
  }

  const int64_t more_;
  bool alike_ = true;
};

}  // namespace

net::Batch batch_of_alike(const net::Denoiser& model, const net::Sample& sample, int64_t count) {
  constexpr int64_t kPacked = 2;
  const auto packed = [&](int64_t samples) {
    return model.pack(std::vector<net::Sample>(static_cast<size_t>(samples), sample));
  };
  if (count <= kPacked) return packed(count);
  net::Batch batch = packed(kPacked);
  Growth growth(count - kPacked);
  growth.grow(batch, packed(1));
  return growth.alike() ? batch : packed(count);
}

}  // namespace tessera::engine
