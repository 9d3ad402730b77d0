#pragma once
// What --help prints: of a command as much as fits a terminal, of its recipe keys a table at a time or all.
//
//   tessera train --help            its flags and the keys that most runs set
//   tessera train --help plan       every key of [plan]
//   tessera train --help-all        every key, and the options of other programs that are taken
#include <string>

#include "commands.h"

namespace tessera::apps {

std::string help(const Command& command);
/// Throws UserError (usage) naming the nearest table.
std::string help_on(const Command& command, const std::string& table);
std::string help_all(const Command& command);

}  // namespace tessera::apps
