#include "tessera/engine/unit_run.h"

#include <c10/core/AutogradState.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/engine/sequence_attention.h"
#include "tessera/engine/tensor_parallel.h"
#include "tessera/ops/activations.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/ops.h"
#include "tessera/ops/rows.h"
#include "tessera/ops/session.h"
#include "tessera/ops/tangent.h"

namespace tessera::engine {

namespace {

/// Whether the product of an input's gradient adds to what others have of it: all but that of our CPU kernels, which round it first.
bool adds_gradients(const Tensor& rows) { return !ops::moves(rows) && &ops::kernels(rows) != &ops::cpu_kernels(); }

/// Query-key pairs of all segments: the work of attention is proportional to them.
double attended_pairs(const std::vector<int64_t>& queries, const std::vector<int64_t>& keys) {
  double sum = 0;
  for (size_t s = 0; s + 1 < queries.size(); ++s)
    sum += static_cast<double>(queries[s + 1] - queries[s]) * static_cast<double>(keys[s + 1] - keys[s]);
  return sum;
}

std::vector<int64_t> clamped(std::vector<int64_t> offsets, plan::TokenRange rows) {
  for (int64_t& at : offsets) at = std::clamp<int64_t>(at - rows.begin, 0, rows.count());
  return offsets;
}

/// What the site's adapter does without: columns of its input, and whole ranks or samples.
void set_dropouts(ops::Adapter& adapter, const net::AdapterSettings& adapters, std::string_view site,
                  const net::Tokens& tokens, const Tensor& x, const InputPart& part) {
  if (adapters.dropout <= 0 && adapters.rank_dropout <= 0 && adapters.module_dropout <= 0) return;
  net::Space rows = tokens.space(part.space);
  if (part.rows) rows.begin = part.rows->begin, rows.end = part.rows->end;
  adapter.dropout = net::dropout_at(adapters, site, tokens, rows, x.size(0), x.is_meta());
  adapter.dropout.width = part.width, adapter.dropout.first_column = part.first_column;
  adapter.left_out = net::left_out_at(adapters, site, tokens, rows, x.size(0), x.is_meta());
}

}  // namespace

ops::WeightSite& ShardContext::weight(std::string_view site, std::string_view suffix) {
  return store_.site(unit_, std::string(site).append(suffix));
}
Tensor ShardContext::anchor(const ops::WeightSite& site) const {
  return site.frozen ? store_.anchor(unit_).detach() : store_.anchor(unit_);
}
ops::WeightSite* ShardContext::bias(std::string_view site) { return store_.find(unit_, std::string(site) + ".bias"); }

const plan::ParamSpec* ShardContext::cut(std::string_view site) const {
  if (!tensor_parallel()) return nullptr;
  const plan::ParamSpec* spec = store_.find_spec(unit_, std::string(site) + ".weight");
  return spec && spec->split != plan::Split::none ? spec : nullptr;
}

const ops::AttentionResult* ShardContext::known(std::string_view site) const {
  if (!mode_.known) return nullptr;
  const auto it = mode_.known->find(site);
  return it == mode_.known->end() ? nullptr : &it->second;
}

ops::AttentionResult* ShardContext::to_keep(std::string_view site) const {
  if (!mode_.keep) return nullptr;
  const auto it = mode_.keep->find(site);
  return it == mode_.keep->end() ? nullptr : &it->second;
}

Tensor ShardContext::linear_as_cut(std::string_view site, const Tensor& x, int space, const RunLinear& run,
                                   const Tensor* known) {
  const plan::ParamSpec* spec = cut(site);
  if (!spec || (spec->split == plan::Split::column_parallel && spec->whole_input)) return run(x, bias(site), known);
  const TpGroupRows rows = tp_group_rows(tokens_, space, *mode_.parallel);
  if (spec->split == plan::Split::row_parallel) {
    gathered_ = Tensor();
    Tensor unread;  // where the sum is known, this rank's summand has a shape and no values
    if (known) unread = at::empty({1, 1}, known->options()).expand({x.size(0), known->size(1)});
    return sum_to_shares(run(x, nullptr, known ? &unread : nullptr), rows, *mode_.parallel, bias(site),
                         store_.anchor(unit_), known);
  }
  if (!gathered_.defined() || gathered_of_.lock() != x.getIntrusivePtr()) {
    gathered_ = Tensor();
    gathered_ = gather_over_tp(x, rows, *mode_.parallel);
    gathered_of_ = c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr());
  }
  return run(gathered_, bias(site), known);
}

