// Experts: denoisers of one form, of which one a step has its turn. Each has parameters and states of its own; layout,
// slots, gradients and everything that a step needs are shared, and so a step of one runs the schedule of any other.
//
// [Note: who rests where] What a unit's plan puts on the host or on disk lies there in its turn and out of it: experts
// change places by name. What it leaves on the device rests on the plan's `idle` tier: where that is another, the bytes
// of the two change places and no third room is needed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/engine/store/store.h"

namespace tessera::engine {

namespace {

double swap_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void swap_bytes(const Tensor& a, const Tensor& b) {
  check_internal(a.nbytes() == b.nbytes() && a.is_cpu() && b.is_cpu(), "engine.store",
                 "experts change places between buffers of one size, in memory");
  auto* first = static_cast<char*>(a.mutable_data_ptr());
  std::swap_ranges(first, first + a.nbytes(), static_cast<char*>(b.mutable_data_ptr()));
}

}  // namespace

/// Swaps pairs of buffers one after the other behind the back of the step that uses them: parameters of all units in
/// their order, then states, which nobody needs before the updates.
class Store::Mover {
 public:
  ~Mover() { settle(); }

  struct Pair {
    Tensor in, rest;
  };
  /// `param_at`, `states_at`: of each unit, its place among the pairs; -1 where nothing moves.
  void start(std::vector<Pair> pairs, std::vector<int> param_at, std::vector<int> states_at) {
    settle();
    pairs_ = std::move(pairs), param_at_ = std::move(param_at), states_at_ = std::move(states_at);
    done_ = 0;
    thread_ = std::thread([this] {
      const double start = swap_clock();
      for (const Pair& pair : pairs_) {
        swap_bytes(pair.in, pair.rest);
        moved_.bytes += 2 * static_cast<int64_t>(pair.in.nbytes());
        done_.fetch_add(1, std::memory_order_release);
        done_.notify_all();
      }
      moved_.seconds += swap_clock() - start;
    });
  }

  void await_param(int unit) { await(param_at_, unit); }
  void await_states(int unit) { await(states_at_, unit); }
  void settle() {
    if (thread_.joinable()) thread_.join();
  }
  Moved take() {
    settle();
    moved_.waited = static_cast<double>(waited_.exchange(0)) * 1e-9;
    return std::exchange(moved_, {});
  }

 private:
  void await(const std::vector<int>& places, int unit) {
    const int place = places.empty() ? -1 : places[static_cast<size_t>(unit)];
    int done = done_.load(std::memory_order_acquire);
    if (done > place) return;
    const double start = swap_clock();
    for (; done <= place; done = done_.load(std::memory_order_acquire)) done_.wait(done);
    waited_ += static_cast<int64_t>((swap_clock() - start) * 1e9);
  }

  std::vector<Pair> pairs_;
  std::vector<int> param_at_, states_at_;
  std::thread thread_;
  std::atomic<int> done_ = 0;        // pairs, of the last start
  std::atomic<int64_t> waited_ = 0;  // nanoseconds, of all lanes
  Moved moved_;                      // of the thread, and of who has joined it
};

void Store::await_param(int unit) const {
  if (mover_) mover_->await_param(unit);
}
void Store::await_states(int unit) const {
  if (mover_) mover_->await_states(unit);
}
Store::Moved Store::take_moved() { return mover_ ? mover_->take() : Moved{}; }

size_t Store::inactive_index(int expert) const {
  const auto found = std::find(inactive_.begin(), inactive_.end(), expert);
  check_internal(found != inactive_.end(), "engine.store", "there is no expert " + std::to_string(expert));
  return static_cast<size_t>(found - inactive_.begin());
}

void Store::swap_with(size_t place, bool moving) {
  if (mover_) mover_->settle();
  const bool apart = moving && idle_ != plan::Tier::device;
  std::vector<Mover::Pair> pairs, states;
  std::vector<int> param_at(units_.size(), -1), states_at = param_at;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    if (!unit.owned) continue;
    Unit::Inactive& inactive = unit.inactive[place];
    if (apart && unit.plan.parameters == plan::Tier::device) {
      param_at[u] = static_cast<int>(pairs.size());
      pairs.push_back({unit.param, inactive.param});
    } else {
      std::swap(unit.param, inactive.param);
      std::swap(unit.param_extent, inactive.param_extent);
      unit.views.clear();  // some may be of the shard itself
    }
    if (!unit.buffer.defined()) continue;
    if (apart && unit.plan.states == plan::Tier::device) {
      states_at[u] = static_cast<int>(states.size());
      states.push_back({unit.buffer, inactive.buffer});
    } else {
      std::swap(unit.buffer, inactive.buffer);
      std::swap(unit.states_extent, inactive.states_extent);
    }
  }
  std::swap(expert_, inactive_[place]);
  if (!apart) return;
  for (int& at : states_at)
    if (at >= 0) at += static_cast<int>(pairs.size());
  pairs.insert(pairs.end(), states.begin(), states.end());
  if (!mover_) mover_ = std::make_shared<Mover>();
  mover_->start(std::move(pairs), std::move(param_at), std::move(states_at));
}

void Store::switch_to(int expert) {
  if (expert != expert_) swap_with(inactive_index(expert), true);
}

Store::ExpertScope::ExpertScope(Store& store, int expert) : store_(store), before_(store.expert_) {
  if (expert != before_)
    store_.swap_with(store_.inactive_index(expert), false);
  else if (store_.mover_)
    store_.mover_->settle();
}

Store::ExpertScope::~ExpertScope() {
  if (before_ != store_.expert_) store_.swap_with(store_.inactive_index(before_), false);
}

}  // namespace tessera::engine
