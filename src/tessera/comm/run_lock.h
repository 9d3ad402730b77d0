#pragma once
// One run, one folder: who trains in RUN holds RUN/.lock, a lock of the kernel. It ends with its holder, however that ends.
//
//   const RunLock lock("runs/a");                       // node 0's launcher, across restarts; without one rank 0
//
// What a launcher must not forget between two starts of its ranks lies there too: why they are started again.
//
//   note_fault("runs/a", "rank 1 was killed by signal 9");
//   for (const FaultNote& note : fault_notes("runs/a")) ...
//   forget_faults("runs/a");                            // they are in metrics.jsonl now
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::comm {

class RunLock {
 public:
  /// Makes the folder where it is not there. Throws UserError: (usage) naming the holder when there is one, (disk) when
  /// nothing can be written there. A file system without locks is a warning.
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// For the environment of the ranks: their launcher holds the lock of the folder.
  static constexpr const char* kVariable = "TESSERA_RUN_LOCK";
  static bool held_by_launcher(const std::filesystem::path& run);

 private:
  void take(const std::filesystem::path& run, const std::filesystem::path& file);
  int fd_ = -1;  // ranks inherit it: the folder is free when the last process that may write there has gone
};

struct FaultNote {
  int64_t time = 0;  ///< milliseconds since 1970
  std::string text;  ///< one line
};

/// Throws UserError (disk).
void note_fault(const std::filesystem::path& run, const std::string& text);
std::vector<FaultNote> fault_notes(const std::filesystem::path& run);
void forget_faults(const std::filesystem::path& run);

/// RUN/.stopping: a signal asked for the end, and what it waits for is not done (train/stop_signal.h).
std::filesystem::path stop_note(const std::filesystem::path& run);

}  // namespace tessera::comm
