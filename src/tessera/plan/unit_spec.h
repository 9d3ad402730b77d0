#pragma once
// What the planner knows about a model: its units, their parameters and the cost of running each. Pure data.
//
//   ModelSpec spec = ...;                           // described by models, measured by the engine on meta tensors
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

#include "tessera/base/check.h"
#include "tessera/base/dtype.h"
#include "tessera/plan/attention.h"
#include "tessera/plan/token_shares.h"

namespace tessera::plan {

/// How tensor parallelism shards a parameter, in Megatron's sense: column parallel by output features (dimension 0),
/// row parallel by input features (dimension 1), or none (every rank of tp uses all of it).
enum class Split { none, column_parallel, row_parallel };

/// Storage and communication dtypes of frozen parameters. 8-bit formats: blocks of 256 codes, each followed by its fp32
/// scale, so that any run of whole blocks is self-contained (ops/frozen.h).
inline constexpr std::array kStoredTypes = {DType::f32, DType::bf16, DType::i8, DType::f8_e4m3};
/// Bytes of `elements` elements; for 8-bit formats, of whole blocks.
int64_t stored_bytes(DType stored, int64_t elements);

/// One parameter of a unit, in use order. Shapes are logical (the whole tensor).
struct ParamSpec {
  std::string name;  ///< full checkpoint name, "blocks.3.self_attn.q.weight"
  std::vector<int64_t> shape;
  bool trainable = true;
  Split split = Split::none;
  DType stored = DType::f32;  ///< trained parameters are fp32, or as plan.masters says
  /// column parallel, and its input (text) is replicated on the ranks of tp: needs no gather
  bool whole_input = false;
  /// its exact gradient is zero (AdamW turns the rounding error into +-lr): excluded from comparisons
  bool zero_gradient = false;
  /// products in 8 bits alone read it (measured: engine/measure.h), so that it may be gathered as their codes
  bool in_8_bits = false;
  /// its update needs the whole tensor at once, as a matrix (whole_matrices.h): of optimisers that have such updates
  bool whole = false;
  int64_t numel() const;
};

/// The dtypes that a policy may quantise to (Policy::form).
inline constexpr std::array kLossyForms = {DType::bf16, DType::f16, DType::i8, DType::f8_e4m3};

/// Bytes of saved tensors before and after quantisation, for each form. Tensors that a form does not shrink (integers,
/// one-value-a-row statistics) stay as they are and are not counted.
struct Compact {
  struct InForm {
    int64_t whole = 0;  ///< bytes of the tensors that the form shrinks, before
    int64_t bytes = 0;  ///< bytes after, with scales
  };
  std::array<InForm, kLossyForms.size()> forms = {};  ///< in the order of kLossyForms
  InForm& operator[](DType form) { return forms[std::ranges::find(kLossyForms, form) - kLossyForms.begin()]; }
  const InForm& operator[](DType form) const { return const_cast<Compact&>(*this)[form]; }
  Compact& operator+=(const Compact& other) {
    for (size_t f = 0; f < forms.size(); ++f)
      forms[f].whole += other.forms[f].whole, forms[f].bytes += other.forms[f].bytes;
    return *this;
  }
};

/// Memory of a unit's graph and backward in bytes. Peaks are above the live bytes at the start of the instruction.
struct GraphCost {
  int64_t saved = 0;  ///< bytes that the graph holds between forward and backward, without the unit's outputs
  /// bytes of the unit's outputs that its graph saves as well: they stay until its backward, whoever else lets go of them
  int64_t saved_out = 0;
  int64_t keep_peak = 0;  ///< peak of a forward with a graph
  /// Peak of the backward, above its live bytes at the start, which include `saved` and the gradient of the output.
  int64_t backward_peak = 0;
  /// Deferred weight gradients (zero bubble): bytes held from the backward on, the peak of that backward, and the peak
  /// of the later weight_grad.
  int64_t deferred = 0, deferred_peak = 0, weight_grad_peak = 0;
  std::map<std::string, int64_t> saved_by_site;    ///< `saved` by site, without tensors of others (input, conditioning)
  std::map<std::string, Compact> compact_by_site;  ///< the quantised bytes of saved_by_site
  /// Selective recompute: bytes that the backward reads and writes to recompute what the graph does not hold, and the
  /// number of recomputed values.
  int64_t rebuilt = 0;
  int rebuilds = 0;
};

/// Cost of one unit on one micro-batch of given shapes, in bytes and in FLOPs (2 for each multiply-add). Bytes are
/// measured by running the unit's code on meta tensors with a counting allocator (engine/measure.h). The inherited
/// GraphCost is that of the full graph (Policy::keep).
struct Footprint : GraphCost {
  /// Cost of a recompute if the results of some sites are kept.
  struct Replay {
    int64_t forward_peak = 0;     ///< peak of a forward without a graph that keeps them
    int64_t recompute_saved = 0;  ///< further bytes held by the recomputed graph
    int64_t recompute_peak = 0;
    double forward_flops = 0;           ///< FLOPs of the recompute
    std::vector<Traffic> traffic = {};  ///< collectives of the recompute
  };
  int64_t out = 0;              ///< bytes of the output passed to the next unit
  int64_t cond = 0;             ///< bytes of shared conditioning that the unit produces (stem), live until its backward
  int64_t forward_peak = 0;     ///< peak of a forward without a graph
  int64_t recompute_saved = 0;  ///< bytes held by the recomputed graph (outputs included)
  int64_t recompute_peak = 0;
  int64_t grad_in = 0;             ///< bytes of gradients passed to the previous unit
  std::vector<int64_t> grad_cond;  ///< gradient of each shared conditioning tensor (0: unused), accumulated over units
  double forward_flops = 0;
  double backward_flops = 0;
  /// Bytes of the results that a recompute may keep, by site: output and log-sum-exp of an attention, output of the
  /// feed-forward's second linear.
  std::map<std::string, int64_t> results;
  std::map<std::string, Compact> compact_results;  ///< quantised bytes of results
  Compact compact_out;                             ///< quantised bytes of out
  std::map<std::string, Replay> replays;           ///< by the kept sites, sorted and joined by commas
  std::vector<Traffic> traffic;                    ///< collectives in a forward, in order
  std::vector<Traffic> backward_traffic;           ///< collectives in a backward, in order
  AttentionUse attention = {};                     ///< on a GPU; empty where a CPU computes
  /// Cost of the selective-recompute graph, without results of norms and residual sums, which every policy but `keep`
  /// uses. Empty: the same as the full graph.
  std::optional<GraphCost> selective = {};
  const GraphCost& graph(bool selective_recompute) const {
    return selective_recompute && selective ? *selective : *this;
  }
};

struct UnitSpec {
  std::string name;  ///< "blocks.3"
  std::string kind;  ///< units of one kind share a footprint: "stem", "block", "head"
  std::vector<ParamSpec> params = {};
  Footprint cost = {};
  bool narrow = false;  ///< its products and attention run in plan.compute; else in fp32
};

struct ModelSpec {
  std::string name;
  std::vector<UnitSpec> units;
  int64_t resident = 0;       ///< bytes always resident beside the shards: autoencoder tables, prompts, anchors
  int64_t between_steps = 0;  ///< further bytes resident only between steps, while a sample is decoded
  int64_t swap_piece = 0;     ///< bytes of a GPU by way of which experts change places with those of other tiers
  int64_t inputs = 0;         ///< bytes of a micro-batch's input tensors, live during the micro-batch
  int64_t tables = 0;         ///< bytes of token tables among them (rows, rotary angles), which every stage needs
  std::vector<int64_t> conditioning = {};  ///< bytes of each shared conditioning tensor
  int64_t targets = 0;                     ///< bytes of the targets, live until the loss
  int64_t loss_peak = 0;                   ///< peak of the objective above its start, gradient of the output included
  int64_t loss_grad = 0;                   ///< bytes of the output's gradient, passed to the last unit's backward
  int64_t samples = 1;                     ///< samples of the micro-batch the footprints were measured on
  int64_t tokens = 0;                      ///< tokens of that micro-batch on one rank
  int64_t sequence = 0;                    ///< tokens on all ranks that share them, else 0
  int64_t all_tokens() const { return sequence > 0 ? sequence : tokens; }
  int64_t prediction_row = 0;  ///< bytes of one token's prediction
  /// The model on micro-batches of fewer samples, in their order: those that end a rank's share of a batch.
  std::vector<ModelSpec> smaller = {};
  /// The model on micro-batches of `count` samples, or of the fewest beyond that it was measured on.
  const ModelSpec& on(int64_t count) const;
  int64_t numel() const;
  AttentionUse attention() const;  ///< of all units
};

/// Block size of quantised states: tensors and shards begin at its multiples, so no block crosses a tensor or a rank.
inline constexpr int64_t kFlatAlign = 256;

/// [Note: gathers of codes] What a gather brings of weights that products in 8 bits alone read, where the plan says so
/// (Formats::gather_fp8): in place of their values in 16 bits the codes of their rows, which forwards multiply, of their
/// columns, which gradients of inputs multiply, or both. Each rank quantises its shard, in the order of the shard, which cuts
/// lines anywhere. So first the ranks exchange the scales of the lines that their shards have values of; the scale of a line is
/// the largest of them, because division rounds in order. The codes are those of the gathered values, to the bit.
enum class Codes { none, rows, columns, both };
inline bool has_rows(Codes codes) { return codes == Codes::rows || codes == Codes::both; }
inline bool has_columns(Codes codes) { return codes == Codes::columns || codes == Codes::both; }
/// What a gather for both of two uses brings.
inline Codes together(Codes a, Codes b) { return a == b || b == Codes::none ? a : a == Codes::none ? b : Codes::both; }

/// One flat buffer of a unit, sharded evenly over ranks. A unit has one for each kind of parameter: trained or frozen,
/// sharded by tensor parallelism or replicated over tp.
struct Buffer {
  bool trainable = true;
  bool over_tp = false;  ///< replicated in tp compute, so the shards are spread over the ranks of tp too
  DType stored = DType::f32;
  std::vector<int> params;  ///< indices into UnitSpec::params
  int shards = 1;           ///< number of shards
  int64_t total = 0;        ///< elements with padding: shard * shards
  int64_t shard = 0;        ///< elements of one shard
  int partitions = 1;       ///< replicas over which the states of a shard are partitioned (two_level)
  bool in_codes = false;    ///< gathered as codes
  /// Lines of its matrices, rows and then columns: all of them, and the most that one shard has values of.
  struct Lines {
    int64_t all = 0, most = 0;
  };
  std::array<Lines, 2> lines = {};
  int64_t grad_at = 0;  ///< if trainable: offset in the gradient slot, in fp32 values
  int64_t held = 0;     ///< offset of this rank's shard in the rank's memory for the unit, in elements
  int64_t partition() const { return shard / partitions; }  ///< elements
  // The codes of rows (`columns` 0) or columns (1) in a slot: one for each element, then the scale of each line, then those
  // that each shard sends. Bytes.
  int64_t scales_at() const { return total; }
  int64_t sent_scales_at(int columns) const { return total + round_up(lines[columns].all * 4, kFlatAlign); }
  int64_t code_bytes(int columns) const {
    return sent_scales_at(columns) + round_up(lines[columns].most * shards * 4, kFlatAlign);
  }
};

/// Layout of a unit's parameters in its buffers, and what one rank holds. Trainable buffers come first, so that
/// gradients have the same offsets as their parameters.
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
  bool sharded = false;          ///< all buffers are sharded, or none
  int64_t total = 0, shard = 0;  ///< capacity of the slot in fp32 values, and elements held by a rank
  int64_t grad_total = 0;        ///< values in the gradient slot
  int64_t grad_shard = 0;        ///< trained elements held by a rank
  int64_t grad_partition = 0;    ///< trained elements that this rank updates: fewer than grad_shard with two_level
  int64_t slot_element = 4;      ///< bytes of one value in the slot if the buffer is stored as fp32 or as masters
  /// Whether the states of a shard are partitioned over the replicas (Strategy::two_level).
  bool partitioned() const { return grad_partition < grad_shard; }
  /// Bytes of `elements` elements of a buffer in the slot.
  int64_t slot_bytes(const Buffer& buffer, int64_t elements) const {
    return buffer.stored == DType::f32 ? elements * slot_element : stored_bytes(buffer.stored, elements);
  }
  bool in_codes() const { return std::ranges::any_of(buffers, &Buffer::in_codes); }
  /// Bytes of a buffer in the slot, with all codes where `codes` is none.
  int64_t slot_bytes(const Buffer& buffer, Codes codes) const {
    if (!buffer.in_codes) return slot_bytes(buffer, buffer.total);
    return (codes == Codes::columns ? 0 : buffer.code_bytes(0)) + (codes == Codes::rows ? 0 : buffer.code_bytes(1));
  }
  /// Byte offset of a buffer in a slot with these codes; that of all buffers together is the slot's size.
  int64_t slot_at(size_t buffer, Codes codes) const {
    int64_t at = 0;
    for (size_t b = 0; b < buffer; ++b) at += slot_bytes(buffers[b], codes);
    return at;
  }
  /// Of its codes, of rows or of columns: the rows' come first.
  int64_t codes_at(size_t buffer, Codes codes, bool columns) const {
    return slot_at(buffer, codes) + (columns && codes != Codes::columns ? buffers[buffer].code_bytes(0) : 0);
  }
  int64_t slot_size(Codes codes) const { return slot_at(buffers.size(), codes); }
  /// Of it the bytes of trained parameters, which come first.
  int64_t trained_size(Codes codes) const {
    const auto frozen = std::ranges::find(buffers, false, &Buffer::trainable);
    return grad_total > 0 ? slot_at(static_cast<size_t>(frozen - buffers.begin()), codes) : 0;
  }
  /// Byte offset of a parameter in the slot (in_slot) and in the gradient slot (in_gradient).
  int64_t in_slot(int param, Codes codes) const {
    const auto b = static_cast<size_t>(params[param].buffer);
    return slot_at(b, codes) + slot_bytes(buffers[b], params[param].start);
  }
  int64_t in_gradient(int param) const { return (buffers[params[param].buffer].grad_at + params[param].start) * 4; }
};

