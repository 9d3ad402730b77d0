#pragma once
// The rendezvous store as LibTorch's groups use one, for the source files of a build with Gloo. Internal to the room.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/store_client.h"

namespace tessera::comm {

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

}  // namespace tessera::comm
