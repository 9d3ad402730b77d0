// The table of the simulated device (device/backend.h): our functions of CPUs over the shadow.
#include "simulated.h"

#include <ATen/Version.h>
#include <c10/core/Allocator.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "memory.h"
#include "operators.h"
#include "stand_in.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/ops/factored.h"
#include "tessera/ops/fused.h"
#include "tessera/ops/half.h"
#include "timeline.h"
#include "torch_device.h"

namespace tessera::testing {

namespace {

/// n elements of the device, or null for null.
template <class T>
T* shadow(T* data, int64_t n) {
  return data ? memory().shadow(data, n) : nullptr;
}
/// n elements of 16 bits.
uint16_t* halves(const void* data, int64_t n) {
  return memory().shadow(static_cast<uint16_t*>(const_cast<void*>(data)), n);
}

/// TESSERA_SIMULATED_DEVICES, else all of them.
int visible_devices() {
  const char* wanted = std::getenv("TESSERA_SIMULATED_DEVICES");
  return wanted ? std::clamp(std::atoi(wanted), 1, kSimulatedDevices) : kSimulatedDevices;
}

device::Properties properties(int index) {
  const char *pci = std::getenv("TESSERA_SIMULATED_PCI"), *chip = std::getenv("TESSERA_SIMULATED_CHIP");
  device::Properties out{.name = "simulated",
                         .uuid = "simulated-" + std::to_string(index),
                         .pci = pci ? pci : "",
                         .chip = chip ? chip : ""};
  out.bytes = memory().capacity();
  out.free = out.bytes - memory().taken(index);
  return out;
}

// Memory

void* take(int64_t bytes) { return memory().take(bytes, current_device()); }
/// Another allocator, whose memory becomes NaN when it is given back: as work of the stream of the thread that gives it back,
/// after what was given to that stream, so that a use by a stream that nobody waited for shows.
class PoisoningAllocator final : public c10::Allocator {
 public:
  explicit PoisoningAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr piece = inner_->allocate(bytes);
    const c10::Device device = piece.device();
    void* data = piece.release_context();
    const std::lock_guard lock(mutex_);
    if (data) sizes_[data] = static_cast<int64_t>(bytes);
    return {data, data, &give, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }

 private:
  static void give(void* data);

  c10::Allocator* const inner_;
  std::mutex mutex_;
  std::map<void*, int64_t> sizes_;
};

PoisoningAllocator*& poisoning() {
  static PoisoningAllocator* once = nullptr;  // outlives every tensor
  return once;
}

void PoisoningAllocator::give(void* data) {
  if (!data) return;
  PoisoningAllocator& self = *poisoning();
  int64_t bytes = 0;
  {
    const std::lock_guard lock(self.mutex_);
    bytes = self.sizes_.extract(data).mapped();
  }
  if (timeline().fault().empty())  // what is freed when the device has failed is given no work
    timeline().run("freed", timeline().found() ? std::vector<Use>{} : std::vector<Use>{written(data, bytes)},
                   [=, at = memory().shadow_bytes(data, bytes)] { std::memset(at, 0xff, static_cast<size_t>(bytes)); });
  self.inner_->raw_deleter()(data);
}

void allocate_by(c10::Allocator* allocator) {
  if (std::getenv("TESSERA_SIMULATED_POISON")) allocator = poisoning() = new PoisoningAllocator(allocator);
  c10::SetAllocator(at::kPrivateUse1, allocator, /*priority=*/1);
}

struct Pins {
  std::mutex mutex;
  std::map<const char*, int64_t> ranges;

