// Gloo through c10d: CPU ranks.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/same_host.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

namespace {

class GlooTransport final : public Transport {
 public:
  GlooTransport(const c10::intrusive_ptr<c10d::Store>& store, int index, int size, std::chrono::milliseconds timeout,
                const std::string& host) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->threads = 1;
    // Ranks that meet on the loopback are all on this machine.
    options->devices.push_back(host == "127.0.0.1" || host == "localhost"
                                   ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                   : c10d::ProcessGroupGloo::createDefaultDevice());
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, index, size, options);
  }

  // send and recv: straight from and into the tensors, 1.2 to 1.6 times as fast here as alltoall_base and 2 to 6 times
  // as fast as _allgather_base.
  void exchange(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (size_t peer = 0; peer < in.size(); ++peer) {
      if (!in[peer].defined()) continue;
      std::vector<at::Tensor> one = {in[peer]};
      works.push_back(group_->recv(one, static_cast<int>(peer), 0));
    }
    for (size_t peer = 0; peer < out.size(); ++peer) {
      if (!out[peer].defined()) continue;
      std::vector<at::Tensor> one = {out[peer]};
      works.push_back(group_->send(one, static_cast<int>(peer), 0));
    }
    for (auto& work : works) work->wait();
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "an unknown host";
}

/// LibTorch's messages carry a stack after the first line.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

bool port_taken(const std::exception& error) {
  const std::string text = error.what();
  return text.find("EADDRINUSE") != std::string::npos || text.find("in use") != std::string::npos;
}

/// Loading LibTorch on a busy machine may take longer than a short fault.timeout.
constexpr std::chrono::milliseconds kStart{30'000};

/// Waits until every rank is there. Ranks may be started by several hands: no two may be the same, all must know the
/// same number of ranks, and the first that finds out tells the others. Throws UserError (usage) for that, (rank_lost)
/// naming the ranks that do not come.
class CheckIn {
 public:
  CheckIn(c10d::Store& store, const Rendezvous& place, std::chrono::milliseconds timeout)
      : store_(store), place_(place), timeout_(timeout) {}

  void run() {
    const std::string me = "process " + std::to_string(getpid()) + " of " + host_name();
    const std::string rank = "rank " + std::to_string(place_.rank), world = std::to_string(place_.world);
    if (const std::string others = agreed("world", world); others != world)
      refuse(rank + " is one of " + world + ", others say there are " + others);
    if (const std::string other = agreed(rank, me); other != me)
      refuse(rank + " is there twice: " + other + ", and " + me);
    const auto end = std::chrono::steady_clock::now() + timeout_;
    for (std::string missing; !(missing = absent()).empty();
         std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      if (store_.check({"refused"})) throw_refusal(store_.get_to_str("refused"));
      if (std::chrono::steady_clock::now() > end)
        throw UserError(Exit::rank_lost, "comm",
                        "rank " + missing + " did not come within " + std::to_string(timeout_.count() / 1000) + " s",
                        "are all ranks started, and do they know the same address?");
    }
  }

 private:
  /// The value that all have: this one where there is none yet.
  std::string agreed(const std::string& key, const std::string& value) {
    const auto found = store_.compareSet(key, "", value);
    return {found.begin(), found.end()};
  }
  std::string absent() {
    for (; present_ < place_.world; ++present_)
      if (!store_.check({"rank " + std::to_string(present_)})) return std::to_string(present_);
    return {};
  }
  void refuse(const std::string& what) {
    store_.set("refused", what);
    throw_refusal(what);
  }
  static void throw_refusal(const std::string& what) {
    throw UserError(Exit::usage, "comm", what,
                    "give every launcher the same -n and --nnodes, and a --node-rank of its own");
  }

  c10d::Store& store_;
  const Rendezvous& place_;
  const std::chrono::milliseconds timeout_;
  int present_ = 0;  // ranks known to be there, from 0
};

}  // namespace

struct Comm::Backend {
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout;
};

Comm::Comm(const Rendezvous& place, const Mesh& mesh, double timeout) : place_(place), mesh_(mesh) {
  check_internal(mesh.world() == place.world, "comm", "mesh and world differ");
  backend_ = std::make_unique<Backend>();
  // The launcher names a lost rank after fault.timeout; sockets give up later, so that their word is not taken for it.
  backend_->timeout = std::chrono::milliseconds(static_cast<int64_t>((timeout + 10) * 1000));
  if (place.single()) return;
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(place.port);
    options.isServer = place.rank == 0 && !place.store_is_hosted;
    options.numWorkers = static_cast<size_t>(place.world);
    options.waitWorkers = false;
    options.timeout = backend_->timeout;
    backend_->store = c10::make_intrusive<c10d::PrefixStore>("attempt" + std::to_string(place.attempt),
                                                             c10::make_intrusive<c10d::TCPStore>(place.host, options));
    CheckIn(*backend_->store, place, std::max(backend_->timeout, kStart)).run();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (port_taken(error))
      throw UserError(Exit::usage, "comm", "port " + std::to_string(place.port) + " is taken",
                      "choose another MASTER_PORT or --rdzv-endpoint");
    throw UserError(Exit::rank_lost, "comm",
                    "rank " + std::to_string(place.rank) + " could not reach the store at " + place.host + ":" +
                        std::to_string(place.port) + " (" + first_line(error) + ")",
                    "are all ranks started, and is the address right?");
  }
}

Comm::~Comm() = default;

Group& Comm::group(std::string_view purpose, const std::vector<Axis>& axes) {
  std::string axis;
  for (Axis a : axes)
    if (mesh_[a] > 1) axis += (axis.empty() ? "" : "+") + std::string(axis_name(a));
  const std::string key = std::string(purpose) + ":" + axis;
  auto& slot = groups_[key];
  if (slot) return *slot;
  const std::vector<int> members = mesh_.group(place_.rank, axes);
  const int size = static_cast<int>(members.size());
  const int index = static_cast<int>(std::find(members.begin(), members.end(), place_.rank) - members.begin());
  std::unique_ptr<Transport> transport;
  if (size > 1) {
    std::string prefix = key;
    for (int m : members) prefix += "," + std::to_string(m);
    try {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, backend_->store);
      transport = std::make_unique<GlooTransport>(store, index, size, backend_->timeout, place_.host);
      transport = read_same_host(std::move(transport), index, size);
    } catch (const std::exception& error) {
      throw UserError(Exit::rank_lost, "comm",
                      "the group " + prefix + " did not come together (" + first_line(error) + ")",
                      "a rank did not start; see its messages");
    }
  }
  slot = std::make_unique<Group>(key, axis, members, index, std::move(transport));
  return *slot;
}

struct HostedStore::Server {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

HostedStore::HostedStore(const std::string& host, int port) : server_(std::make_unique<Server>()) {
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = std::chrono::seconds(10);  // it is on this machine, or the name is wrong
    server_->store = c10::make_intrusive<c10d::TCPStore>(host, options);
    port_ = server_->store->getPort();
  } catch (const std::exception& error) {
    const std::string endpoint = host + ":" + std::to_string(port);
    if (port_taken(error))
      throw UserError(Exit::usage, "launch", "port " + std::to_string(port) + " is taken",
                      "choose another with --rdzv-endpoint HOST:PORT");
    throw UserError(Exit::usage, "launch", "cannot host the meeting point " + endpoint + " (" + first_line(error) + ")",
                    "--rdzv-endpoint names an address of node 0's machine");
  }
}
HostedStore::~HostedStore() = default;

}  // namespace tessera::comm
