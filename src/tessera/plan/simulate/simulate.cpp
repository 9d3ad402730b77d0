#include "tessera/plan/simulate/simulate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kDone = 1e-15;  // remaining seconds that count as rounding error

/// A collective: members that have arrived, members still running, and all members.
struct Collective {
  int arrived = 0, running = 0, members = 0;
};

class Simulator {
 public:
  Simulator(const std::vector<RankTasks>& input, const SimulateOptions& options) : input_(input), options_(options) {
    for (const RankTasks& rank : input) {
      State s;
      s.done.assign(rank.tasks.size(), false);
      s.out.spans.resize(rank.tasks.size());
      for (size_t i = 0; i < rank.tasks.size(); ++i) {
        const auto lane = static_cast<size_t>(rank.tasks[i].lane);
        if (lane >= s.lanes.size()) s.lanes.resize(lane + 1);
        s.lanes[lane].queue.push_back(static_cast<int>(i));
      }
      s.left = rank.tasks.size();
      std::set<std::string> names;
      for (const Task& task : rank.tasks)
        if (input.size() > 1 && std::ranges::any_of(task.phases, &Phase::is_collective))
          names.insert(task.communicator);
      for (const std::string& name : names) ++members_[name];
      ranks_.push_back(std::move(s));
    }
  }

  Timeline run() {
    while (true) {
      while (settle()) {
      }  // tasks that take no time, and what they unblock
      if (std::all_of(ranks_.begin(), ranks_.end(), [](const State& s) { return s.left == 0; })) break;
      advance();
    }
    Timeline timeline;
    for (State& s : ranks_) timeline.ranks.push_back(std::move(s.out));
    for (const RankTimeline& rank : timeline.ranks) timeline.seconds = std::max(timeline.seconds, rank.seconds);
    // Ranks that wait for each other end together: the one that computes most is the one that the others wait for.
    constexpr double kTogether = 1 - 1e-6;
    double most = -1;
    for (size_t r = 0; r < timeline.ranks.size(); ++r) {
      const RankTimeline& rank = timeline.ranks[r];
      if (rank.seconds < timeline.seconds * kTogether || rank.share(Share::compute) <= most) continue;
      most = rank.share(Share::compute), timeline.slowest = static_cast<int>(r);
    }
    return timeline;
  }

 private:
  struct LaneState {
    std::vector<int> queue;
    size_t head = 0;
    bool begun = false;
    size_t phase = 0;
    double left = 0, rate = 0;  ///< of the current phase; rate 0: it waits for other ranks to arrive or to end
    Collective* collective = nullptr;
    bool started = false;  ///< the phase's collective has started (or the phase is none)
    int task() const { return head < queue.size() ? queue[head] : -1; }
  };
  struct State {
    std::vector<LaneState> lanes;
    std::vector<char> done;
    std::map<std::string, int> uses;  ///< number of collectives so far, by communicator
    size_t left = 0;
    RankTimeline out;
  };

  const Task& task(int rank, const LaneState& lane) const { return input_[rank].tasks[lane.task()]; }

  /// When the lane's next task may begin: at once, or once its thread has been woken; kNever while it waits.
  double ready_at(int r, const Task& t) const {
    const State& s = ranks_[r];
    double at = now_;
    for (const int w : t.wait) {
      if (!s.done[w]) return kNever;
      if (options_.wake > 0 && input_[r].tasks[w].lane != t.lane) at = std::max(at, s.out.spans[w].end + options_.wake);
    }
    return at;
  }

  void enter_phase(int r, LaneState& lane) {
    const Task& t = task(r, lane);
    const Phase& phase = t.phases[lane.phase];
    lane.left = phase.seconds;
    lane.collective = nullptr, lane.started = true;
    if (!phase.is_collective || ranks_.size() == 1) return;
    const int use = ranks_[r].uses[t.communicator]++;
    lane.collective = &collectives_[t.communicator + "#" + std::to_string(use)];
    ++lane.collective->arrived, ++lane.collective->running;
    lane.collective->members = members_[t.communicator];
    lane.started = false;
  }

  void finish_task(State& s, LaneState& lane) {
    const int index = lane.task();
    s.done[index] = true;
    s.out.spans[index].end = now_;
    s.out.seconds = now_;
    --s.left;
    ++lane.head, lane.begun = false;
  }

