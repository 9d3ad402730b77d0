#include "tessera/ops/ranges.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/device/staging.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/half.h"
#include "tessera/ops/host.h"

namespace tessera::ops {

using at::Tensor;

namespace {

const device::Backend& table() {
  const device::Backend* used = device::used();
  check_internal(used, "ops.ranges", "a tensor lies on a device, and the process uses none");
  return *used;
}

float* floats(const Tensor& t) { return static_cast<float*>(address(t)); }
const float* read_floats(const Tensor& t) { return static_cast<const float*>(read_address(t)); }

/// Calls take(first, sum, count) with parts[0] + parts[1] + ... in fp32, block by block: sums stay in the cache.
template <class Take>
void each_sum(const std::vector<Tensor>& parts, const Take& take) {
  constexpr int64_t kBlock = 1024;
  std::array<float, kBlock> sum, part;
  const at::ScalarType type = parts[0].scalar_type();
  for (int64_t first = 0; first < parts[0].numel(); first += kBlock) {
    const int64_t count = std::min(kBlock, parts[0].numel() - first);
    const auto at = [&](size_t p) { return static_cast<const uint16_t*>(host_pointer<const void>(parts[p])) + first; };
    widen(sum.data(), at(0), type, count);
    for (size_t p = 1; p < parts.size(); ++p) {
      widen(part.data(), at(p), type, count);
      for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    take(first, sum.data(), count);
  }
}

std::vector<const void*> addresses(const std::vector<Tensor>& parts) {
  check_internal(parts.size() <= device::kMaxSummands, "ops.ranges",
                 std::to_string(parts.size()) + " parts of a sum, at most " + std::to_string(device::kMaxSummands));
  std::vector<const void*> all;
  for (const Tensor& part : parts) all.push_back(read_address(part));
  return all;
}

}  // namespace

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

void narrow(const Tensor& out, const Tensor& x) {
  if (on_device(x)) return table().narrow(address(out), read_floats(x), out.scalar_type(), x.numel());
  narrow(host_pointer<void>(out), host_pointer<const float>(x), out.scalar_type(), x.numel());
}

void widen(const Tensor& out, const Tensor& x) {
  if (on_device(x)) return table().widen(floats(out), read_address(x), x.scalar_type(), x.numel());
  widen(host_pointer<float>(out), host_pointer<const void>(x), x.scalar_type(), x.numel());
}

void narrow_in_place(const Tensor& values, at::ScalarType type) {
  if (on_device(values)) return table().narrow_in_place(floats(values), type, values.numel());
  narrow_in_place(host_pointer<float>(values), type, values.numel());
}

void widen_in_place(const Tensor& values, at::ScalarType type) {
  if (on_device(values)) return table().widen_in_place(floats(values), type, values.numel());
  widen_in_place(host_pointer<float>(values), type, values.numel());
}

void high_half(const Tensor& out, const Tensor& x) {
  if (on_device(x)) return table().high_half(static_cast<uint16_t*>(address(out)), read_floats(x), x.numel());
  high_half(static_cast<uint16_t*>(host_pointer<void>(out)), host_pointer<const float>(x), x.numel());
}

void round_values(const Tensor& values, at::ScalarType type) {
  if (on_device(values)) return table().round(floats(values), type, values.numel());
  constexpr int64_t kBlock = 4096;  // small enough that both forms stay in the cache
  std::array<uint16_t, kBlock> rounded;
  auto* x = host_pointer<float>(values);
  for (int64_t first = 0; first < values.numel(); first += kBlock) {
    const int64_t count = std::min(kBlock, values.numel() - first);
    narrow(rounded.data(), x + first, type, count);
    widen(x + first, rounded.data(), type, count);
  }
}

double sum_of_squares(const Tensor& x) {
  if (!on_device(x)) return sum_of_squares(host_pointer<const float>(x), x.numel());
  const Tensor there = device_scratch(2, 1, at::kDouble);
  sum_of_squares(there, x);
  double sum = 0;
  copy_bytes(&sum, read_address(there), sizeof(sum), true);
  return sum;
}

void sum_of_squares(const Tensor& out, const Tensor& x) {
  auto* to = static_cast<double*>(address(out));
  if (on_device(x)) return table().sum_of_squares(to, read_floats(x), x.numel());
  *to = sum_of_squares(host_pointer<const float>(x), x.numel());
}

void sum_halves(const Tensor& out, const std::vector<Tensor>& parts, bool accumulate) {
  if (on_device(out))
    return table().sum_halves(floats(out), addresses(parts).data(), static_cast<int>(parts.size()),
                              parts[0].scalar_type(), out.numel(), accumulate);
  float* to = host_pointer<float>(out);
  each_sum(parts, [&](int64_t first, const float* sum, int64_t count) {
    if (accumulate)
      for (int64_t i = 0; i < count; ++i) to[first + i] += sum[i];
    else
      std::copy_n(sum, count, to + first);
  });
}

void sum_halves_rounded(const Tensor& out, const std::vector<Tensor>& parts) {
  if (on_device(out))
    return table().sum_halves_rounded(address(out), addresses(parts).data(), static_cast<int>(parts.size()),
                                      parts[0].scalar_type(), out.numel());
  auto* to = static_cast<uint16_t*>(host_pointer<void>(out));
  each_sum(parts, [&](int64_t first, const float* sum, int64_t count) {
    narrow(to + first, sum, parts[0].scalar_type(), count);
  });
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