  /// The pinned range that has an address; end(): none.
  auto at(const char* data) {
    auto next = ranges.upper_bound(data);
    if (next == ranges.begin()) return ranges.end();
    return data < std::prev(next)->first + std::prev(next)->second ? std::prev(next) : ranges.end();
  }
};
Pins& pins() {
  static auto* once = new Pins;
  return *once;
}

/// TESSERA_SIMULATED_REFUSES, "pins" or "pins,pinned".
bool refuses(const char* what) {
  const char* wanted = std::getenv("TESSERA_SIMULATED_REFUSES");
  return wanted && std::string_view(wanted).find(what) != std::string_view::npos;
}

/// TESSERA_SIMULATED_PIN, else as much as CUDA's.
int64_t most_pinned() {
  const char* wanted = std::getenv("TESSERA_SIMULATED_PIN");
  return wanted ? std::atoll(wanted) : int64_t{64} << 30;
}

/// As CUDA, refuses too much at once, and memory that is pinned already, in part or whole.
std::string pin(void* data, int64_t bytes) {
  if (refuses("pins")) return "cudaHostRegister: operation not supported (cudaErrorNotSupported)";
  if (bytes > most_pinned()) return "cudaHostRegister: out of memory (cudaErrorMemoryAllocation)";
  const char* begin = static_cast<const char*>(data);
  if (!data || bytes <= 0 || memory().contains(data)) return "invalid argument (cudaErrorInvalidValue)";
  const std::lock_guard lock(pins().mutex);
  const auto next = pins().ranges.lower_bound(begin);
  if (pins().at(begin) != pins().ranges.end() || (next != pins().ranges.end() && next->first < begin + bytes))
    return "already mapped (cudaErrorHostMemoryAlreadyRegistered)";
  pins().ranges[begin] = bytes;
  return "";
}

void unpin(void* data) {
  const std::lock_guard lock(pins().mutex);
  const auto range = pins().ranges.find(static_cast<const char*>(data));
  TORCH_CHECK(range != pins().ranges.end(), data, " is unpinned and was not pinned");
  timeline().forget(data, range->second);
  pins().ranges.erase(range);
}

void* take_pinned(int64_t bytes) {
  if (refuses("pinned")) return nullptr;
  void* data = std::aligned_alloc(4096, static_cast<size_t>(round_up(bytes, int64_t{4096})));
  std::memset(data, 0xff, static_cast<size_t>(bytes));
  const std::lock_guard lock(pins().mutex);
  pins().ranges[static_cast<const char*>(data)] = bytes;
  return data;
}
void give_pinned(void* data) {
  unpin(data);
  std::free(data);
}

/// As CUDA, which takes a range of a copy within one registration or outside of all.
void check_pinned_alike(const void* data, int64_t bytes) {
  const auto *begin = static_cast<const char*>(data), *end = begin + bytes;
  const std::lock_guard lock(pins().mutex);
  const auto own = pins().at(begin), next = pins().ranges.upper_bound(begin);
  const bool whole =
      own == pins().ranges.end() ? next == pins().ranges.end() || next->first >= end : end <= own->first + own->second;
  TORCH_CHECK(whole, "a copy of ", bytes, " bytes at ", data, " ends in another page-locked range than it begins in");
}

/// Where a side of a copy lies: the shadow of memory of the device, or the host memory itself.
void* copied(const void* data, int64_t bytes) {
  TORCH_CHECK(!memory().shadow_contains(data), "a copy was given ", data, ", an address that only kernels may know");
  if (!memory().contains(data)) check_pinned_alike(data, bytes);
  return memory().contains(data) ? memory().shadow_bytes(data, bytes) : const_cast<void*>(data);
}

/// Whether the host must wait for an enqueued copy of the range, as CUDA does for what is not page-locked.
bool is_pageable(const void* data, int64_t bytes) { return !memory().contains(data) && !is_pinned(data, bytes); }

/// Host memory that is not page-locked is the copy's own affair: the host waits.
std::vector<Use> uses_of_copy(void* to, const void* from, int64_t bytes) {
  std::vector<Use> uses;
  if (!is_pageable(from, bytes)) uses.push_back(read(from, bytes));
  if (!is_pageable(to, bytes)) uses.push_back(written(to, bytes));
  return uses;
}

void enqueue_copy(void* to, const void* from, int64_t bytes) {
  TORCH_CHECK(bytes >= 0, "a copy of ", bytes, " bytes");
  if (bytes == 0) return;
  char* target = static_cast<char*>(copied(to, bytes));
  const char* source = static_cast<const char*>(copied(from, bytes));
  TORCH_CHECK(target + bytes <= source || source + bytes <= target, "a copy of ", bytes, " bytes from ", from, " to ",
              to, ": the ranges overlap");
  timeline().run("copy", uses_of_copy(to, from, bytes),
                 [=] { std::memcpy(target, source, static_cast<size_t>(bytes)); });
  if (memory().contains(from) && !memory().contains(to)) timeline().copied_back(bytes);
  if (is_pageable(to, bytes) || is_pageable(from, bytes)) timeline().host_waited();
}

void fill(void* data, uint8_t value, int64_t bytes) {
  if (bytes == 0) return;
  timeline().run("fill", {written(data, bytes)},
                 [=, at = memory().shadow_bytes(data, bytes)] { std::memset(at, value, static_cast<size_t>(bytes)); });
}

/// As CUDA, to page-locked memory alone.
bool write_word(uint32_t* to, uint32_t value) {
  if (is_pageable(to, sizeof *to)) return false;
  timeline().run("word", {written(to, sizeof *to)},
                 [=] { std::atomic_ref(*to).store(value, std::memory_order_release); });
  return true;
}

void copy(void* to, const void* from, int64_t bytes) {
  enqueue_copy(to, from, bytes);
  const bool waited = is_pageable(to, bytes) || is_pageable(from, bytes);
  if (bytes > 0 && !waited && !(memory().contains(to) && memory().contains(from))) timeline().host_waited();
}

// Conversions

void narrow(void* out, const float* x, c10::ScalarType half, int64_t n) {
  timeline().run("narrow", {read(x, 4 * n), written(out, 2 * n)},
                 [=, to = halves(out, n), from = shadow(x, n)] { ops::narrow(to, from, half, n); });
}
void widen(float* out, const void* x, c10::ScalarType half, int64_t n) {
  timeline().run("widen", {read(x, 2 * n), written(out, 4 * n)},
                 [=, to = shadow(out, n), from = halves(x, n)] { ops::widen(to, from, half, n); });
}
void narrow_in_place(float* values, c10::ScalarType half, int64_t n) {
  timeline().run("narrow_in_place", {written(values, 4 * n)},
                 [=, to = shadow(values, n)] { ops::narrow_in_place(to, half, n); });
}
void widen_in_place(float* values, c10::ScalarType half, int64_t n) {
  timeline().run("widen_in_place", {written(values, 4 * n)},
                 [=, to = shadow(values, n)] { ops::widen_in_place(to, half, n); });
}
void high_half(uint16_t* out, const float* x, int64_t n) {
  timeline().run("high_half", {read(x, 4 * n), written(out, 2 * n)},
                 [=, to = shadow(out, n), from = shadow(x, n)] { ops::high_half(to, from, n); });
}
void round(float* values, c10::ScalarType half, int64_t n) {
  timeline().run("round", {written(values, 4 * n)}, [=, x = shadow(values, n)] {
    std::vector<uint16_t> rounded(static_cast<size_t>(n));
    ops::narrow(rounded.data(), x, half, n);
    ops::widen(x, rounded.data(), half, n);
  });
}

// Sums

/// The parts of a sum and its result.
template <class T>
struct Sum {
  std::vector<const T*> parts;  // kernels' addresses
  std::vector<Use> uses;

