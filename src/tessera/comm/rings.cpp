#include "tessera/comm/rings.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <sstream>

#include "tessera/base/check.h"

namespace tessera::comm {

namespace {

constexpr size_t kLine = 64;                                                // bytes of a cache line
constexpr size_t kGroup = size_t{2} << 20;                                  // bytes of all rings of a group, about
constexpr size_t kSmallest = size_t{64} << 10, kLargest = size_t{1} << 20;  // bytes of a ring
constexpr int kMostMembers = 16;                                            // rings grow with their square
constexpr int64_t kLook = 50'000'000;  // nanoseconds between two looks at whether the others live

size_t capacity_of(int size) {
  const auto pairs = static_cast<size_t>(size) * static_cast<size_t>(size - 1);
  return std::clamp(kGroup / std::max<size_t>(pairs, 1) / kLine * kLine, kSmallest, kLargest);
}

long futex(std::atomic<uint32_t>& word, int act, uint32_t value, const timespec* most) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), act, value, most, nullptr, 0);
}

/// The lock of a member's byte: taken, or asked for.
bool lock(int file, int member, bool take) {
  struct flock wanted = {};
  wanted.l_type = F_WRLCK, wanted.l_whence = SEEK_SET, wanted.l_start = member, wanted.l_len = 1;
  if (take) return fcntl(file, F_OFD_SETLK, &wanted) == 0;
  return fcntl(file, F_OFD_GETLK, &wanted) == 0 && wanted.l_type == F_UNLCK;
}

}  // namespace

struct alignas(kLine) SharedRings::Ring {
  std::atomic<uint64_t> written;              // bytes since the beginning
  alignas(kLine) std::atomic<uint64_t> read;  // likewise
  char* data() { return reinterpret_cast<char*>(this + 1); }
};

struct alignas(kLine) SharedRings::Bell {
  std::atomic<uint32_t> rung;     // changes when a ring of the member was filled or emptied
  std::atomic<uint32_t> waiting;  // threads of the member that may sleep
};

/// One message: its size, then its bytes.
struct SharedRings::Transfer {
  Ring* ring;
  int peer;
  bool sends;
  Bytes bytes;
  uint64_t size = 0;  // as announced
  size_t done = 0;    // of the announcement and the bytes
  size_t all() const { return sizeof size + bytes.size; }
};

int64_t SharedRings::bytes_for(int size) {
  const auto members = static_cast<size_t>(size);
  return static_cast<int64_t>(members * sizeof(Bell) + members * members * (sizeof(Ring) + capacity_of(size)));
}

SharedRings::SharedRings(std::unique_ptr<SharedFile> file, int index, int size)
    : file_(std::move(file)), index_(index), size_(size), capacity_(capacity_of(size)) {
  void* memory =
      mmap(nullptr, static_cast<size_t>(file_->size()), PROT_READ | PROT_WRITE, MAP_SHARED, file_->descriptor(), 0);
  if (memory != MAP_FAILED) memory_ = static_cast<char*>(memory);
}

SharedRings::~SharedRings() {
  if (memory_) munmap(memory_, static_cast<size_t>(file_->size()));
}

SharedRings::Bell& SharedRings::bell(int member) const { return reinterpret_cast<Bell*>(memory_)[member]; }

SharedRings::Ring& SharedRings::ring(int from, int to) const {
  const auto number = static_cast<size_t>(from * size_ + to);
  return *reinterpret_cast<Ring*>(memory_ + static_cast<size_t>(size_) * sizeof(Bell) +
                                  number * (sizeof(Ring) + capacity_));
}

std::unique_ptr<SharedRings> SharedRings::create(int size) {
  if (size > kMostMembers) return nullptr;
  auto file = SharedFile::create("rings", bytes_for(size));
  if (!file) return nullptr;
  std::unique_ptr<SharedRings> made(new SharedRings(std::move(file), 0, size));
  return made->memory_ && lock(made->file_->descriptor(), 0, true) ? std::move(made) : nullptr;
}

std::string SharedRings::address() const {
  const SharedFile::Address at = file_->address();
  return std::to_string(at.process) + " " + std::to_string(at.descriptor) + " " + std::to_string(at.token);
}

