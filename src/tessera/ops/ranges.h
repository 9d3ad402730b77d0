#pragma once
// Flat ranges of tensors, wherever they lie, by the table of functions of their device (device/backend.h). A CPU has a table
// too, of our functions (half.h, bf16.h, adamw.h); a GPU's give the same bits.
//
//   copy_bytes(slot, shard);                       // between any two of host and device
//   narrow(slot.view(at::kBFloat16), shard);       // fp32 to 16 bits
//   HostBytes bytes(shard.data, n, on_device);     // what the host reads and writes of a device's memory
//
// Tensors are contiguous. Operands of one call lie on one device, but for copies.
#include <cstdint>
#include <vector>

#include "tessera/device/backend.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Whether the tensor's memory is a device's, which the host cannot read.
inline bool on_device(const at::Device& d) { return !d.is_cpu() && !d.is_meta(); }
inline bool on_device(const at::Tensor& t) { return on_device(t.device()); }

/// The functions of the process's device, or of CPUs: there copies are done at once, memory is the heap's, and the functions
/// for streams, pages and messages are null.
const device::Backend& backend(bool on_device);
inline const device::Backend& backend(const at::Tensor& t) { return backend(on_device(t)); }

/// The address of a tensor's first element on its own device.
void* address(const at::Tensor& t);
const void* read_address(const at::Tensor& t);

/// An operator of fused.h where the tensor lies: by its CPU twin, or by the device's function. None on meta tensors.
template <class Rows>
void run_at(const at::Tensor& t, void (*here)(const Rows&), void (*device::Backend::*there)(const Rows&),
            const Rows& rows) {
  if (t.is_meta()) return;
  on_device(t) ? (backend(true).*there)(rows) : here(rows);
}

/// As many bytes from one place to another; the ranges do not overlap. `device`: whether one of both is the device's.
void copy_bytes(void* to, const void* from, int64_t bytes, bool device);
void copy_bytes(const at::Tensor& to, const at::Tensor& from);
/// The same, but a copy from or to a device is left to the thread's stream: device/streams.h says when it is done.
void enqueue_copy(void* to, const void* from, int64_t bytes, bool device);
void enqueue_copy(const at::Tensor& to, const at::Tensor& from);

/// Exchanges two ranges of one size, of which the device may have `a`: enqueue_copy() then does it a piece at a time by way of
/// `between`, bytes of the device.
void swap_bytes(const at::Tensor& a, const at::Tensor& b, const at::Tensor& between = {});

/// `out` 16 bits, `x` fp32: rounded to nearest even; widen is the reverse.
void narrow(const at::Tensor& out, const at::Tensor& x);
void widen(const at::Tensor& out, const at::Tensor& x);
/// See half.h.
void narrow_in_place(const at::Tensor& values, at::ScalarType type);
void widen_in_place(const at::Tensor& values, at::ScalarType type);
/// See bf16.h.
void high_half(const at::Tensor& out, const at::Tensor& x);
/// Each fp32 value becomes that of its 16-bit form.
void round_values(const at::Tensor& values, at::ScalarType type);

/// See adamw.h. Writes the result to `out`, one fp64 beside `x`, and the host does not wait for it.
void sum_of_squares(const at::Tensor& out, const at::Tensor& x);

/// out = parts[0] + parts[1] + ... in this order, or adds that to it. Parts of 16 bits are added in fp32; `out` fp32.
void sum_halves(const at::Tensor& out, const std::vector<at::Tensor>& parts, bool accumulate);
/// The same, rounded to the parts' dtype. `out` may be one of the parts.
void sum_halves_rounded(const at::Tensor& out, const std::vector<at::Tensor>& parts);

/// Values in device::scratch(). Throws UserError (memory).
at::Tensor device_scratch(int which, int64_t count, at::ScalarType type);

/// A range of memory as the host sees it: itself, or a copy of a device's, which keep() writes back.
class HostBytes {
 public:
  enum class Contents { read, unread };
  HostBytes(void* data, int64_t bytes, bool device, Contents contents = Contents::read);
  void* data() const { return seen_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(seen_);
  }
  void keep() const;

 private:
  void* data_;
  int64_t bytes_;
  std::unique_ptr<std::byte[]> copy_;
  void* seen_;
};

}  // namespace tessera::ops
