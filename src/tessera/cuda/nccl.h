#pragma once
// NCCL as the table of device/communicators.h. The library is LibTorch's own; nothing links to it.
#include "tessera/device/communicators.h"

namespace tessera::cuda {

const device::Communicators& nccl_communicators();

}  // namespace tessera::cuda
