#include "tessera/comm/patience.h"

#include <utility>

namespace tessera::comm {

Watchdog::Watchdog(double seconds) : seconds_(seconds), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard hold(lock_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock hold(lock_);
  for (auto looked = Clock::now(); !stop_;) {
    stopped_.wait_for(hold, std::chrono::milliseconds(200));
    awake_ += std::min(seconds_since(looked), kPause);
    looked = Clock::now();
    for (Exchange& exchange : exchanges_)
      if (!exchange.aborted && awake_ - exchange.began > seconds_) {
        exchange.aborted = true;
        exchange.abort();
      }
  }
}

Watchdog::Watched::Watched(Watchdog& by, std::function<void()> abort) : by_(by) {
  const std::lock_guard hold(by_.lock_);
  exchange_ = by_.exchanges_.insert(by_.exchanges_.end(), {std::move(abort), by_.awake_});
}

Watchdog::Watched::~Watched() {
  const std::lock_guard hold(by_.lock_);
  by_.exchanges_.erase(exchange_);
}

}  // namespace tessera::comm
