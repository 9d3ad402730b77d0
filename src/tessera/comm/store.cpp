#include "tessera/comm/store.h"

#include <cerrno>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/comm/store_server.h"

namespace tessera::comm {

class HostedStore::Server : public StoreServer {
 public:
  using StoreServer::StoreServer;
};

HostedStore::HostedStore(const std::string& host, int port, const std::string& token) {
  try {
    if (is_loopback(host) && !has_route(host))
      throw UserError(Exit::usage, "comm",
                      "processes of this machine cannot reach " + host + " (" + std::strerror(errno) +
                          "): the loopback interface of this machine or container is down",
                      "ip link set lo up, or give the container a network with a loopback");
    const auto here = listen_at(host, port);
    const Listener listener = here ? *here : listen_everywhere(port);
    port_ = listener.port;
    server_ = std::make_unique<Server>(listener, token);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = error.what();
    if (why.find("in use") != std::string::npos)
      throw UserError(Exit::usage, "comm", "port " + std::to_string(port) + " is taken",
                      "choose another with --rdzv-endpoint HOST:PORT or MASTER_PORT");
    throw UserError(Exit::usage, "comm",
                    "cannot host the rendezvous endpoint " + place_text(host, port) + " (" + why + ")",
                    "set --rdzv-endpoint to an address of node 0's machine");
  }
}
HostedStore::~HostedStore() = default;

std::string HostedStore::refused() const { return server_->refused(); }
int64_t HostedStore::served() const { return server_->served(); }

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
    : place_(place_text(host, port)), client_(host, port, access, patience) {
  client_.answer_within(answer);
}

void StoreLink::set(const std::string& key, const std::string& value) {
  reach(place_, [&] { client_.set(of_launchers(key), value); });
}

std::optional<std::string> StoreLink::get(const std::string& key) {
  return reach(place_, [&] { return client_.get(of_launchers(key)); });
}

std::string StoreLink::claim(const std::string& key, const std::string& value, const std::string& before) {
  return reach(place_, [&] { return client_.compare_set(of_launchers(key), before, value); });
}

}  // namespace tessera::comm
