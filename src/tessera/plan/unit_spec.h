#pragma once
// What the planner knows of a model: units with their parameters and what running each one costs. Pure data.
//
//   ModelSpec spec = ...;                           // the models room describes, the engine measures on meta tensors
//   FlatLayout layout = flat_layout(spec.units[3], mesh.shard_size());
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::plan {

/// One parameter of a unit, in use order. Shapes are logical (the whole tensor).
struct ParamSpec {
  std::string name;  ///< full checkpoint name, "blocks.3.self_attn.q.weight"
  std::vector<int64_t> shape;
  bool trainable = true;
  bool zero_gradient = false;  ///< exact gradient is zero (AdamW turns its rounding into +-lr): left out of comparisons
  int64_t numel() const;
};

/// What one unit costs on one micro-batch of given shapes, in bytes of tensors and in FLOPs (2 per multiply-add).
/// Bytes are measured by running the unit on meta tensors with a counting allocator (engine/measure.h), so they
/// are those of the code that will run. Peaks are above the live bytes at the start of the act.
struct Footprint {
  /// What running the forward again costs when the attention of some sites is kept (output and log-sum-exp).
  struct Replay {
    int64_t forward_peak = 0;     ///< forward without a graph, keeping them
    int64_t recompute_saved = 0;  ///< further bytes of the rebuilt graph
    int64_t recompute_peak = 0;
    double forward_flops = 0;  ///< of the forward that runs again
  };
  int64_t out = 0;              ///< boundary tensors handed to the next unit
  int64_t cond = 0;             ///< shared conditioning the unit produces (stem), live until its backward
  int64_t saved = 0;            ///< further bytes the graph holds between forward and backward
  int64_t keep_peak = 0;        ///< forward with a graph: highest live bytes
  int64_t forward_peak = 0;     ///< forward without a graph
  int64_t recompute_saved = 0;  ///< bytes the rebuilt graph holds (its outputs included)
  int64_t recompute_peak = 0;
  int64_t backward_peak =
      0;                ///< above the live bytes at the start of backward (saved and gradient of out included there)
  int64_t grad_in = 0;  ///< gradients handed to the previous unit
  std::vector<int64_t> grad_cond;  ///< gradient of each shared conditioning tensor (0: unused), accumulated over units
  double forward_flops = 0;
  double backward_flops = 0;
  std::map<std::string, int64_t> saved_by_site;  ///< `saved`, without what belongs to others (boundary, conditioning)
  std::map<std::string, int64_t> attention;      ///< bytes that an attention site makes: output and log-sum-exp
  std::map<std::string, Replay> replays;         ///< by the sites kept, sorted and joined by commas
};

struct UnitSpec {
  std::string name;  ///< "blocks.3"
  std::string kind;  ///< units of one kind share a footprint: "stem", "block", "head"
  std::vector<ParamSpec> params;
  Footprint cost;
};

struct ModelSpec {
  std::string name;
  std::vector<UnitSpec> units;
  int64_t resident = 0;  ///< bytes that are always there beside the shards: tables of the autoencoder, prompts, anchors
  int64_t inputs = 0;    ///< bytes of one micro-batch's input tensors, live during the micro-batch
  int64_t targets = 0;   ///< bytes of its targets, live until the loss
  int64_t loss_peak = 0;  ///< highest bytes of the objective above its start, gradient of the output included
  int64_t loss_grad = 0;  ///< gradient of the output, handed to the last unit's backward
  int64_t samples = 1;    ///< samples of the micro-batch the footprints were measured on
  int64_t tokens = 0;     ///< and its tokens
  int64_t numel() const;
};

/// Elements of quantisation blocks: starts and shards are multiples, so no block straddles a tensor or a rank.
inline constexpr int64_t kFlatAlign = 256;

/// Where a unit's parameters lie in its flat buffer, and how the buffer is split over the shard group.
struct FlatLayout {
  int64_t between_steps = 0;  ///< further bytes that are there only while no step runs: a sample is decoded
  std::vector<int64_t> start;  ///< per parameter, elements
  int64_t total = 0;           ///< elements, padded; shard * shards
  int64_t shard = 0;           ///< elements a rank holds
  int shards = 1;
};
FlatLayout flat_layout(const UnitSpec& unit, int shards);

}  // namespace tessera::plan
