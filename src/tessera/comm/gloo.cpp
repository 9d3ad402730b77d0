// Gloo through c10d: CPU ranks.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/environment.h"
#include "tessera/comm/gloo_yield.h"
#include "tessera/comm/patience.h"
#include "tessera/comm/rings.h"
#include "tessera/comm/store.h"
#include "tessera/comm/token.h"
#include "tessera/comm/transport.h"
#include "tessera/device/backend.h"

namespace tessera::comm {

namespace {

/// The rendezvous store as LibTorch's groups use one.
class C10dStore final : public c10d::Store {
  using Bytes = std::vector<uint8_t>;

 public:
  C10dStore(std::unique_ptr<StoreClient> client, std::chrono::milliseconds timeout)
      : Store(timeout), client_(std::move(client)) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<C10dStore>(client_->another(seconds(timeout_)), timeout_);
  }
  void set(const std::string& key, const Bytes& value) override { client_->set(key, text(value)); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& value) override {
    return bytes(client_->compare_set(key, text(expected), text(value)));
  }
  /// Waits for the key.
  Bytes get(const std::string& key) override {
    wait({key});
    return bytes(client_->get(key).value_or(""));
  }
  int64_t add(const std::string& key, int64_t value) override { return client_->add(key, value); }
  bool deleteKey(const std::string& key) override { return client_->erase(key); }
  bool check(const std::vector<std::string>& keys) override { return client_->check(keys); }
  int64_t getNumKeys() override { return client_->count(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    client_->wait(keys, seconds(timeout));
  }
  using Store::compareSet;
  using Store::set;

 private:
  static double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }
  static std::string text(const Bytes& value) { return {value.begin(), value.end()}; }
  static Bytes bytes(const std::string& value) { return {value.begin(), value.end()}; }

  const std::unique_ptr<StoreClient> client_;
};

/// Silences LibTorch's warnings about host names it cannot resolve and sockets that close when a rank dies; our
/// messages report what matters. A TORCH_CPP_LOG_LEVEL set by the user is kept.
void quiet_sockets() {
  static const bool once = [] {
    setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
    c10::initLogging();
    return true;
  }();
  (void)once;
}

/// A connection to the store of torchrun's agent, which is LibTorch's TCPStore. It knows no proof of who connects;
/// [Note: the rendezvous store] in store.h is of ours. LibTorch waits without end for the greeting of a port that accepts and stays silent; the thread
/// that does so is left behind then, in a process that ends. Throws std::exception.
c10::intrusive_ptr<c10d::Store> store_of_torchrun(const std::string& host, int port,
                                                  std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  using Connected = std::promise<c10::intrusive_ptr<c10d::Store>>;
  const auto connected = std::make_shared<Connected>();
  auto store = connected->get_future();
  std::thread([connected, host, options] {
    try {
      connected->set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      connected->set_exception(std::current_exception());
    }
  }).detach();
  if (store.wait_for(timeout) != std::future_status::ready)
    throw std::runtime_error("it accepts connections and does not answer");
  return store.get();
}

/// LibTorch's messages have a stack trace after the first line.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// Sends what lies in host memory; what lies on a device travels as a copy there.
class HostTransport : public Transport {
 public:
  void exchange(const char* /*what*/, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    const auto far = [](const at::Tensor& t) { return t.defined() && !t.is_cpu(); };
    if (std::ranges::none_of(out, far) && std::ranges::none_of(in, far)) return exchange_host(out, in);
    std::vector<at::Tensor> send = out, receive = in;
    const auto copies = [&](std::vector<at::Tensor>& tensors, bool filled) {
      std::map<const void*, at::Tensor> made;  // what goes to several members is copied once
      for (at::Tensor& t : tensors) {
        if (!far(t)) continue;
        at::Tensor& copy = made[t.const_data_ptr()];
        if (!copy.defined() || copy.nbytes() != t.nbytes()) {
          copy = at::empty(t.sizes(), t.options().device(at::kCPU));
          if (filled)
            device::used()->copy(copy.mutable_data_ptr(), t.const_data_ptr(), static_cast<int64_t>(t.nbytes()));
        }
        t = copy;
      }
    };
    copies(send, true), copies(receive, false);
    exchange_host(send, receive);
    for (size_t i = 0; i < in.size(); ++i)
      if (far(in[i]))
        device::used()->copy(in[i].mutable_data_ptr(), receive[i].const_data_ptr(),
                             static_cast<int64_t>(in[i].nbytes()));
  }

