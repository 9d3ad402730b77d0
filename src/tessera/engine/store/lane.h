#pragma once
// A lane: a thread that runs its instructions in order, each after the instructions it waits for. The compute lane is
// the calling thread; gathers, reductions and copies have lanes of their own and overlap it. On a device each thread gives
// its work to a stream of its own, and an instruction is done here when it has been given (device/streams.h).
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "tessera/device/backend.h"

namespace tessera::engine {

/// The instructions of the running schedule that are done. A failed instruction wakes every waiter with its exception.
class Events {
 public:
  void reset(size_t count);
  void done(int instruction);
  void fail(std::exception_ptr error);
  /// Blocks until all of `wait` are done, each counted from `first` on; rethrows a lane's failure.
  void await(std::span<const int> wait, int first = 0);
  void await_all();

 private:
  /// A thread that sleeps. It is woken once, by the last instruction that it waits for.
  struct Waiter {
    std::span<const int> wait = {};
    int first = 0;     // from which these are counted
    bool all = false;  // it waits for every instruction
    std::condition_variable woken = {};
  };
  void sleep(std::unique_lock<std::mutex>& lock, Waiter& waiter);
  bool is_over(const Waiter& waiter) const;

  std::mutex mutex_;
  std::vector<Waiter*> waiters_;
  std::vector<char> done_;
  size_t open_ = 0;
  std::exception_ptr error_;
};

class LaneThread {
 public:
  /// `priority`: of its stream, where it has one. It computes on the host where the calling thread does (device::OnHost).
  /// Throws where the device makes none.
  explicit LaneThread(device::Priority priority = device::Priority::normal);
  ~LaneThread();
  void push(std::function<void()> work);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera::engine
