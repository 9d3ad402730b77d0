#include "tessera/plan/scenario.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

/// What one rank has of a sample's tokens and of a block's columns.
struct Shares {
  double tokens;   ///< of a micro-batch on this rank
  double columns;  ///< 1 / tp
};

Shares shares_of(const Scenario& s) {
  const double sequence = s.mesh[Axis::cp] * s.mesh[Axis::sp];
  return {static_cast<double>(s.tokens * s.micro_batch) / sequence, 1.0 / s.mesh[Axis::tp]};
}

double kv_dim(const TransformerSizes& z) { return static_cast<double>(z.kv_dim > 0 ? z.kv_dim : z.dim); }

/// Elements of a block's weights, whole.
double block_weights(const TransformerSizes& z) {
  const auto d = static_cast<double>(z.dim), f = static_cast<double>(z.ffn_dim);
  const double attention = 2 * d * d + 2 * d * kv_dim(z);
  return attention + (z.text_tokens > 0 ? 4 * d * d : 0) + (z.gated_ffn ? 3 : 2) * d * f;
}

constexpr double kElement = 2;  // bf16

/// Bytes of a tensor [tokens, dim].
int64_t stream_bytes(const Scenario& s) {
  return static_cast<int64_t>(shares_of(s).tokens * static_cast<double>(s.sizes.dim) * kElement);
}

double forward_flops(const UnitWork& work) {
  double flops = 0;
  for (double product : work.products) flops += product;
  for (const auto& [site, attention] : work.attention) flops += attention;
  return flops;
}

UnitSpec unit(const std::string& name, const std::string& kind, double weights, int64_t stream) {
  UnitSpec u;
  u.name = name, u.kind = kind;
  u.params = {{name + ".weight", {static_cast<int64_t>(weights)}}};
  u.cost.out = u.cost.grad_in = stream;
  u.cost.keep_peak = u.cost.forward_peak = u.cost.recompute_peak = u.cost.backward_peak = 2 * stream;
  return u;
}

}  // namespace

WorkTable work_of(const Scenario& s) {
  const TransformerSizes& z = s.sizes;
  const auto [t, columns] = shares_of(s);
  const auto d = static_cast<double>(z.dim), f = static_cast<double>(z.ffn_dim);
  const double sequence = s.mesh[Axis::cp] * s.mesh[Axis::sp];
  const double samples = static_cast<double>(s.micro_batch);
  WorkTable table;
  UnitWork& block = table["block"];
  const auto product = [&](double rows, double in, double out) {
    block.products.push_back(2 * rows * in * out * columns);
  };
  product(t, d, d), product(t, d, kv_dim(z)), product(t, d, kv_dim(z)), product(t, d, d);
  for (int i = 0; i < (z.gated_ffn ? 3 : 2); ++i) product(t, d, f);
  const auto whole = static_cast<double>(s.tokens);
  block.attention["self_attn"] = 4 * samples * whole * whole * d * (z.causal ? 0.5 : 1) / sequence * columns;
  if (z.text_tokens > 0) {
    const double text = static_cast<double>(z.text_tokens);
    product(t, d, d), product(t, d, d), product(samples * text, d, d), product(samples * text, d, d);
    block.attention["cross_attn"] = 4 * t * text * d * columns;
  }
  block.streamed = z.passes * t * d * kElement * columns;
  block.operators = static_cast<int>(z.passes / 2);
  block.backward_products = s.frozen ? 1 : 2;
  const double stream = t * d * kElement;
  if (s.mesh[Axis::tp] > 1) {  // each sublayer gathers its tokens and scatters its sums
    const int sublayers = z.text_tokens > 0 ? 3 : 2;
    const auto sent = static_cast<int64_t>(stream * sublayers * (1 - columns));
    block.comm.push_back({"tp", "all_gather", sent});
    block.comm.push_back({"tp", "reduce_scatter", sent});
  }
  for (Axis axis : {Axis::cp, Axis::sp}) {
    const int n = s.mesh[axis];
    if (n == 1) continue;
    // sp: q, k, v and the output change hands; cp: keys and values go round
    const double sent = axis == Axis::sp ? 4 * stream * (n - 1) / n : 2 * stream * kv_dim(z) / d * (n - 1);
    block.comm.push_back({std::string(axis_name(axis)), "all_gather", static_cast<int64_t>(sent * columns)});
  }
  UnitWork& head = table["head"];
  head.products = {2 * t * d * static_cast<double>(std::max<int64_t>(z.vocab, 64)) * columns};
  head.backward_products = block.backward_products;
  table["stem"] = {.products = {}, .attention = {}, .streamed = 2 * stream, .operators = 2, .comm = {}};
  return table;
}

