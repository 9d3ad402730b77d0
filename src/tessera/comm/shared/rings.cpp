#include "tessera/comm/shared/rings.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "tessera/base/check.h"
#include "tessera/comm/shared/peer_error.h"

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

struct alignas(kLine) SharedRings::Layout {
  std::atomic<uint64_t> token;  // of this memory alone
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

SharedRings::SharedRings(int file, int index, int size)
    : file_(file), index_(index), size_(size), capacity_(capacity_of(size)) {
  const size_t rings = static_cast<size_t>(size) * static_cast<size_t>(size) * (sizeof(Ring) + capacity_);
  const size_t bytes = sizeof(Layout) + static_cast<size_t>(size) * sizeof(Bell) + rings;
  struct stat status = {};
  if (index == 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) return;
  if (fstat(file, &status) != 0 || status.st_size != static_cast<off_t>(bytes)) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory != MAP_FAILED) memory_ = static_cast<char*>(memory);
}

SharedRings::~SharedRings() {
  if (memory_) {
    struct stat status = {};
    if (fstat(file_, &status) == 0) munmap(memory_, static_cast<size_t>(status.st_size));
  }
  close(file_);
}

SharedRings::Bell& SharedRings::bell(int member) const {
  return reinterpret_cast<Bell*>(memory_ + sizeof(Layout))[member];
}

SharedRings::Ring& SharedRings::ring(int from, int to) const {
  const auto number = static_cast<size_t>(from * size_ + to);
  return *reinterpret_cast<Ring*>(memory_ + sizeof(Layout) + static_cast<size_t>(size_) * sizeof(Bell) +
                                  number * (sizeof(Ring) + capacity_));
}

std::unique_ptr<SharedRings> SharedRings::create(int size) {
  if (size > kMostMembers) return nullptr;
  const int file = memfd_create("tessera", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  std::unique_ptr<SharedRings> made(new SharedRings(file, 0, size));
  uint64_t token = 0;
  if (!made->memory_ || getrandom(&token, sizeof token, 0) != sizeof token || !lock(file, 0, true)) return nullptr;
  reinterpret_cast<Layout*>(made->memory_)->token = token;
  return made;
}

std::string SharedRings::address() const {
  char text[80];
  std::snprintf(text, sizeof text, "%ld %d %016llx", static_cast<long>(getpid()), file_,
                static_cast<unsigned long long>(reinterpret_cast<Layout*>(memory_)->token.load()));
  return text;
}

std::unique_ptr<SharedRings> SharedRings::join(const std::string& address, int index, int size) {
  long process = 0;
  int number = -1;
  unsigned long long token = 0;
  if (std::sscanf(address.c_str(), "%ld %d %llx", &process, &number, &token) != 3) return nullptr;
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);  // a description of its own, as the lock needs it
  if (file < 0) return nullptr;
  std::unique_ptr<SharedRings> made(new SharedRings(file, index, size));
  if (!made->memory_ || reinterpret_cast<Layout*>(made->memory_)->token != token || !lock(file, index, true))
    return nullptr;
  return made;
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

bool SharedRings::lives(int member) const { return !lock(file_, member, false); }

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