  Sum(const void* const* addresses, int count, void* out, int64_t out_bytes, int64_t n) {
    TORCH_CHECK(count >= 1 && count <= device::kMaxSummands, "a sum of ", count, " parts; 1 to ", device::kMaxSummands,
                " are allowed");
    for (int p = 0; p < count; ++p) {
      parts.push_back(shadow(static_cast<const T*>(addresses[p]), n));
      uses.push_back(read(addresses[p], n * static_cast<int64_t>(sizeof(T))));
    }
    uses.push_back(written(out, out_bytes));
  }
  /// parts[0] + parts[1] + ..., each as fp32, in this order.
  std::vector<float> values(int64_t n, c10::ScalarType half) const {
    std::vector<float> sum(static_cast<size_t>(n)), part(sum.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      float* to = p == 0 ? sum.data() : part.data();
      if constexpr (sizeof(T) == sizeof(float))
        std::copy_n(parts[p], n, to);
      else
        ops::widen(to, parts[p], half, n);
      if (p > 0) ops::add(sum.data(), part.data(), n);
    }
    return sum;
  }
};

void store(float* to, const std::vector<float>& sum, bool accumulate) {
  if (accumulate)
    ops::add(to, sum.data(), static_cast<int64_t>(sum.size()));
  else
    std::copy(sum.begin(), sum.end(), to);
}

void sum_in_order(float* out, const float* const* parts, int count, int64_t n, bool accumulate) {
  const Sum<float> sum(reinterpret_cast<const void* const*>(parts), count, out, 4 * n, n);
  timeline().run("sum_in_order", sum.uses,
                 [=, to = shadow(out, n)] { store(to, sum.values(n, at::kFloat), accumulate); });
}
void sum_halves(float* out, const void* const* parts, int count, c10::ScalarType half, int64_t n, bool accumulate) {
  const Sum<uint16_t> sum(parts, count, out, 4 * n, n);
  timeline().run("sum_halves", sum.uses, [=, to = shadow(out, n)] { store(to, sum.values(n, half), accumulate); });
}
void sum_halves_rounded(void* out, const void* const* parts, int count, c10::ScalarType half, int64_t n) {
  const Sum<uint16_t> sum(parts, count, out, 2 * n, n);
  timeline().run("sum_halves_rounded", sum.uses,
                 [=, to = halves(out, n)] { ops::narrow(to, sum.values(n, half).data(), half, n); });
}

void sum_of_squares(double* out, const float* x, int64_t n) {
  timeline().run("sum_of_squares", {read(x, 4 * n), written(out, 8)},
                 [=, to = shadow(out, 1), from = shadow(x, n)] { *to = ops::sum_of_squares(from, n); });
}

// The optimiser and quantisers

int64_t scales_of(int64_t n) { return div_up(n, ops::kQuantBlock); }

ops::MomentRange moment(ops::MomentRange m, int64_t n, std::vector<Use>& uses) {
  for (const Use& use :
       {written(m.fp32, 4 * n), written(m.bf16, 2 * n), written(m.codes, n), written(m.scales, 4 * scales_of(n))})
    uses.push_back(use);
  m.fp32 = shadow(m.fp32, n), m.bf16 = shadow(m.bf16, n);
  m.codes = shadow(m.codes, n), m.scales = shadow(m.scales, scales_of(n));
  return m;
}

void adamw(const ops::MasterRange& p, const ops::MomentRange& m, const ops::MomentRange& v, const ops::GradientRange& g,
           int64_t n, const ops::AdamWStep& step) {
  ops::MasterRange master = p;
  master.fp32 = shadow(p.fp32, n), master.bf16 = shadow(p.bf16, n), master.low = shadow(p.low, n);
  const void* in_halves = g.bf16 ? static_cast<const void*>(g.bf16) : g.fp16;
  std::vector<Use> uses = {written(p.fp32, 4 * n), written(p.bf16, 2 * n), written(p.low, 2 * n), read(g.fp32, 4 * n),
                           read(in_halves, 2 * n)};
  const ops::MomentRange first = moment(m, n, uses), second = moment(v, n, uses);
  const float* whole = shadow(g.fp32, n);
  const uint16_t* half = whole || n == 0 ? nullptr : halves(in_halves, n);
  timeline().run("adamw", uses, [=, type = g.bf16 ? at::kBFloat16 : at::kHalf] {
    std::vector<float> wide;
    if (half) {
      wide.resize(static_cast<size_t>(n));
      ops::widen(wide.data(), half, type, n);
    }
    ops::adamw(master, first, second, half ? wide.data() : whole, n, step);
  });
}

/// The masters of an update.
ops::MasterRange masters(ops::MasterRange p, int64_t n, std::vector<Use>& uses) {
  for (const Use& use : {written(p.fp32, 4 * n), written(p.bf16, 2 * n), written(p.low, 2 * n)}) uses.push_back(use);
  p.fp32 = shadow(p.fp32, n), p.bf16 = shadow(p.bf16, n), p.low = shadow(p.low, n);
  return p;
}
ops::GradientRange gradient(ops::GradientRange g, int64_t n, std::vector<Use>& uses) {
  const auto take = [&](auto*& data) {
    if (data) uses.push_back(read(data, n * static_cast<int64_t>(sizeof *data)));
    data = shadow(const_cast<std::remove_cvref_t<decltype(*data)>*>(data), n);
  };
  take(g.fp32), take(g.bf16), take(g.fp16);
  return g;
}

void lion(const ops::MasterRange& p, const ops::MomentRange& m, const ops::GradientRange& g, int64_t n,
          const ops::LionFactors& factors) {
  std::vector<Use> uses;
  const ops::MasterRange to = masters(p, n, uses);
  const ops::MomentRange first = moment(m, n, uses);
  const ops::GradientRange from = gradient(g, n, uses);
  timeline().run("lion", uses, [=] { ops::lion(to, first, from, n, factors); });
}
void schedule_free(const ops::MasterRange& y, float* z, float* v, float* x, const ops::GradientRange& g, int64_t n,
                   const ops::ScheduleFreeFactors& factors) {
  std::vector<Use> uses = {written(z, 4 * n), written(v, 4 * n), written(x, 4 * n)};
  const ops::MasterRange to = masters(y, n, uses);
  const ops::GradientRange from = gradient(g, n, uses);
  timeline().run("schedule_free", uses, [=, z = shadow(z, n), v = shadow(v, n), x = shadow(x, n)] {
    ops::schedule_free(to, z, v, x, from, n, factors);
  });
}
void move_average(float* average, const ops::MasterRange& p, int64_t n, float take) {
  std::vector<Use> uses = {written(average, 4 * n)};
  const ops::MasterRange from = masters(p, n, uses);
  timeline().run("move_average", uses, [=, to = shadow(average, n)] { ops::move_average(to, from, n, take); });
}

void prodigy(const ops::MasterRange& p, const ops::MomentRange& m, const ops::MomentRange& v, float* s, float* start,
             const ops::GradientRange& g, int64_t n, const ops::ProdigyFactors& factors, double* totals) {
  const int64_t parts = 2 * div_up(n, ops::kUpdateGrain);
  std::vector<Use> uses = {written(s, 4 * n), written(start, 4 * n), written(totals, totals ? 8 * parts : 0)};
  const ops::MasterRange to = masters(p, n, uses);
  const ops::MomentRange first = moment(m, n, uses), second = moment(v, n, uses);
  const ops::GradientRange from = gradient(g, n, uses);
  timeline().run("prodigy", uses, [=, s = shadow(s, n), start = shadow(start, n), totals = shadow(totals, parts)] {
    ops::prodigy(to, first, second, s, start, from, n, factors, totals);
  });
}
void add_totals(double* out, const double* parts, int64_t count) {
  timeline().run("add_totals", {written(out, 16), read(parts, 16 * count)},
                 [=, to = shadow(out, 2), from = shadow(parts, 2 * count)] { ops::add_totals(to, from, count); });
}
ops::DirectionRange direction(ops::DirectionRange d, int64_t n, std::vector<Use>& uses) {
  for (const Use& use : {written(d.fp32, 4 * n), written(d.bf16, 2 * n)}) uses.push_back(use);
  return {shadow(d.fp32, n), shadow(d.bf16, n)};
}
void momentum(const ops::MomentRange& m, const ops::GradientRange& g, int64_t n, const ops::MomentumFactors& factors,
              const ops::DirectionRange& way) {
  std::vector<Use> uses;
  const ops::MomentRange first = moment(m, n, uses);
  const ops::GradientRange from = gradient(g, n, uses);
  const ops::DirectionRange to = direction(way, n, uses);
  timeline().run("momentum", uses, [=] { ops::momentum(first, from, n, factors, to); });
}
void step_along(const ops::MasterRange& p, const ops::DirectionRange& way, int64_t n, float keep, float step) {
  std::vector<Use> uses;
  const ops::MasterRange to = masters(p, n, uses);
  const ops::DirectionRange along = direction(way, n, uses);
  timeline().run("step_along", uses, [=] { ops::step_along(to, along, n, keep, step); });
}

int64_t factors_of(const ops::FactoredPlace& place) { return place.matrices * (place.rows + place.columns); }

ops::ClippedSlice clipped(ops::ClippedSlice s, std::vector<Use>& uses) {
  const int64_t n = s.place.count, factors = factors_of(s.place);
  for (const Use& use : {written(s.second, s.second ? 4 * n : 0), read(s.factors, s.factors ? 4 * factors : 0),
                         read(s.squares, s.squares ? 4 : 0)})
    uses.push_back(use);
  s.gradient = gradient(s.gradient, n, uses);
  s.second = shadow(s.second, n), s.factors = shadow(s.factors, factors), s.squares = shadow(s.squares, 1);
  return s;
}
void add_row_sums(const ops::ClippedSlice& slice, double* sums) {
  const int64_t count = factors_of(slice.place);
  std::vector<Use> uses = {written(sums, 8 * count)};
  const ops::ClippedSlice from = clipped(slice, uses);
  timeline().run("add_row_sums", uses, [=, to = shadow(sums, count)] { ops::add_row_sums(from, to); });
}
ops::CameStep came_step(ops::CameStep step, const ops::FactoredPlace& place, std::vector<Use>& uses) {
  uses.push_back(read(step.factors, step.factors ? 4 * factors_of(place) : 0));
  step.factors = shadow(step.factors, factors_of(place));
  step.p = masters(step.p, place.count, uses), step.first = moment(step.first, place.count, uses);
  return step;
}
void add_residual_sums(const ops::ClippedSlice& slice, const ops::CameStep& step, double* sums) {
  const int64_t count = factors_of(slice.place);
  std::vector<Use> uses = {written(sums, 8 * count)};
  const ops::ClippedSlice from = clipped(slice, uses);
  const ops::CameStep by = came_step(step, slice.place, uses);
  timeline().run("add_residual_sums", uses, [=, to = shadow(sums, count)] { ops::add_residual_sums(from, by, to); });
}
void add_divided_squares(const ops::ClippedSlice& slice, double* sum) {
  std::vector<Use> uses = {written(sum, 8)};
  const ops::ClippedSlice from = clipped(slice, uses);
  timeline().run("add_divided_squares", uses, [=, to = shadow(sum, 1)] { ops::add_divided_squares(from, to); });
}
void add_master_squares(const ops::MasterRange& p, int64_t n, double* sum) {
  std::vector<Use> uses = {written(sum, 8)};
  const ops::MasterRange from = masters(p, n, uses);
  timeline().run("add_master_squares", uses, [=, to = shadow(sum, 1)] { ops::add_master_squares(from, n, to); });
}
void take_means(const ops::FactoredMeans& means) {
  ops::FactoredMeans to = means;
  const int64_t rows = to.place.matrices * to.place.rows, columns = to.place.matrices * to.place.columns;
  to.rows = shadow(to.rows, rows), to.columns = shadow(to.columns, columns), to.sums = shadow(to.sums, rows + columns);
  timeline().run(
      "take_means",
      {written(means.rows, 4 * rows), written(means.columns, 4 * columns), written(means.sums, 4 * (rows + columns))},
      [=] { ops::take_means(to); });
}
void adafactor(const ops::ClippedSlice& slice, const ops::AdafactorStep& step) {
  std::vector<Use> uses = {read(step.size, step.size ? 4 : 0)};
  const ops::ClippedSlice from = clipped(slice, uses);
  ops::AdafactorStep to = step;
  to.size = shadow(step.size, 1);
  to.p = masters(step.p, slice.place.count, uses), to.first = moment(step.first, slice.place.count, uses);
  timeline().run("adafactor", uses, [=] { ops::adafactor(from, to); });
}
void came(const ops::ClippedSlice& slice, const ops::CameStep& step) {
  std::vector<Use> uses;
  const ops::ClippedSlice from = clipped(slice, uses);
  const ops::CameStep to = came_step(step, slice.place, uses);
  timeline().run("came", uses, [=] { ops::came(from, to); });
}

void quantise_int8(int8_t* q, float* scales, const float* x, int64_t n) {
  timeline().run("quantise_int8", {read(x, 4 * n), written(q, n), written(scales, 4 * scales_of(n))},
                 [=, to = shadow(q, n), by = shadow(scales, scales_of(n)), from = shadow(x, n)] {
                   ops::quantise_int8(to, by, from, n);
                 });
}
void dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n) {
  timeline().run("dequantise_int8", {read(q, n), read(scales, 4 * scales_of(n)), written(out, 4 * n)},
                 [=, to = shadow(out, n), from = shadow(q, n), by = shadow(scales, scales_of(n))] {
                   ops::dequantise_int8(to, from, by, n);
                 });
}
void drop(void* x, c10::ScalarType type, const ops::DropRange& range) {
  if (range.rows == 0 || range.cols == 0) return;
  const int64_t n = (range.rows - 1) * range.stride + range.cols;
  const bool whole = type == at::kFloat;
  timeline().run("drop", {written(x, (whole ? 4 : 2) * n)},
                 [=, to = whole ? static_cast<void*>(shadow(static_cast<float*>(x), n)) : halves(x, n)] {
                   ops::drop_range(to, type, range);
                 });
}
void quantise_fp8(uint8_t* codes, float* scales, const float* x, const ops::Fp8Tiles& tiles) {
  const int64_t n = tiles.rows * tiles.cols;
  timeline().run("quantise_fp8", {read(x, 4 * n), written(codes, n), written(scales, 4 * tiles.count())},
                 [=, to = shadow(codes, n), by = shadow(scales, tiles.count()), from = shadow(x, n)] {
                   ops::quantise_fp8(to, by, from, tiles);
                 });
}
void dequantise_fp8(float* out, const uint8_t* codes, const float* scales, const ops::Fp8Tiles& tiles) {
  const int64_t n = tiles.rows * tiles.cols;
  timeline().run("dequantise_fp8", {read(codes, n), read(scales, 4 * tiles.count()), written(out, 4 * n)},
                 [=, to = shadow(out, n), from = shadow(codes, n), by = shadow(scales, tiles.count())] {
                   ops::dequantise_fp8(to, from, by, tiles);
                 });
}

// Operators in one pass

/// Operands of an operator at the addresses of kernels, and the bytes that it uses.
class Operands {
 public:
  Operands(int64_t tokens, int64_t width) : tokens_(tokens), width_(width) {}
  void in(ops::RowsIn& rows) { rows.data = matrix(rows.data, rows.form, false); }
  void out(ops::RowsOut& rows) { rows.data = matrix(rows.data, rows.form, true); }
  template <class T>
  void values(T*& data, int64_t n, bool writes) {
    if (data) uses_.push_back({data, 4 * n, writes});
    data = const_cast<T*>(shadow(const_cast<float*>(data), n));
  }
  void table(ops::RowTable& table, const ops::TableRuns& runs) {
    table.values = flat(table.values, table.form, span(table.stride, runs), false);
  }
  /// One row for all tokens.
  void row(ops::RowsIn& rows) { rows.data = flat(rows.data, rows.form, width_, false); }
  void columns(float*& columns, int64_t groups) { values(columns, groups * width_, true); }
  void sums(ops::TableSums& sums, const ops::TableRuns& runs) {
    if (!sums.partials) return;
    if (!sums.table) return values(sums.partials, runs.groups * width_, true);  // left for add_sums()
    const int64_t rows = std::max(span(sums.stride, runs), (sums.fresh - 1) * sums.stride + width_);
    sums_.push_back(read(sums.partials, 4 * runs.groups * width_)), sums_.push_back(written(sums.table, 4 * rows));
    values(sums.partials, runs.groups * width_, true);
    sums.table = shadow(sums.table, rows);
  }
  void angles(ops::Angles& angles) {
    values(angles.cos, tokens_ * angles.half, false), values(angles.sin, tokens_ * angles.half, false);
  }
  const std::vector<Use>& uses() const { return uses_; }
  /// The second half of a sum over tokens is a kernel of its own.
  void add_groups() const {
    if (!sums_.empty()) timeline().run("add_groups", sums_, [] {});
  }

