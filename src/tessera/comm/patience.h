#pragma once
// Time limits that count the time in which this process could act: a process that was stopped (Ctrl-Z, SIGSTOP,
// `scontrol suspend`, a closed laptop) goes on when it is woken, with the time that it had left.
//
//   Patience patience(30);
//   while (!answered()) if (patience.over()) fail(); else sleep_ms(100);
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace tessera::comm {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

/// What a process that was awake all the time never needs between two looks that are 0.2 seconds apart.
inline constexpr double kPause = 2;

class Patience {
 public:
  explicit Patience(double seconds) : seconds_(seconds), left_(seconds) {}

  double seconds() const { return seconds_; }

  /// Seconds left; at most 0 when it is over. To be asked several times a second: a longer gap counts as kPause.
  double left() {
    left_ -= std::min(seconds_since(looked_), kPause);
    looked_ = Clock::now();
    return left_;
  }
  bool over() { return left() <= 0; }

 private:
  Clock::time_point looked_ = Clock::now();
  const double seconds_;
  double left_;
};

/// Ends exchanges that take too long: Gloo's own deadline would count the time in which the whole job was stopped, and end
/// the run when it is woken.
///
///   Watchdog watchdog(70);
///   const Watchdog::Watched watched(watchdog, [&] { abort_all(works); });   // called once, by the watchdog's thread
class Watchdog {
 public:
  /// `seconds`: what an exchange may take of the time in which this process is awake.
  explicit Watchdog(double seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct Exchange {
    std::function<void()> abort;
    double began = 0;  // on the clock below
    bool aborted = false;
  };
  using Exchanges = std::list<Exchange>;

 public:
  /// An exchange, as long as this lives.
  class Watched {
   public:
    Watched(Watchdog& by, std::function<void()> abort);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    Watchdog& by_;
    Exchanges::iterator exchange_;
  };

 private:
  void watch();

  const double seconds_;
  std::mutex lock_;
  std::condition_variable stopped_;
  bool stop_ = false;
  double awake_ = 0;  // seconds in which this process was awake
  Exchanges exchanges_;
  std::thread thread_;
};

}  // namespace tessera::comm
