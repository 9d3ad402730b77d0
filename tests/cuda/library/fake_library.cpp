// A library that gives a table as libtessera_cuda.so does: with the version, the LibTorch and the number of devices that
// the build says.
#include "tessera/comm/device_backend.h"

extern "C" const tessera::comm::DeviceBackend* tessera_cuda_register() {
  static tessera::comm::DeviceBackend table = {};
  table.version = tessera::comm::kDeviceBackendVersion + OTHER_VERSION;
  table.name = "fake";
  table.torch_version = TORCH;
  table.cuda_version = 13000;
  table.count = [] { return DEVICES; };
  return &table;
}
