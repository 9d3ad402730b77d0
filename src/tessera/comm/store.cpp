#include "tessera/comm/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/base/check.h"
#include "tessera/comm/tcp_store.h"

namespace tessera::comm {

namespace {
// Both ends answer within this time, or one of them is gone.
constexpr std::chrono::seconds kAnswer{10};
}  // namespace

struct HostedStore::Server {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

HostedStore::HostedStore(const std::string& host, int port) : server_(std::make_unique<Server>()) {
  try {
    server_->store = tcp_store(host, port, /*hosts=*/true, kAnswer);
    port_ = server_->store->getPort();
  } catch (const std::exception& error) {
    const std::string endpoint = host + ":" + std::to_string(port);
    if (port_taken(error))
      throw UserError(Exit::usage, "launch", "port " + std::to_string(port) + " is taken",
                      "choose another with --rdzv-endpoint HOST:PORT");
    throw UserError(Exit::usage, "launch",
                    "cannot host the rendezvous endpoint " + endpoint + " (" + first_line(error) + ")",
                    "set --rdzv-endpoint to an address of node 0's machine");
  }
}
HostedStore::~HostedStore() = default;

struct StoreLink::Client {
  c10::intrusive_ptr<c10d::Store> store;
};

namespace {

/// Calls `act`; an exception of LibTorch means that the store is gone.
template <class Act>
auto reach(const std::string& place, Act act) {
  try {
    return act();
  } catch (const std::exception& error) {
    throw UserError(Exit::rank_lost, "launch",
                    "the rendezvous endpoint " + place + " is gone: node 0's launcher ended or cannot be reached (" +
                        first_line(error) + ")",
                    "start the command again on every node; it resumes from the last checkpoint");
  }
}

}  // namespace

StoreLink::StoreLink(const std::string& host, int port)
    : client_(std::make_unique<Client>()), place_(host + ":" + std::to_string(port)) {
  client_->store = reach(place_, [&] {
    return c10::make_intrusive<c10d::PrefixStore>("launch", tcp_store(host, port, /*hosts=*/false, kAnswer));
  });
}
StoreLink::~StoreLink() = default;

void StoreLink::set(const std::string& key, const std::string& value) {
  reach(place_, [&] { client_->store->set(key, value); });
}

std::optional<std::string> StoreLink::get(const std::string& key) {
  return reach(place_, [&]() -> std::optional<std::string> {
    if (!client_->store->check({key})) return std::nullopt;
    return client_->store->get_to_str(key);
  });
}

std::string StoreLink::claim(const std::string& key, const std::string& value) {
  return reach(place_, [&] {
    const auto bytes = client_->store->compareSet(key, "", value);
    return std::string(bytes.begin(), bytes.end());
  });
}

}  // namespace tessera::comm
