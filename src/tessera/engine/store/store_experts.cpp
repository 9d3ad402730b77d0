// Experts: several denoisers of one shape, of which one is active in a step. Each has parameters and states of its own;
// they share layout, slots and gradients, so that the same schedule runs a step of any of them.
//
// [Note: inactive experts] Buffers that a unit's plan keeps on the host or on disk stay there whether their expert is
// active or not: a swap of experts swaps pointers. Buffers that the plan keeps on the device are, for an inactive
// expert, on the plan's `idle` tier. If that is not the device, a swap exchanges the bytes of the two buffers in place.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/engine/store/store.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::engine {

namespace {

double swap_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

/// A thread that swaps pairs of buffers while the next step already runs: parameters of all units in their order, then
/// states, which no instruction needs before the updates. On a device the copies are given to a stream of the thread's own, a
/// piece at a time by way of memory that the plan counts, and no call asks the driver for anything.
class Store::Mover {
 public:
  explicit Mover(at::Device device) {
    if (device.is_cpu() || device.is_meta()) return;
    const Meter::Scope scope(engine::Part::slots);
    between_ = at::empty({plan::kSwapPiece}, at::TensorOptions(at::kByte).device(device));
    word_.reserve(sizeof(uint32_t));
  }
  ~Mover() {
    if (thread_.joinable()) thread_.join();
  }

  struct Pair {
    Tensor active, inactive;
    std::string what;  // "parameters of blocks.1"
  };
  /// `swap`: "swap of experts 0 and 1". `param_at`, `states_at`: for each unit, the index of its pair; -1 if nothing moves.
  void start(const std::string& swap, std::vector<Pair> pairs, std::vector<int> param_at, std::vector<int> states_at) {
    settle();
    for (Pair& pair : pairs) pair.what = swap + ": " + pair.what;
    {
      const std::lock_guard lock(mutex_);  // the thread has ended, on_device() may ask
      pairs_ = std::move(pairs), before_ = word_at();
    }
    param_at_ = std::move(param_at), states_at_ = std::move(states_at);
    done_ = 0;
    begin_.record();
    swapped_.resize(std::max(swapped_.size(), pairs_.size()));
    thread_ = std::thread([this] {
      try {
        swap_all();
      } catch (...) {  // a device that has failed, for one: who waits for a pair throws it
        error_ = std::current_exception();
        done_.store(kFailed, std::memory_order_release);
        done_.notify_all();
      }
    });
  }

  void await_param(int unit) { await(param_at_, unit); }
  void await_states(int unit) { await(states_at_, unit); }
  void settle() {
    if (!thread_.joinable()) return;
    thread_.join();
    throw_if_failed(done_);
    if (!pairs_.empty()) swapped_[pairs_.size() - 1].order();
  }
  Moved take() {
    settle();
    moved_.waited = static_cast<double>(waited_.exchange(0)) * 1e-9;
    return std::exchange(moved_, {});
  }

  /// What the device is at: a pair that it was given and has not swapped. Empty: nothing, or it is not known.
  std::string on_device() const {
    const std::lock_guard lock(mutex_);
    if (!word_.size() || !counts_) return "";
    const uint32_t swapped = word_at() - before_;
    return swapped < pairs_.size() ? pairs_[swapped].what : "";
  }

 private:
  void swap_all() {
    device::enter_thread();
    device::own_stream();
    device::label("swap of experts");
    begin_.order();
    const double start = swap_clock();
    uint32_t swapped = before_;
    for (const Pair& pair : pairs_) {
      device::label(pair.what);
      ops::swap_bytes(pair.active, pair.inactive, between_);
      if (counts_ && between_.defined()) counts_ = device::used()->write_word(word(), ++swapped);
      swapped_[static_cast<size_t>(done_)].record();
      moved_.bytes += 2 * static_cast<int64_t>(pair.active.nbytes());
      done_.fetch_add(1, std::memory_order_release);
      done_.notify_all();
    }
    if (!pairs_.empty()) swapped_[pairs_.size() - 1].await();  // who joins the thread may read host memory
    moved_.seconds += swap_clock() - start;
  }

