#pragma once
// The rendezvous store of ranks and launchers: short texts under keys, hosted by node 0's launcher, so that it outlives
// any rank, or by rank 0 where there is no launcher.
//
//   HostedStore store("10.0.0.1", 29500, token);             // on node 0
//   StoreLink link("10.0.0.1", 29500, {.token = token}, 65); // anywhere: an answer takes 65 seconds at most
//   link.claim("fault", "rank 3");                           // "rank 3", or what another wrote first
//
// [Note: the rendezvous store]
// LibTorch's TCPStore answers whoever connects, lists its keys, and some of its calls wait without end for a machine
// that is cut off. Ours does four things more:
// - *Proof.* The server greets with a random number; the client answers with one of its own and HMAC(token, both), and
//   the server with HMAC(token, both) of its own kind: each end knows then that the other has the token (token.h), which
//   never travels, and an answer of another connection is worth nothing. Before that a connection can do nothing but
//   hold 80 bytes of memory for 10 seconds; of such connections there are 128 at most, and the oldest goes first.
//   Without a token whoever speaks these words is admitted, and the host says so in a warning.
// - *Deadlines.* Every call of a client ends, with an answer or StoreGone, also when the machine is cut off or the port
//   accepts and stays silent. Time in which the process itself was stopped does not count (patience.h).
// - *Bounds.* A frame has 16 MiB, the store 1 GiB at most. The server never waits for a client: one that does not read
//   is dropped.
// - *Place.* It listens at the address given, where that is one of this machine in numbers, else at all.
// Bytes are neither encrypted nor signed after the greeting: who can change packets on the way between two machines can
// change what is said. That is Gloo's state too, whose data ports know no proof at all.
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tessera/comm/store_client.h"

namespace tessera::comm {

class HostedStore {
 public:
  /// Port 0 selects a free port. An empty token admits everybody. Throws UserError (usage) if the port is in use.
  HostedStore(const std::string& host, int port, const std::string& token);
  ~HostedStore();
  int port() const { return port_; }
  /// The address of the first process whose token was another than this run's; empty: there was none.
  std::string refused() const;
  int64_t served() const;  ///< requests that it has answered

  /// Ends its thread: it answers nobody until resume() begins another, which throws UserError (memory) if there is none.
  void pause();
  void resume();

 private:
  class Server;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

/// Key-value texts that launchers exchange, separate from the keys of ranks. Every call throws UserError (rank_lost) if
/// the store is gone or does not answer in time.
class StoreLink {
 public:
  /// Waits `patience` seconds for the store; `answer`: seconds of every call. Throws as StoreClient does.
  StoreLink(const std::string& host, int port, const StoreAccess& access, double answer, double patience = 30);

  void set(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  /// Sets the key if it is not set yet, or to what `before` says; returns the value that all processes will see.
  std::string claim(const std::string& key, const std::string& value, const std::string& before = {});
  const std::string& token() const { return client_.token(); }
  /// Called several times a second while a call waits for an answer; what it throws ends the call.
  void meanwhile(std::function<void()> act) { client_.meanwhile(std::move(act)); }

 private:
  const std::string place_;
  StoreClient client_;
};

}  // namespace tessera::comm
