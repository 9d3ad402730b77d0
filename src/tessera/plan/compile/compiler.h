#pragma once
// Compiles a plan into the instructions of one rank. The order is a list of *visits*; each visit is one use of one
// unit's parameters. Gathers and reloads that a visit needs are issued `prefetch` visits ahead. Internal to the
// compiler: one class for each concern, in a source of its name, that adds its instructions to one draft.
//
//   Schedule step = Compiler(model, plan, rank, "train").train();
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/unit_sizes.h"
#include "tessera/plan/waits.h"

namespace tessera::plan {

// Assigns the slots of a schedule to one range of bytes at compile time and returns which instructions each reuse must
// wait for.
//
//   Arena arena;
//   int64_t at = arena.take(bytes, waits);   // waits: instructions that used these bytes before
//   arena.give(at, instruction);             // free after `instruction`

class Arena {
 public:
  /// `remembers`: who used bytes last. Without, `waits` stay as they are, and offsets are the same.
  explicit Arena(bool remembers = true) : remembers_(remembers) {}

  /// Returns the lowest free offset for `bytes`; appends the instructions that last used any of these bytes to `waits`.
  int64_t take(int64_t bytes, Waits& waits) {
    int64_t at = 0;
    for (const Range& used : used_) {  // sorted by begin
      if (used.begin - at >= bytes) break;
      at = std::max(at, used.end);
    }
    used_.insert(
        std::lower_bound(used_.begin(), used_.end(), at, [](const Range& r, int64_t x) { return r.begin < x; }),
        Range{at, at + bytes});
    if (remembers_) last_users(at, bytes, waits);
    size_ = std::max(size_, at + bytes);
    return at;
  }

  /// Appends the instructions that used any of these bytes last before they were taken.
  void last_users(int64_t at, int64_t bytes, Waits& waits) const {
    for (const Past& past : past_)
      if (past.begin < at + bytes && past.end > at) waits.push_back(past.instruction);
  }

  void give(int64_t at, int instruction) {
    const auto it = std::find_if(used_.begin(), used_.end(), [&](const Range& r) { return r.begin == at; });
    if (it == used_.end()) throw InternalError("plan.arena", "offset " + std::to_string(at) + " is not in use");
    if (remembers_) {
      std::erase_if(past_, [&](const Past& past) { return past.begin >= it->begin && past.end <= it->end; });
      past_.push_back({it->begin, it->end, instruction});
    }
    used_.erase(it);
  }

  int64_t size() const { return size_; }
  bool empty() const { return used_.empty(); }

 private:
  struct Range {
    int64_t begin, end;
  };
  struct Past {
    int64_t begin, end;
    int instruction;
  };
  bool remembers_;
  std::vector<Range> used_;
  std::vector<Past> past_;
  int64_t size_ = 0;
};

inline constexpr int64_t kElement = 4;  ///< gathered parameters and gradients are fp32
inline const Symbol kAllGather = "all_gather", kReduceScatter = "reduce_scatter", kAllReduce = "all_reduce";
inline constexpr int64_t kPage = 4096;  ///< host memory is taken in pages, which direct disk I/O requires
inline constexpr size_t kPartCount = static_cast<size_t>(Part::message) + 1;

/// Delays drops of offloaded activations to give their copies more time, without raising the peak.
void delay_drops(const ModelSpec& model, const Plan& plan, int rank, Schedule& schedule);

/// Adds the waits of [Note: memory at a place]. Last, when no instruction moves any more.
void order_memory(Schedule& schedule);

/// A use of a unit's parameters.
struct UnitVisit {
  bool forward;
  int unit;
  int micro;
  bool weights = false;  ///< deferred weight gradients: uses no parameters
};

struct GroupName {
  Symbol axis;  ///< "dp_shard", empty when the group has one member
  Symbol name;  ///< "gather:dp_shard[0,1]"
};

/// A range of the arena or of host memory, and the last instruction that uses it.
struct RangeUse {
  int64_t at;
  int last;
};
using Flight = std::vector<RangeUse>;  ///< ranges that one reduction or update still uses

/// A schedule in the making: its list, its memory, and the names of groups.
class Draft {
  struct KnownGroup {
    std::string purpose;
    std::vector<Axis> axes;
    GroupName group;
  };
  struct GroupOfBuffers {  // of what is sharded or whole, cut by tp or not
    std::string_view purpose;
    bool sharded, over_tp;
    const GroupName* group;
  };
  mutable std::deque<KnownGroup> groups_;  // those named so far
  mutable std::vector<GroupOfBuffers> groups_of_buffers_;
  std::vector<Symbol> names_;  // of the units

 public:
  const ModelSpec& model;
  const Plan& plan;
  const int rank, dp_rank, pp_rank;
  const int backward_from;  ///< the first unit that has a backward
  const bool for_memory;    ///< CompiledFor::memory

