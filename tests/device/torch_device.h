#pragma once
// What LibTorch wants of a device beside operators: an allocator, a current device for each thread, a name.

namespace tessera::testing {

/// Once a process.
void register_device();

/// The calling thread's device.
int current_device();
void set_current_device(int index);
/// Ends the process where the calling thread has no device of its own and that of the process is not the first.
void check_placed();

}  // namespace tessera::testing
