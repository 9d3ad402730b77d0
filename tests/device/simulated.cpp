// The table of the simulated device (device/backend.h): our functions of CPUs over the shadow.
#include "simulated.h"

#include <ATen/Version.h>
#include <c10/core/Allocator.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "memory.h"
#include "operators.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/fp8.h"
#include "tessera/ops/half.h"
#include "tessera/ops/int8.h"
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
  device::Properties out{.name = "simulated", .uuid = "simulated-" + std::to_string(index)};
  out.bytes = memory().capacity();
  out.free = out.bytes - memory().taken(index);
  return out;
}

std::unique_ptr<comm::Transport> make_transport(c10d::Store&, int, int, double) {
  TORCH_CHECK(false, "the simulated device has no transport of its own: its ranks exchange host copies through Gloo");
}

// Memory

void* take(int64_t bytes) { return memory().take(bytes, current_device()); }
void allocate_by(c10::Allocator* allocator) { c10::SetAllocator(at::kPrivateUse1, allocator, /*priority=*/1); }

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

/// As CUDA, refuses memory that is pinned already, in part or whole.
bool pin(void* data, int64_t bytes) {
  const char* begin = static_cast<const char*>(data);
  if (!data || bytes <= 0 || memory().contains(data)) return false;
  const std::lock_guard lock(pins().mutex);
  const auto next = pins().ranges.lower_bound(begin);
  if (pins().at(begin) != pins().ranges.end() || (next != pins().ranges.end() && next->first < begin + bytes))
    return false;
  pins().ranges[begin] = bytes;
  return true;
}

void unpin(void* data) {
  const std::lock_guard lock(pins().mutex);
  TORCH_CHECK(pins().ranges.erase(static_cast<const char*>(data)), data, " is unpinned and was not pinned");
}

/// Where a side of a copy lies: the shadow of memory of the device, or the host memory itself.
void* copied(const void* data, int64_t bytes) {
  TORCH_CHECK(!memory().shadow_contains(data), "a copy was given ", data, ", an address that only kernels may know");
  return memory().contains(data) ? memory().shadow_bytes(data, bytes) : const_cast<void*>(data);
}

void copy(void* to, const void* from, int64_t bytes) {
  TORCH_CHECK(bytes >= 0, "a copy of ", bytes, " bytes");
  if (bytes == 0) return;
  char* target = static_cast<char*>(copied(to, bytes));
  const char* source = static_cast<const char*>(copied(from, bytes));
  TORCH_CHECK(target + bytes <= source || source + bytes <= target, "a copy of ", bytes, " bytes from ", from, " to ",
              to, ": the ranges overlap");
  std::memcpy(target, source, static_cast<size_t>(bytes));
}

// Conversions

void narrow(void* out, const float* x, c10::ScalarType half, int64_t n) {
  ops::narrow(halves(out, n), shadow(x, n), half, n);
}
void widen(float* out, const void* x, c10::ScalarType half, int64_t n) {
  ops::widen(shadow(out, n), halves(x, n), half, n);
}
void narrow_in_place(float* values, c10::ScalarType half, int64_t n) {
  ops::narrow_in_place(shadow(values, n), half, n);
}
void widen_in_place(float* values, c10::ScalarType half, int64_t n) { ops::widen_in_place(shadow(values, n), half, n); }
void high_half(uint16_t* out, const float* x, int64_t n) { ops::high_half(shadow(out, n), shadow(x, n), n); }
void round(float* values, c10::ScalarType half, int64_t n) {
  std::vector<uint16_t> rounded(static_cast<size_t>(n));
  float* x = shadow(values, n);
  ops::narrow(rounded.data(), x, half, n);
  ops::widen(x, rounded.data(), half, n);
}

// Sums

void check_summands(int count) {
  TORCH_CHECK(count >= 1 && count <= device::kMaxSummands, "a sum of ", count, " parts; 1 to ", device::kMaxSummands,
              " are allowed");
}

/// parts[0] + parts[1] + ..., each fp32 by `read`, in this order.
template <class Read>
std::vector<float> sum_of(int count, int64_t n, const Read& read) {
  check_summands(count);
  std::vector<float> sum(static_cast<size_t>(n)), part(sum.size());
  read(0, sum.data());
  for (int p = 1; p < count; ++p) {
    read(p, part.data());
    ops::add(sum.data(), part.data(), n);
  }
  return sum;
}

void store(float* out, const std::vector<float>& sum, bool accumulate) {
  const auto n = static_cast<int64_t>(sum.size());
  float* to = shadow(out, n);
  if (accumulate)
    ops::add(to, sum.data(), n);
  else
    std::copy(sum.begin(), sum.end(), to);
}

