#include "tessera/engine/store/workers.h"

#include <utility>

namespace tessera::engine {

Workers::Workers(int threads) {
  for (int t = 1; t < threads; ++t) others_.emplace_back([this] { help(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : others_) thread.join();
}

void Workers::run(int count, const std::function<void(int)>& task) {
  {
    const std::lock_guard lock(mutex_);
    task_ = &task, count_ = count, next_ = 0;
    busy_ = static_cast<int>(others_.size());
    ++round_;
  }
  changed_.notify_all();
  work();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Workers::help() {
  for (int64_t seen = 0;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    work();
    {
      const std::lock_guard lock(mutex_);
      --busy_;
    }
    changed_.notify_all();
  }
}

/// Takes tasks until none is left.
void Workers::work() {
  for (int i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
    try {
      (*task_)(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

}  // namespace tessera::engine
