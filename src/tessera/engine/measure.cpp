#include "tessera/engine/measure.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <type_traits>

#include "tessera/base/check.h"
#include "tessera/engine/signatures.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/unit_run.h"
#include "tessera/ops/session.h"

namespace tessera::engine {

namespace {

/// A unit and the inputs of its forward on one of the ranks that share the tokens. Borrows everything.
struct UnitProbe {
  const net::Unit& unit;
  Store& store;  ///< has this unit alone, bound
  const net::Tokens& tokens;
  const Parallel& parallel;
  const std::vector<Tensor>&stream, &cond;  ///< its inputs
  bool want_input, want_cond;               ///< whether the stream and cond need gradients
  bool first;                               ///< the model's first unit: its input is the batch
};

struct GraphMeasure {
  plan::GraphCost cost;
  int64_t grad_in = 0;
  std::vector<int64_t> grad_cond;
  std::vector<plan::Traffic> backward_traffic;
};

/// Device bytes of tensors, with the allocator's rounding.
int64_t allocated_bytes(const std::vector<Tensor>& tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors)
    if (t.defined()) sum += round_up(static_cast<int64_t>(t.storage().nbytes()), 64);
  return sum;
}

/// The same, counting a storage that several tensors share once.
int64_t distinct_bytes(const std::vector<Tensor>& tensors) {
  std::vector<c10::StorageImpl*> seen;
  int64_t sum = 0;
  for (const Tensor& t : tensors) {
    auto* storage = t.storage().unsafeGetStorageImpl();
    if (std::find(seen.begin(), seen.end(), storage) != seen.end()) continue;
    seen.push_back(storage);
    sum += round_up(static_cast<int64_t>(t.storage().nbytes()), 64);
  }
  return sum;
}

/// Bytes of a saved tensor in each quantised form.
plan::Compact compact(const SavedStorage& saved) {
  plan::Compact bytes;
  for (const DType form : plan::kLossyForms)
    if (can_pack(saved, form)) bytes[form] = {saved.bytes(), packed_bytes(saved, form)};
  return bytes;
}

/// The forward with a graph, as a step runs it: its context, which keeps tensors too, ends with it.
net::Flow build_graph(const UnitProbe& p, RunMode mode, const std::vector<Tensor>& cond, bool selective, UnitRun& run) {
  mode.parallel = &p.parallel;
  ShardContext ctx(p.store, 0, p.tokens, std::move(mode));
  std::optional<SavedStorages> saved;
  if (selective) saved.emplace(foreign_tensors(run.in, cond, p.tokens), selective);
  return run_forward(p.unit, ctx, cond, true, run);
}

void measure_forward(const UnitProbe& p, bool selective, plan::GraphCost& cost) {
  UnitRun run{.in = leaves(p.stream, p.want_input)};
  const std::vector<Tensor> cond = leaves(p.cond, p.want_cond);
  const Meter::MetaCount count;
  net::Flow out = build_graph(p, {}, cond, selective, run);
  const int64_t live = count.live(), outputs = allocated_bytes(out.stream);
  cost.keep_peak = count.peak();
  cost.saved = live - outputs - distinct_bytes(out.cond);
  out.stream.clear();
  cost.saved_out = outputs - (live - count.live());
}

void measure_backward(const UnitProbe& p, bool selective, GraphMeasure& result) {
  UnitRun run{.in = leaves(p.stream, p.want_input)};
  const std::vector<Tensor> cond = leaves(p.cond, p.want_cond);
  std::vector<Tensor> cond_grad(cond.size());
  p.store.bind_grad(0, -1, true);
  Meter::MetaCount count;
  std::vector<Tensor> out_grad, out_cond_grad,
      made;  // conditioning stays as long as the micro-batch: a graph that goes
  {          // frees none of it
    net::Flow out = build_graph(p, {.unneeded = p.unit.output_site()}, cond, selective, run);
    for (const Tensor& t : out.stream) out_grad.push_back(at::empty(t.sizes(), t.options()));
    for (const Tensor& t : out.cond) out_cond_grad.push_back(at::empty_like(t));
    made = std::move(out.cond);
  }
  const int64_t start = count.live();
  count.reset_peak();
  const Parallel::Notes notes(p.parallel, result.backward_traffic);
  const std::vector<Tensor> in_grad =
      run_backward(run, std::move(out_grad), std::move(out_cond_grad), cond, cond_grad, p.store.anchor(0));
  result.cost.backward_peak = count.peak() - start;
  result.grad_in = allocated_bytes(in_grad);
  for (const Tensor& t : cond_grad) result.grad_cond.push_back(t.defined() ? allocated_bytes({t}) : 0);
  p.store.finish_grad(0);
}

/// Measures a backward that defers its weight gradients: the bytes that it holds until they run. The unit's input is a
/// fresh tensor here, so that its bytes count if they are held; the first unit's input lives as long as the
/// micro-batch.
void measure_deferred(const UnitProbe& p, bool selective, plan::GraphCost& cost) {
  Meter::MetaCount count;
  std::vector<Tensor> input = p.stream, cond_grad(p.cond.size());
  if (!p.first)
    for (Tensor& t : input) t = at::empty_strided(t.sizes(), t.strides(), t.options());
  ops::DeferredGradients deferred(p.store.trained_sites(0));
  {
    UnitRun run{.in = leaves(input, p.want_input)};
    input.clear();
    const std::vector<Tensor> cond = leaves(p.cond, p.want_cond);
    std::vector<Tensor> out_grad, out_cond_grad, made;  // made: the unit's conditioning, which stays
    {
      net::Flow out = build_graph(p, {.unneeded = p.unit.output_site()}, cond, selective, run);
      for (const Tensor& t : out.stream) out_grad.push_back(at::empty_like(t));
      for (const Tensor& t : out.cond) out_cond_grad.push_back(at::empty_like(t));
      made = std::move(out.cond);
    }
    const int64_t start = count.live();
    count.reset_peak();
    const ops::DeferredGradients::Scope scope(deferred);
    run_backward(run, std::move(out_grad), std::move(out_cond_grad), cond, cond_grad, p.store.anchor(0));
    cost.deferred_peak = count.peak() - start;
  }
  cond_grad.clear();
  cost.deferred = count.live();
  count.reset_peak();
  p.store.bind_grad(0, -1, true);
  deferred.run();
  cost.weight_grad_peak = count.peak() - cost.deferred;
  p.store.finish_grad(0);
}

/// The bytes that the graph saves at each site, the same quantised, and the work of recomputing norms and residual
/// sums.
void measure_sites(const UnitProbe& p, bool selective, plan::GraphCost& cost) {
  UnitRun run{.in = leaves(p.stream, p.want_input)};
  const std::vector<Tensor> cond = leaves(p.cond, p.want_cond);
  SavedStorages saved(foreign_tensors(run.in, cond, p.tokens), selective);
  const net::Flow out = [&] {
    ShardContext ctx(p.store, 0, p.tokens, {.parallel = &p.parallel});
    return run_forward(p.unit, ctx, cond, true, run);
  }();
  for (const SavedStorage& storage : saved.take(out.stream, out.cond)) {
    cost.saved_by_site[storage.site] += storage.bytes();
    cost.compact_by_site[storage.site] += compact(storage);
  }
  if (selective) cost.rebuilt = saved.rebuilds()->moved(), cost.rebuilds = saved.rebuilds()->values();
}

/// The memory of the unit's graph: of the one that saves everything, or of the lean one (ops/rebuild.h).
GraphMeasure measure_graph(const UnitProbe& probe, bool selective) {
  GraphMeasure result;
  measure_forward(probe, selective, result.cost);
  measure_backward(probe, selective, result);
  measure_deferred(probe, selective, result.cost);
  measure_sites(probe, selective, result.cost);
  return result;
}

template <class Number>
requires std::is_arithmetic_v<Number>
void larger(Number& a, const Number& b) { a = std::max(a, b); }
void larger(plan::Footprint::Replay& a, const plan::Footprint::Replay& b) {
  larger(a.forward_peak, b.forward_peak), larger(a.recompute_saved, b.recompute_saved);
  larger(a.recompute_peak, b.recompute_peak), larger(a.forward_flops, b.forward_flops);
}
template <class Value>
void larger(std::map<std::string, Value>& a, const std::map<std::string, Value>& b) {
  for (const auto& [site, value] : b) larger(a[site], value);
}
void larger(std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  for (size_t i = 0; i < a.size(); ++i) larger(a[i], b.at(i));
}

/// The larger bytes, and the larger bytes of each quantised form: of what it quantises and of what it leaves unchanged.
void larger(int64_t& bytes, plan::Compact& compact, int64_t other_bytes, const plan::Compact& other) {
  const int64_t most = std::max(bytes, other_bytes);
  for (size_t f = 0; f < compact.forms.size(); ++f) {
    auto& form = compact.forms[f];
    form.whole = most - std::max(bytes - form.whole, other_bytes - other.forms[f].whole);
    larger(form.bytes, other.forms[f].bytes);
  }
  bytes = most;
}
using Bytes = std::map<std::string, int64_t>;
using Compacts = std::map<std::string, plan::Compact>;
void larger(Bytes& a, Compacts& compact_a, const Bytes& b, Compacts compact_b) {
  for (const auto& [site, ignored] : b) a.try_emplace(site, 0);
  for (auto& [site, bytes] : a) {
    const auto other = b.find(site);
    larger(bytes, compact_a[site], other == b.end() ? 0 : other->second, compact_b[site]);
  }
}

int64_t sum_of(const Bytes& bytes) {
  int64_t sum = 0;
  for (const auto& [site, n] : bytes) sum += n;
  return sum;
}

/// The result is an upper bound for any choice of offloaded sites: each site, and the bytes without a site, are the
/// larger of the two ranks'.
void larger(plan::GraphCost& a, const plan::GraphCost& b) {
  const int64_t others = std::max(a.saved - sum_of(a.saved_by_site), b.saved - sum_of(b.saved_by_site));
  larger(a.saved_by_site, a.compact_by_site, b.saved_by_site, b.compact_by_site);
  a.saved = sum_of(a.saved_by_site) + others;
  larger(a.saved_out, b.saved_out), larger(a.keep_peak, b.keep_peak), larger(a.backward_peak, b.backward_peak);
  larger(a.deferred, b.deferred), larger(a.deferred_peak, b.deferred_peak);
  larger(a.weight_grad_peak, b.weight_grad_peak);
  larger(a.rebuilt, b.rebuilt), larger(a.rebuilds, b.rebuilds);
}

void check_same_order(const std::vector<plan::Traffic>& a, const std::vector<plan::Traffic>& b) {
  const auto fields = [](const plan::Traffic& t) {
    return std::tie(t.purpose, t.axes, t.kind, t.rows, t.row_bytes, t.part, t.reach);
  };
  check_internal(std::ranges::equal(a, b, {}, fields, fields), "engine.measure",
                 "ranks that share tokens send in another order: the model asks for other operators where it has no "
                 "rows of a space");
}

Tensor to_meta(const Tensor& t) {
  return t.defined() ? at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta)) : t;
}

