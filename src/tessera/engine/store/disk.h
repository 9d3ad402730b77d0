#pragma once
// The NVMe tier of one rank: an unnamed file, read and written by io_uring past the page cache, with enough requests in
// flight to keep the disk's queue full. Without io_uring or direct access (old kernels, tmpfs) it falls back to plain
// reads and writes; `how()` names the method.
//
//   Disk disk({"/mnt/nvme/run1"}, bytes);
//   const int64_t at = disk.reserve(n);
//   disk.write(at, data, n);               // data page-aligned; blocks until done
//   disk.read(at, data, n);
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tessera/plan/plan.h"

namespace tessera::engine {

class Disk {
 public:
  /// Makes the folder if it is missing and reserves `bytes` on its disk. Throws UserError (disk) when the disk has
  /// less.
  Disk(plan::DiskPlace place, int64_t bytes);
  ~Disk();
  Disk(const Disk&) = delete;

  /// Offset of the next `bytes`, page-aligned.
  int64_t reserve(int64_t bytes);
  /// Both throw UserError (disk) naming the folder, the offset and the system's reason. read() also throws for a wrong
  /// checksum, which it checks for regions that one write() wrote as a whole.
  void read(int64_t offset, void* to, int64_t bytes);
  void write(int64_t offset, const void* from, int64_t bytes);
  /// The region as memory, through the page cache, for use between steps (loading, checkpoints). Bytes written to it
  /// reach the disk at flush().
  void* map(int64_t offset, int64_t bytes);
  void flush();

  const std::string& how() const { return how_; }  ///< "io_uring, direct", "io_uring", "plain"
  int64_t size() const { return size_; }

 private:
  struct Ring;
  void transfer(bool write, int64_t offset, char* data, int64_t bytes);
  [[noreturn]] void fail(const char* what, int64_t offset, int64_t bytes, int error) const;

  struct Written {
    int64_t bytes;
    uint32_t sum;
  };
  const std::string folder_;
  const bool checksum_;
  std::map<int64_t, Written> written_;  // by offset: size and checksum of the last write there
  int64_t size_, used_ = 0;
  int direct_ = -1, cached_ = -1;  // two descriptors of one file
  char* mapped_ = nullptr;
  std::unique_ptr<Ring> ring_;
  std::string how_;
};

}  // namespace tessera::engine