InputPart ShardContext::input_part(std::string_view site, int space, int64_t cols) const {
  const plan::ParamSpec* spec = cut(site);
  InputPart part{.space = space};
  if (!spec || (spec->split == plan::Split::column_parallel && spec->whole_input)) return part;
  part.rows = tokens_.space(space).within(mode_.parallel->tp_group(tokens_.total()));
  if (spec->split == plan::Split::row_parallel)
    part.width = cols * mode_.parallel->tp(), part.first_column = cols * mode_.parallel->tp_rank();
  return part;
}

Tensor ShardContext::frozen_linear(std::string_view site, const Tensor& x, ops::WeightSite* bias, bool gelu,
                                   const InputPart& part, const Tensor* known) {
  const auto find = [&](const std::string& ending) { return store_.find(unit_, std::string(site) + ending); };
  const bool adapted = adapters_ && !mode_.without_adapters;
  ops::WeightSite &w = weight(site, ".weight"), *a = adapted ? find(net::kLoraA) : nullptr;
  const net::ChangeKind* kind = adapted && !a ? net::change_kind(find) : nullptr;
  if (!a && !kind) return ops::frozen_linear(x, w, bias, nullptr, store_.anchor(unit_), gelu, type_, known);
  ops::Adapter adapter{.scale = adapters_->scale_of(site)};
  set_dropouts(adapter, *adapters_, site, tokens_, x, part);
  if (kind) {
    const auto half = [&](const std::string& name) {
      return ops::Adapter::Half{find(name), find(name + net::kLeft), find(name + net::kRight)};
    };
    adapter.kind = kind->kind, adapter.first = half(kind->first), adapter.second = half(kind->second);
  } else {
    adapter.a = a, adapter.b = &weight(site, net::kLoraB);
  }
  adapter.magnitude = find(net::kLoraMagnitude);
  if (const auto* spec = cut(site); adapter.magnitude && spec && spec->split == plan::Split::row_parallel)
    adapter.whole_rows = &mode_.parallel->shared_width(x.size(1) * mode_.parallel->tp(), plan::Rows::adapter, 1);
  return ops::frozen_linear(x, w, bias, &adapter, store_.anchor(unit_), gelu, type_, known);
}

/// The sum over tp for an RMSNorm whose columns its ranks share; null where they do not.
const ops::SharedWidth* ShardContext::shared_width(std::string_view site, const Tensor& x, int space) const {
  const plan::ParamSpec* spec = cut(site);
  if (!spec) return nullptr;
  const auto samples = static_cast<int64_t>(tokens_.offsets.size()) - 1;
  const int64_t width = x.size(1) * mode_.parallel->tp();
  if (spec->whole_input) return &mode_.parallel->shared_width(width, plan::Rows::context, samples);
  return &mode_.parallel->shared_width(width, plan::Rows::own, samples, part_of(tokens_, space));
}