 private:
  void* matrix(const void* data, ops::Form form, bool writes) { return flat(data, form, tokens_ * width_, writes); }
  void* flat(const void* data, ops::Form form, int64_t n, bool writes) {
    const int64_t size = form == ops::Form::fp32 ? 4 : 2;
    if (!data || n == 0) return nullptr;
    uses_.push_back({data, n * size, writes});
    if (size == 2) return halves(data, n);
    return shadow(static_cast<float*>(const_cast<void*>(data)), n);
  }
  /// Values from the first row of a table to the last that tokens use.
  int64_t span(int64_t stride, const ops::TableRuns& runs) const {
    int64_t last = 0;
    for (int r = 0; r < runs.count; ++r) last = std::max<int64_t>(last, runs.at[r].row);
    return last * stride + width_;
  }

  const int64_t tokens_, width_;
  std::vector<Use> uses_;
  std::vector<Use> sums_;
};

std::vector<Use> together(std::initializer_list<const Operands*> operands) {
  std::vector<Use> uses;
  for (const Operands* on : operands) uses.insert(uses.end(), on->uses().begin(), on->uses().end());
  return uses;
}

void layer_norm(const ops::LayerNormRows& rows) {
  ops::LayerNormRows n = rows;
  Operands on(n.tokens, n.width);
  on.in(n.x), on.out(n.y), on.values(n.stats, 2 * n.tokens, !n.known), on.table(n.scale, n.runs);
  on.table(n.shift, n.runs);
  timeline().run("layer_norm", on.uses(), [n] { ops::layer_norm(n); });
}
void layer_norm_gradients(const ops::LayerNormGradients& rows) {
  ops::LayerNormGradients n = rows;
  Operands on(n.tokens, n.width);
  on.in(n.dy), on.in(n.x), on.values(n.stats, 2 * n.tokens, false), on.table(n.scale, n.runs), on.in(n.beside);
  on.out(n.dx), on.sums(n.scale_sums, n.runs), on.sums(n.shift_sums, n.runs);
  timeline().run("layer_norm_gradients", on.uses(), [n] { ops::layer_norm_gradients(n); });
  on.add_groups();
}
void add_sums(const ops::ManyGroupSums& sums) {
  ops::ManyGroupSums n = sums;
  std::vector<Use> uses;
  for (int s = 0; s < n.count; ++s) {
    ops::GroupSums& sum = n.at[s];
    Operands on(sum.groups, sum.width);
    on.in(sum.values);
    uses.insert(uses.end(), on.uses().begin(), on.uses().end());
    uses.push_back(written(sum.to, 4 * sum.width));
    sum.to = shadow(sum.to, sum.width);
  }
  timeline().run("add_sums", uses, [n] { ops::add_sums(n); });
}
void rms_norm(const ops::RmsNormRows& rows) {
  ops::RmsNormRows n = rows;
  Operands on(n.tokens, n.width);
  on.in(n.x), on.out(n.y), on.values(n.stats, n.tokens, !n.known), on.row(n.w), on.angles(n.angles);
  on.values(n.squares, n.tokens, false);
  timeline().run("rms_norm", on.uses(), [n] { ops::rms_norm(n); });
}
void rms_norm_gradients(const ops::RmsNormGradients& rows) {
  ops::RmsNormGradients n = rows;
  Operands on(n.tokens, n.width);
  ops::TableRuns all;
  all.add(0, 0, n.tokens);
  on.in(n.dy), on.in(n.x), on.values(n.stats, n.tokens, false), on.row(n.w), on.angles(n.angles);
  on.values(n.dots, n.tokens, false), on.out(n.dx), on.sums(n.sums, all), on.columns(n.columns, all.groups);
  timeline().run("rms_norm_gradients", on.uses(), [n] { ops::rms_norm_gradients(n); });
  on.add_groups();
}
void gated_sum(const ops::GatedRows& rows) {
  ops::GatedRows n = rows;
  Operands on(n.tokens, n.width);
  on.in(n.x), on.in(n.y), on.table(n.gate, n.runs), on.out(n.out), on.out(n.rounded);
  timeline().run("gated_sum", on.uses(), [n] { ops::gated_sum(n); });
}
void gated_gradients(const ops::GatedGradients& rows) {
  ops::GatedGradients n = rows;
  Operands on(n.tokens, n.width);
  on.in(n.up), on.in(n.y), on.table(n.gate, n.runs), on.out(n.dy), on.sums(n.sums, n.runs);
  on.columns(n.columns, n.runs.groups);
  timeline().run("gated_gradients", on.uses(), [n] { ops::gated_gradients(n); });
  on.add_groups();
}
void gelu(const ops::GeluRows& rows) {
  ops::GeluRows n = rows;
  Operands on(1, n.values);
  on.in(n.x), on.out(n.y);
  timeline().run("gelu", on.uses(), [n] { ops::gelu(n); });
}
void gelu_gradients(const ops::GeluGradients& rows) {
  ops::GeluGradients n = rows;
  Operands on(n.tokens, n.width);
  on.in(n.dy), on.in(n.x), on.out(n.dx), on.out(n.y);
  on.columns(n.columns, div_up(n.tokens, int64_t{ops::kGroupTokens}));
  timeline().run("gelu_gradients", on.uses(), [n] { ops::gelu_gradients(n); });
}
void silu_glu(const ops::GluRows& rows) {
  ops::GluRows n = rows;
  Operands on(1, n.values);
  on.in(n.x), on.in(n.gate), on.out(n.y);
  timeline().run("silu_glu", on.uses(), [n] { ops::silu_glu(n); });
}
void silu_glu_gradients(const ops::GluGradients& rows) {
  ops::GluGradients n = rows;
  Operands on(1, n.values);
  on.in(n.dy), on.in(n.x), on.in(n.gate), on.out(n.dx), on.out(n.dgate);
  timeline().run("silu_glu_gradients", on.uses(), [n] { ops::silu_glu_gradients(n); });
}
void quantise_lines(const ops::QuantisedLines& lines) {
  ops::QuantisedLines n = lines;
  Operands on(n.rows, n.width);
  on.in(n.x);
  std::vector<Use> uses = on.uses();
  uses.push_back(written(n.codes, n.lines() * n.stride)), uses.push_back(written(n.scales, 4 * n.lines()));
  if (n.counts)
    uses.push_back(written(n.counts, 3 * static_cast<int64_t>(sizeof(double)))), n.counts = shadow(n.counts, 3);
  n.codes = shadow(n.codes, n.lines() * n.stride), n.scales = shadow(n.scales, n.lines());
  timeline().run("quantise_lines", uses, [n] { ops::quantise_lines(n); });
}
void flat_lines(const char* name, const ops::FlatLines& lines, void (*run)(const ops::FlatLines&)) {
  ops::FlatLines n = lines;
  Operands on(1, n.count);
  on.in(n.x);
  std::vector<Use> uses = on.uses();
  const int64_t scales = 4 * n.lines();
  uses.push_back(n.codes ? read(n.scales, scales) : written(n.scales, scales));
  if (n.codes) uses.push_back(written(n.codes, n.count)), n.codes = shadow(n.codes, n.count);
  n.scales = shadow(n.scales, n.lines());
  timeline().run(name, uses, [n, run] { run(n); });
}
void flat_scales(const ops::FlatLines& lines) { flat_lines("flat_scales", lines, ops::flat_scales); }
void flat_codes(const ops::FlatLines& lines) { flat_lines("flat_codes", lines, ops::flat_codes); }
void merge_scales(const ops::MergedScales& scales) {
  ops::MergedScales n = scales;
  std::vector<Use> uses;
  for (int32_t r = 0; r < n.count; ++r) {
    ops::MergedScales::Run& run = n.at[r];
    if (run.from) uses.push_back(read(run.from, 4 * run.count));
    uses.push_back(written(run.to, 4 * run.count));
    run.from = shadow(run.from, run.count), run.to = shadow(run.to, run.count);
  }
  timeline().run("merge_scales", uses, [n] { ops::merge_scales(n); });
}
void turn_codes(const ops::TurnedCodes& codes) {
  ops::TurnedCodes n = codes;
  const int64_t there = n.rows * n.width, turned = n.width * n.stride;
  const std::vector<Use> uses = {read(n.from, there), written(n.to, turned)};
  n.from = shadow(n.from, there), n.to = shadow(n.to, turned);
  timeline().run("turn_codes", uses, [n] { ops::turn_codes(n); });
}
void rotate_rows(const ops::RotatedRows& rows) {
  ops::RotatedRows n = rows;
  Operands on(n.tokens, n.width);
  on.in(n.x), on.out(n.y), on.angles(n.angles);
  timeline().run("rotate_rows", on.uses(), [n] { ops::rotate_rows(n); });
}

/// Entries of a table of taps.
template <class T>
void taps_at(T*& entries, const ops::TapTable& table, int64_t rows, bool writes, std::vector<Use>& uses) {
  const int64_t n = table.taps * rows;
  uses.push_back({entries, n * static_cast<int64_t>(sizeof(int32_t)), writes});
  entries = shadow(const_cast<int32_t*>(entries), n);
}
void depthwise(const ops::DepthwiseRows& rows) {
  ops::DepthwiseRows n = rows;
  Operands x(n.table.sources, n.width), w(n.table.taps, n.width), bias(1, n.width), y(n.table.rows, n.width);
  x.in(n.x), w.in(n.w), bias.in(n.bias), y.out(n.y), y.in(n.through);
  y.columns(n.columns, div_up(n.table.rows, int64_t{ops::kGroupTokens}));
  y.in(n.value), y.in(n.up), y.out(n.d_value);
  const char* what = !rows.value.data ? "depthwise" : !rows.up.data ? "gated_depthwise" : "gated_depthwise_gradients";
  std::vector<Use> uses = together({&x, &w, &bias, &y});
  taps_at(n.table.source, n.table, n.table.rows, false, uses);
  timeline().run(what, uses, [n] { ops::depthwise(n); });
}
void depthwise_gradients(const ops::DepthwiseGradients& rows) {
  ops::DepthwiseGradients n = rows;
  Operands x(n.table.sources, n.width), dy(n.table.rows, n.width);
  x.in(n.x), dy.in(n.dy);
  const int64_t size = (n.table.taps + 1) * n.width, of_groups = n.groups() * size;
  dy.values(n.partials, of_groups, true);
  std::vector<Use> uses = together({&x, &dy}), sums = {read(rows.partials, 4 * of_groups)};
  taps_at(n.table.source, n.table, n.table.rows, false, uses);
  if (n.dw) sums.push_back(written(n.dw, 4 * n.table.taps * n.width));
  if (n.db) sums.push_back(written(n.db, 4 * n.width));
  n.dw = shadow(n.dw, n.table.taps * n.width), n.db = shadow(n.db, n.width);
  timeline().run("depthwise_gradients", uses, [n] { ops::depthwise_gradients(n); });
  timeline().run("add_taps", sums, [] {});
}
void invert_taps(const ops::InvertedTaps& taps) {
  ops::InvertedTaps n = taps;
  std::vector<Use> uses;
  taps_at(n.table.source, n.table, n.table.rows, false, uses);
  taps_at(n.inverse, n.table, n.table.sources, true, uses);
  timeline().run("invert_taps", uses, [n] { ops::invert_taps(n); });
}

/// Operands of linear attention, and what each token's heads have.
class HeadOperands : public Operands {
 public:
  HeadOperands(int64_t tokens, int64_t heads) : Operands(tokens, heads * ops::kStateHead), places_(tokens * heads) {}
  template <class T>
  void of_heads(T*& data, bool writes) {
    values(data, places_, writes);
  }

