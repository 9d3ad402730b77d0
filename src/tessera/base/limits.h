#pragma once
// Which limit of this process stands behind an error of the system.
//
//   "no room for the status of the ranks: " + std::strerror(errno) + limit_behind(errno)
//   // "...: Too many open files; the limit of open files is 16 (ulimit -n)"
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/check.h"

namespace tessera {

/// "; the limit of ... is N (ulimit -x)" for an errno that limits may cause, for each that is set; else empty.
std::string limit_behind(int error);

/// The error (memory) of a program that ran out of memory, addresses or threads, by what the standard library and
/// LibTorch throw then. Nothing for other exceptions.
std::optional<UserError> shortage(const std::exception& error);

/// Throws UserError (memory) where a limit (ulimit -v) leaves this process fewer addresses than these.
void require_addresses(int64_t bytes);

/// "/proc/self/exe". Throws UserError (usage) where this process cannot see /proc.
std::filesystem::path this_program();

}  // namespace tessera