  /// Begins, starts and ends all tasks that can at this moment; true if something changed.
  bool settle() {
    bool changed = false;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      State& s = ranks_[r];
      for (LaneState& lane : s.lanes) {
        if (lane.task() < 0) continue;
        const Task& t = task(static_cast<int>(r), lane);
        if (!lane.begun) {
          if (ready_at(static_cast<int>(r), t) > now_) continue;
          lane.begun = changed = true, lane.phase = 0;
          s.out.spans[lane.task()].begin = now_;
          if (t.phases.empty()) {
            finish_task(s, lane);
            continue;
          }
          enter_phase(static_cast<int>(r), lane);
        }
        if (!lane.started && lane.collective->arrived == lane.collective->members) lane.started = changed = true;
        if (!lane.started || lane.left > kDone) continue;
        if (lane.collective) {  // all members end together
          if (lane.left >= 0) --lane.collective->running, lane.left = -1, changed = true;
          if (lane.collective->running > 0) continue;
        }
        changed = true;
        if (++lane.phase < t.phases.size())
          enter_phase(static_cast<int>(r), lane);
        else
          finish_task(s, lane);
      }
    }
    return changed;
  }

  /// Sets the rate of every running phase and returns the time until the first of them ends.
  double set_rates() {
    double step = kNever;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::array<int, kResources> users = {};
      for (const LaneState& lane : ranks_[r].lanes)
        if (running(lane)) ++users[resource(static_cast<int>(r), lane)];
      const auto busy = [&](Resource on) { return users[static_cast<int>(on)] > 0; };
      const bool transfer = busy(Resource::link), copies = busy(Resource::h2d) || busy(Resource::d2h);
      for (LaneState& lane : ranks_[r].lanes) {
        lane.rate = 0;
        if (!running(lane)) continue;
        const int on = resource(static_cast<int>(r), lane);
        lane.rate = 1.0 / users[on];
        if (on == static_cast<int>(Resource::compute))
          lane.rate *= (transfer ? 1 - options_.steal : 1) * (copies ? 1 - options_.copy_steal : 1);
        if (on == static_cast<int>(Resource::link) && busy(Resource::compute)) lane.rate *= options_.beside;
        if (on != static_cast<int>(Resource::h2d) && on != static_cast<int>(Resource::d2h)) continue;
        if (options_.copy_beside > 0 && busy(Resource::compute)) lane.rate *= options_.copy_beside;
        if (busy(Resource::h2d) && busy(Resource::d2h)) lane.rate *= options_.both_ways;
      }
      if (options_.copy_beside > 0 && options_.shared_processor) share_processor(static_cast<int>(r));
      for (const LaneState& lane : ranks_[r].lanes)
        if (running(lane)) step = std::min(step, lane.left / lane.rate);
      if (options_.wake <= 0) continue;
      for (const LaneState& lane : ranks_[r].lanes)  // whose threads are being woken
        if (lane.task() >= 0 && !lane.begun)
          if (const double at = ready_at(static_cast<int>(r), task(static_cast<int>(r), lane)); at < kNever)
            step = std::min(step, std::max(at - now_, 1e-9));
    }
    return step;
  }

  /// A transfer or copy beside compute: its rate, and the share of the processor that it takes.
  struct OnProcessor {
    double rate, taken;
  };
  OnProcessor beside(int r, const LaneState& lane) const {
    if (resource(r, lane) == static_cast<int>(Resource::link)) return {options_.beside, options_.steal};
    return {options_.copy_beside, options_.copy_steal};
  }

  /// The rates of a rank's lanes by [Note: processors in common].
  void share_processor(int r) {
    int computing = 0, others = 0;
    double taken = 0, most = 0;
    const auto is_other = [&](const LaneState& lane) {
      const Resource on = task(r, lane).phases[lane.phase].resource;
      return on == Resource::link || on == Resource::h2d || on == Resource::d2h;
    };
    const auto computes = [&](const LaneState& lane) {
      return task(r, lane).phases[lane.phase].resource == Resource::compute;
    };
    for (const LaneState& lane : ranks_[r].lanes) {
      if (!running(lane)) continue;
      if (computes(lane)) ++computing;
      if (!is_other(lane)) continue;
      const double own = beside(r, lane).taken;
      ++others, taken += own, most = std::max(most, own);
    }
    if (others == 0) return;
    const double fair = std::max(most, static_cast<double>(others) / (others + computing)),
                 given = taken > fair ? fair / taken : 1;
    for (LaneState& lane : ranks_[r].lanes) {
      if (!running(lane)) continue;
      if (computes(lane)) lane.rate = (1 - taken * given) / computing;
      if (is_other(lane)) lane.rate = computing > 0 ? beside(r, lane).rate * given : 1.0 / others;
    }
  }

  bool running(const LaneState& lane) const {
    return lane.task() >= 0 && lane.begun && lane.started && lane.left > kDone;
  }
  int resource(int r, const LaneState& lane) const {
    return static_cast<int>(task(r, lane).phases[lane.phase].resource);
  }

  void advance() {
    const double step = set_rates();
    if (step == kNever) deadlock();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      State& s = ranks_[r];
      if (s.left > 0) account(static_cast<int>(r), step);
      std::array<bool, kResources> used = {};
      for (LaneState& lane : s.lanes) {
        if (!running(lane)) continue;
        used[resource(static_cast<int>(r), lane)] = true;
        lane.left -= step * lane.rate;
        if (lane.left <= kDone + 1e-12 * step) lane.left = 0;
      }
      for (size_t i = 0; i < used.size(); ++i)
        if (used[i]) s.out.busy[i] += step;
    }
    now_ += step;
  }

  /// Adds `step` seconds to the rank's shares.
  void account(int r, double step) {
    State& s = ranks_[r];
    const auto add = [&](Share share, double seconds) { s.out.shares[static_cast<int>(share)] += seconds; };
    const LaneState* compute =
        static_cast<size_t>(options_.compute_lane) < s.lanes.size() ? &s.lanes[options_.compute_lane] : nullptr;
    if (compute && compute->task() >= 0 && compute->begun) {
      const Phase& phase = task(r, *compute).phases[compute->phase];
      if (waits_for_stage(r, *compute)) return add(Share::bubble, step);
      const double own = phase.resource == Resource::compute ? compute->rate : 1;
      add(phase.share, step * own);
      // On CPU ranks, host updates use the compute resource too; the rest of the lost rate is due to a transfer.
      double taken = 1 - own;
      for (const LaneState& lane : s.lanes)
        if (&lane != compute && own < 1 && running(lane) && resource(r, lane) == static_cast<int>(Resource::compute)) {
          add(share_of(r, lane), step * lane.rate);
          taken -= lane.rate;
        }
      add(Share::comm, step * std::max(0.0, taken));
      return;
    }
    add(awaited_share(r, compute), step);
  }

  /// Whether the lane waits for a pipeline stage that has not reached an exchange.
  bool waits_for_stage(int r, const LaneState& lane) const {
    return task(r, lane).across_stages && lane.collective && !lane.started;
  }

  /// The share of a stalled compute lane: what it waits for.
  Share awaited_share(int r, const LaneState* compute) const {
    if (compute && compute->task() >= 0)
      if (const auto share = cause(r, *compute, 0)) return *share;
    for (const LaneState& lane : ranks_[r].lanes)  // at the end of the step: any lane that still runs
      if (lane.task() >= 0 && lane.begun) return share_of(r, lane);
    return Share::comm;
  }

  /// The share of the running task at the root of the waits that block the lane's next task; a gather may itself wait
  /// for the disk.
  std::optional<Share> cause(int r, const LaneState& lane, int depth) const {
    constexpr int kMaxDepth = 64;  // length of a chain of waits; longer ones are cyclic
    if (depth > kMaxDepth) return std::nullopt;
    for (int w : task(r, lane).wait) {
      if (ranks_[r].done[w]) continue;
      const LaneState& other = ranks_[r].lanes[input_[r].tasks[w].lane];  // at w, or at a task before it
      if (other.task() < 0) continue;
      if (other.begun) return share_of(r, other);
      if (const auto share = cause(r, other, depth + 1)) return share;
    }
    return std::nullopt;
  }

  Share share_of(int r, const LaneState& lane) const {
    if (waits_for_stage(r, lane)) return Share::bubble;
    const Share share = task(r, lane).phases[lane.phase].share;
    return share == Share::compute ? Share::comm : share;
  }

  [[noreturn]] void deadlock() const {
    std::string waiting;
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (const LaneState& lane : ranks_[r].lanes)
        if (lane.task() >= 0)
          waiting += " rank " + std::to_string(r) + " lane " + std::to_string(task(static_cast<int>(r), lane).lane) +
                     " at task " + std::to_string(lane.task()) +
                     (lane.begun ? " (a collective that others never join);" : ";");
    throw InternalError("plan.simulate", "the schedules deadlock after " + std::to_string(now_) + " s:" + waiting);
  }

  const std::vector<RankTasks>& input_;
  const SimulateOptions options_;
  std::vector<State> ranks_;
  std::map<std::string, Collective> collectives_;
  std::map<std::string, int> members_;  // number of ranks that use a communicator
  double now_ = 0;
};

}  // namespace

Timeline simulate(const std::vector<RankTasks>& ranks, const SimulateOptions& options) {
  return Simulator(ranks, options).run();
}

}  // namespace tessera::plan
