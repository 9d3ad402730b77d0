#pragma once
// Starts the ranks of this machine and watches them: names a lost rank, ends the others, leaves no process behind, and
// restarts them if allowed, also without machines that are gone.
//
//   int code = launch({.nproc = 2}, {"train", "recipe.toml"}, run_rank);
#include <string>
#include <vector>

#include "tessera/comm/launch/nodes.h"
#include "tessera/comm/launch/rank_process.h"

namespace tessera::comm {

/// Runs `program` with `arguments` in nproc processes, forks of this one ([Note: ranks are forked]). Returns the exit code
/// of the first rank on any machine that failed by itself; 5 for a rank that was killed or went silent, or a lost machine;
/// 75 after a signal that all ranks answered with a checkpoint, or a second one that left an earlier checkpoint.
int launch(const LaunchOptions& options, const std::vector<std::string>& arguments, const RankProgram& program);

}  // namespace tessera::comm
