#pragma once
// A time limit that counts the time in which this process could act: a process that was stopped (Ctrl-Z, SIGSTOP,
// `scontrol suspend`, a closed laptop) goes on when it is woken, with the time that it had left.
//
//   Patience patience(30);
//   while (!answered()) if (patience.over()) fail(); else sleep_ms(100);
#include <algorithm>
#include <chrono>

namespace tessera::comm {

/// What a process that was awake all the time never needs between two looks that are 0.2 seconds apart.
inline constexpr double kPause = 2;

class Patience {
 public:
  explicit Patience(double seconds) : seconds_(seconds), left_(seconds) {}

  double seconds() const { return seconds_; }

  /// Seconds left; at most 0 when it is over. To be asked several times a second: a longer gap counts as kPause.
  double left() {
    const auto now = Clock::now();
    left_ -= std::min(std::chrono::duration<double>(now - looked_).count(), kPause);
    looked_ = now;
    return left_;
  }
  bool over() { return left() <= 0; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point looked_ = Clock::now();
  const double seconds_;
  double left_;
};

}  // namespace tessera::comm
