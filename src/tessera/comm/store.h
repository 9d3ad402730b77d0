#pragma once
// The store where ranks meet, hosted by the launcher so that it outlives any of them.
#include <memory>
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

}  // namespace tessera::comm
