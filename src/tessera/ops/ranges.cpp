#include "tessera/ops/ranges.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/device/staging.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/ops/factored.h"
#include "tessera/ops/half.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

using at::Tensor;

namespace {

// Functions of CPUs that no other header has.

void round(float* values, at::ScalarType half, int64_t n) {
  constexpr int64_t kBlock = 4096;  // small enough that both forms stay in the cache
  std::array<uint16_t, kBlock> rounded;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    narrow(rounded.data(), values + first, half, count);
    widen(values + first, rounded.data(), half, count);
  }
}

/// Calls take(first, sum, count) with parts[0] + parts[1] + ... in fp32, block by block: sums stay in the cache.
template <class Take>
void each_sum(const void* const* parts, int summands, at::ScalarType half, int64_t n, const Take& take) {
  constexpr int64_t kBlock = 1024;
  std::array<float, kBlock> sum, part;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    const auto at = [&](int p) { return static_cast<const uint16_t*>(parts[p]) + first; };
    widen(sum.data(), at(0), half, count);
    for (int p = 1; p < summands; ++p) {
      widen(part.data(), at(p), half, count);
      for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    take(first, sum.data(), count);
  }
}

void sum_halves(float* out, const void* const* parts, int count, at::ScalarType half, int64_t n, bool accumulate) {
  each_sum(parts, count, half, n, [&](int64_t first, const float* sum, int64_t values) {
    if (accumulate)
      for (int64_t i = 0; i < values; ++i) out[first + i] += sum[i];
    else
      std::copy_n(sum, values, out + first);
  });
}

void sum_halves_rounded(void* out, const void* const* parts, int count, at::ScalarType half, int64_t n) {
  each_sum(parts, count, half, n, [&](int64_t first, const float* sum, int64_t values) {
    narrow(static_cast<uint16_t*>(out) + first, sum, half, values);
  });
}

device::Backend of_cpu() {
  device::Backend cpu{};
  cpu.name = "cpu", cpu.type = c10::DeviceType::CPU;
  cpu.take = [](int64_t bytes) { return std::malloc(static_cast<size_t>(bytes)); };
  cpu.give = std::free;
  cpu.copy = cpu.enqueue_copy = [](void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  };
  cpu.narrow = narrow, cpu.widen = widen, cpu.narrow_in_place = narrow_in_place, cpu.widen_in_place = widen_in_place;
  cpu.high_half = high_half, cpu.round = round;
  cpu.sum_halves = sum_halves, cpu.sum_halves_rounded = sum_halves_rounded;
  cpu.sum_of_squares = [](double* out, const float* x, int64_t n) { *out = sum_of_squares(x, n); };
  cpu.adamw = [](const MasterRange& p, const MomentRange& m, const MomentRange& v, const GradientRange& g, int64_t n,
                 const AdamWStep& step) { adamw(p, m, v, g.fp32, n, step); };
  cpu.lion = lion, cpu.schedule_free = schedule_free, cpu.move_average = move_average;
  cpu.prodigy = prodigy, cpu.add_totals = add_totals, cpu.momentum = momentum, cpu.step_along = step_along;
  cpu.add_row_sums = add_row_sums, cpu.add_residual_sums = add_residual_sums;
  cpu.add_divided_squares = add_divided_squares, cpu.add_master_squares = add_master_squares;
  cpu.take_means = take_means, cpu.adafactor = adafactor, cpu.came = came;
  cpu.quantise_int8 = quantise_int8, cpu.dequantise_int8 = dequantise_int8;
  cpu.quantise_fp8 = quantise_fp8, cpu.dequantise_fp8 = dequantise_fp8;
  cpu.drop = drop_range;
  return cpu;
}

std::vector<const void*> addresses(const std::vector<Tensor>& parts) {
  check_internal(!on_device(parts[0]) || parts.size() <= device::kMaxSummands, "ops.ranges",
                 std::to_string(parts.size()) + " parts of a sum, at most " + std::to_string(device::kMaxSummands));
  std::vector<const void*> all;
  for (const Tensor& part : parts) all.push_back(read_address(part));
  return all;
}

}  // namespace

const device::Backend& backend(bool on_device) {
  static const device::Backend cpu = of_cpu();
  const device::Backend* table = on_device ? device::used() : &cpu;
  check_internal(table, "ops.ranges", "a tensor lies on a device, and the process uses none");
  return *table;
}

void* address(const Tensor& t) { return t.mutable_data_ptr(); }
const void* read_address(const Tensor& t) { return t.const_data_ptr(); }

void copy_bytes(void* to, const void* from, int64_t bytes, bool device) {
  if (device)
    tessera::device::copy(to, from, bytes);
  else
    std::memcpy(to, from, static_cast<size_t>(bytes));
}

