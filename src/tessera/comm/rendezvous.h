#pragma once
// Which rank a process is, and where it meets the others.
//
//   Comm comm(Rendezvous{.rank = 1, .world = 2, .port = 29500}, mesh, timeout_seconds);
#include <string>

namespace tessera::comm {

struct Rendezvous {
  int rank = 0, world = 1, local_rank = 0, local_world = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  bool store_is_hosted = false;  ///< the launcher (ours, torchrun's agent) hosts the store; else rank 0 does
  int attempt = 0;  ///< restarts (ours or torchrun's); a hosted store still has the keys of the last attempt
  /// Ranks that were asked for; more than `world` when our launcher goes on without some nodes. 0: as many as there
  /// are.
  int asked_world = 0;
  std::string restarted_after;  ///< what ended the last attempt, in our launcher's words; empty in the first

  bool single() const { return world == 1; }
};

}  // namespace tessera::comm