 protected:
  virtual void exchange_host(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) = 0;
};

/// Between ranks of one machine.
class SharedTransport final : public HostTransport {
 public:
  SharedTransport(std::unique_ptr<SharedRings> rings, Watchdog& watchdog)
      : rings_(std::move(rings)), watchdog_(watchdog) {}
  bool by_shared_memory() const override { return true; }

 private:
  void exchange_host(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    const auto bytes_of = [](const std::vector<at::Tensor>& tensors) {
      std::vector<SharedRings::Bytes> bytes(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i)
        if (const at::Tensor& t = tensors[i]; t.defined())
          bytes[i] = {const_cast<void*>(t.const_data_ptr()), t.nbytes()};
      return bytes;
    };
    const Watchdog::Watched watched(watchdog_, [this] { rings_->abort(); });
    rings_->exchange(bytes_of(out), bytes_of(in));
  }

  const std::unique_ptr<SharedRings> rings_;
  Watchdog& watchdog_;
};

class GlooTransport final : public HostTransport {
 public:
  GlooTransport(const c10::intrusive_ptr<c10d::Store>& store, int index, int size, std::chrono::milliseconds timeout,
                const Rendezvous& place, Watchdog& watchdog)
      : watchdog_(watchdog) {
    static_cast<void>(event_thread_yields());  // links the epoll_wait that lets Gloo's thread yield
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->threads = 1;
    options->devices.push_back(device(place));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, index, size, options);
  }

 private:
  // send and recv work directly on the tensors; measured 1.2 to 1.6 times as fast as alltoall_base and 2 to 6 times as
  // fast as _allgather_base.
  void exchange_host(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    std::vector<std::pair<int, c10::intrusive_ptr<c10d::Work>>> works;
    const auto begin = [&](const std::vector<at::Tensor>& tensors, auto start) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        const int peer = static_cast<int>(i);
        std::vector<at::Tensor> one = {tensors[i]};
        if (one[0].defined()) with(peer, [&] { works.emplace_back(peer, start(one, peer)); });
      }
    };
    begin(in, [this](auto& tensors, int peer) { return group_->recv(tensors, peer, 0); });
    begin(out, [this](auto& tensors, int peer) { return group_->send(tensors, peer, 0); });
    const Watchdog::Watched watched(watchdog_, [&works] {
      for (auto& [peer, work] : works) work->abort();
    });
    for (auto& [peer, work] : works)
      with(peer, [&work] {
        if (!work->wait(kBeyondAnyPause)) throw std::runtime_error("it sent nothing in that time");
      });
  }

  /// Runs a transfer with one peer and attributes a failure to that peer.
  template <class Act>
  static void with(int peer, Act act) {
    try {
      act();
    } catch (const std::exception& error) {
      throw PeerError(peer, first_line(error));
    }
  }

  /// Others connect to the address by which this machine reaches the rendezvous. (Gloo's default is the address of the
  /// host name, often the loopback.) GLOO_SOCKET_IFNAME selects another interface, as in PyTorch.
  static std::shared_ptr<gloo::transport::Device> device(const Rendezvous& place) {
    if (const auto interface = env::text("GLOO_SOCKET_IFNAME"))
      return c10d::ProcessGroupGloo::createDeviceForInterface(*interface);
    return c10d::ProcessGroupGloo::createDeviceForHostname(own_address(place));
  }

  static constexpr std::chrono::hours kBeyondAnyPause{24 * 365};  // the watchdog's time-out comes first

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  Watchdog& watchdog_;
};

constexpr int kRingMembers = 16;  // of SharedRings

