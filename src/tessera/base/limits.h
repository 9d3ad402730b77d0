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
#include <string_view>

#include "tessera/base/check.h"

namespace tessera {

/// "; the limit of ... is N (ulimit -x)" for an errno that limits may cause, for each that is set; else empty.
std::string limit_behind(int error);
/// The same of an error that stands in a library's message in the system's words.
std::string limit_behind(std::string_view message);

/// The error (memory) of a program that ran out of memory, addresses or threads, by what the standard library and
/// LibTorch throw then. Nothing for other exceptions.
std::optional<UserError> shortage(const std::exception& error);

/// Throws UserError (memory) where a limit (ulimit -v) leaves this process fewer addresses than these.
void require_addresses(int64_t bytes);
/// Throws UserError (usage) where a limit (ulimit -n) leaves this process fewer open files than these.
void require_files(int64_t count);

/// "/proc/self/exe". Throws UserError (usage) where this process cannot see /proc.
std::filesystem::path this_program();

}  // namespace tessera
