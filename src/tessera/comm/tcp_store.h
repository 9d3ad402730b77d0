#pragma once
// The store of torchrun's agent, which is LibTorch's TCPStore, for the source files of a build with Gloo. Internal to the
// room. It knows no proof of who connects; [Note: the rendezvous store] in store.h is of ours.
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace tessera::comm {

/// Silences LibTorch's warnings about host names it cannot resolve and sockets that close when a rank dies; our
/// messages report what matters. A TORCH_CPP_LOG_LEVEL set by the user is kept.
inline void quiet_sockets() {
  static const bool once = [] {
    setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
    c10::initLogging();
    return true;
  }();
  (void)once;
}

/// A connection to it. LibTorch waits without end for the greeting of a port that accepts and stays silent; the thread
/// that does so is left behind then, in a process that ends. Throws std::exception.
inline c10::intrusive_ptr<c10d::Store> store_of_torchrun(const std::string& host, int port,
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

}  // namespace tessera::comm
