#include "torch_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "memory.h"
#include "tessera/device/streams.h"
#include "timeline.h"

namespace tessera::testing {

namespace {

thread_local int current = 0;

c10::Device device_at(int index) { return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

/// Serves until an allocator is given: each tensor is an allocation of its own.
class TakingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? memory().take(static_cast<int64_t>(bytes), current) : nullptr;
    TORCH_CHECK(data || !bytes, "the simulated device is out of memory: ", bytes, " bytes wanted, ",
                memory().taken(current), " of ", memory().capacity(), " in use");
    return {data, data, &give, device_at(current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const auto n = static_cast<int64_t>(bytes);
    std::memcpy(memory().shadow_bytes(to, n), memory().shadow_bytes(from, n), bytes);
  }

 private:
  static void give(void* data) {
    if (data) timeline().forget(data, memory().bytes_of(data));
    memory().give(data);
  }
};

/// What autograd asks for: it computes on the first stream of a device, the others have copies and functions of the table.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return at::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_at(current); }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kSimulatedDevices; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kSimulatedDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  /// For at::manual_seed(), which seeds all devices. Operators draw from the CPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator seeded = at::detail::createCPUGenerator();
    return seeded;
  }
  c10::Device getDeviceFromPtr(void* data) const override { return device_at(memory().device_of(data)); }
};

}  // namespace

int current_device() { return current; }

void set_current_device(int index) {
  TORCH_CHECK(index >= 0 && index < kSimulatedDevices, "there is no simulated device ", index, "; there are ",
              kSimulatedDevices);
  current = index;
}

void check_placed() {
  if (!device::used() || device::here().index() == 0 || device::here().index() == current) return;
  std::fprintf(stderr, "a thread that computes on device %d was not placed there: it is on device %d, '%s'\n",
               static_cast<int>(device::here().index()), current, device::labelled().c_str());
  std::abort();
}

void register_device() {
  static TakingAllocator allocator;
  c10::register_privateuse1_backend("simulated");
  c10::SetAllocator(at::kPrivateUse1, &allocator);
  c10::impl::registerDeviceGuard(at::kPrivateUse1, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace tessera::testing