  Draft(const ModelSpec& model, const Plan& plan, int rank, std::string phase, CompiledFor compiled_for);

  Instruction make(Op op, Lane lane, int unit, int micro) const;
  /// The same for what moves, packs or frees `bytes` of a unit's part.
  Instruction make(Op op, Lane lane, int unit, int micro, Part part, int64_t bytes, Waits wait = {}) const;
  int add(Instruction in);
  /// Frees the ranges of the oldest reductions and updates until at most `bound` of them are in flight.
  void retire(std::deque<Flight>& flights, size_t bound);

  const GroupName& group_name(const std::string& purpose, const std::vector<Axis>& axes) const;
  /// That of Plan::axes(buffer).
  const GroupName& buffer_group(const char* purpose, const Buffer& buffer) const;
  /// Adds one collective for each buffer of the unit that is sharded over several ranks.
  enum class Gathered { all, trained };
  void collect(Instruction& in, const char* purpose, Symbol kind, Gathered buffers, int64_t element) const;
  /// Collectives inside units.
  void declare(Instruction& in, const std::vector<Traffic>& traffic) const;

  int64_t samples(int micro) const { return forward_only ? 1 : plan.slice(dp_rank, micro).count; }
  /// Tokens of the whole micro-batch, over all ranks that share it.
  int64_t tokens(int micro) const { return model.sequence / model.samples * samples(micro); }
  const ModelSpec& on(int micro) const { return forward_only ? model : model.on(samples(micro)); }
  bool is_dummy(int micro) const { return samples(micro) == 0; }

  const GroupName outer, world;
  const UnitSizes sizes;
  std::vector<int> own;  ///< units of this rank's stages
  Arena arena, host, disk;
  Schedule schedule;
  std::deque<Flight> flights;         ///< ranges not freed yet, oldest first
  std::deque<Flight> update_flights;  ///< likewise of updates in the backward: no reduction waits for them
  Waits last_reduce, last_backward;   ///< on the reduce lane and on the compute lane: the norm waits for both
  int norm = -1;                      ///< the step's norm, once issued
  bool forward_only = false;
};

/// What every concern reads.
class Concern {
 protected:
  explicit Concern(Draft& draft) : draft_(draft), model_(draft.model), plan_(draft.plan), sizes_(draft.sizes) {}

  Draft& draft_;
  const ModelSpec& model_;
  const Plan& plan_;
  const UnitSizes& sizes_;
};

/// Buffers on host or disk, and gradients stored in bf16.
class Tiers : Concern {
 public:
  explicit Tiers(Draft& draft);

  Tier tier(int unit, Part part) const;
  /// What last wrote the part to its placement, or -1.
  int& written(int unit, Part part) { return written_[static_cast<size_t>(unit)][static_cast<size_t>(part)]; }
  /// Makes the instruction wait for it.
  void await_write(Instruction& in, Part part);
  int64_t bytes(int unit, Part part) const;
  int64_t updated_bytes(int unit, Part part) const;
  int reload(Part part, int unit, int micro, int64_t at, Waits wait);
  int offload(Part part, int unit, int micro, int64_t at, Waits wait);
  void hold_bounce_buffer(int64_t host, int last);
  void release_bounce_buffers(size_t bound);
  /// The last reload of the unit's parameters, or -1.
  int fetched(int unit) const;

 private:
  std::vector<std::array<int, kPartCount>> written_;  // by unit and part
  std::map<int, int> fetched_;                        // by unit
  std::deque<RangeUse> bounce_buffers_;               // host memory between device and disk, oldest first
};

/// Offload and quantisation of saved activations.
class Activations : Concern {
 public:
  Activations(Draft& draft, Tiers& tiers) : Concern(draft), tiers_(tiers) {}

  int compress(const UnitVisit& visit, int forward);
  void expand(const UnitVisit& visit);
  void stash(const UnitVisit& visit, int forward);
  void read_back(const UnitVisit& visit);
  void fetch(const UnitVisit& visit);
  /// The instruction after which what the visit offloaded is back; -1: it offloaded nothing.
  int fetched(const UnitVisit& visit);

 private:
  struct Offloaded {  // activations of one unit and micro-batch on their way to host or disk and back
    int64_t bytes = 0, host = -1, disk = -1;
    int stash = -1, write = -1, read = -1, fetch = -1;
    bool dropped = false;
  };
  size_t place(int unit, int micro) const {
    return static_cast<size_t>(micro) * model_.units.size() + static_cast<size_t>(unit);
  }
  Offloaded* offloaded(const UnitVisit& visit);  ///< null for none
  int64_t bytes_to_offload(const UnitVisit& visit);
  void drop_all();

