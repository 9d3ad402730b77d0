#include "tessera/engine/store/meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/base/units.h"
#include "tessera/device/communicators.h"
#include "tessera/ops/session.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {

namespace {

constexpr size_t kAlign = 64;              // a cache line; what LibTorch's own allocator gives
constexpr size_t kHuge = size_t{4} << 20;  // from here on blocks are aligned for huge pages
constexpr std::array<const char*, kParts> kPartNames = {"parameters", "gradients", "states", "slots",
                                                        "activations and temporaries"};

thread_local Part innermost_part = Part::compute;
thread_local std::optional<Part> only_part;

Part current_part() { return only_part.value_or(innermost_part); }

struct Count {
  std::array<int64_t, kParts> live{};
  std::array<int64_t, kParts> at_peak{};
  int64_t total = 0, peak = 0, host = 0;

  void add(Part part, int64_t bytes) {
    if (part == Part::host) {
      host += bytes;
      return;
    }
    live[static_cast<int>(part)] += bytes;
    total += bytes;
    if (total > peak) peak = total, at_peak = live;
  }
  void reset() { peak = total, at_peak = live; }
};

size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// What all allocators share.
struct Books {
  mutable std::mutex mutex;
  Count count;
  int64_t budget = 0;
  c10::Allocator* device = nullptr;  // of the device tier, if that is not host memory

  /// What there is to say where `size` more bytes would exceed the budget.
  std::optional<UserError> excess(Part part, size_t size) const {
    if (budget <= 0 || part == Part::host || count.total + static_cast<int64_t>(size) <= budget) return std::nullopt;
    return UserError(
        Exit::memory, "engine.memory",
        "a tensor of " + format_bytes(size) + " would exceed plan.budget " + format_bytes(budget) + "; " + story(),
        "raise plan.budget, or let the planner recompute more (plan.recompute = \"all\")");
  }
  std::string story() const {
    std::string text = "held now: ";
    for (int p = 0; p < kParts; ++p)
      text += std::string(p ? ", " : "") + kPartNames[p] + " " + format_bytes(count.live[p]);
    return text;
  }
};

Books& books() {
  static auto* instance = new Books;  // outlives every tensor
  return *instance;
}

thread_local Count meta_count;
/// Whether this thread's numbers of operators count with its meta tensors ([Note: bytes by running on meta]).
thread_local bool counts_numbers = false;
constexpr int64_t kNumber =
    2 * kAlign;  // in double, and in the type of what it is used with, which meta tensors do not ask for

/// Memory of the CPU: the device tier, or host memory beside a GPU.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(rounded(bytes));
    return {data, data, &give_raw, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_raw; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  void* take(size_t size) {
    const std::lock_guard lock(books().mutex);
    const Part part = books().device ? Part::host : current_part();
    if (const auto excess = books().excess(part, size)) throw *excess;
    void* data = nullptr;
    auto& kept = free_[size];
    if (!kept.empty()) {
      data = kept.back();
      kept.pop_back();
      cached_ -= size;
    } else {
      if (cached_ > static_cast<size_t>(std::max<int64_t>(books().count.peak, 64 << 20))) trim();
      const size_t align = size >= kHuge ? size_t{2} << 20 : kAlign;
      if (posix_memalign(&data, align, size) != 0)
        throw UserError(Exit::memory, "engine.memory",
                        "the machine has no " + format_bytes(size) + " left; " + books().story(),
                        "use more ranks, recompute, or a smaller batch");
      if (size >= kHuge) madvise(data, size, MADV_HUGEPAGE);
    }
    books().count.add(part, size);
    const bool number = counts_numbers && size == kAlign;
    if (number) meta_count.add(Part::compute, kNumber);
    blocks_[data] = {size, part, number};
    return data;
  }

  void give(void* data) {
    const std::lock_guard lock(books().mutex);
    const auto it = blocks_.find(data);
    if (it == blocks_.end()) {  // allocated before we were installed
      std::free(data);
      return;
    }
    books().count.add(it->second.part, -static_cast<int64_t>(it->second.size));
    if (it->second.number && counts_numbers) meta_count.add(Part::compute, -kNumber);
    free_[it->second.size].push_back(data);
    cached_ += it->second.size;
    blocks_.erase(it);
  }

  void trim() {
    for (auto& [size, kept] : free_) {
      for (void* data : kept) std::free(data);
      kept.clear();
    }
    cached_ = 0;
  }

  struct Block {
    size_t size;
    Part part;
    bool number;  // also counted with the meta tensors of its thread
  };
  size_t cached_ = 0;
  std::unordered_map<void*, Block> blocks_;
  std::map<size_t, std::vector<void*>> free_;

 private:
  static void give_raw(void* data);
};

CountingAllocator& cpu() {
  static auto* instance = new CountingAllocator;  // outlives every tensor
  return *instance;
}
void CountingAllocator::give_raw(void* data) {
  if (data) cpu().give(data);
}

/// As LibTorch's own allocator throws it, for libraries that then try with less; out_of_memory() finds what to tell.
class NoRoom final : public c10::OutOfMemoryError {
 public:
  explicit NoRoom(UserError what)
      : c10::OutOfMemoryError(c10::SourceLocation{__func__, __FILE__, __LINE__}, what.what()), told(std::move(what)) {}
  const UserError told;
};

/// Memory of a GPU: pieces of one block that its driver gave.
class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(rounded(bytes), bytes);
    return {data, data, &give_raw, device::here()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_raw; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    device::used()->copy(to, from, static_cast<int64_t>(count));
  }

