#pragma once
// The rendezvous store of ranks and launchers, hosted by node 0's launcher so that it outlives any rank.
//
//   HostedStore store("10.0.0.1", 29500);            // on node 0
//   StoreLink link("10.0.0.1", 29500);               // anywhere
//   link.claim("fault", "rank 3");                   // "rank 3", or what another wrote first
#include <memory>
#include <optional>
#include <string>

namespace tessera::comm {

class HostedStore {
 public:
  /// Port 0 selects a free port. Throws UserError (usage) if the port is in use.
  HostedStore(const std::string& host, int port);
  ~HostedStore();
  int port() const { return port_; }

 private:
  struct Server;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

/// Key-value texts that launchers exchange, separate from the keys of ranks. Every call throws UserError (rank_lost) if
/// the store is gone.
class StoreLink {
 public:
  /// The store must already listen (await_listener).
  StoreLink(const std::string& host, int port);
  ~StoreLink();

  void set(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  /// Sets the key if it is not set yet; returns the value that all processes will see.
  std::string claim(const std::string& key, const std::string& value);

 private:
  struct Client;
  std::unique_ptr<Client> client_;
  std::string place_;
};

}  // namespace tessera::comm