void copy_bytes(const Tensor& to, const Tensor& from) {
  check_internal(to.nbytes() == from.nbytes(), "ops.ranges", "a copy between ranges of different sizes");
  copy_bytes(address(to), read_address(from), static_cast<int64_t>(from.nbytes()), on_device(to) || on_device(from));
}

void enqueue_copy(void* to, const void* from, int64_t bytes, bool device) {
  if (device)
    tessera::device::enqueue_copy(to, from, bytes);
  else
    std::memcpy(to, from, static_cast<size_t>(bytes));
}

void enqueue_copy(const Tensor& to, const Tensor& from) {
  check_internal(to.nbytes() == from.nbytes(), "ops.ranges", "a copy between ranges of different sizes");
  enqueue_copy(address(to), read_address(from), static_cast<int64_t>(from.nbytes()), on_device(to) || on_device(from));
}

void swap_bytes(const Tensor& a, const Tensor& b, const Tensor& between) {
  check_internal(a.nbytes() == b.nbytes(), "ops.ranges", "ranges of different sizes are to change places");
  auto *first = static_cast<char*>(address(a)), *second = static_cast<char*>(address(b));
  const auto bytes = static_cast<int64_t>(a.nbytes());
  if (!on_device(a) && !on_device(b)) {
    std::swap_ranges(first, first + bytes, second);
    return;
  }
  check_internal(between.defined() && between.nbytes() > 0, "ops.ranges",
                 "ranges of a device change places by way of no memory");
  const auto piece = static_cast<int64_t>(between.nbytes());
  for (int64_t at = 0; at < bytes; at += piece) {
    const int64_t count = std::min(piece, bytes - at);
    enqueue_copy(address(between), first + at, count, true);
    enqueue_copy(first + at, second + at, count, true);
    enqueue_copy(second + at, read_address(between), count, true);
  }
}

namespace {

const device::Backend& of_both(const Tensor& out, const Tensor& x) {
  if (on_device(out) != on_device(x)) refuse_host_pointer(on_device(out) ? out : x);
  return backend(out);
}

}  // namespace

void narrow(const Tensor& out, const Tensor& x) {
  of_both(out, x).narrow(address(out), x.const_data_ptr<float>(), out.scalar_type(), x.numel());
}

void widen(const Tensor& out, const Tensor& x) {
  of_both(out, x).widen(out.mutable_data_ptr<float>(), read_address(x), x.scalar_type(), x.numel());
}

void narrow_in_place(const Tensor& values, at::ScalarType type) {
  backend(values).narrow_in_place(values.mutable_data_ptr<float>(), type, values.numel());
}

void widen_in_place(const Tensor& values, at::ScalarType type) {
  backend(values).widen_in_place(values.mutable_data_ptr<float>(), type, values.numel());
}

void high_half(const Tensor& out, const Tensor& x) {
  of_both(out, x).high_half(static_cast<uint16_t*>(address(out)), x.const_data_ptr<float>(), x.numel());
}

void round_values(const Tensor& values, at::ScalarType type) {
  backend(values).round(values.mutable_data_ptr<float>(), type, values.numel());
}

void sum_of_squares(const Tensor& out, const Tensor& x) {
  of_both(out, x).sum_of_squares(out.mutable_data_ptr<double>(), x.const_data_ptr<float>(), x.numel());
}

void sum_halves(const Tensor& out, const std::vector<Tensor>& parts, bool accumulate) {
  of_both(out, parts[0])
      .sum_halves(out.mutable_data_ptr<float>(), addresses(parts).data(), static_cast<int>(parts.size()),
                  parts[0].scalar_type(), out.numel(), accumulate);
}

void sum_halves_rounded(const Tensor& out, const std::vector<Tensor>& parts) {
  of_both(out, parts[0])
      .sum_halves_rounded(address(out), addresses(parts).data(), static_cast<int>(parts.size()), parts[0].scalar_type(),
                          out.numel());
}

Tensor device_scratch(int which, int64_t count, at::ScalarType type) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  void* data = device::scratch(which, bytes);
  if (!data)
    throw UserError(Exit::memory, "ops.ranges",
                    "the device has no " + format_bytes(bytes) + " left for intermediate values",
                    "leave more of the device free: lower plan.budget");
  return at::from_blob(data, {count}, at::TensorOptions(type).device(device::here()));
}

HostBytes::HostBytes(void* data, int64_t bytes, bool device, Contents contents)
    : data_(data), bytes_(bytes), seen_(data) {
  if (!device || bytes == 0) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  seen_ = copy_.get();
  if (contents == Contents::read) copy_bytes(seen_, data_, bytes_, true);
}

void HostBytes::keep() const {
  if (copy_) copy_bytes(data_, seen_, bytes_, true);
}

}  // namespace tessera::ops