  std::optional<Reserve> reserve_;   // of books().mutex; once there is a block
  std::optional<Meter::Pool> pool_;  // likewise
  int64_t before_pool_ = 0;
  std::thread::id pool_of_;
  std::condition_variable ended_;  // the pool

 private:
  void* take(size_t size, size_t asked) {
    std::unique_lock lock(books().mutex);
    // What is freed while a graph is captured is still the graph's, whose first launch is to come.
    const auto mine = [this] { return !pool_ || pool_of_ == std::this_thread::get_id(); };
    check_internal(ended_.wait_for(lock, std::chrono::minutes(1), mine), "engine.memory",
                   "a thread waits a minute for the end of a capture to take memory of the device");
    check_internal(reserve_.has_value(), "engine.memory", "a tensor of the device before its memory was reserved");
    if (auto excess = books().excess(current_part(), size)) throw NoRoom(std::move(*excess));
    if (!device::WorkspaceLimit::allows(static_cast<int64_t>(asked)))
      throw NoRoom(
          UserError(Exit::memory, "engine.memory",
                    format_bytes(static_cast<int64_t>(asked)) + " are more than a library's workspace may have"));
    const int64_t place = size < static_cast<size_t>(Reserve::kLarge) ? -1 : SamePlace::wanted();
    void* data =
        place < 0 ? reserve_->take(static_cast<int64_t>(size)) : reserve_->take_at(place, static_cast<int64_t>(size));
    if (!data)
      throw NoRoom(UserError(
          Exit::memory, "engine.memory",
          "a tensor of " + format_bytes(size) + " has no room in one piece: of the " + format_bytes(reserve_->size()) +
              " reserved " + format_bytes(reserve_->size() - reserve_->used()) + " are free, the largest piece has " +
              format_bytes(reserve_->largest()) + "; " + books().story(),
          "lower plan.budget, so that the plan leaves more room"));
    books().count.add(current_part(), size);
    blocks_[data] = {size, current_part()};
    if (pool_) {
      pool_->ranges.emplace_back(static_cast<char*>(data) - static_cast<char*>(device::block().data),
                                 round_up(static_cast<int64_t>(size), Reserve::kAlign));
      pool_->most = std::max(pool_->most, books().count.total - before_pool_);
    }
    return data;
  }
  static void give_raw(void* data);

  struct Block {
    size_t size;
    Part part;
  };
  std::unordered_map<void*, Block> blocks_;
};

DeviceAllocator*& of_device() {
  static DeviceAllocator* instance = nullptr;
  return instance;
}

void DeviceAllocator::give_raw(void* data) {
  if (!data) return;
  const std::lock_guard lock(books().mutex);
  DeviceAllocator& self = *of_device();
  const auto it = self.blocks_.find(data);
  check_internal(it != self.blocks_.end(), "engine.memory", "device memory is given back that was not taken");
  books().count.add(it->second.part, -static_cast<int64_t>(it->second.size));
  self.blocks_.erase(it);
  self.reserve_->give(data);
}

/// Meta tensors have no memory: their data pointer is null and the context carries the size.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &forget, c10::Device(c10::kMeta)};
    auto* size = new int64_t(static_cast<int64_t>(rounded(bytes)));
    meta_count.add(Part::compute, *size);
    return {nullptr, size, &forget, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void forget(void* context) {
    if (!context) return;
    auto* size = static_cast<int64_t*>(context);
    meta_count.add(Part::compute, -*size);
    delete size;
  }
};

}  // namespace

void Meter::install() {
  static const bool once = [] {
    c10::SetCPUAllocator(&cpu(), /*priority=*/100);
    c10::SetAllocator(c10::kMeta, new MetaAllocator, /*priority=*/100);
    return true;
  }();
  (void)once;
}

void Meter::use_device(const device::Backend& backend) {
  check_internal(!of_device(), "engine.memory", "a process uses one device");
  of_device() = new DeviceAllocator;  // outlives every tensor
  backend.allocate_by(of_device());
  const std::lock_guard lock(books().mutex);
  books().device = of_device();
}

