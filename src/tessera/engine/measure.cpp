#include "tessera/engine/measure.h"

#include "tessera/base/check.h"
#include "tessera/engine/parallel/slice.h"
#include "tessera/engine/unit_run.h"
#include "tessera/ops/later.h"

namespace tessera::engine {

namespace {

Tensor to_meta(const Tensor& t) {
  return t.defined() ? at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta)) : t;
}

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors)
    if (t.defined()) sum += round_up(static_cast<int64_t>(t.storage().nbytes()), 64);
  return sum;
}

/// Distinct storages only: conditioning is often several views of one tensor.
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

/// Of what the tokens need beside the inputs.
int64_t table_bytes(const net::Tokens& tokens) {
  return bytes_of({tokens.rows, tokens.cos, tokens.sin, tokens.frames.rows});
}

class Probe {
 public:
  /// The last share is the largest, and of samples that are alike no other has a longer run of one.
  Probe(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& whole, MeasureOptions options)
      : units_(units), options_(options), parallel_(options.mesh, options.mesh.world() - 1) {
    // Ranks that share tokens copy theirs out of the whole, which goes before the first unit runs.
    if (parallel_.cuts_tokens()) loading_ = bytes_of(whole.inputs) + table_bytes(whole.tokens);
    const net::Batch batch = slice(whole, parallel_);
    for (const Tensor& t : batch.inputs) inputs_.push_back(to_meta(t));
    tokens_ = batch.tokens;
    tokens_.rows = to_meta(tokens_.rows);
    tokens_.cos = to_meta(tokens_.cos);
    tokens_.sin = to_meta(tokens_.sin);
    tokens_.frames.rows = to_meta(tokens_.frames.rows);
  }

  plan::ModelSpec run(std::string name) {
    plan::ModelSpec spec;
    spec.name = std::move(name);
    spec.tables = table_bytes(tokens_);
    spec.inputs = bytes_of(inputs_) + spec.tables;
    spec.loading = loading_;
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
    spec.loss_grad = spec.loss_peak = bytes_of(stream);
    if (options_.train) spec.targets = bytes_of(stream);
    spec.resident = 64 * static_cast<int64_t>(units_.size());  // anchors
    return spec;
  }

 private:
  /// Gradients flow back to this unit and no farther.
  size_t first_trained() const {
    const auto trained = [](const auto& unit) {
      const auto& params = unit->spec().params;
      return std::any_of(params.begin(), params.end(), [](const plan::ParamSpec& p) { return p.trainable; });
    };
    const auto first = std::find_if(units_.begin(), units_.end(), trained);
    return first == units_.end() ? 0 : static_cast<size_t>(first - units_.begin());
  }

