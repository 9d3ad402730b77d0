#pragma once
// The operands of one call on the simulated device, as tensors of the CPU over the same bytes, and the results back. With
// sizes alone (memory.h) they are meta tensors.
//
//   HostForms host;
//   const at::Tensor y = host.back(at::mm(host.of(a), host.of(b)));    // a new tensor of the device
//   host.settle();                                                     // after an operator that writes or resizes operands
#include <vector>

#include "tessera/torch_headers.h"
#include "timeline.h"

namespace tessera::testing {

class HostForms {
 public:
  /// The same for the same tensor; tensors over one storage stay so. A tensor of the CPU is its own.
  at::Tensor of(const at::Tensor& t);
  c10::Storage of(const c10::Storage& storage);

  /// Of a result: the operand itself, a view of an operand's storage, or else a copy on the device of the operands.
  at::Tensor back(const at::Tensor& result);
  /// Operands whose form was resized, or has another storage, become like it.
  void settle();

  /// Of the tensors so far; without one the current device of the thread.
  c10::Device device() const;

 private:
  struct Form {
    at::Tensor device, host;
  };
  struct StorageForm {
    c10::Storage device, host;
    const void* data;  ///< of the host form, to see whether it has grown
  };
  c10::Storage storage_behind(const c10::Storage& host);
  void settle(const Form& form);

  // of the call, not of the process: addresses are used again
  std::vector<Form> tensors_;
  std::vector<StorageForm> storages_;
};

/// That of the forms: a CPU's, or with sizes alone meta.
c10::Device host_device();

/// The bytes between the first and the last element of a tensor of the device, for the timeline.
Use use_of(const at::Tensor& t, bool writes);

/// A new tensor of the device, NaN as all new memory.
at::Tensor empty_on_device(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType type, c10::Device device);

}  // namespace tessera::testing
