#pragma once
// A connection to the rendezvous store; [Note: the rendezvous store] in store.h. It may be used from several threads;
// calls are made one after another.
//
//   StoreClient store("10.0.0.1", 29500, {.token = token}, /*patience=*/70);
//   store.set("rank 3", "10.0.0.7");
//   store.wait({"rank 4"}, 60);
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/comm/patience.h"
#include "tessera/comm/store_wire.h"

namespace tessera::comm {

/// What opens the store.
struct StoreAccess {
  std::string token = {};          ///< empty: that of `run`
  std::filesystem::path run = {};  ///< a folder whose token the host has (read_token); empty: there is none
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

  void answer_within(double seconds) { answer_ = seconds; }
  void meanwhile(std::function<void()> act) { meanwhile_ = std::move(act); }

 private:
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

}  // namespace tessera::comm
