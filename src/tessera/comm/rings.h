#pragma once
// Messages between ranks of one machine, through memory that their processes share.
//
//   const auto first = SharedRings::create(/*size=*/2);            // member 0; its address travels by the store
//   const auto second = SharedRings::join(address, /*index=*/1, 2);
//   second->exchange({{}, {}}, {{data, bytes}, {}});               // receives from member 0
//
// [Note: shared rings]
// Each ordered pair of members has a ring of bytes with one writer and one reader, so no lock is needed: the writer moves
// `written`, the reader `read`. The thread of a collective copies into its rings and out of them itself; where it can do
// neither, it sleeps in the kernel (futex) on its member's bell, which whoever fills or empties one of its rings rings. A
// message through Gloo passes four threads and the kernel's sockets; with as many ranks as cores each of these hand-overs
// waits for a core that computes.
// A message begins with its size, so ranks that disagree fail instead of reading the next one.
//
// The memory is a shared_file.h. Each member holds a lock on its byte of the file, which ends with its process: that is how a
// member learns that another one died.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/comm/shared_file.h"

namespace tessera::comm {

/// Thrown by a transport if the exchange with one member failed, so that the group can name its rank.
class PeerError : public std::runtime_error {
 public:
  /// `member`: its index in the group.
  PeerError(int member, const std::string& why) : std::runtime_error(why), member_(member) {}
  int member() const { return member_; }

 private:
  int member_;
};

class SharedRings {
 public:
  /// Bytes of a message; null: there is none.
  struct Bytes {
    void* data = nullptr;
    size_t size = 0;
  };

  /// As member 0 of `size`. Null for more than 16 members, and where the system has no such files.
  static std::unique_ptr<SharedRings> create(int size);
  /// As member `index`, at the address() of member 0. Null where it cannot be reached: another machine, another user, a
  /// container of its own.
  static std::unique_ptr<SharedRings> join(const std::string& address, int index, int size);
  ~SharedRings();
  SharedRings(const SharedRings&) = delete;
  SharedRings& operator=(const SharedRings&) = delete;

  /// Where others join: the file's address.
  std::string address() const;

  /// Sends `out[i]` to member i and receives `in[i]` from it. Several threads may be in it at once where no two of them
  /// send to, or receive from, the same member. Throws PeerError: the member died, sent another size, or abort() was called
  /// while it was awaited.
  void exchange(const std::vector<Bytes>& out, const std::vector<Bytes>& in);
  /// Ends all exchanges of this member, from any thread, for good.
  void abort();

 private:
  struct Ring;
  struct Bell;
  struct Transfer;
  SharedRings(std::unique_ptr<SharedFile> file, int index, int size);
  static int64_t bytes_for(int size);
  Ring& ring(int from, int to) const;
  Bell& bell(int member) const;
  bool advance(Transfer& transfer) const;
  bool wait(uint32_t seen) const;
  bool lives(int member) const;

  const std::unique_ptr<SharedFile> file_;
  const int index_, size_;
  const size_t capacity_;  ///< bytes of a ring
  char* memory_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace tessera::comm
