#pragma once
// Whether a run can compute where its recipe says.
//
//   job::check_device(recipe.run.device, rank == 0);
#include <string_view>

namespace tessera::job {

/// `wanted`: run.device. "cuda" is an error with the reason (UserError, Exit::usage), never a run on the CPU; "auto" takes
/// the CPU and, if a GPU is there, logs why it is not used (where `log`).
void check_device(std::string_view wanted, bool log);

}  // namespace tessera::job
