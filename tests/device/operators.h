#pragma once

namespace tessera::testing {

/// LibTorch's operators on tensors of the simulated device. Once a process.
void register_operators();

}  // namespace tessera::testing
