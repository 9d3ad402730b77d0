#pragma once
// Where a rank is, told to its launcher through a small mapped file: a lost rank is named by the launcher from its exit
// or its silence, never from a socket error (survivors' sockets close in a cascade and blame each other).
//
//   Heartbeat heartbeat(place);                       // in a rank; beats until destroyed
//   heartbeat.at(step, index, "forward blocks.3");
//   StatusBoard board(ranks); board.read(i)           // in the launcher
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "tessera/comm/world.h"

namespace tessera::comm {

/// One rank's place in the file. Written by the rank alone; a torn text is at worst odd to read.
struct StatusSlot {
  std::atomic<uint64_t> beats;  ///< 0: this rank does not beat
  std::atomic<int64_t> step;
  std::atomic<int32_t> instruction;
  std::array<char, 104> text;
};

class StatusBoard {
 public:
  explicit StatusBoard(int ranks);  ///< makes the file, in memory only
  ~StatusBoard();
  const std::string& path() const { return path_; }  ///< for child processes

  struct Status {
    uint64_t beats = 0;
    int64_t step = 0;
    std::string text;
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
  void at(int64_t step, int instruction, const std::string& text);

 private:
  StatusSlot* slot_ = nullptr;
  void* map_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tessera::comm
