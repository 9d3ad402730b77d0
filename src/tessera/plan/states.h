#pragma once
// What training stores for a parameter beside its gradient: the format of the master weights and the state tensors that
// an optimiser declares. The memory prediction, the parameter store and training checkpoints read the same lists.
//
//   StateLayout states = state_layout(unit, layout, plan.held(layout, rank), states_of(format));
//   layout.bytes;                                   // one buffer a unit
//   bytes_per_parameter({Masters::split, Moments::int8});     // 6.03
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

/// Master weights, which the optimiser updates.
///   fp32   4 bytes
///   split  a bf16 value, which is gathered and computed with, and the exact 16-bit remainder of fp32: 4 bytes
///   bf16   rounded stochastically by (step, element): 2 bytes
enum class Masters { fp32, split, bf16 };
/// Optimiser moments. int8: blocks of 256 with a scale (ops/blockwise.h); tensors of fewer than kLeastQuantised
/// elements stay fp32, as in bitsandbytes and torchao.
enum class Moments { fp32, bf16, int8 };

inline constexpr int64_t kLeastQuantised = 4096;

/// The optimisers; optimizers.h has a row for each.
enum class Optimizer { adamw, lion, adafactor, came, prodigy, muon };

std::string_view name(Masters masters);
std::string_view name(Moments moments);
/// The values by name. Throw UserError (usage) naming `where` and the nearest name.
Masters masters_of(std::string_view text, std::string_view where);
Moments moments_of(std::string_view text, std::string_view where);

struct StateFormat {
  Masters masters = Masters::fp32;
  Moments moments = Moments::fp32;
  Optimizer optimizer = Optimizer::adamw;
  bool ema = false;  ///< an fp32 average of the weights beside the optimiser's states
  /// A first moment, of optimisers that have one on request (OptimizerRow::first_if_asked).
  bool first_moment = false;
  /// Of optimisers that update whole matrices (OptimizerRow::whole): the dtype in which these are sent and iterated, f32 or
  /// bf16, and the number of iterations.
  DType matrices = DType::bf16;
  int64_t iterations = 5;
  bool operator==(const StateFormat&) const = default;
};

/// The dtypes in which a plan stores, gathers, computes and reduces.
struct Formats {
  StateFormat states = {};  ///< masters and moments
  DType param_dtype = DType::f32;
  /// Compute dtype of units that allow it (UnitSpec::narrow): f32, or the dtype that parameters are gathered as, which
  /// the slots then hold.
  DType compute = DType::f32;
  /// Products of blocks' streams take 8-bit operands ([Note: products in 8 bits] in ops/kernels.h); `compute` then is bf16.
  bool fp8 = false;
  /// Gathers bring the weights of these products as codes, where a unit is sharded ([Note: gathers of codes] in unit_spec.h).
  bool gather_fp8 = false;
  Attention attention = Attention::flash;  ///< of 16-bit operands on a GPU, where it serves
  DType reduce = DType::f32;               ///< gradients are rounded to it for communication; they are summed in fp32
  /// f32 or bf16: a reduced gradient is rounded to it once, for storage until its update. In the arena it is f32.
  DType grad = DType::f32;
  bool operator==(const Formats&) const = default;

  /// The dtype of gathered parameters; `split` and bf16 masters are always gathered as bf16.
  DType gathered() const { return states.masters == Masters::fp32 ? param_dtype : DType::bf16; }
  /// The dtype in a slot: that of the gathered parameters, or fp32 if they are widened.
  DType slots() const { return compute == DType::f32 ? DType::f32 : gathered(); }
  /// plan.compute_dtype: "fp8", or the name of `compute`. The second throws UserError (usage) naming `where` and the nearest name.
  std::string_view compute_name() const { return name(fp8 ? DType::f8_e4m3 : compute); }
  void set_compute(std::string_view text, std::string_view where);
  /// Throws UserError (usage) naming `where` for types that contradict each other.
  void check_types(std::string_view where) const;
};

/// One state tensor of a parameter, with one value for every `per` consecutive elements; or `whole` values that belong to
/// the tensor as a whole (its sums over rows, say), which every rank that updates an element of it holds.
struct StateSpec {
  std::string kind;  ///< name in checkpoints: "master_low", "exp_avg", "exp_avg_scale", ...
  DType type = DType::f32;
  int64_t per = 1;
  int64_t whole = 0;

  /// Values for elements [begin, end); begin is a multiple of `per`.
  int64_t values(int64_t begin, int64_t end) const { return whole > 0 ? whole : (end + per - 1) / per - begin / per; }
  bool operator==(const StateSpec&) const = default;
};

/// The states that an optimiser declares for a parameter.
using StatesOf = std::function<std::vector<StateSpec>(const ParamSpec&)>;
StatesOf states_of(StateFormat format);

/// Suffix of the kind that holds the scales of a quantised state.
inline constexpr std::string_view kScaleSuffix = "_scale";
inline constexpr std::string_view kMasterLow = "master_low";
inline constexpr std::string_view kAverage = "ema";  ///< the average of the weights

/// The shard of a buffer that a rank holds, and the partition of it whose states it holds (Buffer::partitions).
struct Held {
  int shard = 0, partition = 0;
};

/// Layout of the states of a rank's shard of a unit: one buffer with every state of every range.
struct StateLayout {
  struct Range {
    int param;           ///< index into UnitSpec::params
    int buffer;          ///< index into UnitLayout::buffers
    int64_t begin, end;  ///< elements [begin, end) of this tp rank's part of the parameter
    int64_t offset;      ///< position of `begin` in the rank's shard of the buffer
    bool updated;        ///< this rank updates the range; else another replica does
    std::vector<StateSpec> states;
    std::vector<int64_t> at;  ///< byte offset of each state, a multiple of kStateAlign
  };
  std::vector<Range> ranges;
  int64_t bytes = 0;
};
inline constexpr int64_t kStateAlign = 64;
/// `held`: one for each buffer of the layout. Ranges end at partition boundaries.
StateLayout state_layout(const UnitSpec& unit, const UnitLayout& layout, const std::vector<Held>& held,
                         const StatesOf& states);

/// Bytes of one trained element of the shard, without states.
int64_t master_bytes(Masters masters);
/// Bytes of a rank's shard of the buffer. Frozen parameters have a dtype of their own.
int64_t shard_bytes(const Buffer& buffer, Masters masters);
/// The same for all buffers of a unit.
int64_t shard_bytes(const UnitLayout& layout, Masters masters);
/// Those of them that are trained, which come first.
int64_t trained_shard_bytes(const UnitLayout& layout, Masters masters);
/// Bytes of parameter and optimiser states for each element of a large tensor, without gradients and padding.
double bytes_per_parameter(StateFormat format);

}  // namespace tessera::plan
