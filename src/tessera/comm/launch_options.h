#pragma once
// How many ranks a run has on how many machines, and how long they are waited for.
//
//   LaunchOptions options{.nproc = 8, .nnodes = 2, .node_rank = 1, .endpoint = "10.0.0.1:29500"};
#include <string>

namespace tessera::comm {

struct LaunchOptions {
  int nproc = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string endpoint;  ///< HOST:PORT where node 0's launcher hosts the store; empty: this machine, a free port
  double timeout = 60;   ///< seconds of silence after which a rank counts as stopped
  int max_restarts = 0;  ///< how often ranks are started again after one is lost (exit code 5; others would come again)
  std::string run;       ///< folder of the run that is trained, which node 0's launcher locks; empty: none
  int min_nodes = 0;     ///< machines with which the run goes on when others do not come; 0: all
};

}  // namespace tessera::comm
