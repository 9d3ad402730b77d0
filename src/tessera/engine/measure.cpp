#include "tessera/engine/measure.h"

#include "tessera/base/check.h"
#include "tessera/engine/graph_cost.h"
#include "tessera/engine/largest_cost.h"
#include "tessera/engine/parallel/slice.h"
#include "tessera/engine/signatures.h"
#include "tessera/ops/session.h"

namespace tessera::engine {

namespace {

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
    std::map<std::string, plan::Footprint> known;
    const size_t first = first_trained();
    want_cond_ = options_.train && (first == 0 || options_.input_grad);
    for (size_t u = 0; u < units_.size(); ++u) {
      const net::Unit& unit = *units_[u];
      plan::UnitSpec described = unit.spec();
      const bool want_input = options_.input_grad || u > first;
      const std::string kind = described.kind + (want_input ? "" : ", the first that is trained");
      const auto it = known.find(kind);
      if (it != known.end()) {
        described.cost = it->second;
      } else {
        described.cost = cost(unit, described, stream, cond, want_input);
        known[kind] = described.cost;
      }
      spec.units.push_back(std::move(described));
    }
    spec.prediction_row = stream[0].size(-1) * static_cast<int64_t>(stream[0].element_size());
    for (const Tensor& t : cond) spec.conditioning.push_back(round_up(static_cast<int64_t>(t.nbytes()), 64));
    spec.loss_grad = spec.loss_peak = allocated_bytes(stream);
    if (options_.train) spec.targets = allocated_bytes(stream);
    spec.resident = 64 * static_cast<int64_t>(units_.size());  // anchors
    return spec;
  }

 private:
  /// The first unit with a trained parameter; the backward ends there.
  size_t first_trained() const {
    const auto trained = [](const auto& unit) {
      const auto& params = unit->spec().params;
      return std::any_of(params.begin(), params.end(), [](const plan::ParamSpec& p) { return p.trainable; });
    };
    const auto first = std::find_if(units_.begin(), units_.end(), trained);
    return first == units_.end() ? 0 : static_cast<size_t>(first - units_.begin());
  }

  /// Measures one unit; `stream` and `cond` become its outputs.
  plan::Footprint cost(const net::Unit& unit, const plan::UnitSpec& described, std::vector<Tensor>& stream,
                       std::vector<Tensor>& cond, bool want_input) {
    plan::Footprint f;
    const ops::AttentionScope scope(options_.attention, &f.attention);
    plan::ModelSpec one;
    one.units = {described};
    plan::Plan whole;  // weights as a gather leaves them: whole, but for the sharding over tp
    whole.mesh[Axis::tp] = options_.mesh[Axis::tp];
    whole.param_dtype = whole.compute = options_.compute;
    whole.units = {{.strategy = plan::Strategy::no_shard}};
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
    ShardContext ctx(p.store, 0, tokens_, {.unneeded = p.unit.output_site(), .parallel = &parallel_});
    const Meter::MetaCount count;
    build_graph(p, ctx, leaves(p.cond, want_cond_), /*selective=*/true, run);
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
      ShardContext again(p.store, 0, tokens_,
                         {.unneeded = p.unit.output_site(), .known = &run.results, .parallel = &parallel_});
      {
        const Parallel::Notes notes(parallel_, replay.traffic);
        build_graph(p, again, cond_leaves, /*selective=*/true, run);
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