void Meter::reserve(int64_t bytes, bool lent) {
  const device::Backend& backend = *device::used();
  const device::Communicators* messages = lent ? backend.communicators : nullptr;
  std::string refusal;  // of NCCL, which may keep what it took before it failed
  void* block = messages && messages->absence().empty() ? messages->take(bytes, refusal) : nullptr;
  if (!block) block = backend.take(bytes);
  device::count_memory_request();
  if (!block)
    throw UserError(
        Exit::memory, "engine.memory",
        "the device does not give " + format_bytes(bytes) + " in one block; " +
            format_bytes(backend.properties(device::here().index()).free) + " of it are free" +
            (refusal.empty() ? "" : "; NCCL, which was asked first, gave none (" + refusal + ")"),
        "end other programs that use it (nvidia-smi lists them), or lower plan.budget" +
            std::string(refusal.empty() ? "" : "; without NCCL (TESSERA_NCCL=0) the driver alone is asked"));
  device::set_block({block, bytes});
  const std::lock_guard lock(books().mutex);
  of_device()->reserve_.emplace(block, bytes);
}

int64_t free_place(int64_t bytes, int64_t from) {
  const std::lock_guard lock(books().mutex);
  return of_device()->reserve_->place_for(static_cast<int64_t>(rounded(static_cast<size_t>(bytes))), from);
}

device::Block Meter::room() {
  const std::lock_guard lock(books().mutex);
  if (!of_device() || !of_device()->reserve_) return {};
  const auto [offset, bytes] = of_device()->reserve_->largest_piece();
  return {static_cast<char*>(device::block().data) + offset, bytes};
}

void Meter::begin_pool() {
  const std::lock_guard lock(books().mutex);
  of_device()->pool_.emplace();
  of_device()->before_pool_ = books().count.total;
  of_device()->pool_of_ = std::this_thread::get_id();
}

Meter::Pool Meter::end_pool() {
  const std::lock_guard lock(books().mutex);
  Pool pool = std::move(of_device()->pool_.value());
  of_device()->pool_.reset();
  of_device()->ended_.notify_all();
  std::ranges::sort(pool.ranges);
  std::vector<std::pair<int64_t, int64_t>> apart;
  for (const auto& [at, bytes] : pool.ranges)
    if (apart.empty() || apart.back().first + apart.back().second < at)
      apart.emplace_back(at, bytes);
    else
      apart.back().second = std::max(apart.back().second, at + bytes - apart.back().first);
  pool.ranges = std::move(apart);
  return pool;
}

Meter::Claim::Claim(const Pool& pool) : pool_(pool) {
  const std::lock_guard lock(books().mutex);
  Reserve& reserve = *of_device()->reserve_;
  holds_ =
      std::ranges::all_of(pool.ranges, [&](const auto& range) { return reserve.free_at(range.first, range.second); });
  if (!holds_) return;
  for (const auto& [at, bytes] : pool.ranges) reserve.take_at(at, bytes);
  books().count.add(Part::compute, pool.most);
}

Meter::Claim::~Claim() {
  if (!holds_) return;
  const std::lock_guard lock(books().mutex);
  for (const auto& [at, bytes] : pool_.ranges)
    of_device()->reserve_->give(static_cast<char*>(device::block().data) + at);
  books().count.add(Part::compute, -pool_.most);
}

c10::Allocator* Meter::allocator(c10::DeviceType type) {
  return type == c10::DeviceType::CPU || type == c10::DeviceType::Meta ? c10::GetAllocator(type) : of_device();
}

int64_t Meter::live() {
  const std::lock_guard lock(books().mutex);
  return books().count.total;
}
int64_t Meter::live(Part part) {
  const std::lock_guard lock(books().mutex);
  return part == Part::host ? books().count.host : books().count.live[static_cast<int>(part)];
}
int64_t Meter::peak() {
  const std::lock_guard lock(books().mutex);
  return books().count.peak;
}
std::array<int64_t, kParts> Meter::at_peak() {
  const std::lock_guard lock(books().mutex);
  return books().count.at_peak;
}
void Meter::reset_peak() {
  const std::lock_guard lock(books().mutex);
  books().count.reset();
  if (of_device() && of_device()->reserve_) of_device()->reserve_->reset_reach();
}
int64_t Meter::reserved() {
  const std::lock_guard lock(books().mutex);
  if (of_device()) return of_device()->reserve_ ? of_device()->reserve_->reach() : 0;
  return books().count.total + static_cast<int64_t>(cpu().cached_);
}
void Meter::set_budget(int64_t bytes) {
  const std::lock_guard lock(books().mutex);
  books().budget = bytes;
}
std::optional<UserError> out_of_memory(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const NoRoom*>(&error)) return ours->told;
  if (const auto* torch = dynamic_cast<const c10::OutOfMemoryError*>(&error))
    return UserError(Exit::memory, "engine.memory", torch->what_without_backtrace(), "lower plan.budget");
  return shortage(error);
}

