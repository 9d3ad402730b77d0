#include "tessera/plan/search/scenario.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/plan/search/layouts.h"
#include "tessera/plan/simulate/libraries.h"

namespace tessera::plan {

namespace {

/// One rank's share of a sample's tokens and of a block's columns.
struct Shares {
  double tokens;   ///< of a micro-batch on this rank
  double columns;  ///< 1 / tp
};

Shares shares_of(const Scenario& s) {
  const double sequence = s.mesh[Axis::cp] * s.mesh[Axis::sp];
  return {static_cast<double>(s.tokens * s.micro_batch) / sequence, 1.0 / s.mesh[Axis::tp]};
}

double kv_dim(const TransformerSizes& z) { return static_cast<double>(z.kv_dim > 0 ? z.kv_dim : z.dim); }

/// Elements of a whole block's weights.
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

/// One column-parallel matrix with all elements of the unit.
UnitSpec unit(const std::string& name, const std::string& kind, double rows, int64_t dim, int64_t stream) {
  UnitSpec u;
  u.name = name, u.kind = kind;
  u.params = {{.name = name + ".weight", .shape = {static_cast<int64_t>(rows), dim}, .split = Split::column_parallel}};
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
    block.add_product(2 * rows * in * out * columns, !s.frozen);
  };
  product(t, d, d), product(t, d, kv_dim(z)), product(t, d, kv_dim(z)), product(t, d, d);
  for (int i = 0; i < (z.gated_ffn ? 3 : 2); ++i) product(t, d, f);
  // as in our blocks: only a gate reads this result
  if (z.selective > 0) block.results["ffn"] = 2 * t * d * f * columns;
  const auto whole = static_cast<double>(s.tokens);
  block.attention["self_attn"] = 4 * samples * whole * whole * d * (z.causal ? 0.5 : 1) / sequence * columns;
  if (z.text_tokens > 0) {
    const double text = static_cast<double>(z.text_tokens);
    product(t, d, d), product(t, d, d), product(samples * text, d, d), product(samples * text, d, d);
    block.attention["cross_attn"] = 4 * t * text * d * columns;
  }
  block.streamed = z.passes * t * d * kElement * columns;
  block.operators = static_cast<int>(z.passes / 2);
  const double stream = t * d * kElement;
  const auto both = [&](const char* axis, const char* kind, double bytes, double backward) {
    bytes /= s.wire;  // already bf16
    block.comm.push_back({axis, kind, static_cast<int64_t>(bytes)});
    block.backward_comm.push_back({axis, kind, static_cast<int64_t>(bytes * backward)});
  };
  if (s.mesh[Axis::tp] > 1) {  // each sublayer all-gathers its tokens and reduce-scatters its output
    const int sublayers = z.text_tokens > 0 ? 3 : 2;
    const double sent = stream * sublayers * (1 - columns);
    both("tp", "all_gather", sent, 1);
    both("tp", "reduce_scatter", sent, 1);
  }
  if (const int n = s.mesh[Axis::sp]; n > 1)  // exchanges q, k, v and the output, and their gradients
    both("sp", "all_to_all", 4 * stream * (n - 1) / n * columns, 1);
  // keys and values travel round the ring, in the backward their gradients too
  if (const int n = s.mesh[Axis::cp]; n > 1) both("cp", "ring", 2 * stream * kv_dim(z) / d * (n - 1) * columns, 2);
  UnitWork& head = table["head"];
  head.add_product(2 * t * d * static_cast<double>(std::max<int64_t>(z.vocab, 64)) * columns, !s.frozen);
  UnitWork& stem = table["stem"];
  stem.streamed = 2 * stream, stem.operators = 2;
  return table;
}

ModelSpec model_of(const Scenario& s) {
  const TransformerSizes& z = s.sizes;
  const int64_t stream = stream_bytes(s);  // between sharded linears, tokens stay sharded over tp
  const auto boundary = static_cast<int64_t>(static_cast<double>(stream) * shares_of(s).columns);
  const auto rows = static_cast<double>(std::max<int64_t>(z.vocab, 64)), dim = static_cast<double>(z.dim);
  const WorkTable work = work_of(s);
  ModelSpec spec;
  spec.name = s.name;
  spec.units.push_back(unit("stem", "stem", rows, z.dim, boundary));
  for (int64_t b = 0; b < z.layers; ++b) {
    UnitSpec block = unit("blocks." + std::to_string(b), "block", block_weights(z) / dim, z.dim, boundary);
    Footprint& f = block.cost;
    const auto kept = [&](double tensors) {
      return static_cast<int64_t>((tensors - 1) * static_cast<double>(boundary));
    };
    f.saved = kept(z.kept), f.recompute_saved = kept(z.selective > 0 ? z.selective : z.kept);
    f.forward_peak += 4 * stream, f.backward_peak += 4 * stream;
    if (z.selective > 0) {  // each tensor is recomputed from one or two others and read at once
      constexpr double kPasses = 2.5;
      GraphCost selective = f;
      selective.saved = kept(z.selective), selective.keep_peak += selective.saved + 2 * stream;
      selective.rebuilt = static_cast<int64_t>(kPasses * (z.kept - z.selective) * static_cast<double>(boundary));
      selective.rebuilds = static_cast<int>(z.kept - z.selective);
      selective.backward_peak += stream;
      f.selective = selective;
    }
    f.keep_peak += f.saved, f.recompute_peak += f.recompute_saved;
    const auto keeps = [&](const std::string& sites, int64_t bytes) {
      f.replays[sites] = {.forward_peak = f.forward_peak,
                          .recompute_saved = f.recompute_saved - bytes,
                          .recompute_peak = f.recompute_peak - bytes};
    };
    f.results = {{"self_attn", boundary}};  // may be kept by a recompute
    keeps("self_attn", boundary);
    if (work.at("block").results.contains("ffn")) {
      f.results["ffn"] = boundary;
      keeps("ffn", boundary), keeps("ffn,self_attn", 2 * boundary);
    }
    spec.units.push_back(std::move(block));
  }
  spec.units.push_back(unit("head", "head", rows, z.dim, boundary));
  const double idle = static_cast<double>(s.experts - 1) * static_cast<double>(spec.numel());
  spec.resident = static_cast<int64_t>(idle * bytes_per_parameter(s.states)) / s.mesh.shard_size() / s.mesh[Axis::tp] /
                  s.mesh[Axis::pp];
  for (UnitSpec& u : spec.units) {
    u.cost.forward_flops = work.at(u.kind).forward_flops();
    u.cost.backward_flops = work.at(u.kind).backward_flops();
  }
  spec.inputs = spec.targets = spec.loss_grad = spec.loss_peak = boundary / 16;
  spec.tokens = static_cast<int64_t>(shares_of(s).tokens);
  spec.samples = s.micro_batch;
  return spec;
}

namespace {

Machine machine_of(const Scenario& s) {
  Machine machine = s.machine;
  machine.work = work_of(s);
  machine.dtype = "bf16";
  machine.wire = s.wire;
  for (auto* rates :
       {&machine.profile.device.gemm, &machine.profile.device.attention, &machine.profile.device.attention_backward})
    for (auto& [dtype, rate] : *rates) rate.top *= s.products;
  if (s.flash)
    for (auto* rates : {&machine.profile.device.attention, &machine.profile.device.attention_backward})
      std::erase_if(*rates, [](const auto& rate) { return rate.first.ends_with(kByCudnn); });
  if (s.frozen) machine.update_bytes = 0;
  return machine;
}

Plan plan_of(const Scenario& s, const ModelSpec& model) {
  Plan plan;
  plan.mesh = s.mesh;
  plan.global_batch = s.global_batch, plan.micro_batch = s.micro_batch;
  plan.prefetch = s.prefetch;
  plan.states = s.states;
  plan.param_dtype = DType::bf16;
  if (s.mesh[Axis::pp] > 1) {
    std::vector<double> flops;
    for (const UnitSpec& u : model.units) flops.push_back(u.cost.forward_flops + u.cost.backward_flops);
    plan.pipeline.first = balanced_stages(flops, s.mesh[Axis::pp]);
  }
  int recompute = s.recompute;
  for (const UnitSpec& u : model.units) {
    UnitPlan choice;
    choice.strategy = s.strategy;
    if (is_block(u) && recompute > 0) choice.activations = Policy::recompute, --recompute;
    plan.units.push_back(choice);
  }
  return plan;
}

int64_t budget_of(const Scenario& s) { return without_reserve(s.machine.profile.device.memory); }

PlannerInput planner_input(const Scenario& s) {
  PlannerInput input;
  input.global_batch = s.global_batch, input.micro_batch = s.micro_batch;
  input.budget = budget_of(s);
  input.states = s.states;
  input.param_dtype = DType::bf16;
  return input;
}

/// The scenario with its fastest mesh, and the plan.
std::pair<Scenario, ScenarioResult> with_best_layout(Scenario s) {
  LayoutBounds bounds;
  bounds.world = s.gpus, bounds.node = s.machine.profile.devices;
  bounds.heads = s.sizes.heads > 0 ? s.sizes.heads : s.sizes.dim / 128;
  bounds.features = std::gcd(std::gcd(s.sizes.dim, s.sizes.ffn_dim), static_cast<int64_t>(kv_dim(s.sizes)));
  bounds.units = static_cast<int>(s.sizes.layers) + 2;
  bounds.tokens = s.tokens;
  const PlannerInput input = planner_input(s);
  const auto with = [&](const Mesh& mesh) {
    Scenario there = s;
    there.mesh = mesh;
    return there;
  };
  const auto found = search_layouts(bounds, input, [&](const Mesh& mesh) {
    const Scenario there = with(mesh);
    return OnMesh{{model_of(there), machine_of(there)}, budget_of(there)};
  });
  if (found.empty())
    throw UserError(Exit::usage, "plan.scenario",
                    s.name + ": no mesh of " + std::to_string(s.gpus) + " ranks fits a global batch of " +
                        std::to_string(s.global_batch),
                    "give more samples, or fewer gpus");
  ScenarioResult r;
  r.layouts = static_cast<int>(found.size());
  r.plan = found.front().choice.plan;
  return {with(found.front().mesh), std::move(r)};
}

}  // namespace

ScenarioResult run(const Scenario& given) {
  auto [s, r] = given.gpus > 0 ? with_best_layout(given) : std::pair(given, ScenarioResult{});
  r.model = model_of(s);
  if (given.gpus == 0)
    r.plan = given.search ? choose(r.model, s.mesh, planner_input(s), machine_of(s)).plan : plan_of(s, r.model);
  r.prediction = predict(r.model, r.plan, machine_of(s));
  for (const RankGroup& group : r.prediction.groups) {
    MemoryCurve curve = memory_curve(r.model, r.plan, group.schedule, group.rank);
    if (curve.peak > r.memory.peak) r.memory = std::move(curve);
  }
  r.fits = r.memory.peak <= budget_of(s);
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