Tensor ShardContext::linear(std::string_view site, const Tensor& input, const net::Linear& how) {
  session_.site = site;
  const ops::Fp8Scope eight(store_.fp8(unit_) ? &eight_bits_ : nullptr);
  const ops::RoundedScope rounded(&rounded_);
  ops::WeightSite& w = weight(site, ".weight");
  const bool gelu = how.act == net::Act::gelu_tanh;  // fused: the activated input never exists as a whole
  const Tensor x = gelu                            ? input
                   : how.act == net::Act::silu_glu ? ops::silu_glu(input, *how.gate)
                                                   : net::activated(input, how);
  // DoRA's magnitude reads this rank's summand in its backward, and a kept sum does not have it.
  const bool may_stay = gelu && (!cut(site) || !store_.find(unit_, std::string(site).append(net::kLoraMagnitude)));
  const ops::AttentionResult* there = gelu ? known(site) : nullptr;
  const auto weight_gradients = exchanged_.lock() == x.getIntrusivePtr() ? ops::When::late : ops::When::at_once;
  const RunLinear run = [&](const Tensor& rows, ops::WeightSite* b, const Tensor* result) {
    if (w.frozen && (!b || b->frozen))
      return frozen_linear(site, rows, b, gelu, input_part(site, how.space, rows.size(1)), result);
    const Tensor again = read_.defined() && read_of_.lock() == rows.getIntrusivePtr() ? read_ : rows;
    read_ = Tensor();
    if (gelu) return ops::gelu_linear(rows, w, b, store_.anchor(unit_), type_, result);
    if (!adds_gradients(rows)) return ops::linear(rows, w, b, store_.anchor(unit_), type_, weight_gradients);
    read_of_ = c10::weak_intrusive_ptr<c10::TensorImpl>(rows.getIntrusivePtr());
    const Tensor y = ops::linear(again, w, b, store_.anchor(unit_), type_, weight_gradients, &read_);
    if (read_.defined() && multiplied_.lock() == rows.getIntrusivePtr()) {
      passed(rows);  // of the linear before
      passed_.emplace_back(rows.getIntrusivePtr(), read_);
    }
    return y;
  };
  const Tensor y = linear_as_cut(site, x, how.space, run, there ? &there->out : nullptr);
  if (mode_.on_result && may_stay) mode_.on_result(site, 2 * static_cast<double>(x.numel() * y.size(1)));
  if (ops::AttentionResult* keep = gelu ? to_keep(site) : nullptr) keep->out = y;
  return y;
}

Tensor ShardContext::norm(std::string_view site, const Tensor& x, const net::Norm& how, int index) {
  session_.site = site;
  const net::Space& space = tokens_.space(index);
  if (how.kind == net::Norm::rms) return rms_norm(site, x, how, space, shared_width(site, x, index));
  Tensor y, passed;
  if (how.scale) {
    y = ops::modulated_norm(x, *how.shift, *how.scale, space.rows, how.eps, type_, &passed);
  } else {
    ops::WeightSite &w = weight(site, ".weight"), &b = weight(site, ".bias");
    y = ops::layer_norm(x, w, b, how.eps, anchor(w.frozen ? b : w), type_, &passed);
  }
  if (passed.defined()) passed_.emplace_back(x.getIntrusivePtr(), passed);
  return y;
}

void ShardContext::forget_inputs() {
  gathered_ = read_ = Tensor();
  eight_bits_.clear();
  rounded_.clear();
}

/// x as the last norm or linear that read it passes it on.
Tensor ShardContext::passed(const Tensor& x) {
  for (auto it = passed_.rbegin(); it != passed_.rend(); ++it)
    if (it->first.lock() == x.getIntrusivePtr()) {
      Tensor again = it->second;
      passed_.erase(std::next(it).base());
      return again;
    }
  return x;
}

Tensor ShardContext::rms_norm(std::string_view site, const Tensor& x, const net::Norm& how, const net::Space& space,
                              const ops::SharedWidth* shared) {
  ops::WeightSite& w = weight(site, ".weight");
  if (how.heads > 0) {  // a row for each head
    const Tensor y = ops::rms_norm(x.view({-1, w.value.size(0)}), w, how.eps, anchor(w)).view(x.sizes());
    return how.rope > 0 ? rope(site, y, how.rope, net::RopeStyle::interleaved, space) : y;
  }
  if (how.rope == 0) return ops::rms_norm(x, w, how.eps, anchor(w), shared);
  const int64_t heads = shared ? how.rope / mode_.parallel->tp() : how.rope;
  return ops::rms_norm_rope(x, w, space.cos, space.sin, heads, how.eps, anchor(w), shared);
}

