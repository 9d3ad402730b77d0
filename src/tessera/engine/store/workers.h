#pragma once
// A thread pool for work on the host beside the device: its threads share the tasks of one call.
//
//   Workers workers(4);
//   workers.run(100, [&](int task) { ... });       // returns when all are done; rethrows the first failure
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::engine {

class Workers {
 public:
  /// `threads` includes the caller of run().
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;

  int threads() const { return static_cast<int>(others_.size()) + 1; }
  /// One caller at a time.
  void run(int count, const std::function<void(int)>& task);

 private:
  void help();
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* task_ = nullptr;
  int count_ = 0, busy_ = 0;
  int64_t round_ = 0;
  bool stop_ = false;
  std::atomic<int> next_ = 0;
  std::exception_ptr error_;
  std::vector<std::thread> others_;
};

}  // namespace tessera::engine
