#pragma once
// How the members of a group reach each other, and who learns that they wait.
//
// Network is what connects this process with the other ranks: Gloo through c10d (gloo.cpp), or nothing in a build without it
// (no_gloo.cpp). Only this room opens it.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/rendezvous.h"
#include "tessera/torch_headers.h"

namespace tessera::device {
class Ways;
}  // namespace tessera::device

namespace tessera::comm {

/// Point-to-point transport of one group, implemented by a backend.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Sends `out[i]` to member i and receives `in[i]` from it, for every other member (undefined tensor: nothing).
  /// Returns when all transfers are done, or enqueued. Throws on time-out or a lost peer. `what`: "all_gather".
  virtual void exchange(const char* what, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) = 0;
  /// The members' `in`, one after the other. False: the transport has nothing better than an exchange.
  virtual bool all_gather(const at::Tensor& /*out*/, const at::Tensor& /*in*/) { return false; }
  /// out [n] = the sum over members of this member's part of their in [members * n]; in place the sum of all: in the order of
  /// the transport's library. False: it has none.
  virtual bool reduce_scatter(const at::Tensor& /*out*/, const at::Tensor& /*in*/) { return false; }
  virtual bool all_reduce(const at::Tensor& /*values*/) { return false; }
  /// How it reaches the others, where that is known.
  virtual const device::Ways* ways() const { return nullptr; }
  /// Whether host memory travels through memory that the members share, not through sockets.
  virtual bool by_shared_memory() const { return false; }
  /// From here on messages of tensors in these bytes of the device go from where they lie, where the library can.
  virtual void lend(void* /*data*/, int64_t /*bytes*/) {}
  /// Whether messages go from where tensors lie, without a copy of the library's own: it has taken all that it was lent.
  virtual bool lends() const { return false; }
  /// Whether its library has collectives for the group's purpose.
  virtual bool has_collectives() const { return false; }
  /// Opens a symmetric window (device/communicators.h). Empty; else why it is refused, and the transport can do no more.
  virtual std::string open_window(void* /*data*/, int64_t /*bytes*/) { return "there is no library"; }
  virtual void close_window() {}
};

/// Called by the thread of a collective when it begins to wait for others (true) and when it is done (false). There is
/// no second call after a failure, so the failed collective stays known.
using Watch = std::function<void(bool waits)>;

/// Called by a thread of its own when the device has been in the messages of `doing` for a while (true), and when it no
/// longer is.
using DeviceWatch = std::function<void(const std::string& doing, bool waits)>;

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
