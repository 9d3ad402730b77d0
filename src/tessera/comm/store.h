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
//
// [Note: one connection a machine]
// Where every rank has a connection to the store, node 0 holds as many as there are ranks. Instead a process of each machine
// relays: the launcher, or without one the first rank. It has one admitted connection to the store; the ranks of its machine
// connect to it, with the same greeting, and it passes on what they ask with their name before it. Waits of several are open
// at once. When its connection ends it closes theirs, so that they see what they would have seen; when one of theirs ends the
// store forgets what that one waited for. Their deadlines are their own.
//
// Bytes are neither encrypted nor signed after the greeting: who can change packets on the way between two machines can
// change what is said. That is Gloo's state too, whose data ports know no proof at all.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/patience.h"
#include "tessera/comm/store_server.h"

namespace tessera::comm {

// A connection to the rendezvous store; [Note: the rendezvous store] in store.h. It may be used from several threads;
// calls are made one after another.
//
//   StoreClient store("10.0.0.1", 29500, {.token = token}, /*patience=*/70);
//   store.set("rank 3", "10.0.0.7");
//   store.wait({"rank 4"}, 60);

/// By which a launcher tells its ranks of its relay.
inline constexpr const char* kRelayVariable = "TESSERA_RELAY";

/// What opens the store.
struct StoreAccess {
  std::string token = {};          ///< empty: that of `run`
  std::filesystem::path run = {};  ///< a folder whose token the host has (read_token); empty: there is none
  std::string relay = {};          ///< the name of a StoreRelay of this machine, by which the store is reached
};

/// The store ended, or did not answer in time.
struct StoreGone : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class StoreClient {
 public:
  /// Waits until the store is there and has admitted this process. Throws UserError: rank_lost naming the address and
  /// the last answer after `patience` seconds, usage for a token that is missing, wrong, or not asked for.
  StoreClient(const std::string& host, int port, StoreAccess access, double patience);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  /// Another connection to the same store.
  std::unique_ptr<StoreClient> another(double patience) const;

  // Each throws StoreGone, after `answer` seconds at most. Nothing is said of the store after that.
  void set(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  /// Sets the key to `value` if it has the value `expected`; empty: if it is not set. Returns what it has then, or
  /// `expected` if it is not set.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& value);
  int64_t add(const std::string& key, int64_t value);
  bool erase(const std::string& key);
  bool check(const std::vector<std::string>& keys);
  int64_t count();
  /// Waits until all keys are set, `seconds` at most.
  void wait(const std::vector<std::string>& keys, double seconds);

  /// What opened the store; empty: it is open.
  const std::string& token() const { return token_; }
  /// The admitted connection; nothing can be called any more.
  int release() { return std::exchange(fd_, -1); }

  void answer_within(double seconds) { answer_ = seconds; }
  void meanwhile(std::function<void()> act) { meanwhile_ = std::move(act); }

 private:
  int reach(double seconds) const;
  std::string greet(const std::string& token, double seconds);
  void send_all(std::string_view bytes, Patience& patience);
  std::string receive(Patience& patience);
  std::string receive(size_t bytes, Patience& patience);
  void ready(short events, Patience& patience);
  wire::Message call(wire::Op op, const std::vector<std::string>& parts, double seconds);
  void close();

  const std::string host_;
  const int port_;
  const StoreAccess access_;
  std::string token_;
  int fd_ = -1;
  std::string received_;  // what came after the last answer
  double answer_ = 30;
  std::function<void()> meanwhile_;
  std::mutex lock_;
};

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

/// [Note: one connection a machine]
class StoreRelay {
 public:
  /// Waits for the store as StoreClient does, and throws what that throws. Null where it cannot listen under the name: another
  /// process does, or the system has nothing left to serve with.
  static std::unique_ptr<StoreRelay> open(const std::string& host, int port, const StoreAccess& access, double patience,
                                          const std::string& name);
  /// A name that nobody else has.
  static std::string own_name();

  const std::string& name() const { return name_; }    ///< for StoreAccess
  const std::string& token() const { return token_; }  ///< empty: the store is open
  void pause() { server_.pause(); }                    ///< as HostedStore does
  void resume();

 private:
  StoreRelay(Listener listener, StoreClient& store, const std::string& name)
      : name_(name), token_(store.token()), server_(listener, token_, store.release()) {}
  const std::string name_, token_;
  StoreServer server_;
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
