#pragma once
// A port of this machine and connections to one, byte by byte: what strangers do.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace tessera::testing {

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<in_port_t>(port));
  return address;
}

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

class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback(port);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawConnection& operator=(RawConnection&&) = delete;
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }

  void send(const std::string& bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// So many bytes, fewer when the other end closes first or nothing comes for 20 seconds.
  std::string read(size_t bytes) const {
    std::string text(bytes, '\0');
    size_t have = 0;
    for (pollfd waiting{fd_, POLLIN, 0}; have < bytes && poll(&waiting, 1, 20'000) == 1;) {
      const ssize_t got = recv(fd_, text.data() + have, bytes - have, 0);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    return text.substr(0, have);
  }
  /// Whether the other end closes it within 20 seconds; what it sends before is left out.
  bool closed() const {
    char buffer[4096];
    for (pollfd waiting{fd_, POLLIN, 0}; poll(&waiting, 1, 20'000) == 1;)
      if (recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
    return false;
  }

 private:
  int fd_;
};

}  // namespace tessera::testing