 private:
  const int64_t places_;
};
/// Of the states of all heads, as an operand's rows: tables and their partial sums.
Operands of_states(int64_t heads) { return {1, heads * (ops::kStateHead + 1) * ops::kStateHead}; }

void add_states(const ops::StateSums& rows) {
  ops::StateSums n = rows;
  HeadOperands on(n.tokens, n.heads);
  Operands states = of_states(n.heads);
  on.in(n.a), on.in(n.b), on.in(n.c), on.of_heads(n.down, false), on.of_heads(n.slope, false);
  states.sums(n.sums, n.runs);
  timeline().run("add_states", together({&on, &states}), [n] { ops::add_states(n); });
  states.add_groups();
}
void state_results(const ops::StateResults& rows) {
  ops::StateResults n = rows;
  HeadOperands on(n.tokens, n.heads);
  Operands states = of_states(n.heads);
  on.in(n.rotated), on.in(n.q), on.out(n.out), on.of_heads(n.down, true), states.table(n.states, n.runs);
  timeline().run("state_results", together({&on, &states}), [n] { ops::state_results(n); });
}
void state_gradients(const ops::StateGradients& rows) {
  ops::StateGradients n = rows;
  HeadOperands on(n.tokens, n.heads);
  Operands states = of_states(n.heads);
  on.in(n.a), on.in(n.b), on.in(n.c), on.out(n.da), on.out(n.db), on.out(n.dc), states.table(n.states, n.runs);
  timeline().run("state_gradients", together({&on, &states}), [n] { ops::state_gradients(n); });
}
void state_result_gradients(const ops::StateResultGradients& rows) {
  ops::StateResultGradients n = rows;
  HeadOperands on(n.tokens, n.heads);
  Operands states = of_states(n.heads);
  on.in(n.dy), on.in(n.out), on.in(n.q), on.of_heads(n.down, false), on.out(n.rotated), on.out(n.dq),
      on.of_heads(n.slope, true);
  states.table(n.states, n.runs);
  timeline().run("state_result_gradients", together({&on, &states}), [n] { ops::state_result_gradients(n); });
}

/// As CUDA, after all that the device was given.
void give(void* data) {
  if (!data) return;
  if (timeline().delays()) timeline().await_all();
  timeline().forget(data, memory().bytes_of(data));
  memory().give(data);
}

/// A function of the table. A thread that was not placed would make itself a context on the first device, half a GiB of its
/// memory, and be answered by that one: with CUDA nobody sees it.
template <auto function, class Pointer = decltype(+function)>
struct Placed;
template <auto function, class Result, class... Arguments>
struct Placed<function, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    check_placed();
    return function(std::forward<Arguments>(arguments)...);
  }
};
template <auto function>
constexpr auto placed = &Placed<function>::call;

