#include "tessera/engine/store/disk.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#ifdef TESSERA_URING
#include <liburing.h>
#endif

#include "tessera/base/check.h"
#include "tessera/base/hash.h"
#include "tessera/base/units.h"

namespace tessera::engine {

namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kPiece = 1 << 20;  // one request; eight of them keep an NVMe disk busy
constexpr unsigned kDepth = 8;

}  // namespace

#ifdef TESSERA_URING
struct Disk::Ring {
  io_uring ring{};
  bool ok = io_uring_queue_init(kDepth, &ring, 0) == 0;
  ~Ring() {
    if (ok) io_uring_queue_exit(&ring);
  }
};
#else
struct Disk::Ring {};
#endif

Disk::Disk(plan::DiskPlace place, int64_t bytes)
    : folder_(std::move(place.folder)), checksum_(place.checksum), size_(round_up(bytes, kPage)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::string name = folder_ + "/tessera-tier-XXXXXX";
  cached_ = mkstemp(name.data());
  if (cached_ < 0)
    throw UserError(Exit::disk, "engine.disk", folder_ + ": no file can be made there: " + std::strerror(errno),
                    "set plan.nvme to a folder on the disk to use");
  direct_ = open(name.c_str(), O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
  const bool direct = direct_ >= 0;
  if (!direct) direct_ = open(name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  unlink(name.c_str());  // the file disappears with the process, however that ends
  if (const int full = posix_fallocate(cached_, 0, size_); full != 0) {
    close(cached_);  // a constructor that throws is not followed by the destructor
    if (direct_ >= 0) close(direct_);
    throw UserError(
        Exit::disk, "engine.disk",
        folder_ + ": " + format_bytes(size_) + " for the plan's nvme tier cannot be set aside: " + std::strerror(full),
        "free space, set plan.nvme to another disk, or keep more on the host");
  }
#ifdef TESSERA_URING
  ring_ = std::make_unique<Ring>();
  if (!ring_->ok) ring_.reset();
#endif
  how_ = std::string(ring_ ? "io_uring" : "plain") + (direct ? ", direct" : "");
}

Disk::~Disk() {
  if (mapped_) munmap(mapped_, static_cast<size_t>(size_));
  if (direct_ >= 0) close(direct_);
  if (cached_ >= 0) close(cached_);
}

int64_t Disk::reserve(int64_t bytes) {
  const int64_t at = used_;
  used_ += round_up(bytes, kPage);
  check_internal(used_ <= size_, "engine.disk", "more is reserved than was set aside");
  return at;
}

void Disk::fail(const char* what, int64_t offset, int64_t bytes, int error) const {
  throw UserError(
      Exit::disk, "engine.disk",
      folder_ + ": " + what + " " + format_bytes(bytes) + " at " + std::to_string(offset) + ": " + std::strerror(error),
      "look at the disk (dmesg), free space or set plan.nvme to another one; start again from the last "
      "checkpoint");
}

void Disk::read(int64_t offset, void* to, int64_t bytes) {
  transfer(false, offset, static_cast<char*>(to), round_up(bytes, kPage));
  const auto found = written_.find(offset);
  if (found == written_.end() || found->second.bytes != bytes) return;
  const uint32_t sum = crc32c(to, static_cast<size_t>(bytes));
  if (sum == found->second.sum) return;
  throw UserError(Exit::disk, "engine.disk",
                  folder_ + ": reading " + format_bytes(bytes) + " at " + std::to_string(offset) +
                      ": the checksum is " + std::to_string(sum) + ", that of what was written " +
                      std::to_string(found->second.sum),
                  "the disk or its link gives wrong data: set plan.nvme to another one; start again from the last "
                  "checkpoint");
}
void Disk::write(int64_t offset, const void* from, int64_t bytes) {
  if (checksum_) {
    const auto after = written_.lower_bound(offset + bytes);  // checksums of partly overwritten regions are invalid
    auto it = written_.lower_bound(offset);
    if (it != written_.begin() && std::prev(it)->first + std::prev(it)->second.bytes > offset) --it;
    written_.erase(it, after);
    written_[offset] = {bytes, crc32c(from, static_cast<size_t>(bytes))};
  }
  transfer(true, offset, const_cast<char*>(static_cast<const char*>(from)), round_up(bytes, kPage));
}

void Disk::transfer(bool write, int64_t offset, char* data, int64_t bytes) {
  const char* what = write ? "writing" : "reading";
#ifdef TESSERA_URING
  if (ring_) {
    // Requests in flight. A short transfer continues where it stopped.
    int64_t next = 0;
    unsigned flying = 0;
    struct Piece {
      int64_t at, end;
    };
    std::vector<Piece> pieces(kDepth);
    std::vector<unsigned> free;
    for (unsigned i = 0; i < kDepth; ++i) free.push_back(i);
    const auto submit = [&](unsigned i) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
      const Piece& p = pieces[i];
      write ? io_uring_prep_write(sqe, direct_, data + p.at, static_cast<unsigned>(p.end - p.at), offset + p.at)
            : io_uring_prep_read(sqe, direct_, data + p.at, static_cast<unsigned>(p.end - p.at), offset + p.at);
      io_uring_sqe_set_data(sqe, reinterpret_cast<void*>(static_cast<uintptr_t>(i)));
      int given = 0;
      do given = io_uring_submit(&ring_->ring);
      while (given == -EINTR || given == -EAGAIN);
      if (given < 0) fail(what, offset, bytes, -given);  // a request that was not taken never ends
    };
    int failed = 0;
    while (next < bytes || flying > 0) {
      for (; failed == 0 && next < bytes && !free.empty(); ++flying) {
        const unsigned i = free.back();
        free.pop_back();
        pieces[i] = {next, std::min(bytes, next + kPiece)};
        next = pieces[i].end;
        submit(i);
      }
      if (flying == 0) break;
      io_uring_cqe* cqe = nullptr;
      if (const int error = io_uring_wait_cqe(&ring_->ring, &cqe); error < 0) {
        if (error == -EINTR) continue;
        fail(what, offset, bytes, -error);
      }
      const auto i = static_cast<unsigned>(reinterpret_cast<uintptr_t>(io_uring_cqe_get_data(cqe)));
      const int done = cqe->res;
      io_uring_cqe_seen(&ring_->ring, cqe);
      if (done <= 0 && done != -EAGAIN && done != -EINTR) failed = done == 0 ? EIO : -done;
      if (done > 0) pieces[i].at += done;
      if (failed == 0 && pieces[i].at < pieces[i].end) {
        submit(i);
        continue;
      }
      free.push_back(i);
      --flying;
    }
    if (failed != 0) fail(what, offset, bytes, failed);
    return;
  }
#endif
  for (int64_t at = 0; at < bytes;) {
    const auto size = static_cast<size_t>(std::min(bytes - at, kPiece));
    const ssize_t done =
        write ? pwrite(direct_, data + at, size, offset + at) : pread(direct_, data + at, size, offset + at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail(what, offset, bytes, done < 0 ? errno : EIO);
    at += done;
  }
}

void* Disk::map(int64_t offset, int64_t bytes) {
  check_internal(offset + bytes <= size_, "engine.disk", "mapped past the end");
  if (!mapped_) {
    void* mapped = mmap(nullptr, static_cast<size_t>(size_), PROT_READ | PROT_WRITE, MAP_SHARED, cached_, 0);
    if (mapped == MAP_FAILED) fail("mapping", 0, size_, errno);
    mapped_ = static_cast<char*>(mapped);
  }
  return mapped_ + offset;
}

void Disk::flush() {
  written_.clear();  // the mapping may have changed any of it
  if (mapped_ && msync(mapped_, static_cast<size_t>(size_), MS_SYNC) != 0) fail("flushing", 0, size_, errno);
}

}  // namespace tessera::engine
