#pragma once
// Starts the ranks of this machine and watches them: names the one that is lost, ends the others, leaves nothing
// behind; starts them again when it may, also without the machines that are gone.
//
//   int code = launch({.nproc = 2}, {"train", "recipe.toml"});
#include <string>
#include <vector>

namespace tessera::comm {

struct LaunchOptions {
  int nproc = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string endpoint;  ///< HOST:PORT where node 0's launcher hosts the store; empty: this machine, a free port
  double timeout = 60;   ///< seconds of silence after which a rank counts as stopped
  int max_restarts = 0;  ///< how often ranks are started again after one is lost (exit code 5; others would come again)
  int min_nodes = 0;     ///< machines with which the run goes on when others do not come; 0: all
};

/// Runs `arguments` of this executable as nproc ranks. The code is that of the first rank that failed by itself, on
/// whichever machine, 5 for a rank that was killed or fell silent and for a machine that is gone, 75 after a signal
/// that all ranks answered with a checkpoint.
int launch(const LaunchOptions& options, const std::vector<std::string>& arguments);

}  // namespace tessera::comm
