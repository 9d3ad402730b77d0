#include "tessera/comm/device_backend.h"

#include <dlfcn.h>

#include <filesystem>

namespace tessera::comm {

namespace {

struct Loaded {
  const DeviceBackend* table = nullptr;
  std::string absence;
};

Loaded load() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::exists("/proc/driver/nvidia/version", ignored) && !fs::exists("/dev/nvidiactl", ignored))
    return {nullptr, "this machine has no NVIDIA driver"};
  const fs::path path = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "libtessera_cuda.so";
  if (!fs::exists(path, ignored)) return {nullptr, path.string() + " does not exist: build on a machine with nvcc"};
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return {nullptr, dlerror()};
  const auto get = reinterpret_cast<decltype(&tessera_cuda_register)>(dlsym(library, "tessera_cuda_register"));
  const DeviceBackend* table = get ? get() : nullptr;
  if (!table || table->version != kDeviceBackendVersion)
    return {nullptr, path.string() + " is from another build: build again"};
  if (table->count() == 0) return {nullptr, "the NVIDIA driver shows no device"};
  return {table, ""};
}

const Loaded& loaded() {
  static const Loaded once = load();  // never unloaded: streams and communicators outlive any scope
  return once;
}

}  // namespace

const DeviceBackend* device_backend() { return loaded().table; }
const char* device_backend_absence() { return loaded().absence.c_str(); }

}  // namespace tessera::comm