void sum_in_order(float* out, const float* const* parts, int count, int64_t n, bool accumulate) {
  store(out, sum_of(count, n, [&](int p, float* to) { std::copy_n(shadow(parts[p], n), n, to); }), accumulate);
}

std::vector<float> sum_of_halves(const void* const* parts, int count, c10::ScalarType half, int64_t n) {
  return sum_of(count, n, [&](int p, float* to) { ops::widen(to, halves(parts[p], n), half, n); });
}

void sum_halves(float* out, const void* const* parts, int count, c10::ScalarType half, int64_t n, bool accumulate) {
  store(out, sum_of_halves(parts, count, half, n), accumulate);
}

void sum_halves_rounded(void* out, const void* const* parts, int count, c10::ScalarType half, int64_t n) {
  ops::narrow(halves(out, n), sum_of_halves(parts, count, half, n).data(), half, n);
}

double sum_of_squares(const float* x, int64_t n) { return ops::sum_of_squares(shadow(x, n), n); }

// The optimiser and quantisers

ops::MomentRange moment(ops::MomentRange m, int64_t n) {
  m.fp32 = shadow(m.fp32, n), m.bf16 = shadow(m.bf16, n);
  m.codes = shadow(m.codes, n), m.scales = shadow(m.scales, div_up(n, ops::kQuantBlock));
  return m;
}

void adamw(const ops::MasterRange& p, const ops::MomentRange& m, const ops::MomentRange& v, const ops::GradientRange& g,
           int64_t n, const ops::AdamWStep& step) {
  ops::MasterRange master = p;
  master.fp32 = shadow(p.fp32, n), master.bf16 = shadow(p.bf16, n), master.low = shadow(p.low, n);
  std::vector<float> wide;
  const float* gradient = shadow(g.fp32, n);
  if (!gradient && n) {
    wide.resize(static_cast<size_t>(n));
    ops::widen(wide.data(), halves(g.bf16 ? g.bf16 : g.fp16, n), g.bf16 ? at::kBFloat16 : at::kHalf, n);
    gradient = wide.data();
  }
  ops::adamw(master, moment(m, n), moment(v, n), gradient, n, step);
}

void quantise_int8(int8_t* q, float* scales, const float* x, int64_t n) {
  ops::quantise_int8(shadow(q, n), shadow(scales, div_up(n, ops::kQuantBlock)), shadow(x, n), n);
}
void dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n) {
  ops::dequantise_int8(shadow(out, n), shadow(q, n), shadow(scales, div_up(n, ops::kQuantBlock)), n);
}
void quantise_fp8(uint8_t* codes, float* scales, const float* x, const ops::Fp8Tiles& tiles) {
  const int64_t n = tiles.rows * tiles.cols;
  ops::quantise_fp8(shadow(codes, n), shadow(scales, tiles.count()), shadow(x, n), tiles);
}
void dequantise_fp8(float* out, const uint8_t* codes, const float* scales, const ops::Fp8Tiles& tiles) {
  const int64_t n = tiles.rows * tiles.cols;
  ops::dequantise_fp8(shadow(out, n), shadow(codes, n), shadow(scales, tiles.count()), tiles);
}

constexpr device::Backend kTable = {
    .version = device::kBackendVersion,
    .name = "simulated",
    .torch_version = TORCH_VERSION,
    .cuda_version = 0,
    .type = c10::DeviceType::PrivateUse1,
    .count = [] { return visible_devices(); },
    .properties = properties,
    .place = set_current_device,
    .wait = [] {},
    .make_transport = make_transport,
    .take = take,
    .give = [](void* data) { memory().give(data); },
    .allocate_by = allocate_by,
    .pin = pin,
    .unpin = unpin,
    .copy = copy,
    .narrow = narrow,
    .widen = widen,
    .narrow_in_place = narrow_in_place,
    .widen_in_place = widen_in_place,
    .high_half = high_half,
    .round = round,
    .sum_in_order = sum_in_order,
    .sum_halves = sum_halves,
    .sum_halves_rounded = sum_halves_rounded,
    .sum_of_squares = sum_of_squares,
    .adamw = adamw,
    .quantise_int8 = quantise_int8,
    .dequantise_int8 = dequantise_int8,
    .quantise_fp8 = quantise_fp8,
    .dequantise_fp8 = dequantise_fp8,
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
  const char* begin = static_cast<const char*>(data);
  const auto range = pins().at(begin);
  return range != pins().ranges.end() && begin + bytes <= range->first + range->second;
}

}  // namespace tessera::testing