  Tiers& tiers_;
  std::vector<Offloaded> offloaded_;                             // see offloaded()
  std::map<const ModelSpec*, std::vector<int64_t>> to_offload_;  // by model and unit: bytes, -1 if not known yet
  std::vector<std::pair<int, int>> undropped_;                   // offloaded but still on the device, oldest first
};

/// The pipeline: a rank's acts, and the messages between stages.
class StageActs : Concern {
 public:
  explicit StageActs(Draft& draft) : Concern(draft) {}

  std::vector<UnitVisit> visits_of(const PipelineAct& act) const;
  bool begins_act(const std::vector<UnitVisit>& visits, size_t v) const;
  void receive_for(const std::vector<UnitVisit>& visits, size_t v);
  void await_message(Instruction& in, const UnitVisit& visit) const;
  void send_result(const UnitVisit& visit, int done);
  void drop_sent(Lane lane);
  void broadcast_results();

 private:
  GroupName pair_name(bool forward, int stage) const;
  std::optional<Instruction> message(Op op, bool forward, int stage, int micro) const;

  // by direction and (unit, micro): the recv to wait for
  std::map<std::pair<bool, std::pair<int, int>>, int> received_;
  std::map<Lane, int> sent_;  // by lane: the last message, until its memory is freed
};

/// What becomes of a unit's gradient: its reductions, its share of the norm, and the update that uses it.
class Gradients : Concern {
 public:
  Gradients(Draft& draft, Tiers& tiers) : Concern(draft), tiers_(tiers) {}

  bool leaves_arena(int unit) const;
  void reduce(const UnitVisit& visit, int backward);
  std::optional<RangeUse> route(const UnitVisit& visit, int64_t target, int last, Flight& flight);
  void norm();
  void update_all();
  /// Defers updates of the previous step: units in the order of their first visits.
  void defer(std::vector<int> units) { pending_ = std::move(units); }
  void apply_pending(const std::vector<UnitVisit>& visits, int v);
  /// The unit's deferred update, which its gather waits for; -1: none.
  int updated(int unit) const;
  void run_due(size_t bound);

 private:
  struct Staged {
    int64_t parameters = -1, gradients = -1, states = -1;
    Waits wait;
  };
  struct Due {
    int unit;
    Staged staged;
  };
  void sum_over_replicas(Instruction& in) const;
  std::optional<int> add_outer(Instruction in, Flight& flight);
  int finalise(int unit, int64_t target, int last, Flight& flight);
  Staged stage(int unit);
  int update(int unit, Staged staged);
  bool updates_on_host(int unit) const { return plan_.units[unit].update_on == Tier::host; }
  void queue_update(int unit, int64_t gradient, int last);
  void take_work(Instruction& in) const;
  void sum_over_tensors(Instruction& in) const;
  int gather_partitions(int unit, int64_t parameters, int update);

  Tiers& tiers_;
  std::deque<Due> due_;       // in the backward: gradients are complete but not applied yet, oldest first
  std::vector<int> pending_;  // deferred updates of the previous step
  size_t staged_count_ = 0, updated_count_ = 0;  // how many of these were reloaded and applied
  std::deque<Staged> staged_;
  std::map<int, int> updated_;
};

/// Visits: when parameters are gathered, how long they stay gathered, and what computes.
class Compiler {
 public:
  Compiler(const ModelSpec& model, const Plan& plan, int rank, std::string phase,
           CompiledFor compiled_for = CompiledFor::run);

  Schedule train(bool pending);
  Schedule exchange();
  Schedule updates();
  Schedule forward_only(int micros);
  Schedule checkpoint();

 private:
  struct Resident {
    int gather = -1;
    int64_t slot = -1;
    Codes codes = Codes::none;
  };
  void walk(const std::vector<UnitVisit>& visits);
  std::vector<int> next_uses(const std::vector<UnitVisit>& visits) const;
  bool stays_gathered(const UnitVisit& visit, int v, int next) const;
  Codes codes_of(const UnitVisit& visit) const;
  void gather(int unit, int micro, Codes codes);
  void release(int unit, int micro);
  Instruction use(Op op, const UnitVisit& visit) const;
  Instruction output(int micro) const;
  std::optional<int> run(const UnitVisit& visit);
  std::optional<int> backward(const UnitVisit& visit);
  Schedule done();

  Draft draft_;
  const ModelSpec& model_;
  const Plan& plan_;
  const UnitSizes& sizes_;
  Tiers tiers_;
  Activations activations_;
  StageActs stages_;
  Gradients gradients_;
  std::vector<Resident> resident_;          // by unit
  std::map<int, int64_t> whole_gradients_;  // by unit: the slot that accumulates gradients until their only reduction
};

}  // namespace tessera::plan