  /// Measures one unit; `stream` and `cond` are moved on past it.
  plan::Footprint cost(const net::Unit& unit, const plan::UnitSpec& described, std::vector<Tensor>& stream,
                       std::vector<Tensor>& cond, bool want_input) {
    plan::Footprint f;
    plan::ModelSpec one;
    one.units = {described};
    plan::Plan whole;  // weights as a rank uses them: what tp cuts, cut
    whole.mesh[Axis::tp] = options_.mesh[Axis::tp];
    whole.param_dtype = whole.compute = options_.compute;
    whole.units = {{.strategy = plan::Strategy::no_shard}};
    Store store(one, {unit.prefix()}, whole, 0, at::kMeta, options_.train);
    store.bind(0, -1);
    ShardContext ctx(store, 0, tokens_, {.parallel = &parallel_});

    {  // without a graph
      UnitRun run{.in = leaves(stream, false)};
      const Parallel::Notes notes(parallel_, f.traffic);
      Meter::MetaCount count;
      net::Flow out = run_forward(unit, ctx, cond, false, run);
      f.forward_peak = count.peak();
      f.out = bytes_of(out.stream);
      f.cond = distinct_bytes(out.cond);
    }
    f.forward_flops = unit.forward_flops(tokens_);
    f.backward_flops = 2 * f.forward_flops;
    net::Flow out;
    {
      UnitRun run{.in = leaves(stream, options_.train && want_input)};
      const std::vector<Tensor> cond_leaves = leaves(cond, want_cond_);
      Meter::MetaCount count;
      out = run_forward(unit, ctx, cond_leaves, options_.train, run);
      f.keep_peak = count.peak();
      f.saved = count.live() - f.out - f.cond;
    }
    if (options_.train) {  // a graph stands without its outputs, but for what it saved of them itself
      UnitRun run{.in = leaves(stream, want_input)};
      ShardContext again(store, 0, tokens_, {.unneeded = unit.output_site(), .parallel = &parallel_});
      Meter::MetaCount count;
      run_forward(unit, again, leaves(cond, want_cond_), true, run);
      f.recompute_peak = count.peak();
      f.recompute_saved = count.live();
    }
    if (options_.train) {  // its conditioning stays as long as the micro-batch: a graph that goes frees none of it
      UnitRun run{.in = leaves(stream, want_input)};
      const std::vector<Tensor> cond_leaves = leaves(cond, want_cond_);
      std::vector<Tensor> cond_grad(cond.size());
      ShardContext again(store, 0, tokens_, {.unneeded = unit.output_site(), .parallel = &parallel_});
      store.bind_grad(0, -1, true);
      Meter::MetaCount count;
      const std::vector<Tensor> made = run_forward(unit, again, cond_leaves, true, run).cond;
      std::vector<Tensor> out_grad, out_cond_grad;
      for (const Tensor& t : out.stream) out_grad.push_back(at::empty_like(t));
      for (const Tensor& t : out.cond) out_cond_grad.push_back(at::empty_like(t));
      const int64_t start = count.live();
      count.reset_peak();
      const Parallel::Notes notes(parallel_, f.backward_traffic);
      const std::vector<Tensor> in_grad =
          run_backward(run, std::move(out_grad), std::move(out_cond_grad), cond_leaves, cond_grad, store.anchor(0));
      f.backward_peak = count.peak() - start;
      f.grad_in = bytes_of(in_grad);
      for (const Tensor& t : cond_grad) f.grad_cond.push_back(t.defined() ? bytes_of({t}) : 0);
      store.finish_grad(0);
    }
    if (options_.train) {
      measure_deferred(unit, store, stream, cond, want_input, f);
      measure_sites(unit, ctx, stream, cond, want_input, f);
      measure_replays(unit, store, stream, cond, want_input, f);
    }
    stream = out.stream;
    if (!out.cond.empty()) cond = out.cond;
    return f;
  }

  /// A backward that leaves gradients of weights for later: what it holds until they are taken up. The unit's input is
  /// made anew here, to see whether it is held; the first unit's is there as long as the micro-batch.
  void measure_deferred(const net::Unit& unit, Store& store, const std::vector<Tensor>& stream,
                        const std::vector<Tensor>& cond, bool want_input, plan::Footprint& f) {
    Meter::MetaCount count;
    std::vector<Tensor> input = stream, cond_grad(cond.size());
    if (&unit != units_.front().get())
      for (Tensor& t : input) t = at::empty_strided(t.sizes(), t.strides(), t.options());
    ops::Later later(store.trained_sites(0));
    {
      UnitRun run{.in = leaves(input, want_input)};
      input.clear();
      const std::vector<Tensor> cond_leaves = leaves(cond, want_cond_);
      ShardContext ctx(store, 0, tokens_, {.unneeded = unit.output_site(), .parallel = &parallel_});
      std::vector<Tensor> out_grad, out_cond_grad, made;  // conditioning that it makes stays
      {
        net::Flow out = run_forward(unit, ctx, cond_leaves, true, run);
        for (const Tensor& t : out.stream) out_grad.push_back(at::empty_like(t));
        for (const Tensor& t : out.cond) out_cond_grad.push_back(at::empty_like(t));
        made = std::move(out.cond);
      }
      const int64_t start = count.live();
      count.reset_peak();
      const ops::Later::Scope scope(later);
      run_backward(run, std::move(out_grad), std::move(out_cond_grad), cond_leaves, cond_grad, store.anchor(0));
      f.deferred_peak = count.peak() - start;
    }
    cond_grad.clear();
    f.deferred = count.live();
    count.reset_peak();
    store.bind_grad(0, -1, true);
    later.run();
    f.weight_grad_peak = count.peak() - f.deferred;
    store.finish_grad(0);
  }

