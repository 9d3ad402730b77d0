#pragma once
// The host's end of the rendezvous store: a thread that serves all connections; [Note: the rendezvous store] in store.h.
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tessera/comm/addresses.h"
#include "tessera/comm/store_wire.h"

namespace tessera::comm {

class StoreServer {
 public:
  /// Takes the listener. Throws std::runtime_error where the system has nothing left to serve with.
  StoreServer(Listener listener, std::string token);
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
    std::vector<std::string> awaits = {};  // the keys of a `wait` that is not answered yet
    bool writes = false;                   // asked to be told when there is room
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
  void perform(Connection& connection, wire::Message request);
  std::string answer(const wire::Message& request);
  std::string store(const std::string& key, const std::string& value);
  void wake(const std::string& key);
  bool all_set(const std::vector<std::string>& keys) const;

  const Listener listener_;
  const std::string token_;
  int epoll_ = -1, stop_ = -1;
  bool listens_ = true;
  std::map<int, Connection> connections_;
  size_t strangers_ = 0;  // connections that are not admitted yet
  std::unordered_map<std::string, std::string> values_;
  std::unordered_multimap<std::string, int> waiting_;  // connections by the first key that they miss
  size_t bytes_ = 0;                                   // of the values and their keys
  mutable std::mutex refused_lock_;
  std::string refused_;
  std::atomic<int64_t> served_ = 0;
  std::thread thread_;
};

}  // namespace tessera::comm
