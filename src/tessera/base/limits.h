#pragma once
// Which limit of this process stands behind an error of the system.
//
//   "no room for the status of the ranks: " + std::strerror(errno) + limit_behind(errno)
//   // "...: Too many open files; the limit of open files is 16 (ulimit -n)"
#include <string>

namespace tessera {

/// "; the limit of ... is N (ulimit -x)" for an errno that a limit may cause and where one is set, else empty.
std::string limit_behind(int error);

}  // namespace tessera
