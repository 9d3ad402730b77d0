#pragma once
// What connects this process with the other ranks: Gloo through c10d (gloo.cpp), or nothing in a build without it
// (no_gloo.cpp). Internal to the room.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/rendezvous.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

class Network {
 public:
  virtual ~Network() = default;
  /// A way between `members`, of which this process is `index`, for a purpose ("gather", "control"); all of them ask for it
  /// under the same name. Lives as long as this. Throws UserError (rank_lost; usage for a limit of the system).
  virtual std::unique_ptr<Transport> connect(const std::string& name, std::string_view purpose,
                                             const std::vector<int>& members, int index) = 0;
  /// What one of those who use `name` passes under the key, the others with an empty text; on all of them.
  virtual std::string agree(const std::string& name, const std::string& key, const std::string& mine) = 0;
};

/// Meets the other ranks, of which there are some. Throws UserError: rank_lost if one does not arrive, usage in a build that
/// runs one rank alone.
std::unique_ptr<Network> open_network(const Rendezvous& place, double timeout);

/// The address by which the other machines reach this one.
std::string own_address(const Rendezvous& place);
bool on_one_machine(const std::vector<int>& members, const Rendezvous& place);

}  // namespace tessera::comm
