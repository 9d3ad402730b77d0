#pragma once
// What the planner knows of a model: units with their parameters and what running each one costs. Pure data.
//
//   ModelSpec spec = ...;                           // the models room describes, the engine measures on meta tensors
//   UnitLayout layout = plan.layout(spec.units[3], 3);
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/plan/token_shares.h"

namespace tessera::plan {

/// How tensor parallelism cuts a parameter: by output features (its first dimension), by input features (its second),
/// or not at all (every rank of tp uses all of it).
enum class Split { none, rows, columns };

/// How a frozen parameter may rest and travel. 8 bits: blocks of 256 codes, each followed by its scale in fp32, so that
/// any run of blocks is whole in itself (ops/frozen.h).
inline constexpr std::array kStoredTypes = {DType::f32, DType::bf16, DType::i8, DType::f8_e4m3};
/// Bytes of `elements` elements; of 8 bits, of whole blocks.
int64_t stored_bytes(DType stored, int64_t elements);

/// One parameter of a unit, in use order. Shapes are logical (the whole tensor).
struct ParamSpec {
  std::string name;  ///< full checkpoint name, "blocks.3.self_attn.q.weight"
  std::vector<int64_t> shape;
  bool trainable = true;
  Split split = Split::none;
  DType stored = DType::f32;   ///< what is trained is fp32, or as plan.masters says
  bool whole_input = false;    ///< cut by rows, of what every rank of tp has whole (text): nothing is gathered for it
  bool zero_gradient = false;  ///< exact gradient is zero (AdamW turns its rounding into +-lr): left out of comparisons
  int64_t numel() const;
};

/// The dtypes that a policy may round to (Policy::form).
inline constexpr std::array kLossyForms = {DType::bf16, DType::f16, DType::i8, DType::f8_e4m3};

/// What some saved tensors take in the lossy forms. What a form does not make smaller (integers, statistics of one value
/// a row) is not counted: it stays as it is.
struct Compact {
  struct InForm {
    int64_t whole = 0;  ///< bytes of what the form makes smaller, as it was
    int64_t bytes = 0;  ///< and in the form, with its scales
  };
  std::array<InForm, kLossyForms.size()> forms = {};  ///< in their order
  InForm& operator[](DType form) { return forms[std::ranges::find(kLossyForms, form) - kLossyForms.begin()]; }
  const InForm& operator[](DType form) const { return const_cast<Compact&>(*this)[form]; }
  Compact& operator+=(const Compact& other) {
    for (size_t f = 0; f < forms.size(); ++f)
      forms[f].whole += other.forms[f].whole, forms[f].bytes += other.forms[f].bytes;
    return *this;
  }
};

/// What a unit's graph and its backward take, in bytes. Peaks are above the live bytes at the start of the act.
struct GraphCost {
  int64_t saved = 0;      ///< bytes beside the unit's outputs that the graph holds between forward and backward
  int64_t keep_peak = 0;  ///< forward with a graph: highest live bytes
  int64_t backward_peak =
      0;  ///< above the live bytes at the start of backward (saved and gradient of out included there)
  /// Where gradients of weights are left for later (zero bubble): held from then on, highest in the backward that
  /// leaves them and in the act that takes them up.
  int64_t deferred = 0, deferred_peak = 0, weight_grad_peak = 0;
  std::map<std::string, int64_t> saved_by_site;    ///< `saved`, without what belongs to others (boundary, conditioning)
  std::map<std::string, Compact> compact_by_site;  ///< of saved_by_site; a form smaller than the whole is possible
  /// Of a lean graph: bytes read and written in its backward to make again what it does not hold, and of how many
  /// values.
  int64_t rebuilt = 0;
  int rebuilds = 0;
};

/// What one unit costs on one micro-batch of given shapes, in bytes of tensors and in FLOPs (2 per multiply-add).
/// Bytes are measured by running the unit on meta tensors with a counting allocator (engine/measure.h), so they
/// are those of the code that will run. As a GraphCost it is that of the graph that holds everything.
struct Footprint : GraphCost {
  /// What running the forward again costs when the results of some sites are kept.
  struct Replay {
    int64_t forward_peak = 0;     ///< forward without a graph, keeping them
    int64_t recompute_saved = 0;  ///< further bytes of the rebuilt graph
    int64_t recompute_peak = 0;
    double forward_flops = 0;           ///< of the forward that runs again
    std::vector<Traffic> traffic = {};  ///< and its collectives
  };
  int64_t out = 0;              ///< boundary tensors handed to the next unit
  int64_t cond = 0;             ///< shared conditioning the unit produces (stem), live until its backward
  int64_t forward_peak = 0;     ///< forward without a graph
  int64_t recompute_saved = 0;  ///< bytes the rebuilt graph holds (its outputs included)
  int64_t recompute_peak = 0;
  int64_t grad_in = 0;             ///< gradients handed to the previous unit
  std::vector<int64_t> grad_cond;  ///< gradient of each shared conditioning tensor (0: unused), accumulated over units
  double forward_flops = 0;
  double backward_flops = 0;
  /// Bytes of what a site makes that a recompute may keep: of attention output and log-sum-exp, of a feed-forward's
  /// second linear its output.
  std::map<std::string, int64_t> results;
  std::map<std::string, Compact> compact_results;  ///< of results
  Compact compact_out;                             ///< of out
  std::map<std::string, Replay> replays;           ///< by the sites kept, sorted and joined by commas
  std::vector<Traffic> traffic;                    ///< collectives inside a forward, in their order
  std::vector<Traffic> backward_traffic;           ///< and inside a backward
  /// Of the graph that holds neither results of norms nor sums: what all policies but keep save. None: as the other.
  std::optional<GraphCost> lean = {};
  const GraphCost& graph(bool lean_one) const { return lean_one && lean ? *lean : *this; }
};

struct UnitSpec {
  std::string name;  ///< "blocks.3"
  std::string kind;  ///< units of one kind share a footprint: "stem", "block", "head"
  std::vector<ParamSpec> params;
  Footprint cost;
  bool narrow = false;  ///< its products and attention run in plan.compute; of others in fp32
};

struct ModelSpec {
  std::string name;
  std::vector<UnitSpec> units;
  int64_t resident = 0;  ///< bytes that are always there beside the shards: tables of the autoencoder, prompts, anchors
  int64_t between_steps = 0;  ///< further bytes that are there only while no step runs: a sample is decoded
  int64_t inputs = 0;         ///< bytes of one micro-batch's input tensors, live during the micro-batch
  int64_t tables = 0;         ///< of these the tables of the tokens (rows, rotary angles), which every stage needs
  /// Further bytes while a micro-batch is loaded: all of it, where ranks share its tokens and each keeps its own.
  int64_t loading = 0;
  std::vector<int64_t> conditioning = {};  ///< bytes of each shared conditioning tensor
  int64_t targets = 0;                     ///< bytes of its targets, live until the loss
  int64_t loss_peak = 0;  ///< highest bytes of the objective above its start, gradient of the output included
  int64_t loss_grad = 0;  ///< gradient of the output, handed to the last unit's backward
  int64_t samples = 1;    ///< samples of the micro-batch the footprints were measured on
  int64_t tokens = 0;     ///< and its tokens, of one rank
  int64_t sequence = 0;   ///< where ranks share tokens: those of all of them, else 0
  int64_t all_tokens() const { return sequence > 0 ? sequence : tokens; }
  int64_t prediction_row = 0;  ///< bytes of one token's prediction
  int64_t numel() const;
};

/// Elements of quantisation blocks: starts and shards are multiples, so no block straddles a tensor or a rank.
inline constexpr int64_t kFlatAlign = 256;

/// One flat buffer of a unit, split evenly over the ranks that share it. A unit has one for each kind of parameter:
/// trained or frozen, cut by tensor parallelism or used whole by all of its ranks.
struct Buffer {
  bool trainable = true;
  bool over_tp = false;  ///< the ranks of tp all use it: they share it too
  DType stored = DType::f32;
  std::vector<int> params;  ///< indices into UnitSpec::params
  int shards = 1;           ///< ranks it is split over
  int64_t total = 0;        ///< elements, padded; shard * shards
  int64_t shard = 0;        ///< elements a rank holds
  int pieces = 1;           ///< ranks that hold the same shard and keep the states of a piece of it each
  int64_t slot_at = 0;      ///< byte at which it begins in the unit's slot
  int64_t grad_at = 0;      ///< when trainable, fp32 value at which it begins in the gradient slot
  int64_t held = 0;         ///< and in what a rank holds
  int64_t piece() const { return shard / pieces; }  ///< elements
};

/// Where a unit's parameters lie, and what of them a rank holds. Trainable buffers come first, so that the gradient has
/// the places of what it belongs to.
struct UnitLayout {
  /// The part of a parameter that one rank of tp uses.
  struct Place {
    int buffer = 0;
    int64_t start = 0;  ///< first element in the buffer
    std::vector<int64_t> shape;
    int64_t numel = 0;
  };
  std::vector<Buffer> buffers;
  std::vector<Place> params;
  bool sharded = false;          ///< all buffers are, or none
  int64_t total = 0, shard = 0;  ///< fp32 values that the slot has room for, and elements held by a rank
  int64_t grad_total = 0,
          grad_shard = 0;     ///< values of the gradient slot, and elements held by a rank of what is trained
  int64_t grad_piece = 0;     ///< of those held, the ones that this rank updates: less than all in two levels
  int64_t trained_bytes = 0;  ///< of the slot, of what is trained
  int64_t slot_element = 4;   ///< bytes of a value in the slot, where it rests as fp32 or as masters
  /// Whether the states of a shard lie in pieces on the ranks that hold it (Strategy::two_level).
  bool in_pieces() const { return grad_piece < grad_shard; }
  /// Bytes of `elements` elements of a buffer in the slot.
  int64_t slot_bytes(const Buffer& buffer, int64_t elements) const {
    return buffer.stored == DType::f32 ? elements * slot_element : stored_bytes(buffer.stored, elements);
  }
  /// The byte of the slot, or of the gradient slot, at which a parameter begins.
  int64_t in_slot(int param) const {
    const Buffer& buffer = buffers[params[param].buffer];
    return buffer.slot_at + slot_bytes(buffer, params[param].start);
  }
  int64_t in_gradient(int param) const { return (buffers[params[param].buffer].grad_at + params[param].start) * 4; }
};

/// `shards`: ranks of the shard group; `tp`: ranks of tensor parallelism, 1 for none. What the ranks of tp use alike is
/// split over them too, where it is split at all. `whole`: nothing is, every rank holds all that it uses. `element`: of
/// the slot (UnitLayout::slot_element). `copies`: replicas of the shard group that share the states of what is trained;
/// of what is not split at all, but used alike by the ranks of tp, these do too.
UnitLayout unit_layout(const UnitSpec& unit, int shards, int tp = 1, bool whole = false, int64_t element = 4,
                       int copies = 1);

/// The box of a parameter that rank `tp_rank` of `tp` uses: [begin, end) for each dimension.
std::vector<std::pair<int64_t, int64_t>> tp_box(const ParamSpec& param, int tp, int tp_rank);

}  // namespace tessera::plan
