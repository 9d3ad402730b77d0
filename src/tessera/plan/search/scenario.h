#pragma once
// A training run described by sizes alone: a transformer with one kind of block, a layout and a machine. Used to
// simulate published runs and networks that are not in `models`.
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
  int64_t heads = 0;        ///< 0: heads of 128 features
  int64_t kv_dim = 0;       ///< width of keys and values; 0: dim (smaller with grouped-query attention)
  int64_t text_tokens = 0;  ///< above 0: a cross-attention to that many tokens of width dim
  int64_t vocab = 0;        ///< above 0: an embedding and a head of that many rows
  bool gated_ffn = false;   ///< three products instead of two
  bool causal = false;      ///< half of the attention
  double passes = 20;       ///< reads or writes of tensors [tokens, dim] by a block's forward between products
  double kept = 14;         ///< tensors [tokens, dim] that a block saves for its backward
  double selective = 0;     ///< the same with selective recompute (Policy::rebuild); 0: not available
};

struct Scenario {
  std::string name, source, note;
  TransformerSizes sizes;
  int64_t tokens = 0;  ///< of one sample
  Mesh mesh;
  int gpus = 0;  ///< above 0: use the fastest mesh of so many ranks that fits, and ignore `mesh`
  int64_t global_batch = 1, micro_batch = 1;
  bool search = false;  ///< the planner's plan for `mesh`, in place of recompute, strategy and prefetch
  int recompute = 0;    ///< number of blocks
  Strategy strategy = Strategy::full_shard;
  int prefetch = 1;
  StateFormat states;
  int experts = 1;      ///< networks of which a step trains one; shards of the others stay on the devices
  double wire = 1;      ///< bytes on a link for each byte of gathered parameters and reduced gradients (0.5: bf16)
  bool frozen = false;  ///< LoRA: gradients, states and reductions of base weights are negligible
  Machine machine;
  bool flash = false;   ///< attention by flash, in place of the faster kernel
  double products = 1;  ///< share of the profile's rates available to this run (a power limit)

  /// The published result: one of these.
  std::optional<double> seconds;         ///< of a step
  std::optional<double> tokens_per_gpu;  ///< tokens/s of each GPU
  std::optional<double> teraflops;       ///< model TFLOP/s of each GPU
  /// Comparison::error() that `note` explains; none: within 15 %. A test holds each run to it.
  std::optional<double> off;
};

struct ScenarioResult {
  ModelSpec model;
  Plan plan;
  bool fits = true;  ///< fits the device's memory without its reserve (simulate/libraries.h)
  Prediction prediction;
  MemoryCurve memory;
  double seconds = 0;         ///< of a step
  double tokens_per_gpu = 0;  ///< tokens/s
  double teraflops = 0;       ///< model TFLOP/s of each GPU, without recompute
  int layouts = 1;            ///< number of meshes tried
};

/// [[run]] tables. Throws UserError (usage) naming file, run and key.
std::vector<Scenario> parse_scenarios(std::string_view text, const std::string& file);

/// The network as units with work, for one rank's share of tokens, heads and columns under scenario.mesh.
ModelSpec model_of(const Scenario& scenario);
WorkTable work_of(const Scenario& scenario);
ScenarioResult run(const Scenario& scenario);

/// The published number, ours in the same unit, and the relative error, as a row of a table.
struct Comparison {
  std::string unit;  ///< "s a step", "tokens/s a GPU", "TFLOP/s a GPU"
  double published = 0, ours = 0;
  /// Relative error of the time: positive means slower than published, whatever the unit.
  double error() const { return unit == "s a step" ? ours / published - 1 : published / ours - 1; }
};
std::optional<Comparison> compare(const Scenario& scenario, const ScenarioResult& result);

}  // namespace tessera::plan
