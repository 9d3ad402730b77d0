#pragma once
// Compiles a plan into the instructions of one rank. The order is a list of *visits*; each visit is one use of one
// unit's parameters. Gathers and reloads that a visit needs are issued `prefetch` visits ahead. Internal to the
// compiler; one source file for each concern.
//
//   Schedule step = Compiler(model, plan, rank, "train").train();
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "tessera/plan/compile/arena.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

inline constexpr int64_t kElement = 4;  ///< gathered parameters and gradients are fp32
inline const Symbol kAllGather = "all_gather", kReduceScatter = "reduce_scatter", kAllReduce = "all_reduce";
inline constexpr int64_t kPage = 4096;  ///< host memory is taken in pages, which direct disk I/O requires
inline constexpr size_t kPartCount = static_cast<size_t>(Part::message) + 1;

/// Delays drops of offloaded activations to give their copies more time, without raising the peak.
void delay_drops(const ModelSpec& model, const Plan& plan, int rank, Schedule& schedule);

/// Adds the waits of [Note: memory at a place]. Last, when no instruction moves any more.
void order_memory(Schedule& schedule);

class Compiler {
 public:
  Compiler(const ModelSpec& model, const Plan& plan, int rank, std::string phase,
           CompiledFor compiled_for = CompiledFor::run);

  Schedule train(bool pending);
  Schedule updates();
  Schedule forward_only(int micros);
  Schedule checkpoint();

 private:
  struct Visit {
    bool forward;
    int unit;
    int micro;
    bool weights = false;  // deferred weight gradients: uses no parameters
  };
  struct GroupName {
    Symbol axis;  // "dp_shard", empty when the group has one member
    Symbol name;  // "gather:dp_shard[0,1]"
  };
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
  struct Resident {
    int gather = -1;
    int64_t slot = -1;
  };
  struct Use {  // an arena range and the last instruction that uses it
    int64_t at;
    int last;
  };
  using Flight = std::vector<Use>;  // ranges that one reduction or update still uses
  struct Offloaded {                // activations of one unit and micro-batch on their way to host or disk and back
    int64_t bytes = 0, host = -1, disk = -1;
    int stash = -1, write = -1, read = -1, fetch = -1;
    bool dropped = false;
  };

  // compile.cpp
  const GroupName& group_name(const std::string& purpose, const std::vector<Axis>& axes) const;
  /// That of Plan::axes(buffer).
  const GroupName& buffer_group(const char* purpose, const Buffer& buffer) const;
  /// Adds one collective for each buffer of the unit that is sharded over several ranks.
  enum class Gathered { all, trained };
  void collect(Instruction& in, const char* purpose, Symbol kind, Gathered buffers, int64_t element) const;
  void sum_over_replicas(Instruction& in, int unit) const;
  void reduce_scatter_partitions(Instruction& in, int unit) const;
  Instruction make(Op op, Lane lane, int unit, int micro) const;
  int add(Instruction in);
  Schedule done();

  // traffic.cpp: collectives inside units
  int64_t tokens(int micro) const;
  int64_t samples(int micro) const;
  const ModelSpec& on(int micro) const { return forward_only_ ? model_ : model_.on(samples(micro)); }
  void declare(Instruction& in, const std::vector<Traffic>& traffic) const;
  Instruction output(int micro) const;

  // visits.cpp: parameters
  void walk(const std::vector<Visit>& visits);
  std::vector<int> next_uses(const std::vector<Visit>& visits) const;
  bool stays_gathered(const Visit& visit, int v, int next) const;
  void gather(int unit, int micro);
  void release(int unit, int micro);
  Instruction use(Op op, const Visit& visit) const;
  std::optional<int> run(const Visit& visit);
  bool is_dummy(int micro) const;

  // stages.cpp: the pipeline
  std::vector<Visit> visits_of(const PipelineAct& act) const;
  GroupName pair_name(bool forward, int stage) const;
  bool begins_act(const std::vector<Visit>& visits, size_t v) const;
  std::optional<Instruction> message(Op op, bool forward, int stage, int micro) const;
  void receive_for(const std::vector<Visit>& visits, size_t v);
  void await_message(Instruction& in, const Visit& visit) const;
  void send_result(const Visit& visit, int done);
  void drop_sent(Lane lane);
  void broadcast_results();

