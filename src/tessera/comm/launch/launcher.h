#pragma once
// Starts the ranks of this machine and watches them: names a lost rank, ends the others, leaves no process behind, and
// restarts them if allowed, also without machines that are gone.
//
//   int code = launch({.nproc = 2}, {"train", "recipe.toml"}, run_rank);
//   const LaunchOptions options = by_environment({.nproc = 0, .nnodes = 0, .node_rank = -1, .max_restarts = -1});
#include <string>
#include <vector>

#include "tessera/comm/launch/nodes.h"
#include "tessera/comm/launch/rank_process.h"

namespace tessera::comm {

/// Fills in what flags leave open, 0 ranks or nodes, node rank -1, restarts -1 and no endpoint, by the variables of what
/// started this launcher: torchrun's PET_* (Kubeflow), SkyPilot's, mpirun's or srun's of one process a machine, or the
/// index of a Kubernetes job's pod. What nobody says stays open (ranks, restarts) or becomes that of one machine. Throws
/// UserError (usage) naming variables that are missing or contradict each other.
LaunchOptions by_environment(LaunchOptions options);

/// Runs `program` with `arguments` in nproc processes, forks of this one ([Note: ranks are forked]). Returns the exit code
/// of the first rank on any machine that failed by itself; 5 for a rank that was killed or went silent, or a lost machine;
/// 75 after a signal that all ranks answered with a checkpoint, or a second one that left an earlier checkpoint.
int launch(const LaunchOptions& options, const std::vector<std::string>& arguments, const RankProgram& program);

}  // namespace tessera::comm