std::string Meter::story() {
  const std::lock_guard lock(books().mutex);
  return books().story();
}

Meter::Scope::Scope(Part part) : before_(innermost_part) { innermost_part = part; }
Meter::Scope::~Scope() { innermost_part = before_; }
Meter::Only::Only(Part part) : before_(only_part) { only_part = part; }
Meter::Only::~Only() { only_part = before_; }

Meter::MetaCount::MetaCount() {
  meta_count = Count{};
  counts_numbers = !ops::session().target && !device::used();
}
Meter::MetaCount::~MetaCount() { counts_numbers = false; }
int64_t Meter::MetaCount::live() const { return meta_count.total; }
int64_t Meter::MetaCount::peak() const { return meta_count.peak; }
void Meter::MetaCount::reset_peak() { meta_count.reset(); }

Reserve::Reserve(void* base, int64_t bytes) : base_(static_cast<char*>(base)), bytes_(bytes / kAlign * kAlign) {
  if (bytes_ > 0) add_free(0, bytes_);
}

void Reserve::add_free(int64_t at, int64_t bytes) {
  places_.emplace(at, bytes);
  free_.emplace(bytes, at);
}

void* Reserve::take(int64_t bytes) {
  const int64_t size = round_up(bytes, kAlign);
  const int64_t align = size >= kLarge ? device::kWindowAlign : kAlign;
  auto best = free_.lower_bound({size, 0});
  while (best != free_.end() && round_up(best->second, align) + size > best->second + best->first) ++best;
  if (best == free_.end()) return nullptr;
  return take_from(best->second, round_up(best->second, align), size);
}

int64_t Reserve::place_for(int64_t bytes, int64_t from) const {
  const int64_t size = round_up(bytes, kAlign);
  for (const auto& [begin, found] : places_)
    if (const int64_t at = round_up(std::max(begin, from), device::kWindowAlign); at + size <= begin + found) return at;
  return -1;
}

bool Reserve::free_at(int64_t offset, int64_t bytes) const {
  auto piece = places_.upper_bound(offset);
  return piece != places_.begin() && (--piece)->first + piece->second >= offset + round_up(bytes, kAlign);
}

void* Reserve::take_at(int64_t offset, int64_t bytes) {
  check_internal(free_at(offset, bytes), "engine.reserve", "what is taken at a place is not free");
  return take_from(std::prev(places_.upper_bound(offset))->first, offset, round_up(bytes, kAlign));
}

/// Of the free piece at `begin`.
void* Reserve::take_from(int64_t begin, int64_t at, int64_t size) {
  const int64_t end = begin + places_.at(begin);
  free_.erase({end - begin, begin});
  places_.erase(begin);
  if (at > begin) add_free(begin, at - begin);
  if (end > at + size) add_free(at + size, end - at - size);
  taken_.emplace(at, size);
  used_ += size;
  reach_ = std::max(reach_, at + size);
  return base_ + at;
}

void Reserve::give(void* data) {
  const auto piece = taken_.find(static_cast<char*>(data) - base_);
  check_internal(piece != taken_.end(), "engine.reserve", "memory is given back that was not taken");
  int64_t at = piece->first, size = piece->second;
  taken_.erase(piece);
  used_ -= size;
  const auto merge = [&](auto place) {
    free_.erase({place->second, place->first});
    at = std::min(at, place->first), size += place->second;
    places_.erase(place);
  };
  if (const auto after = places_.find(at + size); after != places_.end()) merge(after);
  if (auto before = places_.lower_bound(at); before != places_.begin() && (--before)->first + before->second == at)
    merge(before);
  add_free(at, size);
}

void Reserve::reset_reach() { reach_ = taken_.empty() ? 0 : taken_.rbegin()->first + taken_.rbegin()->second; }

namespace {
thread_local int64_t place = -1;
}  // namespace

SamePlace::SamePlace(comm::Comm& comm, int64_t bytes) {
  if (!comm.by_device()) return;
  comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  for (int64_t from = 0;;) {
    std::vector<double> found;
    for (const auto& row : all.all_gather_doubles({static_cast<double>(free_place(bytes, from))}))
      found.push_back(row[0]);
    const auto [least, most] = std::ranges::minmax(found);
    if (least < 0) return;
    from = static_cast<int64_t>(most);
    if (least != most) continue;
    place = from;
    return;
  }
}
SamePlace::~SamePlace() { place = -1; }
int64_t SamePlace::wanted() { return place; }

}  // namespace tessera::engine
