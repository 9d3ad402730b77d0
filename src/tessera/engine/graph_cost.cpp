#include "tessera/engine/graph_cost.h"

#include <algorithm>
#include <optional>

#include "tessera/base/check.h"
#include "tessera/ops/session.h"

namespace tessera::engine {

namespace {

void measure_forward(const UnitProbe& p, bool selective, plan::GraphCost& cost) {
  ShardContext ctx(p.store, 0, p.tokens, {.parallel = &p.parallel});
  UnitRun run{.in = leaves(p.stream, p.want_input)};
  const std::vector<Tensor> cond = leaves(p.cond, p.want_cond);
  const Meter::MetaCount count;
  const net::Flow out = build_graph(p, ctx, cond, selective, run);
  cost.keep_peak = count.peak();
  cost.saved = count.live() - allocated_bytes(out.stream) - distinct_bytes(out.cond);
}

void measure_backward(const UnitProbe& p, bool selective, GraphMeasure& result) {
  UnitRun run{.in = leaves(p.stream, p.want_input)};
  const std::vector<Tensor> cond = leaves(p.cond, p.want_cond);
  std::vector<Tensor> cond_grad(cond.size());
  ShardContext ctx(p.store, 0, p.tokens, {.unneeded = p.unit.output_site(), .parallel = &p.parallel});
  p.store.bind_grad(0, -1, true);
  Meter::MetaCount count;
  std::vector<Tensor> out_grad, out_cond_grad,
      made;  // conditioning stays as long as the micro-batch: a graph that goes
  {          // frees none of it
    net::Flow out = build_graph(p, ctx, cond, selective, run);
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
    ShardContext ctx(p.store, 0, p.tokens, {.unneeded = p.unit.output_site(), .parallel = &p.parallel});
    std::vector<Tensor> out_grad, out_cond_grad, made;  // made: the unit's conditioning, which stays
    {
      net::Flow out = build_graph(p, ctx, cond, selective, run);
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
  ShardContext ctx(p.store, 0, p.tokens, {.parallel = &p.parallel});
  UnitRun run{.in = leaves(p.stream, p.want_input)};
  const std::vector<Tensor> cond = leaves(p.cond, p.want_cond);
  SavedStorages saved(foreign_tensors(run.in, cond, p.tokens), selective);
  const net::Flow out = run_forward(p.unit, ctx, cond, true, run);
  for (const SavedStorage& storage : saved.take(out.stream, out.cond)) {
    cost.saved_by_site[storage.site] += storage.bytes();
    cost.compact_by_site[storage.site] += compact(storage);
  }
  if (selective) cost.rebuilt = saved.rebuilds()->moved(), cost.rebuilds = saved.rebuilds()->values();
}

}  // namespace

int64_t allocated_bytes(const std::vector<Tensor>& tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors)
    if (t.defined()) sum += round_up(static_cast<int64_t>(t.storage().nbytes()), 64);
  return sum;
}

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

plan::Compact compact(const SavedStorage& saved) {
  plan::Compact bytes;
  for (const DType form : plan::kLossyForms)
    if (can_pack(saved, form)) bytes[form] = {saved.bytes(), packed_bytes(saved, form)};
  return bytes;
}

net::Flow build_graph(const UnitProbe& p, net::Context& ctx, const std::vector<Tensor>& cond, bool selective,
                      UnitRun& run) {
  std::optional<SavedStorages> saved;
  if (selective) saved.emplace(foreign_tensors(run.in, cond, p.tokens), selective);
  return run_forward(p.unit, ctx, cond, true, run);
}

GraphMeasure measure_graph(const UnitProbe& probe, bool selective) {
  GraphMeasure result;
  measure_forward(probe, selective, result.cost);
  measure_backward(probe, selective, result);
  measure_deferred(probe, selective, result.cost);
  measure_sites(probe, selective, result.cost);
  return result;
}

}  // namespace tessera::engine