/// Bytes of the tables of the tokens.
int64_t table_bytes(const net::Tokens& tokens) { return allocated_bytes(tokens.tables()); }

class Probe {
 public:
  Probe(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& whole, MeasureOptions options, int rank)
      : units_(units), options_(options), parallel_(options.mesh, rank) {
    const net::Batch batch = slice(whole, parallel_);
    for (const Tensor& t : batch.inputs) inputs_.push_back(to_meta(t));
    tokens_ = batch.tokens;
    tokens_.change_tables(to_meta);
  }

  plan::ModelSpec run(std::string name) {
    plan::ModelSpec spec;
    spec.name = std::move(name);
    spec.tables = table_bytes(tokens_);
    spec.inputs = allocated_bytes(inputs_) + spec.tables;
    spec.samples = static_cast<int64_t>(tokens_.offsets.size()) - 1;
    spec.tokens = tokens_.count();
    if (parallel_.cuts_tokens()) spec.sequence = tokens_.total();
    std::vector<Tensor> stream = inputs_;
    std::vector<Tensor> cond;
    std::map<std::string, plan::UnitSpec> known;
    const size_t first = first_trained();
    want_cond_ = options_.train && (first == 0 || options_.input_grad);
    for (size_t u = 0; u < units_.size(); ++u) {
      const net::Unit& unit = *units_[u];
      plan::UnitSpec described = unit.spec();
      const bool want_input = options_.input_grad || u > first;
      const std::string kind = described.kind + (want_input ? "" : ", the first that is trained");
      const auto it = known.find(kind);
      if (it != known.end()) {
        described.cost = it->second.cost;
        for (size_t p = 0; p < described.params.size(); ++p)
          described.params[p].in_8_bits = it->second.params[p].in_8_bits;
      } else {
        described.cost = cost(unit, described, stream, cond, want_input);
        known[kind] = described;
      }
      spec.units.push_back(std::move(described));
    }
    spec.prediction_row = stream[0].size(-1) * static_cast<int64_t>(stream[0].element_size());
    for (const Tensor& t : cond) spec.conditioning.push_back(round_up(static_cast<int64_t>(t.nbytes()), 64));
    spec.loss_grad = spec.loss_peak = allocated_bytes(stream);
    const std::vector<int64_t> rows = tokens_.local_offsets();
    const int64_t each = options_.masked ? 2 : 1;                   // a mask's weights are as large as the target
    for (size_t s = 0; options_.train && s + 1 < rows.size(); ++s)  // each sample has its own
      spec.targets += each * round_up((rows[s + 1] - rows[s]) * spec.prediction_row, 64);
    if (options_.train && !options_.loss.is_mse()) spec.loss_peak += loss_scratch(rows, stream[0].size(-1));
    spec.resident = 64 * static_cast<int64_t>(units_.size());  // anchors
    return spec;
  }

