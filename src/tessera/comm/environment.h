#pragma once
// Environment variables as texts and numbers, with messages that name them.
//
//   const std::optional<int> rank = env::number("SLURM_PROCID");      // empty if unset or empty
#include <optional>
#include <string>
#include <string_view>

namespace tessera::comm::env {

std::optional<std::string> text(const char* name);

/// Throws UserError (usage) if the value is not a number from 0 on.
std::optional<int> number(const char* name);

/// "NAME is 3", "NAME is not set".
std::string describe(const char* name);

/// Throws UserError (usage) of comm.rendezvous.
[[noreturn]] void refuse(const std::string& what,
                         const std::string& hint = "start ranks with tessera launch or torchrun");

/// MASTER_PORT if it is set, else 0. Throws UserError (usage) if the value is not a port.
int master_port();

/// A port from 10000 to 29999 (below the ephemeral range), the same for the same text, so that ranks of one job need
/// not communicate it.
int port_of(std::string_view job);

}  // namespace tessera::comm::env
