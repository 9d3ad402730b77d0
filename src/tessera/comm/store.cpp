#include "tessera/comm/store.h"

#include "tessera/base/check.h"
#include "tessera/comm/store_server.h"

namespace tessera::comm {

class HostedStore::Server : public StoreServer {
 public:
  using StoreServer::StoreServer;
};

HostedStore::HostedStore(const std::string& host, int port, const std::string& token) {
  try {
    const auto here = listen_at(host, port);
    const Listener listener = here ? *here : listen_everywhere(port);
    port_ = listener.port;
    server_ = std::make_unique<Server>(listener, token);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    if (why.find("in use") != std::string::npos)
      throw UserError(Exit::usage, "comm", "port " + std::to_string(port) + " is taken",
                      "choose another with --rdzv-endpoint HOST:PORT or MASTER_PORT");
    throw UserError(Exit::usage, "comm",
                    "cannot host the rendezvous endpoint " + host + ":" + std::to_string(port) + " (" + why + ")",
                    "set --rdzv-endpoint to an address of node 0's machine");
  }
}
HostedStore::~HostedStore() = default;

void HostedStore::pause() { server_->pause(); }

void HostedStore::resume() {
  try {
    server_->resume();
  } catch (const std::runtime_error& error) {
    throw UserError(Exit::memory, "comm", std::string("the rendezvous endpoint cannot go on: ") + error.what(),
                    "raise that limit, or end some processes");
  }
}

namespace {

template <class Act>
auto reach(const std::string& place, Act act) {
  try {
    return act();
  } catch (const StoreGone& error) {
    throw UserError(Exit::rank_lost, "launch",
                    "the rendezvous endpoint " + place + " is gone: node 0's launcher ended or cannot be reached (" +
                        error.what() + ")",
                    "start the command again on every node; it resumes from the last checkpoint");
  }
}

/// Launchers and ranks have keys of their own.
std::string of_launchers(const std::string& key) { return "launch/" + key; }

}  // namespace

StoreLink::StoreLink(const std::string& host, int port, const StoreAccess& access, double answer, double patience)
    : place_(host + ":" + std::to_string(port)), client_(host, port, access, patience) {
  client_.answer_within(answer);
}

void StoreLink::set(const std::string& key, const std::string& value) {
  reach(place_, [&] { client_.set(of_launchers(key), value); });
}

std::optional<std::string> StoreLink::get(const std::string& key) {
  return reach(place_, [&] { return client_.get(of_launchers(key)); });
}

std::string StoreLink::claim(const std::string& key, const std::string& value) {
  return reach(place_, [&] { return client_.compare_set(of_launchers(key), "", value); });
}

}  // namespace tessera::comm