  // activations.cpp: offload and quantisation of saved activations
  int compress(const Visit& visit, int forward);
  void expand(const Visit& visit);
  void stash(const Visit& visit, int forward);
  void drop(int unit, int micro);
  size_t place(int unit, int micro) const {
    return static_cast<size_t>(micro) * model_.units.size() + static_cast<size_t>(unit);
  }
  Offloaded* offloaded(int unit, int micro);  ///< null for none
  int64_t bytes_to_offload(const Visit& visit);
  void drop_all();
  void read_back(const Visit& visit);
  void fetch(const Visit& visit);

  // tiers.cpp: buffers on host or disk, and gradients stored in bf16
  Tier tier(int unit, Part part) const;
  int& written(int unit, Part part) { return written_[static_cast<size_t>(unit)][static_cast<size_t>(part)]; }
  void await_write(Instruction& in, Part part);
  int64_t bytes(int unit, Part part) const;
  int64_t updated_bytes(int unit, Part part) const;
  int reload(Part part, int unit, int micro, int64_t at, Waits wait);
  int offload(Part part, int unit, int micro, int64_t at, Waits wait);
  void hold_bounce_buffer(int64_t host, int last);
  void release_bounce_buffers(size_t bound);

  // gradients.cpp: slots, reductions and norm
  std::optional<int> backward(const Visit& visit);
  void reduce(const Visit& visit, int backward);
  bool gradient_leaves_arena(int unit) const;
  std::optional<Use> route_gradient(const Visit& visit, int64_t target, int last, Flight& flight);
  std::optional<int> add_outer(Instruction in, Flight& flight);
  int finalise_gradient(int unit, int64_t target, int last, Flight& flight);
  void retire(std::deque<Flight>& flights, size_t bound);
  void retire(size_t bound) { retire(flights_, bound); }
  void norm();

  // updates.cpp: the optimiser, and reloads for it
  struct Staged {
    int64_t parameters = -1, gradients = -1, states = -1;
    Waits wait;
  };
  Staged stage(int unit);
  int update(int unit, Staged staged);
  bool updates_on_host(int unit) const { return plan_.units[unit].update_on == Tier::host; }
  void update_all();
  void queue_update(int unit, int64_t gradient, int last);
  void run_due_updates(size_t bound);
  void apply_pending_updates(const std::vector<Visit>& visits, int v);
  void sum_over_tensors(Instruction& in) const;
  int gather_partitions(int unit, int64_t parameters, int update);

  const ModelSpec& model_;
  const Plan& plan_;
  const int rank_, dp_rank_;
  const bool for_memory_;                  // CompiledFor::memory
  mutable std::deque<KnownGroup> groups_;  // those named so far
  mutable std::vector<GroupOfBuffers> groups_of_buffers_;
  const GroupName outer_, world_;
  std::vector<Symbol> names_;  // of the units
  const int pp_rank_;
  std::vector<int> own_;  // units of this rank's stages
  const UnitSizes sizes_;
  std::vector<Resident> resident_;
  std::vector<Offloaded> offloaded_;                             // see offloaded()
  std::map<const ModelSpec*, std::vector<int64_t>> to_offload_;  // by model and unit: bytes, -1 if not known yet
  std::vector<std::pair<int, int>> undropped_;                   // offloaded but still on the device, oldest first
  std::vector<std::array<int, kPartCount>> written_;  // by unit and part: what last wrote it to its placement, or -1
  std::map<int, int> fetched_;                        // by unit: the last reload of its parameters
  std::deque<Flight> flights_;                        // ranges not freed yet, oldest first
  std::deque<Flight> update_flights_;  // likewise of updates in the backward: no reduction waits for them
  // by unit: the slot that accumulates gradients until their only reduction
  std::map<int, int64_t> whole_gradients_;
  // on the reduce lane and on the compute lane: the norm waits for both
  Waits last_reduce_, last_backward_;
  std::deque<Use> bounce_buffers_;  // host memory between device and disk, oldest first
  Arena arena_, host_, disk_;
  Schedule schedule_;
  // by direction and (unit, micro): the recv to wait for
  std::map<std::pair<bool, std::pair<int, int>>, int> received_;
  std::map<Lane, int> sent_;  // by lane: the last message, until its memory is freed
  bool forward_only_ = false;
  int norm_ = -1;  // the step's norm, once issued
  // Updates in the backward: units whose gradient is complete but not applied yet, oldest first.
  struct Due {
    int unit;
    Staged staged;
  };
  std::deque<Due> due_;
  // Deferred updates of the previous step: units in the order of their first visits, and how many were reloaded and
  // applied.
  std::vector<int> pending_;
  size_t staged_count_ = 0, updated_count_ = 0;
  std::deque<Staged> staged_;
  std::map<int, int> updated_;  // by unit: its deferred update, which its gather waits for
};

}  // namespace tessera::plan