Tensor ShardContext::rope(std::string_view site, const Tensor& x, int64_t heads, net::RopeStyle style, int space) {
  session_.site = site;
  return rope(site, x, heads, style, tokens_.space(space));
}

/// Where ranks share the heads, x has the columns of this rank's: their number follows from the width of the tables.
Tensor ShardContext::rope(std::string_view, const Tensor& x, int64_t, net::RopeStyle style, const net::Space& space) {
  const int64_t here = div_exact(x.size(1), 2 * space.cos.size(1), "engine.context: channels / a head's");
  return ops::rope(x, space.cos, space.sin, here, style == net::RopeStyle::half_split);
}

Tensor ShardContext::residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor* gate, int space,
                              bool multiplied) {
  session_.site = site;
  eight_bits_.clear();
  rounded_.clear();
  const Tensor stream = passed(x);
  if (!gate) return ops::sum(stream, y);
  const bool rounds = multiplied && type_ == at::kBFloat16 && !tensor_parallel();
  Tensor rounded;
  const Tensor out = ops::gated_residual(stream, y, *gate, tokens_.space(space).rows, site != mode_.unneeded,
                                         rounds ? &rounded : nullptr);
  if (rounded.defined()) rounded_ = ops::RoundedInput(out, rounded);
  if (multiplied && !tensor_parallel()) multiplied_ = c10::weak_intrusive_ptr<c10::TensorImpl>(out.getIntrusivePtr());
  return out;
}

/// After a column-parallel linear a tensor has the rows of the whole tp group and this rank's columns.
bool ShardContext::has_group_rows(int64_t rows) const {
  return tensor_parallel() && rows == mode_.parallel->tp_group(tokens_.total()).count();
}

/// Query-key pairs of this rank. Where tp ranks share the heads, the pairs of the whole tp group: the caller multiplies
/// them by this rank's columns.
double ShardContext::pairs(const net::Segments& segments, int64_t queries, bool shares_heads) const {
  const bool self = segments.q == 0 && segments.k == 0;
  if (self && segments.ranges.empty()) return tokens_.pairs() * (shares_heads ? mode_.parallel->tp() : 1);
  const net::SegmentOffsets offsets = net::segment_offsets(tokens_, segments);
  if (!self) return attended_pairs(clamped(offsets.q_offsets, query_rows(segments.q, shares_heads)), offsets.k_offsets);
  return attended_pairs(offsets.q_offsets, offsets.k_offsets) * static_cast<double>(queries) /
         static_cast<double>(std::max<int64_t>(tokens_.total(), 1));
}

plan::TokenRange ShardContext::query_rows(int space, bool shares_heads) const {
  const net::Space& rows = tokens_.space(space);
  if (!shares_heads) return {rows.begin, rows.begin + rows.count()};
  return rows.within(mode_.parallel->tp_group(tokens_.total()));
}

Tensor ShardContext::ahead(std::string_view site, const Tensor& x) {
  session_.site = site;
  return mode_.parallel ? sent_.send(x, tokens_.total(), *mode_.parallel) : x;
}

Tensor ShardContext::shared_attention(std::string_view site, const ops::AttentionInputs& in, int64_t heads,
                                      const net::Segments& segments) {
  const Parallel& parallel = *mode_.parallel;
  const ops::AttentionInputs wide = sent_.arrive(in.q, in.k, in.v, tokens_.total(), parallel);
  Tensor out = segments.ranges.empty()
                   ? sequence_attention(wide, heads, tokens_, parallel, to_keep(site), known(site))
                   : segment_attention(wide, heads, tokens_, segments, parallel, to_keep(site), known(site));
  if (parallel.sp() > 1) exchanged_ = c10::weak_intrusive_ptr<c10::TensorImpl>(out.getIntrusivePtr());
  return out;
}

