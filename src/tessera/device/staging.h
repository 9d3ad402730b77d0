#pragma once
// Host memory that copies to and from the device use: page-locked, in pieces where the device takes no more at once. What
// the system does not page-lock is copied by way of a few pieces that the driver has page-locked, which the calling thread
// fills or empties itself.
//
//   if (!pin(data, bytes).empty()) stage(data, bytes);   // refused memory: its copies go by way of pieces from here on
//   enqueue_copy(to, from, bytes);                       // of any memory, on the calling thread's stream
//   unpin(data); or unstage(data);                       // before the memory goes
//
// [Note: staged copies] What is brought to the device is read before the call returns; what is fetched from it is there when
// the call returns, for which the thread has then waited. So code that is right with copies that are only enqueued is right
// with these.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/device/streams.h"

namespace tessera::device {

/// The pieces. Any number of threads copy at once.
class Staging {
 public:
  /// Takes `pieces` of `bytes` each from the driver; ok() says whether it had them.
  Staging(int64_t bytes, int pieces);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  bool ok() const { return data_; }
  void bring(void* to, const char* from, int64_t bytes);
  void fetch(char* to, const void* from, int64_t bytes);

 private:
  struct Piece {
    char* data = nullptr;
    Mark copied;  // its last use
  };
  class Held;
  Piece* take_free();
  /// Null: none is free whose last copy is over.
  Piece* try_take_free();
  void put_back(Piece* piece);

  const int64_t bytes_;
  char* data_ = nullptr;
  std::vector<Piece> pieces_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece*> free_;  // the one that was used longest ago first
};

/// Copies from and to this range go by way of the process's pieces, made at the first call. False: the driver has none.
bool stage(const void* data, int64_t bytes);
/// Forgets a range, if it is known.
void unstage(const void* data);
/// Page-locked bytes of these pieces; 0: none were needed.
int64_t staging_bytes();
inline constexpr int64_t kStagingBytes = int64_t{32} << 20;  ///< where they are needed

/// Page-locks host memory in pieces of at most Backend::most_pinned(). Empty; else why the system refuses it, and none of it
/// is page-locked.
std::string pin(void* data, int64_t bytes);
/// What pin() has page-locked from `data` on.
void unpin(void* data);

/// Backend::copy() and Backend::enqueue_copy(), cut where a page-locked piece ends; the second of a staged range by way of
/// the pieces above.
void copy(void* to, const void* from, int64_t bytes);
void enqueue_copy(void* to, const void* from, int64_t bytes);

}  // namespace tessera::device
