#pragma once
// Which rank a process is, and where it finds the others.
//
//   Comm comm(Rendezvous{.rank = 1, .world = 2, .port = 29500}, mesh, timeout_seconds);
#include <string>

namespace tessera::comm {

/// Whether this build has Gloo; without it a program runs one rank alone.
bool has_gloo();

struct Rendezvous {
  int rank = 0, world = 1, local_rank = 0, local_world = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  bool store_is_hosted = false;  ///< the launcher (ours, torchrun's agent) hosts the store; else rank 0 does
  /// number of restarts (ours or torchrun's); a hosted store still has the keys of earlier attempts
  int attempt = 0;
  /// Requested number of ranks; more than `world` if our launcher continues without some nodes. 0: the same as `world`.
  int asked_world = 0;

  bool single() const { return world == 1; }
};

}  // namespace tessera::comm