/// `shards`: ranks of the shard group. `tp`: ranks of tensor parallelism, 1 for none; parameters replicated over tp are
/// sharded over these ranks too, if they are sharded at all. `whole`: no sharding, every rank holds all that it uses.
/// `element`: UnitLayout::slot_element. `copies`: replicas over which the states of trained parameters are partitioned;
/// for unsharded parameters that are replicated over tp, the ranks of tp count as well. `codes`: gathers send codes where they can.
UnitLayout unit_layout(const UnitSpec& unit, int shards, int tp = 1, bool whole = false, int64_t element = 4,
                       int copies = 1, bool codes = false);

/// The elements of a shard that are of one matrix, and the lines that they have values of.
struct CodePiece {
  int param;
  int64_t begin, end;    ///< elements of this rank's part of the matrix
  int64_t offset;        ///< of the first in the shard
  int64_t width;         ///< of the matrix: elements of a row
  int64_t first, count;  ///< lines among those of the buffer
  int64_t at;            ///< of the first among the lines that the shard has values of
};
/// Of a buffer that is gathered as codes; rows, or columns.
std::vector<CodePiece> code_pieces(const UnitLayout& layout, const Buffer& buffer, int shard, bool columns);

/// The box of a parameter that rank `tp_rank` of `tp` uses: [begin, end) for each dimension.
std::vector<std::pair<int64_t, int64_t>> tp_box(const ParamSpec& param, int tp, int tp_rank);

// Which units are the model's blocks.
//
//   if (is_block(spec.units[u])) ...                    // "blocks.3", not "stem" or "head"

/// Whether the unit is a block, neither stem nor head; only blocks recompute or offload activations.
inline bool is_block(const UnitSpec& unit) { return unit.kind != "stem" && unit.kind != "head"; }

}  // namespace tessera::plan
