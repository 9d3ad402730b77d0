#include "tessera/comm/heartbeat.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tessera/base/check.h"

namespace tessera::comm {

namespace {

void* map_file(int fd, size_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return map == MAP_FAILED ? nullptr : map;
}

}  // namespace

StatusBoard::StatusBoard(int ranks) : bytes_(sizeof(StatusSlot) * static_cast<size_t>(ranks)) {
  // Without a name in any folder, so nothing stays behind a killed launcher; ranks inherit the descriptor.
  fd_ = memfd_create("tessera-status", 0);
  path_ = "/proc/self/fd/" + std::to_string(fd_);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes_)) != 0 ||
      !(slots_ = static_cast<StatusSlot*>(map_file(fd_, bytes_))))
    throw UserError(Exit::memory, "launch",
                    std::string("no memory for the status of the ranks: ") + std::strerror(errno), "free some memory");
}

StatusBoard::~StatusBoard() {
  munmap(slots_, bytes_);
  close(fd_);
}

StatusBoard::Status StatusBoard::read(int rank) const {
  const StatusSlot& slot = slots_[rank];
  Status status;
  status.beats = slot.beats.load();
  status.step = slot.step.load();
  status.text.assign(slot.text.data(), strnlen(slot.text.data(), slot.text.size()));
  return status;
}

Heartbeat::Heartbeat(const Rendezvous& place) {
  const char* path = std::getenv("TESSERA_STATUS");
  if (!path) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  bytes_ = sizeof(StatusSlot) * static_cast<size_t>(place.local_world);
  map_ = map_file(fd, bytes_);
  close(fd);
  if (!map_) return;
  slot_ = static_cast<StatusSlot*>(map_) + place.local_rank;
  thread_ = std::thread([this] {
    while (!stop_.load()) {
      slot_->beats.fetch_add(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
}

Heartbeat::~Heartbeat() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  if (slot_) slot_->beats = 0;  // not silent, but done with beating
  if (map_) munmap(map_, bytes_);
}

void Heartbeat::at(int64_t step, int instruction, const std::string& text) {
  if (!slot_) return;
  slot_->step = step;
  slot_->instruction = instruction;
  const size_t length = std::min(text.size(), slot_->text.size() - 1);
  std::memcpy(slot_->text.data(), text.data(), length);
  slot_->text[length] = 0;
}

}  // namespace tessera::comm
