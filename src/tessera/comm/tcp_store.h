#pragma once
// LibTorch's TCPStore, for the source files of a build with Gloo. Internal to the room.
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "tessera/comm/rendezvous_endpoint.h"

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

/// `hosts`: this process serves the store, at `host` alone where listen_at can; port 0 selects a free port.
inline c10::intrusive_ptr<c10d::TCPStore> tcp_store(const std::string& host, int port, bool hosts,
                                                    std::chrono::milliseconds timeout) {
  quiet_sockets();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = hosts;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (const auto listener = hosts ? listen_at(host, port) : std::nullopt) {
    options.masterListenFd = listener->fd;  // the store closes it
    options.port = static_cast<uint16_t>(listener->port);
  }
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

/// LibTorch's messages have a stack trace after the first line.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

inline bool port_taken(const std::exception& error) {
  const std::string text = error.what();
  return text.find("EADDRINUSE") != std::string::npos || text.find("in use") != std::string::npos;
}

}  // namespace tessera::comm
