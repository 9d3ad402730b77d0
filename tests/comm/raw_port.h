#pragma once
// A port of this machine that says nothing, and connections to one (raw_connection.h): what strangers do.
#include <gtest/gtest.h>

#include "comm/raw_connection.h"

namespace tessera::testing {

/// Accepts connections by the kernel alone, and says nothing.
class SilentPort {
 public:
  SilentPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 64), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() { close(fd_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;
  int port() const { return port_; }
  /// The next connection's descriptor.
  int accept() const { return ::accept(fd_, nullptr, nullptr); }

 private:
  int fd_, port_ = 0;
};

}  // namespace tessera::testing
