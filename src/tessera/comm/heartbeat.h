#pragma once
// A rank reports its progress to its launcher through a small mapped file. The launcher identifies a lost rank by its
// exit or its silence, never by a socket error, because survivors' sockets close in a cascade and blame each other.
//
//   Heartbeat heartbeat(place);                            // in a rank; beats until destroyed
//   heartbeat.at(step, index, "gather blocks.3", lane);    // by the thread that begins the instruction
//   comm.watch([&](bool waits) { heartbeat.waits(waits); });
//   heartbeat.done(lane);
//   StatusBoard board(ranks); board.read(i);               // in the launcher
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// The activity of one thread of a rank, written by that thread alone. A torn text is harmless.
struct Activity {
  std::atomic<int64_t> since;    ///< milliseconds of the machine's steady clock; 0: idle
  std::atomic<int64_t> waiting;  ///< start of its wait in a collective; 0: not in one
  std::atomic<int64_t> step;
  std::atomic<int32_t> instruction;
  std::atomic<int32_t> timeouts;  ///< as many times fault.timeout it may take
  std::array<char, 164> text;
};
inline constexpr int kLanes = 12;             ///< of the executor; 0 is the compute lane
inline constexpr int kInMessage = kLanes;     ///< activity of the device, in a message
inline constexpr int kOnDevice = kLanes + 1;  ///< the first of as many: what the device is at in each lane
inline constexpr int kActivities = kOnDevice + kLanes;

/// One rank's slot in the file.
struct StatusSlot {
  std::atomic<uint64_t> beats;  ///< 0: this rank sends no heartbeat
  std::array<Activity, kActivities> lanes;
  std::array<char, 500> failure;  ///< written before the process ends for it
};

class StatusBoard {
 public:
  explicit StatusBoard(int ranks);  ///< creates the file, in memory only
  ~StatusBoard();
  StatusBoard(const StatusBoard&) = delete;
  StatusBoard& operator=(const StatusBoard&) = delete;
  const std::string& path() const { return path_; }  ///< for child processes

  struct CurrentActivity {
    int64_t step = 0;
    std::string text;
    double seconds = 0;  ///< since it began
    double waits = -1;   ///< seconds in a collective; negative: not in one
    int timeouts = 1;    ///< as many times fault.timeout it may take
  };
  struct Status {
    uint64_t beats = 0;
    int64_t step = 0;                         ///< last step of the compute lane
    std::string text;                         ///< last activity of the compute lane
    std::vector<CurrentActivity> activities;  ///< current activities, the compute lane's first
    std::string failure;                      ///< of its machine, for which it ended; empty: none

    /// " at step 13, forward blocks.3; gather blocks.4"; " before the first step" if nothing is known.
    std::string where() const;
    /// The activity with the longest wait in a collective, null if none waits.
    const CurrentActivity* longest_wait() const;
    /// The activity outside collectives that has used most of the time it may take, null if there is none.
    const CurrentActivity* longest_work() const;
  };
  Status read(int rank) const;
  /// All processes were stopped and go on: activities count from now on.
  void woke();

 private:
  std::string path_;
  int fd_ = -1;
  StatusSlot* slots_ = nullptr;
  size_t bytes_ = 0;
  int64_t woke_ = 0;  // milliseconds of the machine's steady clock
};

class Heartbeat {
 public:
  explicit Heartbeat(const Rendezvous& place);  ///< does nothing without a launcher (TESSERA_STATUS unset)
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// This thread begins an activity of the lane, which may take `timeouts` times fault.timeout while others wait for it.
  void at(int64_t step, int instruction, const std::string& text, int lane = 0, int timeouts = 1);
  /// The lane's activity is done.
  void done(int lane = 0);
  /// The rank is about to end with the code of a lost one, because its own machine failed.
  void fails(const std::string& why);
  /// This thread enters (or leaves) a collective within its current activity.
  void waits(bool inside);

 private:
  StatusSlot* slot_ = nullptr;
  void* map_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tessera::comm
