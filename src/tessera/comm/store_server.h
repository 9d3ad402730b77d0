#pragma once
// What passes between the two ends of the rendezvous store. Internal to the room. [Note: the rendezvous store] is in
// store.h.
//
//   std::string bytes = wire::frame(Op::set, {"rank 3", "10.0.0.7"});
//   while (auto message = wire::take(buffer)) ...        // throws wire::Malformed
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tessera/base/hash.h"
#include "tessera/comm/addresses.h"

namespace tessera::comm::wire {

inline constexpr std::string_view kMagic = "tessera store 1\n";
inline constexpr size_t kNonce = 32;
/// magic, whether a token is needed (0 or 1), the server's nonce
inline constexpr size_t kHello = kMagic.size() + 1 + kNonce;
/// magic, the client's nonce, its proof
inline constexpr size_t kProof = kMagic.size() + kNonce + sizeof(Digest);
/// whether the client is admitted (0 or 1), the server's proof
inline constexpr size_t kAnswer = 1 + sizeof(Digest);

/// Who proves: the ends' proofs differ, so that none can be sent back as one's own.
enum class End { client, server };
Digest proof(std::string_view token, End end, std::string_view server_nonce, std::string_view client_nonce);
std::string nonce();  ///< kNonce random bytes

/// The last two are a relay's: a request of one of its clients, {client, Op, parts...}, and that the client has gone.
enum class Op : uint8_t { set, get, compare_set, add, erase, check, count, wait, relayed, left };
/// Answers to relayed requests begin with the client too. `dropped`: it spoke wrongly.
enum class Status : uint8_t { ok, absent, refused, dropped };

struct Message {
  uint8_t head = 0;  ///< Op of a request, Status of an answer
  std::vector<std::string> parts;
};
/// Larger frames, and those that contradict themselves, end the connection.
inline constexpr size_t kLargestFrame = 16 << 20;
inline constexpr size_t kRelayedMore = 64;  ///< bytes by which those of a relay may be larger
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string frame(uint8_t head, const std::vector<std::string>& parts);
inline std::string frame(Op op, const std::vector<std::string>& parts) {
  return frame(static_cast<uint8_t>(op), parts);
}
inline std::string frame(Status status, const std::vector<std::string>& parts) {
  return frame(static_cast<uint8_t>(status), parts);
}
/// Takes the first frame off the buffer; empty while it is not whole.
std::optional<Message> take(std::string& buffer);

}  // namespace tessera::comm::wire

namespace tessera::comm {

// The host's end of the rendezvous store: a thread that serves all connections; [Note: the rendezvous store] in store.h.
// One with a connection upwards holds no values: what its clients ask it passes on, and the answers back, all by that one
// connection ([Note: one connection a machine] in store.h).

class StoreServer {
 public:
  /// Takes the listener, and `upwards`, an admitted connection to another server; -1: it holds the values itself. Throws
  /// std::runtime_error where the system has nothing left to serve with.
  StoreServer(Listener listener, std::string token, int upwards = -1);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// Ends the thread; connections wait until resume() begins another, which throws as the constructor does.
  void pause();
  void resume();
  /// The address of the first process whose token was another than this run's; empty: there was none.
  std::string refused() const;
  int64_t served() const { return served_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    int fd = -1;
    bool admitted = false;
    Clock::time_point since = Clock::now();
    std::string peer = {}, nonce = {}, in = {}, out = {};
    bool writes = false;    // asked to be told when there is room
    std::string name = {};  // by which a server above knows it
    /// The keys of each `wait` that is not answered yet, by the relay's client; "" is this connection's own.
    std::map<std::string, std::vector<std::string>> awaits = {};
  };
  /// Who waits for a key.
  struct Waiter {
    int fd = -1;
    std::string client;
    bool operator==(const Waiter&) const = default;
  };

  void close_all();
  void serve();
  void accept_all();
  void listen(bool on);
  bool make_room();
  void drop(int fd);
  void drop_strangers();
  bool read(Connection& connection);
  bool admit(Connection& connection);
  bool write(Connection& connection);
  void take_requests(Connection& connection);
  void take_relayed(Connection& connection, wire::Message request);
  void perform(Connection& connection, const std::string& client, const wire::Message& request);
  void wait(Connection& connection, const std::string& client, std::vector<std::string> keys);
  void forget(int fd, const std::string& client);
  bool pass_down();
  void lose_upwards();
  wire::Message answer(const wire::Message& request);
  wire::Message store(const std::string& key, const std::string& value);
  void wake(const std::string& key);
  bool all_set(const std::vector<std::string>& keys) const;

  Listener listener_;
  const std::string token_;
  int epoll_ = -1, stop_ = -1;
  bool listens_ = true;
  std::map<int, Connection> connections_;
  Connection up_;                                 // of a relay
  std::unordered_map<std::string, int> clients_;  // of a relay, by the names that it gave them
  uint64_t named_ = 0;
  size_t strangers_ = 0;  // connections that are not admitted yet
  std::unordered_map<std::string, std::string> values_;
  std::unordered_multimap<std::string, Waiter> waiting_;  // by the first key that they miss
  size_t bytes_ = 0;                                      // of the values and their keys
  mutable std::mutex refused_lock_;
  std::string refused_;
  std::atomic<int64_t> served_ = 0;
  std::thread thread_;
};

}  // namespace tessera::comm
