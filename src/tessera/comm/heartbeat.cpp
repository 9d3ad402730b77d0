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
#include "tessera/base/limits.h"

namespace tessera::comm {

namespace {

void* map_file(int fd, size_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return map == MAP_FAILED ? nullptr : map;
}

/// A clock that all processes of the machine share; never 0.
int64_t milliseconds() {
  using namespace std::chrono;
  return duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch()).count() + 1;
}

template <size_t kSize>
std::string text_of(const std::array<char, kSize>& text) {
  return {text.data(), strnlen(text.data(), text.size())};
}

template <size_t kSize>
void write_text(std::array<char, kSize>& to, const std::string& text) {
  const size_t length = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = 0;
}

/// The lane of the calling thread's last activity; -1 for threads that never report one (a Pace).
thread_local int my_lane = -1;

}  // namespace

StatusBoard::StatusBoard(int ranks) : bytes_(sizeof(StatusSlot) * static_cast<size_t>(ranks)) {
  // An anonymous file, so that a killed launcher leaves nothing behind; ranks inherit its descriptor.
  fd_ = memfd_create("tessera-status", 0);
  if (fd_ < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS))
    throw UserError(Exit::usage, "launch",
                    std::string("this process may not call memfd_create (") + std::strerror(errno) +
                        "), by which ranks tell their launcher where they are",
                    "allow it in the seccomp profile of the container, or in the security policy of this system");
  path_ = "/proc/self/fd/" + std::to_string(fd_);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes_)) != 0 ||
      !(slots_ = static_cast<StatusSlot*>(map_file(fd_, bytes_))))
    throw UserError(Exit::memory, "launch",
                    std::string("no room for the status of the ranks: ") + std::strerror(errno) + limit_behind(errno),
                    "raise that limit, or free some memory");
}

StatusBoard::~StatusBoard() {
  munmap(slots_, bytes_);
  close(fd_);
}

void StatusBoard::woke() { woke_ = milliseconds(); }

StatusBoard::Status StatusBoard::read(int rank) const {
  const StatusSlot& slot = slots_[rank];
  const int64_t now = milliseconds();
  Status status;
  status.beats = slot.beats.load();
  status.step = slot.lanes[0].step.load();
  status.text = text_of(slot.lanes[0].text);
  status.failure = text_of(slot.failure);
  for (const Activity& lane : slot.lanes) {
    const int64_t since = lane.since.load(), waiting = lane.waiting.load();
    if (since == 0) continue;
    const auto seconds = [&](int64_t then) { return static_cast<double>(now - std::max(then, woke_)) / 1000; };
    status.activities.push_back(
        {lane.step.load(), text_of(lane.text), seconds(since), waiting ? seconds(waiting) : -1, lane.timeouts.load()});
  }
  return status;
}

std::string StatusBoard::Status::where() const {
  if (activities.empty())
    return text.empty() ? " before the first step" : " at step " + std::to_string(step) + ", after " + text;
  std::string words = " at step " + std::to_string(activities.front().step);
  for (const CurrentActivity& d : activities) words += (&d == activities.data() ? ", " : "; ") + d.text;
  return words;
}

const StatusBoard::CurrentActivity* StatusBoard::Status::longest_wait() const {
  const auto found = std::ranges::max_element(activities, {}, &CurrentActivity::waits);
  return found == activities.end() || found->waits < 0 ? nullptr : &*found;
}

const StatusBoard::CurrentActivity* StatusBoard::Status::longest_work() const {
  const CurrentActivity* longest = nullptr;
  for (const CurrentActivity& d : activities)
    if (d.waits < 0 && (!longest || d.seconds / d.timeouts > longest->seconds / longest->timeouts)) longest = &d;
  return longest;
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
  if (slot_) slot_->beats = 0;  // the rank ended in order and is not silent
  if (map_) munmap(map_, bytes_);
}

void Heartbeat::at(int64_t step, int instruction, const std::string& text, int lane, int timeouts) {
  if (!slot_) return;
  my_lane = lane;
  Activity& activity = slot_->lanes[static_cast<size_t>(lane)];
  activity.waiting = 0;
  activity.step = step;
  activity.instruction = instruction;
  activity.timeouts = timeouts;
  write_text(activity.text, text);
  activity.since = milliseconds();
}

void Heartbeat::done(int lane) {
  if (slot_) slot_->lanes[static_cast<size_t>(lane)].since = 0;
}

void Heartbeat::fails(const std::string& why) {
  if (slot_) write_text(slot_->failure, why);
}

void Heartbeat::waits(bool inside) {
  if (slot_ && my_lane >= 0) slot_->lanes[static_cast<size_t>(my_lane)].waiting = inside ? milliseconds() : 0;
}

}  // namespace tessera::comm
