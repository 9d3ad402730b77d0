#pragma once
// The swap of two experts' buffers between tiers, while the next step already runs.
//
//   swap.start("swap of experts 0 and 1", pairs, param_at, states_at);
//   swap.await_param(unit);                     // before the step's first access
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/device/streams.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/ops/tensor.h"

namespace tessera::engine {

using at::Tensor;

/// A thread that swaps pairs of buffers while the next step already runs: parameters of all units in their order, then
/// states, which no instruction needs before the updates. On a device the copies are given to a stream of the thread's own, a
/// piece at a time by way of memory that the plan counts, and no call asks the driver for anything.
class ExpertSwap {
 public:
  explicit ExpertSwap(at::Device device);
  ~ExpertSwap();
  ExpertSwap(const ExpertSwap&) = delete;

  struct Pair {
    Tensor active, inactive;
    std::string what;  ///< "parameters of blocks.1"
  };
  /// `swap`: "swap of experts 0 and 1". `param_at`, `states_at`: for each unit, the index of its pair; -1 if nothing moves.
  void start(const std::string& swap, std::vector<Pair> pairs, std::vector<int> param_at, std::vector<int> states_at);
  void await_param(int unit) { await(param_at_, unit); }
  void await_states(int unit) { await(states_at_, unit); }
  /// Waits for the thread, and throws what it threw.
  void settle();

  struct Moved {
    int64_t bytes = 0;               ///< both ways
    double seconds = 0, waited = 0;  ///< of the thread, and of lanes that waited for it
  };
  Moved take_moved();  ///< since the last call; waits for the thread

  /// What the device is at: a pair that it was given and has not swapped. Empty: nothing, or it is not known.
  std::string on_device() const;

 private:
  void swap_all();
  void await(const std::vector<int>& pair_of, int unit);
  void throw_if_failed(int done) const;

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

}  // namespace tessera::engine
