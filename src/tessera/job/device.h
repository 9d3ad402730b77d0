#pragma once
// Which processor a run computes on.
//
//   at::Device device = job::chosen_device(recipe.run.device, rank == 0);
#include <string_view>

#include "tessera/ops/tensor.h"

namespace tessera::job {

/// `wanted`: run.device. "cuda" without a GPU that can be used is an error with the reason (UserError, Exit::usage),
/// never a run on the CPU; "auto" takes the CPU and, if a GPU is there, logs why it is not used (where `log`).
at::Device chosen_device(std::string_view wanted, bool log = true);

}  // namespace tessera::job