 private:
  /// What the errors of the samples take beside their gradients: that of the sample with most rows, and what each leaves.
  int64_t loss_scratch(const std::vector<int64_t>& rows, int64_t width) const {
    int64_t most = 0;
    for (size_t s = 0; s + 1 < rows.size(); ++s) most = std::max(most, rows[s + 1] - rows[s]);
    const auto row = [&] { return at::empty({most, width}, at::dtype(at::kFloat).device(at::kMeta)); };
    const Tensor prediction = row(), target = row(), gradient = row(), weights = options_.masked ? row() : Tensor();
    const Meter::MetaCount count;
    ops::SampleError error;
    ops::kernels(prediction)
        .add_error(error, prediction, target, weights, options_.loss, /*part=*/1, /*scale=*/1, gradient);
    return count.peak() + count.live() * (std::ssize(rows) - 2);
  }

  /// The first unit with a trained parameter; the backward ends there.
  size_t first_trained() const {
    const auto trained = [](const auto& unit) {
      const auto& params = unit->spec().params;
      return std::any_of(params.begin(), params.end(), [](const plan::ParamSpec& p) { return p.trainable; });
    };
    const auto first = std::find_if(units_.begin(), units_.end(), trained);
    return first == units_.end() ? 0 : static_cast<size_t>(first - units_.begin());
  }