std::unique_ptr<SharedRings> SharedRings::join(const std::string& address, int index, int size) {
  SharedFile::Address at;
  std::istringstream text(address);
  if (!(text >> at.process >> at.descriptor >> at.token)) return nullptr;
  auto file = SharedFile::open(at, bytes_for(size));
  if (!file) return nullptr;
  std::unique_ptr<SharedRings> made(new SharedRings(std::move(file), index, size));
  return made->memory_ && lock(made->file_->descriptor(), index, true) ? std::move(made) : nullptr;
}

/// Copies what the ring holds or has room for, at most a quarter of it, so that the other end goes on meanwhile. Returns
/// whether it copied anything.
bool SharedRings::advance(Transfer& t) const {
  Ring& ring = *t.ring;
  const uint64_t written = ring.written.load(t.sends ? std::memory_order_relaxed : std::memory_order_acquire);
  const uint64_t read = ring.read.load(t.sends ? std::memory_order_acquire : std::memory_order_relaxed);
  const auto held = static_cast<size_t>(written - read);
  const size_t count = std::min({t.sends ? capacity_ - held : held, t.all() - t.done, capacity_ / 4});
  uint64_t at = t.sends ? written : read;
  for (size_t left = count; left > 0;) {
    const bool announces = t.done < sizeof t.size;
    char* own = announces ? reinterpret_cast<char*>(&t.size) + t.done
                          : static_cast<char*>(t.bytes.data) + (t.done - sizeof t.size);
    const auto place = static_cast<size_t>(at % capacity_);
    const size_t piece = std::min({left, capacity_ - place, announces ? sizeof t.size - t.done : t.all() - t.done});
    if (t.sends)
      std::memcpy(ring.data() + place, own, piece);
    else
      std::memcpy(own, ring.data() + place, piece);
    t.done += piece, at += piece, left -= piece;
    if (!t.sends && t.done == sizeof t.size && t.size != t.bytes.size)
      throw PeerError(t.peer, "it sent " + std::to_string(t.size) + " bytes where " + std::to_string(t.bytes.size) +
                                  " were expected");
  }
  if (count > 0) (t.sends ? ring.written : ring.read).store(at, std::memory_order_release);
  return count > 0;
}

/// Sleeps until a ring was filled or emptied since `seen`. Returns false when it took too long.
bool SharedRings::wait(uint32_t seen) const {
  Bell& own = bell(index_);
  const timespec most = {0, kLook};
  own.waiting.fetch_add(1);
  const bool late = own.rung.load() == seen && futex(own.rung, FUTEX_WAIT, seen, &most) != 0 && errno == ETIMEDOUT;
  own.waiting.fetch_sub(1);
  return !late;
}

bool SharedRings::lives(int member) const { return !lock(file_->descriptor(), member, false); }

void SharedRings::exchange(const std::vector<Bytes>& out, const std::vector<Bytes>& in) {
  std::vector<Transfer> left;
  for (int i = 0; i < size_; ++i) {
    const auto at = static_cast<size_t>(i);
    if (out[at].data) left.push_back({&ring(index_, i), i, true, out[at], out[at].size});
    if (in[at].data) left.push_back({&ring(i, index_), i, false, in[at]});
  }
  Bell& own = bell(index_);
  while (!left.empty()) {
    const uint32_t seen = own.rung.load();
    bool moved = false;
    for (Transfer& t : left) {
      if (!advance(t)) continue;
      moved = true;
      Bell& other = bell(t.peer);
      other.rung.fetch_add(1);
      if (other.waiting.load() > 0) futex(other.rung, FUTEX_WAKE, INT_MAX, nullptr);
    }
    std::erase_if(left, [](const Transfer& t) { return t.done == t.all(); });
    if (moved) continue;
    if (aborted_) throw PeerError(left.front().peer, "it sent nothing in that time");
    if (wait(seen)) continue;
    for (const Transfer& t : left)  // what a member has sent before its end is still received
      if (!lives(t.peer) && (t.sends || t.ring->written == t.ring->read)) throw PeerError(t.peer, "its process ended");
  }
}

void SharedRings::abort() {
  aborted_ = true;
  Bell& own = bell(index_);
  own.rung.fetch_add(1);
  futex(own.rung, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace tessera::comm
