#pragma once
// Starts the ranks of this machine and watches them: names a lost rank, ends the others, leaves no process behind, and
// restarts them if allowed, also without machines that are gone.
//
//   int code = launch({.nproc = 2}, {"train", "recipe.toml"});
#include <string>
#include <vector>

#include "tessera/comm/launch/launch_options.h"

namespace tessera::comm {

/// Runs this executable with `arguments` as nproc ranks. Returns the exit code of the first rank on any machine that
/// failed by itself; 5 for a rank that was killed or went silent, or a lost machine; 75 after a signal that all ranks
/// answered with a checkpoint.
int launch(const LaunchOptions& options, const std::vector<std::string>& arguments);

}  // namespace tessera::comm