  /// Which parameters products in 8 bits alone read: by a forward.
  void note_eight_bits(const net::Unit& unit, plan::UnitSpec& described, const plan::Plan& whole,
                       const std::vector<Tensor>& stream, std::vector<Tensor>& cond) {
    plan::ModelSpec one;
    one.units = {described};
    Store store(one, {unit.prefix()}, whole, 0, at::kMeta, /*trainable=*/false);
    store.bind(0, -1);
    ShardContext ctx(store, 0, tokens_, {.parallel = &parallel_});
    std::set<std::string> sites;
    const ops::Fp8SitesScope noted(&sites);
    UnitRun run{.in = leaves(stream, false)};
    run_forward(unit, ctx, cond, false, run);
    for (plan::ParamSpec& param : described.params)
      for (const std::string& site : sites)
        param.in_8_bits = param.in_8_bits || param.name == unit.prefix() + site + ".weight";
  }

  /// Measures one unit; `stream` and `cond` become its outputs. Notes which of its parameters are in 8 bits.
  plan::Footprint cost(const net::Unit& unit, plan::UnitSpec& described, std::vector<Tensor>& stream,
                       std::vector<Tensor>& cond, bool want_input) {
    plan::Footprint f;
    const ops::AttentionScope scope(options_.attention, &f.attention);
    plan::ModelSpec one;
    one.units = {described};
    plan::Plan whole;  // weights as a gather leaves them: whole, but for the sharding over tp
    whole.mesh[Axis::tp] = options_.mesh[Axis::tp];
    whole.param_dtype = whole.compute = options_.compute;
    whole.fp8 = options_.fp8;
    whole.units = {{.strategy = plan::Strategy::no_shard}};
    if (options_.gather_fp8) {
      note_eight_bits(unit, described, whole, stream, cond);
      one.units = {described};
      const auto shared_by_tp = [](const plan::ParamSpec& param) { return param.split != plan::Split::none; };
      // of one rank, so that nothing is cut but by tp: then gradients are whole
      if (std::ranges::any_of(described.params, &plan::ParamSpec::in_8_bits) &&
          (whole.mesh[Axis::tp] == 1 || std::ranges::any_of(described.params, shared_by_tp)))
        whole.gather_fp8 = true, whole.units = {{.strategy = plan::Strategy::full_shard}};
    }
    Store store(one, {unit.prefix()}, whole, 0, at::kMeta, options_.train);
    store.bind(0, -1);
    ShardContext ctx(store, 0, tokens_, {.parallel = &parallel_});

    net::Flow out;
    {  // without a graph
      UnitRun run{.in = leaves(stream, false)};
      const Parallel::Notes notes(parallel_, f.traffic);
      Meter::MetaCount count;
      out = run_forward(unit, ctx, cond, false, run);
      f.forward_peak = count.peak();
      f.out = allocated_bytes(out.stream);
      for (const Tensor& t : out.stream) f.compact_out += compact({"", t});
      f.cond = distinct_bytes(out.cond);
    }
    plan::UnitWork work;
    plan::UnitSignatures sizes;
    count_unit(unit, {stream, cond}, tokens_, options_.compute, work, sizes);
    f.forward_flops = work.forward_flops();
    f.backward_flops = 2 * f.forward_flops;
    if (options_.train) {
      const UnitProbe probe{
          unit, store, tokens_, parallel_, stream, cond, want_input, want_cond_, &unit == units_.front().get()};
      GraphMeasure full = measure_graph(probe, /*selective=*/false);
      static_cast<plan::GraphCost&>(f) = std::move(full.cost);
      f.selective = measure_graph(probe, /*selective=*/true).cost;
      f.grad_in = full.grad_in, f.grad_cond = std::move(full.grad_cond);
      f.backward_traffic = std::move(full.backward_traffic);
      measure_recompute(probe, f);
      measure_replays(probe, f);
    }
    stream = out.stream;
    if (!out.cond.empty()) cond = out.cond;
    return f;
  }

