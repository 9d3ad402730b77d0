#include "tessera/job/device.h"

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/comm/device_backend.h"

namespace tessera::job {

namespace {

constexpr const char* kUnused =
    "this version computes on CPUs only: its engine does not yet keep tensors on a GPU (docs/gpus.md)";

}  // namespace

void check_device(std::string_view wanted, bool log) {
  if (wanted == "cpu") return;
  const bool gpu = comm::device_backend() != nullptr;
  if (wanted == "cuda")
    throw UserError(Exit::usage, "run.device",
                    std::string("\"cuda\": ") + (gpu ? kUnused : comm::device_backend_absence()),
                    "set run.device = \"cpu\" or \"auto\" to train on the CPU");
  if (gpu && log) log::info(std::string("run.device = auto: the CPU; there is a GPU, but ") + kUnused);
}

}  // namespace tessera::job
