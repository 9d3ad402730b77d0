#pragma once
// A device for tests, without a GPU: what runs on it runs on a GPU, with the bits of a CPU.
//
//   device::use(simulated_device(), 0);
//   const at::Tensor x = cpu_tensor.to(device::here());    // "simulated:0"
//   const float* bad = x.const_data_ptr<float>();          // reading bad[0] ends the process, with a word on stderr
//
// It is LibTorch's PrivateUse1 with the name "simulated". Its memory cannot be read or written by host code (memory.h) and
// is NaN where a tensor is new. Operators run LibTorch's kernels of CPUs over the same bytes, so results are those of the
// CPU with TESSERA_KERNELS=aten; where CUDA refuses operands of two devices, so does it. The functions of the table check
// that each range is on the device, within one allocation and aligned, and compute with our functions of CPUs.
//
// It has streams and events; timeline.h says how work in no order is found. Ranks send by a stand-in of NCCL (stand_in.h).
//
// As CUDA, it page-locks 64 GiB at once, or TESSERA_SIMULATED_PIN bytes, refuses copies that two such ranges share, and ends
// the process where a thread that was not placed calls it, once the process computes on another device than the first.
//
// With TESSERA_SIMULATED_REFUSES=pins it page-locks no memory of the host, as some systems do, but has some of its own; with
// "pins,pinned" neither.
//
// With TESSERA_SIMULATED_ATTENTION=1 it has LibTorch's attention kernels of a GPU (attention.h); their values are rounded
// otherwise than a CPU's.
//
// With TESSERA_SIMULATED_SIZES=1 it has sizes and addresses alone (memory.h). TESSERA_SIMULATED_CHIP=sm_90 is the chip that it
// says it is.
//
// What it does not show: NCCL itself, and what CUDA's own kernels refuse.
#include "tessera/device/backend.h"

namespace tessera::testing {

/// Registers itself with LibTorch on the first call, which comes before other threads compute.
const device::Backend& simulated_device();

/// Host memory that pin() has page-locked and unpin() not yet released: bytes, and whether all of a range is, in one piece or
/// in several.
int64_t pinned_bytes();
bool is_pinned(const void* data, int64_t bytes);

}  // namespace tessera::testing