  void await(const std::vector<int>& pair_of, int unit) {
    const int pair = pair_of.empty() ? -1 : pair_of[static_cast<size_t>(unit)];
    if (pair < 0) return;
    int done = done_.load(std::memory_order_acquire);
    if (done <= pair) {
      const double start = swap_clock();
      for (; done <= pair; done = done_.load(std::memory_order_acquire)) done_.wait(done);
      waited_ += static_cast<int64_t>((swap_clock() - start) * 1e9);
    }
    throw_if_failed(done);
    swapped_[static_cast<size_t>(pair)].order();
  }
  void throw_if_failed(int done) const {
    if (done == kFailed) std::rethrow_exception(error_);
  }

  uint32_t* word() const { return reinterpret_cast<uint32_t*>(word_.at(0)); }
  uint32_t word_at() const { return word_.size() ? std::atomic_ref(*word()).load(std::memory_order_acquire) : 0; }

  static constexpr int kFailed = std::numeric_limits<int>::max();  // of done_
  Tensor between_;                                                 // undefined on a CPU
  HostMemory word_{HostMemory::Refused::drivers_own};  // counts pairs that the device has swapped; empty on a CPU
  std::atomic<bool> counts_ = true;
  mutable std::mutex mutex_;  // pairs_ as on_device() reads them
  uint32_t before_ = 0;       // the word at the last start
  std::vector<Pair> pairs_;
  std::vector<int> param_at_, states_at_;
  device::Mark begin_;                 // on the thread that started it
  std::vector<device::Mark> swapped_;  // by pair
  std::thread thread_;
  std::exception_ptr error_;         // of the thread, once done_ is kFailed
  std::atomic<int> done_ = 0;        // pairs since the last start
  std::atomic<int64_t> waited_ = 0;  // nanoseconds, of all lanes
  Moved moved_;                      // written by the thread, read after it has been joined
};

/// Where swaps will move bytes: its memory is taken before the first step.
void Store::make_mover() {
  if (!inactive_.empty() && idle_ != plan::Tier::device) mover_ = std::make_shared<Mover>(device_);
}

void Store::await_param(int unit) const {
  if (mover_) mover_->await_param(unit);
}
void Store::await_states(int unit) const {
  if (mover_) mover_->await_states(unit);
}
Store::Moved Store::take_moved() { return mover_ ? mover_->take() : Moved{}; }

std::function<std::string()> Store::swap_on_device() const {
  if (!mover_) return {};
  return [mover = mover_] { return mover->on_device(); };
}

size_t Store::inactive_index(int expert) const {
  const auto found = std::find(inactive_.begin(), inactive_.end(), expert);
  check_internal(found != inactive_.end(), "engine.store", "there is no expert " + std::to_string(expert));
  return static_cast<size_t>(found - inactive_.begin());
}

void Store::swap_with(size_t index, bool moving) {
  if (mover_) mover_->settle();
  const bool tiers_differ = moving && idle_ != plan::Tier::device;
  std::vector<Mover::Pair> pairs, states;
  std::vector<int> param_at(units_.size(), -1), states_at = param_at;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    if (!unit.owned) continue;
    Unit::Inactive& inactive = unit.inactive[index];
    if (tiers_differ && unit.plan.parameters == plan::Tier::device) {
      param_at[u] = static_cast<int>(pairs.size());
      pairs.push_back({unit.param, inactive.param, "parameters of " + unit.spec.name});
    } else {
      std::swap(unit.param, inactive.param);
      std::swap(unit.param_extent, inactive.param_extent);
      unit.views.clear();  // some may be views of the shard
    }
    if (!unit.buffer.defined()) continue;
    if (tiers_differ && unit.plan.states == plan::Tier::device) {
      states_at[u] = static_cast<int>(states.size());
      states.push_back({unit.buffer, inactive.buffer, "states of " + unit.spec.name});
    } else {
      std::swap(unit.buffer, inactive.buffer);
      std::swap(unit.states_extent, inactive.states_extent);
    }
  }
  const std::string swap = "swap of experts " + std::to_string(expert_) + " and " + std::to_string(inactive_[index]);
  std::swap(expert_, inactive_[index]);
  if (!tiers_differ) return;
  for (int& at : states_at)
    if (at >= 0) at += static_cast<int>(pairs.size());
  pairs.insert(pairs.end(), states.begin(), states.end());
  mover_->start(swap, std::move(pairs), std::move(param_at), std::move(states_at));
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
