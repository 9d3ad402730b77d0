#pragma once
// A training run described by sizes alone, for simulating runs of others and networks that are not in the models room:
// a transformer of one kind of block, a layout, a machine.
//
//   for (const Scenario& s : parse_scenarios(text, "bench/published.toml"))
//     std::printf("%s: %.2f s\n", s.name.c_str(), run(s).prediction.step.total);
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {

struct TransformerSizes {
  int64_t dim = 0, ffn_dim = 0, layers = 0;
  int64_t heads = 0;        ///< 0: of 128 features each
  int64_t kv_dim = 0;       ///< width of keys and values, 0: dim (grouped-query attention has less)
  int64_t text_tokens = 0;  ///< above 0: a cross-attention to that many tokens of width dim
  int64_t vocab = 0;        ///< above 0: an embedding and a head of that many rows
  bool gated_ffn = false;   ///< three products instead of two
  bool causal = false;      ///< half of the attention
  double passes = 20;       ///< times a block's forward reads or writes a tensor [tokens, dim] between products
  double kept = 14;         ///< tensors [tokens, dim] a block keeps for its backward
  double lean = 0;          ///< and where it makes norms and sums again (Policy::rebuild); 0: it always keeps all
};

struct Scenario {
  std::string name, source, note;
  TransformerSizes sizes;
  int64_t tokens = 0;  ///< of one sample
  Mesh mesh;
  int gpus = 0;  ///< above 0: the fastest mesh of so many that fits is looked for, and `mesh` is not read
  int64_t global_batch = 1, micro_batch = 1;
  int recompute = 0;  ///< blocks
  Strategy strategy = Strategy::full_shard;
  int prefetch = 1;
  StateFormat states;
  int experts = 1;      ///< whole networks of which a step trains one; shards of the others rest on the devices
  double wire = 1;      ///< bytes on a link for each byte of gathered parameters and reduced gradients (0.5: bf16)
  bool frozen = false;  ///< LoRA: base weights have no gradients, states or reductions worth counting
  Machine machine;
  double products = 1;  ///< share of the profile's rates that this run's setting leaves (a power limit)

  /// What was published: one of the two.
  std::optional<double> seconds;         ///< a step
  std::optional<double> tokens_per_gpu;  ///< tokens/s for each GPU
  std::optional<double> teraflops;       ///< model TFLOP/s for each GPU
};

struct ScenarioResult {
  ModelSpec model;
  Plan plan;
  bool fits = true;  ///< the device's memory without its reserve (reserve.h)
  Prediction prediction;
  MemoryCurve memory;
  double seconds = 0;         ///< a step
  double tokens_per_gpu = 0;  ///< tokens/s
  double teraflops = 0;       ///< model TFLOP/s for each GPU, recompute not counted
  int layouts = 1;            ///< meshes that were tried
};

/// [[run]] tables. Throws UserError (usage) naming file, run and key.
std::vector<Scenario> parse_scenarios(std::string_view text, const std::string& file);

/// The network as units with work, on one rank's share of tokens, heads and columns of scenario.mesh.
ModelSpec model_of(const Scenario& scenario);
WorkTable work_of(const Scenario& scenario);
ScenarioResult run(const Scenario& scenario);

/// The published number, ours in the same unit, and the relative error: a row for a table.
struct Comparison {
  std::string unit;  ///< "s a step", "tokens/s a GPU", "TFLOP/s a GPU"
  double published = 0, ours = 0;
  /// By time, so that + is slower than published whatever the unit.
  double error() const { return unit == "s a step" ? ours / published - 1 : published / ours - 1; }
};
std::optional<Comparison> compare(const Scenario& scenario, const ScenarioResult& result);

}  // namespace tessera::plan
