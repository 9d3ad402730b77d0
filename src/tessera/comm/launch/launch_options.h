#pragma once
// Options of the launcher: ranks, machines and time-outs.
//
//   LaunchOptions options{.nproc = 8, .nnodes = 2, .node_rank = 1, .endpoint = "10.0.0.1:29500"};
#include <string>

namespace tessera::comm {

struct LaunchOptions {
  int nproc = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string endpoint;  ///< HOST:PORT of the store, hosted by node 0's launcher; empty: this machine, a free port
  double timeout = 60;   ///< seconds without a heartbeat after which a rank counts as lost
  bool bind = false;     ///< each rank to its share of the processors: [Note: bound ranks]
  /// how often ranks are restarted after one is lost (exit code 5; other failures would repeat)
  int max_restarts = 0;
  std::string run;    ///< folder of the run that is trained, locked by node 0's launcher; empty: none
  int min_nodes = 0;  ///< smallest number of machines with which the run continues if others are missing; 0: all
};

}  // namespace tessera::comm
