#pragma once
// NCCL through c10d behind comm's Transport: one communicator for each group.
#include <memory>

#include "tessera/comm/comm.h"

namespace c10d {
class Store;
}

namespace tessera::cuda {

std::unique_ptr<comm::Transport> make_nccl_transport(c10d::Store& store, int index, int size, double timeout_seconds);

}  // namespace tessera::cuda