Tensor ShardContext::attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                               const net::Segments& segments, const net::Softmax& softmax) {
  if (softmax.bias) return ops::attention_bias(q, k, v, heads, softmax.bias->contiguous());
  session_.site = site;
  forget_inputs();
  const auto [queries, width] = sent_.sizes(q);
  const bool self = segments.q == 0 && segments.k == 0, shares_heads = segments.q == 0 && has_group_rows(queries);
  if (shares_heads) heads /= mode_.parallel->tp();
  if (segments.q == segments.k && !self && tokens_.space(segments.q).cut())
    throw UserError(Exit::usage, "mesh",
                    "attention " + std::string(site) +
                        " is of a part of the tokens to itself, and ranks of cp, sp or tp "
                        "share the tokens",
                    "use dp_shard or pp in place of cp, sp and tp: attention over ranks is of all tokens");
  check_internal(!self || !tensor_parallel() || shares_heads, "engine.context",
                 "self-attention " + std::string(site) + " sees some of the tokens: the model has no table for tp");
  if (mode_.on_result) mode_.on_result(site, 4 * pairs(segments, queries, shares_heads) * static_cast<double>(width));
  if (self && mode_.parallel && mode_.parallel->cuts_attention())
    return shared_attention(site, {q, k, v}, heads, segments);
  net::SegmentOffsets offsets = net::segment_offsets(tokens_, segments);
  if (!self) offsets.q_offsets = clamped(offsets.q_offsets, query_rows(segments.q, shares_heads));
  const auto in_order = [&](const Tensor& x) {
    return segments.order.defined() ? ops::take_rows(x, segments.order) : x;
  };
  const Tensor out = ops::attention(in_order(q), in_order(k), in_order(v), heads, offsets.q_offsets, offsets.k_offsets,
                                    to_keep(site), known(site));
  return segments.order.defined() ? ops::put_rows(out, segments.order) : out;
}

Tensor ShardContext::linear_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                      int64_t heads, double eps, const net::Rotated& rotated) {
  session_.site = site;
  forget_inputs();
  const bool shares_heads = has_group_rows(q);
  if (shares_heads) heads /= mode_.parallel->tp();
  const plan::TokenRange here = query_rows(0, shares_heads);
  const std::vector<int64_t> offsets = clamped(tokens_.state_offsets(), here);
  Tensor states = ops::linear_attention_states(rotated.k ? *rotated.k : k, k, v, heads, offsets);
  if (mode_.parallel && tokens_.cut()) {  // messages are counted by samples, which have as many chunks each
    const auto samples = static_cast<int64_t>(tokens_.offsets.size()) - 1;
    check_internal(states.size(0) % samples == 0, "engine.context", "samples of a micro-batch differ in their chunks");
    const auto sizes = states.sizes().vec();
    states = sum_states(states.view({samples, -1, sizes[2], sizes[3]}), !shares_heads, *mode_.parallel).view(sizes);
  }
  states = tokens_.read_states(states);
  if (tokens_.history) states = tokens_.history->read(place_of(site), states, std::ssize(tokens_.offsets) - 1);
  return ops::linear_attention_result(rotated.q ? *rotated.q : q, q, states, heads, offsets, eps);
}

/// Where the neighbours of x lie.
Tensor ShardContext::taps(const Reach& reach, int space, const std::array<int64_t, 3>& kernel, const Tensor& x) const {
  const Tensor table = tap_table(reach, tokens_, space, kernel, x);
  return mode_.bring && !table.is_meta() ? mode_.bring(table) : table.to(x.device());
}

Tensor ShardContext::conv(std::string_view site, const Tensor& x, const net::Conv& how, int space) {
  session_.site = site;
  forget_inputs();
  ops::WeightSite& w = weight(site, ".weight");
  const Reach reach = reach_of(tokens_, space, how.kernel, mode_.parallel, /*over_tp=*/cut(site) == nullptr);
  const Tensor wide = reach_rows(x, reach, mode_.parallel);
  ops::WeightSite* b = bias(site);
  const Tensor table = taps(reach, space, how.kernel, x), start = anchor(w.frozen && b ? *b : w);
  if (how.value) return ops::gated_depthwise(*how.value, wide, table, w, b, start, how.silu);
  return ops::depthwise(wide, table, w, b, start, type_, how.silu);
}

