#pragma once
// A connection to a port of this machine, byte by byte.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
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

class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback(port);
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("no connection to port " + std::to_string(port));
  }
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawConnection& operator=(RawConnection&&) = delete;
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }

  void send(const std::string& bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void end() const { shutdown(fd_, SHUT_WR); }
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
