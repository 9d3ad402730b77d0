#pragma once
// A progress bar with the remaining time for a count of equal items: one line that is overwritten in a terminal,
// elsewhere a line now and then.
//
//   CountProgress progress(rank == 0, "prepare", "clips", 1000);
//   progress.at(12);                        // [==>      ] prepare 12/1000 clips  4.1 clips/s  ETA 4 min 01 s
#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::report {

class CountProgress {
 public:
  CountProgress(bool enabled, std::string name, std::string things, int64_t total);
  ~CountProgress() { finish(); }
  void at(int64_t done);  ///< one thread at a time
  void finish();          ///< leaves the last line standing

 private:
  using Clock = std::chrono::steady_clock;
  void show(int64_t done);

  const bool enabled_, terminal_;
  const std::string name_, things_;
  const int64_t total_;
  int64_t last_ = 0;
  bool open_ = false;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

}  // namespace tessera::report