/// Groups of all ranks, where these are on several machines or more than can share memory: what each has to say goes to the first rank of its machine, from
/// there to the first of each other machine, and back. A rank has no connection to ranks of other machines, and a first one
/// as many as there are machines; where every rank sent to every other, 10,000 ranks would have 50 million connections. Between
/// the first ranks of many machines it is again one of these, for groups of machines, of which the last may be smaller. It
/// is for the few numbers that ranks exchange between the steps: everything but a gather and a broadcast takes the other way.
class RelayedTransport final : public Transport {
 public:
  using Make = std::function<std::unique_ptr<Transport>()>;
  /// `here`: between the ranks of this machine, null where there is one; `firsts`: between the first ranks of all, null
  /// elsewhere. `direct`: between all, made when it is needed, by all members at once.
  RelayedTransport(std::unique_ptr<Transport> here, std::unique_ptr<Transport> firsts, int rank, int each, Make direct)
      : here_(std::move(here)), firsts_(std::move(firsts)), rank_(rank), each_(each), make_direct_(std::move(direct)) {}

  void exchange(const char* what, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    if (std::string_view(what) == "all_gather" && same_size(in)) return gather(out, in);
    if (std::string_view(what) == "broadcast") return broadcast(out, in);
    if (!direct_) direct_ = make_direct_();
    direct_->exchange(what, out, in);
  }

 private:
  using Tensors = std::vector<at::Tensor>;
  size_t machines() const { return static_cast<size_t>((world_ + each_ - 1) / each_); }
  int ranks_of(int machine) const { return std::min(each_, world_ - machine * each_); }
  int machine() const { return rank_ / each_; }
  int place() const { return rank_ % each_; }  // on this machine
  Tensors none_here() const { return Tensors(static_cast<size_t>(ranks_of(machine()))); }

  bool same_size(const Tensors& in) {
    world_ = static_cast<int>(in.size());
    const at::Tensor& any = in[rank_ == 0 ? 1 : 0];
    return any.defined() && std::ranges::all_of(in, [&](const at::Tensor& t) {
             return !t.defined() || (t.is_cpu() && t.nbytes() == any.nbytes());
           });
  }

  /// Fails by the ranks of all, whichever transport it was.
  void relay(Transport* by, const char* what, const Tensors& out, const Tensors& in) {
    if (!by) return;
    Transport& transport = *by;
    try {
      transport.exchange(what, out, in);
    } catch (const PeerError& error) {
      const bool among_firsts = &transport == firsts_.get();
      throw PeerError(among_firsts ? error.member() * each_ : machine() * each_ + error.member(), error.what());
    }
  }

  void gather(const Tensors& out, const Tensors& in) {
    const at::Tensor& mine = out[rank_ == 0 ? 1 : 0];
    const auto bytes = static_cast<int64_t>(mine.nbytes());
    const at::Tensor all = at::empty({world_, bytes}, at::kByte);
    const auto row = [&](int rank) { return all.select(0, rank); };
    const auto as_bytes = [bytes](const at::Tensor& t) {
      return at::from_blob(const_cast<void*>(t.const_data_ptr()), {bytes}, at::kByte);
    };
    const int first = machine() * each_;
    Tensors send = none_here(), receive = none_here();
    if (place() > 0) {
      send[0] = as_bytes(mine);
      relay(here_.get(), "all_gather", send, receive);
      send = none_here(), receive[0] = all;
      relay(here_.get(), "all_gather", send, receive);
    } else {
      row(rank_).copy_(as_bytes(mine));
      const int here = ranks_of(machine());
      for (int i = 1; i < here; ++i) receive[static_cast<size_t>(i)] = row(first + i);
      relay(here_.get(), "all_gather", send, receive);
      Tensors told(machines()), heard(machines());
      for (size_t m = 0; m < machines(); ++m) {
        if (static_cast<int>(m) == machine()) continue;
        told[m] = all.narrow(0, first, here);
        heard[m] = all.narrow(0, static_cast<int64_t>(m) * each_, ranks_of(static_cast<int>(m)));
      }
      relay(firsts_.get(), "all_gather", told, heard);
      receive = none_here();
      for (int i = 1; i < here; ++i) send[static_cast<size_t>(i)] = all;
      relay(here_.get(), "all_gather", send, receive);
    }
    for (int i = 0; i < world_; ++i)
      if (const at::Tensor& to = in[static_cast<size_t>(i)]; to.defined()) as_bytes(to).copy_(row(i));
  }