  /// The recompute: a forward with a graph, which does not hold its outputs unless it saved them.
  void measure_recompute(const UnitProbe& p, plan::Footprint& f) {
    UnitRun run{.in = leaves(p.stream, p.want_input)};
    const Meter::MetaCount count;
    build_graph(p, {.unneeded = p.unit.output_site()}, leaves(p.cond, want_cond_), /*selective=*/true, run);
    f.recompute_peak = count.peak();
    f.recompute_saved = count.live();
  }

  /// The unit's recompute for each set of sites whose results are kept.
  void measure_replays(const UnitProbe& p, plan::Footprint& f) {
    std::map<std::string, double> flops;  // of each site
    {
      const auto note = [&](std::string_view site, double cost) { flops[std::string(site)] = cost; };
      ShardContext ctx(p.store, 0, tokens_, {.on_result = note, .parallel = &parallel_});
      UnitRun run{.in = leaves(p.stream, false)};
      run_forward(p.unit, ctx, p.cond, false, run);
    }
    std::vector<std::string> sites;
    for (const auto& [site, cost] : flops) sites.push_back(site);
    // Every subset if there are up to four sites, else the set of all.
    const unsigned most = 1u << sites.size();
    for (unsigned chosen = 1; chosen < most && !sites.empty(); ++chosen) {
      if (sites.size() > 4) chosen = most - 1;
      UnitRun run{.in = leaves(p.stream, p.want_input)};
      const std::vector<Tensor> cond_leaves = leaves(p.cond, want_cond_);
      std::string key;
      plan::Footprint::Replay replay;
      replay.forward_flops = f.forward_flops;
      for (size_t i = 0; i < sites.size(); ++i) {
        if (!(chosen >> i & 1)) continue;
        run.results[sites[i]];
        key += (key.empty() ? "" : ",") + sites[i];
        replay.forward_flops -= flops[sites[i]];
      }
      Meter::MetaCount count;
      ShardContext first(p.store, 0, tokens_, {.keep = &run.results, .parallel = &parallel_});
      run_forward(p.unit, first, cond_leaves, false, run);
      replay.forward_peak = count.peak();
      for (const auto& [site, result] : run.results) {
        f.results[site] = allocated_bytes({result.out, result.lse});
        f.compact_results[site] = compact({site, result.out});
      }
      const int64_t kept = count.live();
      count.reset_peak();
      {
        const Parallel::Notes notes(parallel_, replay.traffic);
        build_graph(p, {.unneeded = p.unit.output_site(), .known = &run.results}, cond_leaves, /*selective=*/true, run);
      }
      run.results.clear();
      replay.recompute_peak = count.peak() - kept;
      replay.recompute_saved = count.live() - kept;
      f.replays[key] = replay;
    }
  }

