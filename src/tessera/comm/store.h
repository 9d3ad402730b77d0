#pragma once
// The store where ranks and launchers meet, hosted by node 0's launcher so that it outlives any rank.
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
  /// Port 0 takes a free one. Throws UserError (usage) when the port is taken.
  HostedStore(const std::string& host, int port);
  ~HostedStore();
  int port() const { return port_; }

 private:
  struct Server;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

/// What launchers tell each other: texts by name, apart from what ranks write. Every call throws UserError (rank_lost)
/// when the store is gone.
class StoreLink {
 public:
  /// Something must listen there already (await_listener).
  StoreLink(const std::string& host, int port);
  ~StoreLink();

  void set(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  /// Sets what is not set yet; the value that all will see.
  std::string claim(const std::string& key, const std::string& value);

 private:
  struct Client;
  std::unique_ptr<Client> client_;
  std::string place_;
};

}  // namespace tessera::comm
