#include "host_forms.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "memory.h"

namespace tessera::testing {

using at::Tensor;
using c10::Storage;

namespace {

constexpr c10::DispatchKeySet kDeviceKeys(c10::DispatchKey::PrivateUse1);

c10::DispatchKeySet host_keys() {
  return c10::DispatchKeySet(sizes_alone() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU);
}

/// A tensor over a storage with another's shape.
Tensor over(const Storage& storage, c10::DispatchKeySet keys, const Tensor& like) {
  Tensor out = at::detail::make_tensor<c10::TensorImpl>(Storage(storage), keys, like.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  out._set_conj(like.is_conj());
  out._set_neg(like.is_neg());
  return out;
}

int64_t bytes_spanned(const Tensor& t) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize()));
}

}  // namespace

c10::Device host_device() { return sizes_alone() ? at::kMeta : at::kCPU; }

Storage HostForms::of(const Storage& storage) {
  for (const StorageForm& known : storages_)
    if (known.device.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return known.host;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  void* data = sizes_alone() ? nullptr : memory().shadow_bytes(storage.data(), storage.data() ? bytes : 0);
  // resizable: an operator may enlarge its result
  const Storage host(Storage::use_byte_size_t(), storage.data() ? bytes : 0, c10::DataPtr(data, host_device()),
                     c10::GetAllocator(host_device().type()), /*resizable=*/true);
  storages_.push_back({storage, host, data});
  return host;
}

Tensor HostForms::of(const Tensor& t) {
  if (!t.defined() || !t.is_privateuseone()) return t;
  for (const Form& known : tensors_)
    if (known.device.is_same(t)) return known.host;
  tensors_.push_back({t, over(of(t.storage()), host_keys(), t)});
  return tensors_.back().host;
}

/// The device's storage that a host storage is the form of; undefined: none.
Storage HostForms::storage_behind(const Storage& host) {
  for (const StorageForm& known : storages_)
    if (known.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return known.device;
  return {};
}

c10::Device HostForms::device() const {
  if (!storages_.empty()) return storages_[0].device.device();
  return c10::impl::VirtualGuardImpl(at::kPrivateUse1).getDevice();
}

Tensor HostForms::back(const Tensor& result) {
  if (!result.defined()) return result;
  TORCH_CHECK(result.layout() == at::kStrided, "the simulated device has no tensors of layout ", result.layout());
  for (const Form& form : tensors_)
    if (form.host.is_same(result)) return form.device;
  if (const Storage storage = storage_behind(result.storage())) return over(storage, kDeviceKeys, result);
  Tensor out = empty_on_device(result.sizes(), result.strides(), result.scalar_type(), device());
  if (result.numel() == 0) return out;
  timeline().also({use_of(out, true)});
  if (sizes_alone()) return out;
  const int64_t bytes = bytes_spanned(result);
  void* to = memory().shadow_bytes(out.storage().data(), bytes);
  if (result._is_zerotensor())  // which has no memory
    std::memset(to, 0, bytes);
  else
    std::memcpy(to, result.const_data_ptr(), bytes);
  return out;
}

void HostForms::settle() {
  for (StorageForm& form : storages_) {
    if (form.host.data() == form.data && form.host.nbytes() <= form.device.nbytes()) continue;
    const auto bytes = static_cast<int64_t>(form.host.nbytes());
    const c10::DeviceGuard guard(form.device.device());
    c10::DataPtr grown = c10::GetAllocator(at::kPrivateUse1)->allocate(bytes);
    timeline().also({written(grown.get(), bytes)});
    if (bytes && !sizes_alone()) std::memcpy(memory().shadow_bytes(grown.get(), bytes), form.host.data(), bytes);
    form.device.set_data_ptr_noswap(std::move(grown));
    form.device.set_nbytes(bytes);
  }
  for (const Form& form : tensors_) settle(form);
}

void HostForms::settle(const Form& form) {
  const Tensor &device = form.device, &host = form.host;
  Storage storage = storage_behind(host.storage());
  if (!storage) storage = back(host).storage();
  if (storage.unsafeGetStorageImpl() != device.storage().unsafeGetStorageImpl())
    device.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  if (host.sizes() != device.sizes() || host.strides() != device.strides() ||
      host.storage_offset() != device.storage_offset())
    device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
}

Use use_of(const Tensor& t, bool writes) {
  if (!t.defined() || !t.is_privateuseone() || t.numel() == 0) return {nullptr, 0, writes};
  const auto* first = static_cast<const char*>(t.storage().data()) + t.storage_offset() * t.element_size();
  return {first, bytes_spanned(t), writes};
}

Tensor empty_on_device(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType type, c10::Device device) {
  const c10::DeviceGuard guard(device);
  const Tensor out =
      at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(at::kPrivateUse1), kDeviceKeys, type);
  if (const auto bytes = static_cast<int64_t>(out.storage().nbytes()); bytes && !sizes_alone())
    std::memset(memory().shadow_bytes(out.storage().data(), bytes), 0xff, bytes);
  return out;
}

}  // namespace tessera::testing