Tensor ShardContext::unfold(std::string_view site, const Tensor& x, const net::Conv& how, int space) {
  session_.site = site;
  const Reach reach = reach_of(tokens_, space, how.kernel, mode_.parallel, /*over_tp=*/true);
  const Tensor wide = reach_rows(x, reach, mode_.parallel);
  const Tensor y = ops::unfold(wide, taps(reach, space, how.kernel, x));
  return tokens_.history && how.kernel[0] > 1 ? behind_history(site, x, y, how) : y;
}

/// The neighbours of x with the last frames of the chunks before; stores that of this one, of which every rank has all rows.
Tensor ShardContext::behind_history(std::string_view site, const Tensor& x, const Tensor& y, const net::Conv& how) {
  check_internal(how.kernel == std::array<int64_t, 3>({3, 1, 1}), "engine.context",
                 "a chunk reads one frame of the chunk before, and its neighbours in time alone");
  const net::History& history = *tokens_.history;
  if (history.storing) {
    const Tensor own = x.detach();
    const Tensor all = mode_.parallel && tokens_.cut() ? mode_.parallel->gather_tokens(own, tokens_.total()) : own;
    history.store_frames(place_of(site), tokens_.last_frames(all));
  }
  const Tensor rows = tokens_.before_first_frames(place_of(site), x, x.size(0));
  if (!rows.defined()) return y;
  const Tensor before = rows.to(y.scalar_type());
  return (y.view({x.size(0), x.size(1), 3}) + at::constant_pad_nd(before.unsqueeze(2), {0, 2})).view(y.sizes());
}

/// A site's name in what chunks leave.
std::string ShardContext::place_of(std::string_view site) const {
  return store_.spec(unit_).name + "." + std::string(site);
}

Tensor ShardContext::param(std::string_view site) {
  session_.site = site;
  ops::WeightSite& w = weight(site, "");
  return ops::param(w, anchor(w));
}
Tensor ShardContext::param_plus(std::string_view site, const Tensor& x) {
  session_.site = site;
  ops::WeightSite& w = weight(site, "");
  return ops::param_plus(w, x, anchor(w));
}
Tensor ShardContext::embedding(std::string_view site, const Tensor& ids) {
  ops::WeightSite& w = weight(site, ".weight");
  return ops::embedding(ids, w, anchor(w));
}

namespace {

bool shares_memory(const Tensor& t, const std::vector<Tensor>& others) {
  return std::ranges::any_of(others, [&](const Tensor& other) { return t.is_alias_of(other); });
}

/// While it lives, all nodes of a backward run on the thread that asks for it. LibTorch else runs those of a GPU on a
/// thread of its own, where what is thread-local here (deferred weight gradients, rebuilt values, the clock of
/// collectives) is empty: weight gradients of a zero-bubble pipeline would be missing, and nothing would say so.
class OnThisThread {
 public:
  OnThisThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(false); }
  ~OnThisThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  OnThisThread(const OnThisThread&) = delete;

 private:
  const bool before_ = c10::AutogradState::get_tls_state().get_multithreading_enabled();
};

/// A backward as LibTorch's engine runs it: of the nodes whose gradients are complete the youngest first, gradients added in the
/// order in which they come, on the streams of the forward. That engine also puts the state of its thread aside and back
/// around each node, which takes the host longer than most nodes do. Here it is one thread's from begin to end.
class GraphHere {
 public:
  using Edge = torch::autograd::Edge;
  using edge_list = torch::autograd::edge_list;
  using variable_list = torch::autograd::variable_list;

