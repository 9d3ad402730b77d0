#pragma once
// Variables of the environment as texts and numbers, with messages that name them.
//
//   const std::optional<int> rank = env::number("SLURM_PROCID");      // nothing when unset or empty
#include <optional>
#include <string>
#include <string_view>

namespace tessera::comm::env {

std::optional<std::string> text(const char* name);

/// Throws UserError (usage) for what is no number from 0 on.
std::optional<int> number(const char* name);

/// "NAME is 3", "NAME is not set".
std::string said(const char* name);

/// UserError (usage) of comm.rendezvous.
[[noreturn]] void refuse(const std::string& what,
                         const std::string& hint = "start ranks with tessera launch or torchrun");

/// MASTER_PORT where it is set, 0 else. Throws UserError (usage) for what is no port.
int master_port();

/// The same port from 10000 to 29999 (below those that systems hand out) for the same text: ranks of one job need not
/// be told.
int port_of(std::string_view job);

}  // namespace tessera::comm::env
