// A library that gives a table as libtessera_cuda.so does: with the version, the LibTorch and the number of devices that
// the build says.
#include "tessera/device/open.h"

extern "C" const tessera::device::Backend* tessera_cuda_register() {
  static tessera::device::Backend table = {};
  table.version = tessera::device::kBackendVersion + OTHER_VERSION;
  table.name = "fake";
  table.torch_version = TORCH;
  table.cuda_version = 13000;
  table.count = [] { return DEVICES; };
  return &table;
}
