#pragma once
// Where a rank is, told to its launcher through a small mapped file: a lost rank is named by the launcher from its exit
// or its silence, never from a socket error (survivors' sockets close in a cascade and blame each other).
//
//   Heartbeat heartbeat(place);                            // in a rank; beats until destroyed
//   heartbeat.at(step, index, "gather blocks.3", lane);    // by the thread that is about to do it
//   comm.watch([&](bool waits) { heartbeat.waits(waits); });
//   heartbeat.done(lane);
//   StatusBoard board(ranks); board.read(i)                // in the launcher
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// What one thread of a rank does. Written by that thread alone; a torn text is at worst odd to read.
struct Activity {
  std::atomic<int64_t> since;    ///< milliseconds of this machine's steady clock; 0: it does nothing
  std::atomic<int64_t> waiting;  ///< since when it is inside a collective; 0: it is in none
  std::atomic<int64_t> step;
  std::atomic<int32_t> instruction;
  std::array<char, 164> text;
};
inline constexpr int kActivities = 12;  ///< the executor's lanes, 0 is compute

/// One rank's place in the file.
struct StatusSlot {
  std::atomic<uint64_t> beats;  ///< 0: this rank does not beat
  std::array<Activity, kActivities> lanes;
};

class StatusBoard {
 public:
  explicit StatusBoard(int ranks);  ///< makes the file, in memory only
  ~StatusBoard();
  StatusBoard(const StatusBoard&) = delete;
  StatusBoard& operator=(const StatusBoard&) = delete;
  const std::string& path() const { return path_; }  ///< for child processes

  struct Doing {
    int64_t step = 0;
    std::string text;
    double seconds = 0;  ///< since it began
    double waits = -1;   ///< seconds in a collective; negative: it is in none
  };
  struct Status {
    uint64_t beats = 0;
    int64_t step = 0;          ///< of the compute lane's last word
    std::string text;          ///< that word
    std::vector<Doing> doing;  ///< what is under way, the compute lane's first

    /// " at step 13, forward blocks.3; gather blocks.4"; " before the first step" while nothing is known.
    std::string where() const;
    /// The activity that has been in a collective for longest, nothing when none is.
    const Doing* longest_wait() const;
    /// The activity outside any collective that has lasted for longest.
    const Doing* longest_work() const;
  };
  Status read(int rank) const;

 private:
  std::string path_;
  int fd_ = -1;
  StatusSlot* slots_ = nullptr;
  size_t bytes_ = 0;
};

class Heartbeat {
 public:
  explicit Heartbeat(const Rendezvous& place);  ///< does nothing when no launcher listens (TESSERA_STATUS unset)
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// This thread begins something, as the lane's activity.
  void at(int64_t step, int instruction, const std::string& text, int lane = 0);
  /// It is done with it.
  void done(int lane = 0);
  /// This thread enters (or leaves) a collective within what it last began.
  void waits(bool inside);

 private:
  StatusSlot* slot_ = nullptr;
  void* map_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tessera::comm
