#pragma once
// How a command or a rank ends with an error: its message in the log, and its exit code.
//
//   try { ... } catch (const std::exception& error) { std::_Exit(static_cast<int>(tell_error(error))); }
#include <exception>

#include "tessera/base/check.h"

namespace tessera::job {

/// Logs what failed and returns the exit code: of a GPU that failed for good in place of the errors that follow from it; of
/// our own errors; 7 or 3 for files; 8 for memory; 70 for everything else, which is a bug.
Exit tell_error(const std::exception& error);

}  // namespace tessera::job
