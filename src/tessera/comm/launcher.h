#pragma once
// Starts the ranks of this machine and watches them: names the one that is lost, ends the others, leaves nothing
// behind; starts them again when it may, also without the machines that are gone.
//
//   int code = launch({.nproc = 2}, {"train", "recipe.toml"});
#include <string>
#include <vector>

#include "tessera/comm/launch_options.h"

namespace tessera::comm {

/// Runs `arguments` of this executable as nproc ranks. The code is that of the first rank that failed by itself, on
/// whichever machine, 5 for a rank that was killed or fell silent and for a machine that is gone, 75 after a signal
/// that all ranks answered with a checkpoint.
int launch(const LaunchOptions& options, const std::vector<std::string>& arguments);

}  // namespace tessera::comm
