#pragma once
// What training keeps of a parameter beside the gradient, as data: in which form its master lies, and which state
// tensors an optimiser declares. The plan's memory, the parameter store and training checkpoints all read the same
// lists.
//
//   StateLayout states = state_layout(unit, layout, plan.held(layout, rank), adamw_states(format));
//   layout.bytes;                                   // one buffer a unit
//   bytes_per_parameter({Masters::split, Moments::int8});     // 6.03
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

/// The parameters that the optimiser moves.
///   fp32   4 bytes
///   split  a bf16 value, which is gathered and computes, and the exact rest of the fp32 value in 16 bits: 4 bytes
///   bf16   rounded stochastically by (step, element): 2 bytes
enum class Masters { fp32, split, bf16 };
/// Its moments. int8: blocks of 256 with a scale (ops/blockwise.h); tensors of fewer than kLeastQuantised elements keep
/// fp32, as bitsandbytes and torchao do.
enum class Moments { fp32, bf16, int8 };

inline constexpr int64_t kLeastQuantised = 4096;

std::string_view name(Masters masters);
std::string_view name(Moments moments);
/// The values by name. Throw UserError (usage) naming `where` and the nearest name.
Masters masters_of(std::string_view text, std::string_view where);
Moments moments_of(std::string_view text, std::string_view where);

struct StateFormat {
  Masters masters = Masters::fp32;
  Moments moments = Moments::fp32;
  bool operator==(const StateFormat&) const = default;
};

/// In which dtypes a plan keeps, gathers, computes and reduces.
struct Formats {
  StateFormat states = {};  ///< masters and moments
  DType param_dtype = DType::f32;
  /// What units that may (UnitSpec::narrow) compute in: f32, or what parameters are gathered as, which then is what lies
  /// in the slots.
  DType compute = DType::f32;
  DType reduce = DType::f32;  ///< what gradients are rounded to on their way; they are summed in fp32
  /// f32 or bf16: what a reduced gradient is rounded to, once, where it rests until its update. In the arena it is f32.
  DType grad = DType::f32;
  bool operator==(const Formats&) const = default;

  /// What parameters are rounded to when they are gathered: masters that are bf16, or half of them, have no more to
  /// give.
  DType gathered() const { return states.masters == Masters::fp32 ? param_dtype : DType::bf16; }
  /// What lies in a slot: what is gathered, or that widened to fp32.
  DType slots() const { return compute == DType::f32 ? DType::f32 : gathered(); }
  /// Throws UserError (usage) naming `where` for types that contradict each other.
  void check_types(std::string_view where) const;
};

/// One state tensor beside a parameter: a value for every `per` consecutive elements.
struct StateSpec {
  std::string kind;  ///< as in checkpoints: "master_low", "exp_avg", "exp_avg_scale", ...
  DType type = DType::f32;
  int64_t per = 1;

  /// Values for elements [begin, end); begin is a multiple of `per`.
  int64_t values(int64_t begin, int64_t end) const { return (end + per - 1) / per - begin / per; }
  bool operator==(const StateSpec&) const = default;
};

/// What an optimiser declares for a parameter.
using StatesOf = std::function<std::vector<StateSpec>(const ParamSpec&)>;
StatesOf adamw_states(StateFormat format);

/// Suffix of the kind that holds the scales of a quantised state.
inline constexpr std::string_view kScaleSuffix = "_scale";
inline constexpr std::string_view kMasterLow = "master_low";

/// What a rank holds of a buffer: which shard, and of which of its pieces the states (Buffer::pieces).
struct Held {
  int shard = 0, piece = 0;
};

/// Where the states of a rank's shard of a unit lie: one buffer, every state of every range in it.
struct StateLayout {
  struct Range {
    int param;           ///< index into UnitSpec::params
    int buffer;          ///< index into UnitLayout::buffers
    int64_t begin, end;  ///< elements [begin, end) of the part of it that this rank of tp uses
    int64_t offset;      ///< lie there in the rank's shard of the buffer
    bool updated;        ///< here; else by the rank that has their states
    std::vector<StateSpec> states;
    std::vector<int64_t> at;  ///< byte offset of each state, a multiple of kStateAlign
  };
  std::vector<Range> ranges;
  int64_t bytes = 0;
};
inline constexpr int64_t kStateAlign = 64;
/// `held`: of each buffer of the layout. Ranges end where pieces do.
StateLayout state_layout(const UnitSpec& unit, const UnitLayout& layout, const std::vector<Held>& held,
                         const StatesOf& states);

/// Bytes of a trained element of the shard, states not included.
int64_t master_bytes(Masters masters);
/// Bytes of a rank's shard of the buffer. What is frozen has a form of its own.
int64_t shard_bytes(const Buffer& buffer, Masters masters);
/// Of all buffers of a unit.
int64_t shard_bytes(const UnitLayout& layout, Masters masters);
/// Parameter and optimiser states of a large tensor, gradients and padding not included.
double bytes_per_parameter(StateFormat format);

}  // namespace tessera::plan
