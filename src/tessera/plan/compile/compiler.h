#pragma once
// Compiles a plan into the instructions of one rank. The order is built as *visits*: each visit is one use of one
// unit's parameters. What a visit needs from elsewhere (a gather, stashed activations) is issued `prefetch` visits
// ahead. Internal to the compiler; one source file for each concern.
//
//   Schedule step = Compiler(model, plan, rank, "train").train();
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "tessera/plan/compile/arena.h"
#include "tessera/plan/schedule.h"

namespace tessera::plan {

inline constexpr int64_t kElement = 4;  ///< gathered parameters and gradients are fp32
inline constexpr int64_t kPage = 4096;  ///< host memory is taken in pages: what a disk reads and writes directly

/// Moves the drops of stashed activations to where their copies have had more time, as far as the device holds no more
/// at any time than the most that it held.
void delay_drops(const ModelSpec& model, const Plan& plan, int rank, Schedule& schedule);

class Compiler {
 public:
  Compiler(const ModelSpec& model, const Plan& plan, int rank, std::string phase);

  Schedule train(bool pending);
  Schedule updates();
  Schedule forward_only(int micros);
  Schedule checkpoint();

 private:
  struct Visit {
    bool forward;
    int unit;
    int micro;
    bool weights = false;  // gradients of weights that a backward left for later: uses no parameters
  };
  struct GroupName {
    std::string axis;  // "dp_shard", empty when the group has one member
    std::string name;  // "gather:dp_shard[0,1]"
  };
  struct Resident {
    int gather = -1;
    int64_t slot = -1;
  };
  struct Use {  // an arena range and the instruction that is the last to use it
    int64_t at;
    int last;
  };
  using Flight = std::vector<Use>;  // what one reduction or update still uses
  struct Away {  // activations of one unit and micro-batch on their way to the host, or on to the disk, and back
    int64_t bytes = 0, host = -1, disk = -1;
    int stash = -1, write = -1, read = -1, fetch = -1;
    bool dropped = false;
  };

  // compile.cpp
  GroupName group_name(const std::string& purpose, const std::vector<Axis>& axes) const;
  /// Adds one collective for each buffer of the unit whose ranks are several.
  enum class Gathered { all, trained };
  void collect(Instruction& in, const std::string& purpose, const std::string& kind, Gathered buffers,
               int64_t element) const;
  void sum_over_replicas(Instruction& in, int unit) const;
  void sum_of_pieces(Instruction& in, int unit) const;
  Instruction make(Op op, Lane lane, int unit, int micro) const;
  int add(Instruction in);
  Schedule done();

  // traffic.cpp: collectives inside units
  int64_t tokens(int micro) const;
  int64_t samples(int micro) const;
  void declare(Instruction& in, const std::vector<Traffic>& traffic) const;
  Instruction output(int micro) const;

  // visits.cpp: parameters
  void walk(const std::vector<Visit>& visits);
  int next_visit(const std::vector<Visit>& visits, int v) const;
  bool stays(const std::vector<Visit>& visits, int v) const;
  void gather(int unit, int micro);
  void release(int unit, int micro);
  Instruction use(Op op, const Visit& visit) const;
  std::optional<int> run(const Visit& visit);
  bool idle(int micro) const;

  // stages.cpp: the pipeline
  std::vector<Visit> visits_of(const PipelineAct& act) const;
  GroupName pair_name(bool forward, int stage) const;
  bool begins_act(const std::vector<Visit>& visits, size_t v) const;
  std::optional<Instruction> message(Op op, bool forward, int stage, int micro) const;
  void receive_for(const std::vector<Visit>& visits, size_t v);
  void await_message(Instruction& in, const Visit& visit) const;
  void pass_on(const Visit& visit, int done);
  void drop_sent(Lane lane);
  void hand_out_results();

  // activations.cpp: the tiers of what forwards save, and its lossy forms
  int compress(const Visit& visit, int forward);
  void expand(const Visit& visit);
  void stash(const Visit& visit, int forward);
  void drop(int unit, int micro);
  void drop_all();
  void read_back(const Visit& visit);
  void fetch(const Visit& visit);

  // tiers.cpp: buffers that rest on the host or on disk, and gradients that rest in fewer bits
  Tier tier(int unit, Part part) const;
  int64_t bytes(int unit, Part part) const;
  int bring(Part part, int unit, int micro, int64_t at, std::vector<int> wait);
  int send(Part part, int unit, int micro, int64_t at, std::vector<int> wait);
  void pass_through(int64_t host, int last);
  void end_passing(size_t bound);

  // gradients.cpp: slots, reductions and norm
  std::optional<int> backward(const Visit& visit);
  void reduce(const Visit& visit, int backward);
  bool gradient_leaves(int unit) const;
  std::optional<Use> pass_gradient(const Visit& visit, int64_t target, int last, Flight& flight);
  std::optional<int> add_outer(Instruction in, Flight& flight);
  int settle(int unit, int64_t target, int last, Flight& flight);
  void land(std::deque<Flight>& flights, size_t bound);
  void land(size_t bound) { land(flights_, bound); }
  void norm();

  // updates.cpp: the optimiser, and what it needs from elsewhere
  struct Staged {
    int64_t parameters = -1, gradients = -1, states = -1;
    std::vector<int> wait;
  };
  Staged stage(int unit);
  int update(int unit, Staged staged);
  bool updates_on_host(int unit) const { return plan_.units[unit].update_on == Tier::host; }
  void update_all();
  void update_behind(int unit, int64_t gradient, int last);
  void update_due(size_t bound);
  void take_up(const std::vector<Visit>& visits, int v);
  int whole_again(int unit, int64_t parameters, int update);

  const ModelSpec& model_;
  const Plan& plan_;
  const int rank_, dp_rank_;
  const GroupName outer_, world_;
  const int pp_rank_;
  std::vector<int> own_;  // units of this rank's stages
  std::vector<UnitLayout> layouts_;
  std::vector<int64_t> state_bytes_;
  std::vector<Resident> resident_;
  std::map<std::pair<int, int>, Away> away_;     // by (unit, micro)
  std::deque<std::pair<int, int>> undropped_;    // stashed and still on the device, oldest first
  std::map<std::pair<int, Part>, int> written_;  // by buffer: the instruction that last wrote its resting place
  std::deque<Flight> flights_;                   // not yet given back, oldest first
  std::deque<Flight> update_flights_;            // likewise of updates in backward: no reduction waits for them
  std::map<int, int64_t> whole_gradients_;       // by unit: the slot that gathers gradients until they are reduced once
  std::vector<int> last_reduce_, last_backward_;  // of the reduce lane, of the compute lane: the norm waits for both
  std::deque<Use> passing_;                       // host memory between device and disk, oldest first
  Arena arena_, host_, disk_;
  Schedule schedule_;
  std::map<std::pair<bool, std::pair<int, int>>, int> received_;  // by direction, (unit, micro): what it waits for
  std::map<Lane, int> sent_;  // the last message of a lane, while its memory is not free
  bool forward_only_ = false;
  int norm_ = -1;  // the step's, once it is there
  // Where each unit is updated in its backward: those whose gradient is whole, oldest first.
  struct Due {
    int unit;
    Staged staged;
  };
  std::deque<Due> due_;
  // Updates of the step before: units in the order of their first visits, how many were brought and how many done.
  std::vector<int> pending_;
  size_t staged_count_ = 0, updated_count_ = 0;
  std::deque<Staged> staged_;
  std::map<int, int> updated_;  // by unit: its update, where it comes ahead of gathers
};

}  // namespace tessera::plan
