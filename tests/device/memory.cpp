#include "memory.h"

#include <c10/util/Exception.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tessera/base/check.h"

namespace tessera::testing {

namespace {

constexpr int64_t kSpan = int64_t{1} << 40;  // addresses of the device; as many of the shadow follow
constexpr int64_t kPage = 4096, kAlignment = 512, kPattern = 1 << 20;
constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

char* reserved_base = nullptr;  // for the handler, which may not lock
struct sigaction handler_before = {};

bool within(const void* data, const char* begin) {
  return begin && data >= begin && data < static_cast<const void*>(begin + kSpan);
}

template <size_t n>
void say(const char (&text)[n]) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, n - 1);
}

/// Says what a fault at one of our addresses means. The faulting instruction then runs again, under the handler from
/// before for other addresses, and for ours under none, which ends the process.
void explain(int, siginfo_t* info, void*) {
  const bool device = within(info->si_addr, reserved_base), shadow = within(info->si_addr, reserved_base + kSpan);
  if (!device && !shadow) {
    sigaction(SIGSEGV, &handler_before, nullptr);
    return;
  }
  if (device)
    say("host code touched memory of the simulated device\n");
  else
    say("a kernel of the simulated device touched memory outside of all allocations\n");
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  std::signal(SIGSEGV, SIG_DFL);
}

void explain_faults() {
  void* frame;
  backtrace(&frame, 1);  // loads what it needs, which the handler may not
  struct sigaction action = {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &handler_before);
}

/// A file that holds 0xff, without a name.
int pattern_file() {
  const int file = memfd_create("simulated_device", MFD_CLOEXEC);
  const std::vector<char> bytes(kPattern, '\xff');
  TORCH_CHECK(file >= 0 && write(file, bytes.data(), bytes.size()) == kPattern,
              "the simulated device cannot make its file of NaN: ", std::strerror(errno));
  return file;
}

}  // namespace

SimulatedMemory::SimulatedMemory() : pattern_(pattern_file()) {
  void* base = mmap(nullptr, 2 * kSpan, PROT_NONE, kNoMemory, -1, 0);
  TORCH_CHECK(base != MAP_FAILED, "the simulated device cannot reserve 2 TiB of addresses: ", std::strerror(errno),
              "; is there a limit (ulimit -v)?");
  base_ = cursor_ = reserved_base = static_cast<char*>(base);
  const char* bytes = std::getenv("TESSERA_SIMULATED_BYTES");
  capacity_ = bytes && *bytes ? std::strtoll(bytes, nullptr, 10) : int64_t{4} << 30;
  TORCH_CHECK(capacity_ > 0, "TESSERA_SIMULATED_BYTES is '", bytes, "', it must be a number of bytes");
  explain_faults();
}

/// Where `reserved` bytes are free, after what was placed last, so that addresses come again late; null: nowhere.
char* SimulatedMemory::place(int64_t reserved) {
  for (char* at : {cursor_, base_}) {
    auto next = ranges_.lower_bound(at);
    if (next != ranges_.begin()) at = std::max(at, std::prev(next)->first + std::prev(next)->second.reserved);
    for (; next != ranges_.end() && next->first < at + reserved; ++next) at = next->first + next->second.reserved;
    if (at + reserved <= base_ + kSpan) return at;
  }
  return nullptr;
}

void SimulatedMemory::fill(char* begin, int64_t bytes) const {
  for (int64_t at = 0; at < bytes; at += kPattern) {
    const auto part = static_cast<size_t>(std::min(kPattern, bytes - at));
    TORCH_CHECK(mmap(begin + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, pattern_, 0) != MAP_FAILED,
                "the simulated device cannot map ", bytes, " bytes: ", std::strerror(errno));
  }
}

void* SimulatedMemory::take(int64_t bytes, int device) {
  TORCH_CHECK(bytes > 0, "the simulated device was asked for ", bytes, " bytes");
  const std::lock_guard lock(mutex_);
  const int64_t used = round_up(bytes, kAlignment), pages = round_up(used, kPage);
  if (taken_.at(device) + bytes > capacity_) return nullptr;
  char* begin = place(pages + kPage);
  if (!begin) return nullptr;
  if (!sizes_alone()) fill(begin + kSpan, pages);
  const Range range{begin + (pages - used), bytes, pages + kPage, device};
  ranges_[begin] = range;
  cursor_ = begin + range.reserved;
  taken_[device] += bytes;
  return range.data;
}

void SimulatedMemory::give(void* data) {
  if (!data) return;
  const std::lock_guard lock(mutex_);
  const Range* range = range_of(data);
  TORCH_CHECK(range && range->data == data, "the simulated device was given back ", data, ", which it has not lent");
  char* begin = std::prev(ranges_.upper_bound(range->data))->first;
  mmap(begin + kSpan, range->reserved, PROT_NONE, kNoMemory | MAP_FIXED, -1, 0);
  taken_[range->device] -= range->bytes;
  ranges_.erase(begin);
}

bool SimulatedMemory::contains(const void* data) const { return within(data, base_); }
bool SimulatedMemory::shadow_contains(const void* data) const { return within(data, base_ + kSpan); }

const SimulatedMemory::Range* SimulatedMemory::range_of(const void* data) const {
  auto next = ranges_.upper_bound(static_cast<char*>(const_cast<void*>(data)));
  if (next == ranges_.begin()) return nullptr;
  const Range& range = std::prev(next)->second;
  return data >= range.data && data < range.data + range.bytes ? &range : nullptr;
}

int SimulatedMemory::device_of(const void* data) const {
  const std::lock_guard lock(mutex_);
  const Range* range = range_of(data);
  TORCH_CHECK(range, data, " is no memory of the simulated device");
  return range->device;
}

int64_t SimulatedMemory::bytes_of(const void* data) const {
  const std::lock_guard lock(mutex_);
  const Range* range = range_of(data);
  TORCH_CHECK(range, data, " is no memory of the simulated device");
  return range->bytes;
}

int64_t SimulatedMemory::taken(int device) const {
  const std::lock_guard lock(mutex_);
  return taken_.at(device);
}

void* SimulatedMemory::checked_shadow(const void* data, int64_t bytes, size_t alignment) const {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const Range* range = range_of(data);
  TORCH_CHECK(range, "a kernel of the simulated device was given ", data, ", which is ",
              contains(data) ? "in none of its allocations" : "not memory of the device");
  const char* begin = static_cast<const char*>(data);
  TORCH_CHECK(begin + bytes <= range->data + range->bytes, "a kernel of the simulated device was given ", bytes,
              " bytes of an allocation of ", range->bytes, ", from byte ", begin - range->data, " on");
  TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % alignment == 0, "a kernel of the simulated device was given ", data,
              ", which is not aligned to ", alignment, " bytes");
  return const_cast<char*>(begin) + kSpan;
}

bool sizes_alone() {
  static const bool once = std::getenv("TESSERA_SIMULATED_SIZES") != nullptr;
  return once;
}

SimulatedMemory& memory() {
  static auto* once = new SimulatedMemory;  // tensors of other statics may be freed after it would be
  return *once;
}

}  // namespace tessera::testing