const device::Backend kTable = {
    .version = device::kBackendVersion,
    .name = "simulated",
    .torch_version = TORCH_VERSION,
    .cuda_version = 0,
    .type = c10::DeviceType::PrivateUse1,
    .count = [] { return visible_devices(); },
    .properties = properties,
    .place = set_current_device,
    .wait = placed<[] { timeline().await_all(); }>,
    .make_stream = placed<[](device::Priority priority) { return timeline().make_stream(priority); }>,
    .free_stream = placed<[](device::Stream stream) { timeline().free_stream(stream); }>,
    .set_stream = placed<[](device::Stream stream) { timeline().set_stream(stream); }>,
    .make_event = placed<[](bool timed) { return timeline().make_event(timed); }>,
    .free_event = placed<[](device::Event event) { timeline().free_event(event); }>,
    .record = placed<[](device::Event event) { timeline().record(event); }>,
    .wait_for = placed<[](device::Event event) { timeline().wait_for(event); }>,
    .await = placed<[](device::Event event) { timeline().await(event); }>,
    .has_happened = placed<[](device::Event event) { return timeline().has_happened(event); }>,
    .seconds_between =
        placed<[](device::Event from, device::Event to) { return timeline().seconds_between(from, to); }>,
    .begin_graph = placed<[] { timeline().begin_graph(); }>,
    .end_graph = placed<[]() -> device::Graph { return timeline().end_graph(); }>,
    .launch = placed<[](device::Graph graph) { timeline().launch(*static_cast<SimulatedGraph*>(graph)); }>,
    .free_graph = placed<[](device::Graph graph) { delete static_cast<SimulatedGraph*>(graph); }>,
    .graph_nodes =
        placed<[](device::Graph graph) { return timeline().nodes_of(*static_cast<SimulatedGraph*>(graph)); }>,
    .write_word = placed<write_word>,
    .fault = placed<[] { return timeline().fault(); }>,
    .label = [](const std::string& what) { timeline().label(what); },
    .host_uses =
        [](const void* data, int64_t bytes, bool writes) {
          if (is_pinned(data, bytes)) timeline().host_uses({data, bytes, writes});
        },
    .communicators = &stand_in_communicators(),
    .take = placed<take>,
    .give = placed<give>,
    .allocate_by = allocate_by,
    .pin = placed<pin>,
    .most_pinned = most_pinned,
    .unpin = placed<unpin>,
    .take_pinned = placed<take_pinned>,
    .give_pinned = placed<give_pinned>,
    .fill = placed<fill>,
    .copy = placed<copy>,
    .enqueue_copy = placed<enqueue_copy>,
    .narrow = placed<narrow>,
    .widen = placed<widen>,
    .narrow_in_place = placed<narrow_in_place>,
    .widen_in_place = placed<widen_in_place>,
    .high_half = placed<high_half>,
    .round = placed<round>,
    .sum_in_order = placed<sum_in_order>,
    .sum_halves = placed<sum_halves>,
    .sum_halves_rounded = placed<sum_halves_rounded>,
    .sum_of_squares = placed<sum_of_squares>,
    .adamw = placed<adamw>,
    .lion = placed<lion>,
    .schedule_free = placed<schedule_free>,
    .move_average = placed<move_average>,
    .prodigy = placed<prodigy>,
    .add_totals = placed<add_totals>,
    .momentum = placed<momentum>,
    .step_along = placed<step_along>,
    .add_row_sums = placed<add_row_sums>,
    .add_residual_sums = placed<add_residual_sums>,
    .add_divided_squares = placed<add_divided_squares>,
    .add_master_squares = placed<add_master_squares>,
    .take_means = placed<take_means>,
    .adafactor = placed<adafactor>,
    .came = placed<came>,
    .quantise_int8 = placed<quantise_int8>,
    .dequantise_int8 = placed<dequantise_int8>,
    .quantise_fp8 = placed<quantise_fp8>,
    .dequantise_fp8 = placed<dequantise_fp8>,
    .drop = placed<drop>,
    .layer_norm = placed<layer_norm>,
    .layer_norm_gradients = placed<layer_norm_gradients>,
    .rms_norm = placed<rms_norm>,
    .rms_norm_gradients = placed<rms_norm_gradients>,
    .gated_sum = placed<gated_sum>,
    .gated_gradients = placed<gated_gradients>,
    .gelu = placed<gelu>,
    .gelu_gradients = placed<gelu_gradients>,
    .quantise_lines = placed<quantise_lines>,
    .flat_scales = placed<flat_scales>,
    .flat_codes = placed<flat_codes>,
    .merge_scales = placed<merge_scales>,
    .turn_codes = placed<turn_codes>,
    .rotate_rows = placed<rotate_rows>,
    .depthwise = placed<depthwise>,
    .depthwise_gradients = placed<depthwise_gradients>,
    .invert_taps = placed<invert_taps>,
    .add_states = placed<add_states>,
    .state_results = placed<state_results>,
    .state_gradients = placed<state_gradients>,
    .state_result_gradients = placed<state_result_gradients>,
    .add_sums = placed<add_sums>,
    .silu_glu = placed<silu_glu>,
    .silu_glu_gradients = placed<silu_glu_gradients>,
    .products = &stand_in_products(),
};

}  // namespace

const device::Backend& simulated_device() {
  [[maybe_unused]] static const bool once = [] {
    memory();
    register_device();
    register_operators();
    return true;
  }();
  return kTable;
}

int64_t pinned_bytes() {
  const std::lock_guard lock(pins().mutex);
  int64_t bytes = 0;
  for (const auto& [begin, size] : pins().ranges) bytes += size;
  return bytes;
}

bool is_pinned(const void* data, int64_t bytes) {
  const std::lock_guard lock(pins().mutex);
  const char *at = static_cast<const char*>(data), *end = at + bytes;
  for (auto range = pins().at(at); at < end; range = pins().at(at)) {
    if (range == pins().ranges.end()) return false;
    at = range->first + range->second;
  }
  return true;
}

}  // namespace tessera::testing