ModelSpec model_of(const Scenario& s) {
  const TransformerSizes& z = s.sizes;
  const int64_t stream = stream_bytes(s);
  const double columns = shares_of(s).columns, table = static_cast<double>(std::max<int64_t>(z.vocab, 64) * z.dim);
  ModelSpec spec;
  spec.name = s.name;
  spec.units.push_back(unit("stem", "stem", table * columns, stream));
  for (int64_t b = 0; b < z.layers; ++b) {
    UnitSpec block = unit("blocks." + std::to_string(b), "block", block_weights(z) * columns, stream);
    Footprint& f = block.cost;
    f.saved = static_cast<int64_t>((z.kept - 1) * static_cast<double>(stream) * columns);
    f.recompute_saved = f.saved;
    f.keep_peak += f.saved, f.recompute_peak += f.saved;
    f.forward_peak += 4 * stream, f.backward_peak += 4 * stream;
    spec.units.push_back(std::move(block));
  }
  spec.units.push_back(unit("head", "head", table * columns, stream));
  const WorkTable work = work_of(s);
  for (UnitSpec& u : spec.units) {
    u.cost.forward_flops = forward_flops(work.at(u.kind));
    u.cost.backward_flops = (s.frozen ? 1 : 2) * u.cost.forward_flops;
  }
  spec.inputs = spec.targets = spec.loss_grad = spec.loss_peak = stream / 16;
  spec.tokens = static_cast<int64_t>(shares_of(s).tokens);
  spec.samples = s.micro_batch;
  return spec;
}

ScenarioResult run(const Scenario& s) {
  ScenarioResult r;
  r.model = model_of(s);
  r.plan.mesh = s.mesh;
  r.plan.global_batch = s.global_batch, r.plan.micro_batch = s.micro_batch;
  r.plan.prefetch = s.prefetch;
  r.plan.states = s.states;
  r.plan.param_dtype = ParamType::bf16;
  int recompute = s.recompute;
  for (const UnitSpec& u : r.model.units) {
    UnitPlan choice;
    choice.strategy = s.strategy;
    if (u.kind == "block" && recompute > 0) choice.activations = Policy::recompute, --recompute;
    r.plan.units.push_back(choice);
  }
  Machine machine = s.machine;
  machine.work = work_of(s);
  machine.dtype = "bf16";
  for (auto* rates :
       {&machine.profile.device.gemm, &machine.profile.device.attention, &machine.profile.device.attention_backward})
    for (auto& [dtype, rate] : *rates) rate.top *= s.products;
  if (s.frozen) machine.update_bytes = 0;
  r.prediction = predict(r.model, r.plan, machine);
  const RankGroup& first = r.prediction.groups.front();
  r.memory = memory_curve(r.model, r.plan, first.schedule, first.rank);
  r.seconds = r.prediction.step.total;
  r.tokens_per_gpu = static_cast<double>(s.tokens * s.global_batch) / r.seconds / s.mesh.world();
  r.teraflops = r.prediction.flops_per_second / 1e12;
  return r;
}

std::optional<Comparison> compare(const Scenario& s, const ScenarioResult& r) {
  if (s.seconds) return Comparison{"s a step", *s.seconds, r.seconds};
  if (s.tokens_per_gpu) return Comparison{"tokens/s a GPU", *s.tokens_per_gpu, r.tokens_per_gpu};
  if (s.teraflops) return Comparison{"TFLOP/s a GPU", *s.teraflops, r.teraflops};
  return std::nullopt;
}

}  // namespace tessera::plan