  const std::vector<std::unique_ptr<net::Unit>>& units_;
  const MeasureOptions options_;
  bool want_cond_ = false;  // gradients of the shared conditioning
  const Parallel parallel_;
  std::vector<Tensor> inputs_;
  net::Tokens tokens_;
};

/// Whether a space is part of the tokens or has a grid: then ranks have different numbers of its rows, or halos.
bool uneven(const net::Tokens& tokens) {
  const auto one = [](const net::Space& space) { return !space.ranges.empty() || !space.shapes.empty(); };
  return one(tokens) || std::ranges::any_of(tokens.spaces, one);
}

}  // namespace

void take_larger(plan::Footprint& a, const plan::Footprint& b) {
  check_same_order(a.traffic, b.traffic);
  check_same_order(a.backward_traffic, b.backward_traffic);
  take_larger_shape(a, b);
}

void take_larger_shape(plan::Footprint& a, const plan::Footprint& b) {
  larger(static_cast<plan::GraphCost&>(a), b);
  larger(a.out, a.compact_out, b.out, b.compact_out), larger(a.cond, b.cond), larger(a.forward_peak, b.forward_peak);
  larger(a.recompute_saved, b.recompute_saved), larger(a.recompute_peak, b.recompute_peak);
  larger(a.grad_in, b.grad_in), larger(a.grad_cond, b.grad_cond);
  larger(a.forward_flops, b.forward_flops), larger(a.backward_flops, b.backward_flops);
  larger(a.results, a.compact_results, b.results, b.compact_results);
  larger(a.replays, b.replays);
  a.attention.add(b.attention);
  if (a.selective && b.selective) larger(*a.selective, *b.selective);
}

plan::ModelSpec measure(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, std::string name,
                        MeasureOptions options) {
  Meter::install();
  if (options.rank >= 0) return Probe(units, batch, options, options.rank).run(std::move(name));
  // The last rank has the most tokens and, with samples of equal length, the longest run of one sample.
  const int last = options.mesh.world() - 1;
  plan::ModelSpec spec = Probe(units, batch, options, last).run(std::move(name));
  const int sharers = uneven(batch.tokens) ? plan::sequence_size(options.mesh) : 1;
  for (int rank = last - sharers + 1; rank < last; ++rank) {  // cp, sp and tp are the mesh's innermost axes
    const plan::ModelSpec other = Probe(units, batch, options, rank).run(spec.name);
    spec.inputs = std::max(spec.inputs, other.inputs), spec.tables = std::max(spec.tables, other.tables);
    for (size_t u = 0; u < spec.units.size(); ++u) take_larger(spec.units[u].cost, other.units[u].cost);
  }
  return spec;
}

bool has_halos(const net::Batch& batch, const Mesh& mesh) {
  return plan::sequence_size(mesh) > 1 && uneven(batch.tokens);
}

void cover(plan::ModelSpec& spec, const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
           MeasureOptions options) {
  const plan::ModelSpec other = measure(units, batch, spec.name, options);
  for (int64_t plan::ModelSpec::*most :
       {&plan::ModelSpec::inputs, &plan::ModelSpec::tables, &plan::ModelSpec::targets, &plan::ModelSpec::loss_peak,
        &plan::ModelSpec::loss_grad, &plan::ModelSpec::tokens, &plan::ModelSpec::sequence})
    spec.*most = std::max(spec.*most, other.*most);
  for (size_t c = 0; c < spec.conditioning.size(); ++c)
    spec.conditioning[c] = std::max(spec.conditioning[c], other.conditioning.at(c));
  for (size_t u = 0; u < spec.units.size(); ++u) take_larger_shape(spec.units[u].cost, other.units[u].cost);
}

}  // namespace tessera::engine