  GraphHere(const edge_list& roots, const edge_list& wanted) : roots_(roots), wanted_(wanted) {
    for (const Edge& edge : wanted) known_ = known_ && edge.function->next_edges().empty();
    for (const Edge& root : roots) reach(root);
    for (size_t next = 0; next < places_.size(); ++next) {
      torch::autograd::Node& node = *places_[next].node;
      known_ = known_ && node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty() &&
               node.pre_hooks().empty() && node.post_hooks().empty();
      bool leaf = true;
      for (const Edge& edge : node.next_edges())
        if (edge.is_valid()) leaf = false, reach(edge);
      places_[next].leaf = leaf;
      known_ = known_ &&
               (!leaf || std::ranges::any_of(wanted, [&](const Edge& edge) { return edge.function.get() == &node; }));
    }
  }

  /// Whether it is as units' graphs are: without hooks, and ends at wanted leaves alone. Then all of its nodes are needed.
  bool known() const { return known_; }

  /// The gradients of the leaves, given those of the roots. Frees what the nodes have saved.
  variable_list run(variable_list& gradients) {
    const at::AutoGradMode mode(false);
    validate_outputs(roots_, gradients, [](const std::string& text) { return text; });
    for (size_t r = 0; r < roots_.size(); ++r)
      add(roots_[r], gradients[r], torch::autograd::InputMetadata(gradients[r]).stream());
    found_.resize(wanted_.size());
    while (!ready_.empty()) {
      std::ranges::pop_heap(ready_, {}, kNumber);
      const size_t place = ready_.back().second;
      ready_.pop_back();
      evaluate(places_[place]);
    }
    for (const c10::Stream& leaf : leaves_) await(leaf);
    return std::move(found_);
  }

 private:
  using Node = torch::autograd::Node;
  using InputBuffer = torch::autograd::InputBuffer;
  struct Place {
    Node* node;
    int open = 0;  // edges to it whose gradients have not come
    bool leaf = false;
    std::optional<InputBuffer> inputs = {};
  };
  static uint64_t number(const std::pair<uint64_t, size_t>& ready) { return ready.first; }
  static constexpr auto kNumber = &GraphHere::number;

  void reach(const Edge& edge) {
    const auto [at, fresh] = index_.emplace(edge.function.get(), places_.size());
    if (fresh) places_.push_back({edge.function.get()});
    ++places_[at->second].open;
  }

  void add(const Edge& to, Tensor gradient, const std::optional<c10::Stream>& from) {
    const size_t at = index_.at(to.function.get());
    Place& place = places_[at];
    if (!place.inputs) place.inputs.emplace(place.node->num_inputs());
    place.inputs->add(to.input_nr, std::move(gradient), from, place.node->stream(), place.node);
    if (--place.open > 0) return;
    ready_.emplace_back(place.node->sequence_nr(), at);
    std::ranges::push_heap(ready_, {}, kNumber);
  }

  void evaluate(Place& place) {
    Node& node = *place.node;
    InputBuffer inputs = *std::exchange(place.inputs, std::nullopt);
    const std::optional<c10::Stream> stream = node.stream();
    const c10::OptionalStreamGuard guard(stream);
    if (place.leaf) {
      for (size_t i = 0; i < wanted_.size(); ++i)
        if (wanted_[i].function.get() == &node) found_[i] = inputs.buffer[wanted_[i].input_nr];
      if (stream) leaves_.push_back(*stream);
      return;
    }
    node.will_release_variables();
    variable_list outputs = node(std::move(inputs.buffer));
    validate_outputs(node.next_edges(), outputs,
                     [&](const std::string& text) { return "Function " + node.name() + " returned an " + text; });
    node.release_variables();
    for (size_t i = 0; i < outputs.size(); ++i)
      if (const Edge& next = node.next_edge(i); next.is_valid()) add(next, std::move(outputs[i]), stream);
  }

  /// What the thread's stream is given from here on comes after what the stream of a gradient was given.
  static void await(const c10::Stream& stream) {
    const c10::Stream here = c10::impl::VirtualGuardImpl(stream.device_type()).getStream(stream.device());
    if (here == stream) return;
    c10::Event given(stream.device_type());
    given.record(stream);
    here.wait(given);
  }