  /// What the graph saves at each site, and what that takes in fewer bits.
  void measure_sites(const net::Unit& unit, ShardContext& ctx, const std::vector<Tensor>& stream,
                     const std::vector<Tensor>& cond, bool want_input, plan::Footprint& f) {
    UnitRun run{.in = leaves(stream, want_input)};
    const std::vector<Tensor> cond_leaves = leaves(cond, want_cond_);
    SavedStorages saved(foreign_tensors(run.in, cond_leaves, tokens_));
    const net::Flow out = run_forward(unit, ctx, cond_leaves, true, run);
    for (const SavedStorage& storage : saved.take(out.stream, out.cond)) {
      f.saved_by_site[storage.site] += storage.bytes();
      f.compact_by_site[storage.site] += compact(storage);
    }
    for (const Tensor& t : out.stream) f.compact_out += compact({"", t});
  }

  static plan::Compact compact(const SavedStorage& saved) {
    plan::Compact bytes;
    for (const plan::Form form : {plan::Form::bf16, plan::Form::fp16, plan::Form::int8, plan::Form::fp8})
      if (can_pack(saved, form))
        bytes.forms[static_cast<size_t>(form) - 1] = {saved.bytes(), packed_bytes(saved, form)};
    return bytes;
  }

  /// The unit's recompute with the attention of each choice of sites kept.
  void measure_replays(const net::Unit& unit, Store& store, const std::vector<Tensor>& stream,
                       const std::vector<Tensor>& cond, bool want_input, plan::Footprint& f) {
    std::map<std::string, double> flops;  // of each attention site
    {
      const auto note = [&](std::string_view site, double cost) { flops[std::string(site)] = cost; };
      ShardContext ctx(store, 0, tokens_, {.on_attention = note, .parallel = &parallel_});
      UnitRun run{.in = leaves(stream, false)};
      run_forward(unit, ctx, cond, false, run);
    }
    std::vector<std::string> sites;
    for (const auto& [site, cost] : flops) sites.push_back(site);
    // Every subset of up to three sites; of more, all or none.
    const unsigned most = 1u << sites.size();
    for (unsigned chosen = 1; chosen < most && !sites.empty(); ++chosen) {
      if (sites.size() > 3) chosen = most - 1;
      UnitRun run{.in = leaves(stream, want_input)};
      const std::vector<Tensor> cond_leaves = leaves(cond, want_cond_);
      std::string key;
      plan::Footprint::Replay replay;
      replay.forward_flops = f.forward_flops;
      for (size_t i = 0; i < sites.size(); ++i) {
        if (!(chosen >> i & 1)) continue;
        run.attention[sites[i]];
        key += (key.empty() ? "" : ",") + sites[i];
        replay.forward_flops -= flops[sites[i]];
      }
      Meter::MetaCount count;
      ShardContext first(store, 0, tokens_, {.keep = &run.attention, .parallel = &parallel_});
      run_forward(unit, first, cond_leaves, false, run);
      replay.forward_peak = count.peak();
      for (const auto& [site, result] : run.attention) {
        f.attention[site] = bytes_of({result.out, result.lse});
        f.compact_attention[site] = compact({site, result.out});
      }
      const int64_t kept = count.live();
      count.reset_peak();
      ShardContext again(store, 0, tokens_,
                         {.unneeded = unit.output_site(), .known = &run.attention, .parallel = &parallel_});
      {
        const Parallel::Notes notes(parallel_, replay.traffic);
        run_forward(unit, again, cond_leaves, true, run);
      }
      run.attention.clear();
      replay.recompute_peak = count.peak() - kept;
      replay.recompute_saved = count.live() - kept;
      f.replays[key] = replay;
    }
  }

  const std::vector<std::unique_ptr<net::Unit>>& units_;
  const MeasureOptions options_;
  bool want_cond_ = false;  // gradients of the shared conditioning
  const Parallel parallel_;
  int64_t loading_ = 0;  // bytes beside the inputs while a micro-batch is loaded
  std::vector<Tensor> inputs_;
  net::Tokens tokens_;
};

}  // namespace

plan::ModelSpec measure(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, std::string name,
                        MeasureOptions options) {
  Meter::install();
  return Probe(units, batch, options).run(std::move(name));
}

}  // namespace tessera::engine