  void broadcast(const Tensors& out, const Tensors& in) {
    world_ = static_cast<int>(in.size());
    const auto from = std::ranges::find_if(in, [](const at::Tensor& t) { return t.defined(); });
    const int root = from == in.end() ? rank_ : static_cast<int>(from - in.begin());
    const at::Tensor values = root == rank_ ? out[root == 0 ? 1 : 0] : in[static_cast<size_t>(root)];
    const bool is_first = place() == 0, of_root = root / each_ == machine();
    const auto root_place = static_cast<size_t>(root % each_);
    if (of_root && root_place > 0 && (is_first || root == rank_)) {
      Tensors send = none_here(), receive = none_here();
      (root == rank_ ? send[0] : receive[root_place]) = values;
      relay(here_.get(), "broadcast", send, receive);
    }
    if (is_first) {
      Tensors told(machines()), heard(machines());
      for (size_t m = 0; of_root && m < machines(); ++m)
        if (static_cast<int>(m) != machine()) told[m] = values;
      if (!of_root) heard[static_cast<size_t>(root / each_)] = values;
      relay(firsts_.get(), "broadcast", told, heard);
    }
    Tensors send = none_here(), receive = none_here();
    for (size_t i = 1; i < send.size() && is_first; ++i)
      if (!of_root || i != root_place) send[i] = values;
    if (!is_first && rank_ != root) receive[0] = values;
    if (is_first || rank_ != root) relay(here_.get(), "broadcast", send, receive);
  }

  const std::unique_ptr<Transport> here_, firsts_;
  const int rank_, each_;
  int world_ = 0;
  const Make make_direct_;
  std::unique_ptr<Transport> direct_;
};

/// Memory that the members share, if all of them can: each says so in the store. The same answer on all members.
std::unique_ptr<SharedRings> share_memory(c10d::Store& store, int index, int size) {
  const auto put = [&](const std::string& key, const std::string& text) {
    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
  };
  const auto read = [&](const std::string& key) {
    const std::vector<uint8_t> text = store.get(key);
    return std::string(text.begin(), text.end());
  };
  const bool wanted = env::text("TESSERA_SHARED_MEMORY") != "0";
  const std::string none = "none", joined = "joined";
  std::unique_ptr<SharedRings> rings;
  if (index > 0) {
    const std::string address = read("memory");
    if (address == none) return nullptr;
    if (wanted) rings = SharedRings::join(address, index, size);
    put("memory of " + std::to_string(index), rings ? joined : none);
  } else {
    if (wanted) rings = SharedRings::create(size);
    put("memory", rings ? rings->address() : none);
    if (!rings) return nullptr;
    bool all = true;
    for (int i = 1; i < size; ++i) all &= read("memory of " + std::to_string(i)) == joined;
    put("memory of all", all ? joined : none);
  }
  return read("memory of all") == joined ? std::move(rings) : nullptr;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "an unknown host";
}

/// Waits until every rank has registered. Ranks may be started by several launchers: none may exist twice and all must
/// agree on the number of ranks. The first rank that detects a conflict reports it to the others. Throws UserError
/// (usage) for a conflict, (rank_lost) naming the ranks that do not register.
class CheckIn {
 public:
  CheckIn(c10d::Store& store, const Rendezvous& place, double seconds)
      : store_(store), place_(place), seconds_(seconds) {}