  const edge_list &roots_, &wanted_;
  bool known_ = true;
  std::vector<Place> places_;
  ska::flat_hash_map<Node*, size_t> index_;  // of places_
  std::vector<std::pair<uint64_t, size_t>> ready_;
  variable_list found_;
  std::vector<c10::Stream> leaves_;
};

}  // namespace

std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, bool requires_grad) {
  std::vector<Tensor> result;
  for (const Tensor& t : tensors) result.push_back(t.detach().requires_grad_(requires_grad && t.is_floating_point()));
  return result;
}

std::vector<Tensor> foreign_tensors(const std::vector<Tensor>& in, const std::vector<Tensor>& cond,
                                    const net::Tokens& tokens) {
  std::vector<Tensor> result = in;
  result.insert(result.end(), cond.begin(), cond.end());
  for (const Tensor& table : tokens.tables()) result.push_back(table);
  return result;
}

net::Flow run_forward(const net::Unit& unit, net::Context& ctx, const std::vector<Tensor>& cond, bool graph,
                      UnitRun& run) {
  const at::AutoGradMode mode(graph);
  net::Flow out = unit.forward(ctx, {run.in, cond});
  for (Tensor& t : out.stream)
    if (shares_memory(t, run.in)) t = t.clone();  // the unit's input may be offloaded while the next unit runs
  if (!graph) return out;
  net::Flow detached;
  for (const Tensor& t : out.stream) {
    run.stream_roots.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
    detached.stream.push_back(t.detach());
  }
  for (const Tensor& t : out.cond) {
    run.cond_roots.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
    detached.cond.push_back(t.detach());
  }
  return detached;
}

std::vector<Tensor> run_backward(UnitRun& run, std::vector<Tensor> out_grad, std::vector<Tensor> out_cond_grad,
                                 const std::vector<Tensor>& cond, std::vector<Tensor>& cond_grad,
                                 const Tensor& anchor) {
  torch::autograd::edge_list roots, wanted;
  torch::autograd::variable_list grads;
  const auto add_output = [&](const torch::autograd::edge_list& edges, std::vector<Tensor>& gradients) {
    for (size_t i = 0; i < edges.size(); ++i) {
      if (i >= gradients.size() || !gradients[i].defined() || !edges[i].is_valid()) continue;
      roots.push_back(edges[i]);
      grads.push_back(std::move(gradients[i]));
    }
  };
  const auto want = [&](const Tensor& t) {
    if (t.requires_grad()) wanted.push_back(torch::autograd::impl::gradient_edge(t));
  };
  add_output(run.stream_roots, out_grad);
  add_output(run.cond_roots, out_cond_grad);
  const size_t streams = run.in.size();
  for (const Tensor& t : run.in) want(t);
  for (const Tensor& t : cond) want(t);
  want(anchor);  // without it, autograd prunes nodes that lead to no other input

  std::vector<Tensor> found(wanted.size());
  const OnThisThread here;
  const ops::LateScope late(ops::Works{});
  const ops::SumsScope sums(std::vector<ops::LeftSums>{});
  if (!roots.empty() && !wanted.empty()) {
    GraphHere graph(roots, wanted);
    found = graph.known() ? graph.run(grads)
                          : torch::autograd::Engine::get_default_engine().execute(roots, grads, /*keep_graph=*/false,
                                                                                  /*create_graph=*/false,
                                                                                  /*accumulate_grad=*/false, wanted);
  }
  ops::session().run_late();  // of inputs that nobody sends
  ops::session().add_sums();
  roots.clear(), grads.clear();
  std::vector<Tensor> in_grad(streams);
  size_t at = 0;
  for (size_t i = 0; i < streams; ++i)
    if (run.in[i].requires_grad()) in_grad[i] = found[at++];
  for (size_t i = 0; i < cond.size(); ++i) {
    if (!cond[i].requires_grad()) continue;
    Tensor gradient = found[at++];
    if (!gradient.defined()) continue;
    if (cond_grad[i].defined())
      cond_grad[i].add_(gradient);
    else
      cond_grad[i] = gradient;
  }
  run = UnitRun{};
  return in_grad;
}

}  // namespace tessera::engine
