#pragma once
// Order between the streams of a device. On a CPU there are none, and all of this does nothing.
//
//   own_stream();                        // the calling thread's work goes to a stream of its own
//   Mark copied;
//   table.enqueue_copy(to, from, n);     // on this thread's stream
//   copied.record();
//   copied.order();                      // on another thread: what its stream is given next comes after the copy
//   copied.await();                      // or the host waits
#include <string>
#include <utility>

#include "tessera/device/backend.h"

namespace tessera::device {

/// Whether work of several threads overlaps on a device: there is one, and TESSERA_SERIAL is not 1.
bool has_streams();
/// The operator of LibTorch that began last, "aten::mm", known with TESSERA_SERIAL=1 alone: then it is the one that failed.
std::string last_operator();

/// Gives the calling thread a stream of its own until it ends; without has_streams() it keeps the device's first one.
void own_stream(Priority priority = Priority::normal);

/// A stream beside that of the thread which uses it; without has_streams() it is that one.
class SideStream {
 public:
  SideStream() = default;
  ~SideStream();
  SideStream(const SideStream&) = delete;

  /// While it lives, what the calling thread gives the device goes there.
  class Scope {
   public:
    explicit Scope(SideStream& stream);
    ~Scope();
    Scope(const Scope&) = delete;
  };

 private:
  Stream stream_ = nullptr;  // made when first used
};

/// What the calling thread does, for messages of failures and for devices that check order; which page-locked memory it
/// reads or writes itself.
void label(const std::string& what);
const std::string& labelled();
inline void host_uses(const void* data, int64_t bytes, bool writes) {
  if (used() && used()->host_uses) used()->host_uses(data, bytes, writes);
}

/// A point in the work of a stream. Its event comes from a pool, so that marks cost no call to the driver. Record and
/// order of one mark are ordered by the caller.
class Mark {
 public:
  Mark() = default;
  /// `timed`: for seconds_since(), which makes its event dearer.
  explicit Mark(bool timed) : timed_(timed) {}
  Mark(Mark&& other) noexcept : event_(std::exchange(other.event_, nullptr)), timed_(other.timed_) {}
  Mark& operator=(Mark&& other) noexcept {
    std::swap(event_, other.event_), std::swap(timed_, other.timed_);
    return *this;
  }
  ~Mark();

  /// The mark is what the calling thread's stream was given so far.
  void record();
  /// What the calling thread's stream is given from here on begins after the mark. One that was never recorded, and every
  /// one on a CPU, is passed already.
  void order() const {
    if (event_) used()->wait_for(event_);
  }
  bool passed() const { return !event_ || used()->has_happened(event_); }
  /// Blocks the host until the mark is passed.
  void await() const {
    if (event_) used()->await(event_);
  }
  /// Of the device's own clock. Both are timed, were recorded and are passed.
  double seconds_since(const Mark& earlier) const { return used()->seconds_between(earlier.event_, event_); }

 private:
  Event event_ = nullptr;
  bool timed_ = false;
};

}  // namespace tessera::device