  void run() {
    const std::string me = "process " + std::to_string(getpid()) + " of " + host_name();
    const std::string rank = "rank " + std::to_string(place_.rank), world = std::to_string(place_.world);
    if (const std::string others = agreed("world", world); others != world)
      refuse(rank + " is one of " + world + ", others say there are " + others);
    if (const std::string other = agreed(rank, me); other != me)
      refuse(rank + " was started twice: " + other + ", and " + me);
    const std::string each = std::to_string(place_.local_world);
    if (agreed("ranks of a machine", each) != each) store_.set("uneven", "1");
    if (store_.add("here", 1) == place_.world) store_.set("all here", "1");
    // Each rank asks for one key, less often the longer it waits: node 0 is asked by all of them.
    Patience patience(seconds_);
    while (!store_.check({"all here"})) {
      if (patience.over())
        if (const std::string missing = absent(me); !missing.empty())
          throw UserError(Exit::rank_lost, "comm",
                          "rank " + missing + " did not come within " + std::to_string(std::lround(seconds_)) + " s",
                          "are all ranks started, and do they know the same address?");
      const double waited = seconds_ - patience.left();
      std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.005, waited / 10)));
    }
    if (store_.check({"refused"})) throw_refusal(store_.get_to_str("refused"));
  }

  /// Whether all machines have as many ranks as this one. After run().
  bool even() const { return !store_.check({"uneven"}) && place_.world % place_.local_world == 0; }

 private:
  /// The value that all ranks agree on: the first one written.
  std::string agreed(const std::string& key, const std::string& value) {
    const auto found = store_.compareSet(key, "", value);
    return {found.begin(), found.end()};
  }
  /// The first rank that has not come. One rank looks for it, the others read what that found.
  std::string absent(const std::string& me) {
    if (agreed("looks for the absent", me) != me) return store_.get_to_str("absent");
    std::string found;
    for (int rank = 0; rank < place_.world && found.empty(); ++rank)
      if (!store_.check({"rank " + std::to_string(rank)})) found = std::to_string(rank);
    store_.set("absent", found);
    return found;
  }
  void refuse(const std::string& what) {
    store_.set("refused", what);
    store_.set("all here", "1");  // nobody waits any more
    throw_refusal(what);
  }
  static void throw_refusal(const std::string& what) {
    throw UserError(Exit::usage, "comm", what,
                    "give every launcher the same -n and --nnodes, and a --node-rank of its own");
  }

  c10d::Store& store_;
  const Rendezvous& place_;
  const double seconds_;
};

/// What a rank has that serves others, where no launcher does.
struct Served {
  std::unique_ptr<HostedStore> store;  // by rank 0
  std::unique_ptr<StoreRelay> relay;   // by the first rank of each machine
};

/// [Note: one connection a machine] in store.h. The name of the relay of this machine; empty: it has none.
std::string relay_without_launcher(const Rendezvous& place, const StoreAccess& access, double patience,
                                   Served& served) {
  if (place.local_world == 1 || place.local_world == place.world) return "";
  const std::string name = "tessera of " + std::to_string(geteuid()) + " " + place_text(place.host, place.port);
  if (place.local_rank == 0) {
    served.relay = StoreRelay::open(place.host, place.port, access, patience, name);
    if (served.relay) return name;
  }
  // The first rank listens once it has reached the store. Where it never comes, the others ask the store themselves.
  for (Patience left(std::min(10.0, patience / 2)); !left.over();
       std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    const int fd = connect_here(name);
    if (fd < 0) continue;
    close(fd);
    return name;
  }
  return "";
}

/// The store of this process's launcher, or rank 0's. Rank 0 makes it, and the token of the run, where no launcher does.
c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& place, double patience, Served& served) {
  const std::chrono::milliseconds timeout(static_cast<int64_t>(patience * 1000));
  const bool launched_by_us = env::text("TESSERA_STORE") == "launcher";
  if (place.store_is_hosted && !launched_by_us && env::text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    // LibTorch's own wait for an unresponsive address takes as long as the kernel's connect time-out, minutes.
    await_listener(place.host, place.port, patience);
    return store_of_torchrun(place.host, place.port, timeout);
  }
  const std::filesystem::path& run = token_folder();
  StoreAccess access{token_from_env()};
  const bool by_folder =
      access.token.empty() && !place.store_is_hosted && !run.empty() && shared_between_nodes(run, place.host);
  if (place.rank == 0 && !place.store_is_hosted) {
    if (by_folder) access.token = make_token(run);
    if (access.token.empty()) warn_of_open_store(place.host);
    served.store = std::make_unique<HostedStore>(place.host, place.port, access.token);
  } else if (by_folder) {
    access.run = run;
  }
  if (launched_by_us)
    access.relay = env::text(kRelayVariable).value_or("");
  else if (!place.store_is_hosted)
    access.relay = relay_without_launcher(place, access, patience, served);
  return c10::make_intrusive<C10dStore>(std::make_unique<StoreClient>(place.host, place.port, access, patience),
                                        timeout);
}

class GlooNetwork final : public Network {
 public:
  GlooNetwork(const Rendezvous& place, double timeout)
      // The launcher names a lost rank after fault.timeout. Sockets time out later, so that their errors are not reported
      // first.
      : place_(place), timeout_(static_cast<int64_t>((timeout + 10) * 1000)), watchdog_(timeout + 10) {
    quiet_sockets();
    const double patience = start_seconds(timeout);
    try {
      store_ = c10::make_intrusive<c10d::PrefixStore>("attempt" + std::to_string(place.attempt),
                                                      open_store(place, patience, served_));
      CheckIn check_in(*store_, place, patience);
      check_in.run();
      even_ = check_in.even();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw UserError(Exit::rank_lost, "comm",
                      "rank " + std::to_string(place.rank) + " could not reach the store at " +
                          place_text(place.host, place.port) + " (" + first_line(error) + ")",
                      "are all ranks started, and is the address right?");
    }
  }

  std::unique_ptr<Transport> connect(const std::string& name, std::string_view purpose, const std::vector<int>& members,
                                     int index) override {
    const int size = static_cast<int>(members.size());
    try {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
      int each = place_.local_world;  // as many as can share memory
      for (const int all = each; each > kRingMembers || all % each != 0;) --each;
      const bool relayed = even_ && size == place_.world && each > 1 && size > each &&
                           (purpose == "control" || purpose == "pace" || purpose == "failures");
      if (!relayed) return direct(store, index, size, on_one_machine(members, place_));
      return this->relayed(store, index, size, each, true);
    } catch (const std::exception& error) {
      const std::string limit = limit_behind(first_line(error));
      throw UserError(limit.empty() ? Exit::rank_lost : Exit::usage, "comm",
                      "the group " + name + " could not be created (" + first_line(error) + ")" + limit,
                      limit.empty() ? "a rank did not start; see its messages" : "raise that limit");
    }
  }

  std::string agree(const std::string& name, const std::string& key, const std::string& mine) override {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    if (!mine.empty()) store->set(key, std::vector<uint8_t>(mine.begin(), mine.end()));
    const std::vector<uint8_t> found = store->get(key);
    return {found.begin(), found.end()};
  }

 private:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  /// Between machines of `each` ranks; or, of one rank of each of many machines, between groups of these.
  std::unique_ptr<Transport> relayed(const StorePtr& store, int index, int size, int each, bool of_machines) {
    const auto part = [&](const std::string& of) -> StorePtr {
      return c10::make_intrusive<c10d::PrefixStore>(of, store);
    };
    const int machine = index / each, machines = (size + each - 1) / each;
    const int here = std::min(each, size - machine * each);
    std::unique_ptr<Transport> among, firsts;
    if (here > 1) among = direct(part("machine " + std::to_string(machine)), index % each, here, of_machines);
    constexpr int kFewMachines = 16;  // which send to each other
    if (index % each == 0 && of_machines && machines > kFewMachines)
      firsts = relayed(part("machines"), machine, machines, static_cast<int>(std::ceil(std::sqrt(machines))), false);
    else if (index % each == 0)
      firsts = direct(part("machines"), machine, machines, false);
    const auto all = [this, index, size, store = part("all")] { return direct(store, index, size, false); };
    return std::make_unique<RelayedTransport>(std::move(among), std::move(firsts), index, each, all);
  }

  std::unique_ptr<Transport> direct(const StorePtr& store, int index, int size, bool here) {
    if (here)
      if (auto rings = share_memory(*store, index, size))
        return std::make_unique<SharedTransport>(std::move(rings), watchdog_);
    return std::make_unique<GlooTransport>(store, index, size, timeout_, place_, watchdog_);
  }

  const Rendezvous place_;
  const std::chrono::milliseconds timeout_;
  Watchdog watchdog_;
  Served served_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool even_ = false;  // as many ranks on each machine
};

}  // namespace

bool has_gloo() { return true; }

std::unique_ptr<Network> open_network(const Rendezvous& place, double timeout) {
  return std::make_unique<GlooNetwork>(place, timeout);
}

}  // namespace tessera::comm
