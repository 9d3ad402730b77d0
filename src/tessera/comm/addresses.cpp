#include "tessera/comm/addresses.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/comm/patience.h"

namespace tessera::comm {

namespace {

constexpr double kNameSeconds = 10;  // a cluster's name server may learn of a machine late
constexpr double kTrySeconds = 2;    // a lost first packet is sent again after one second

std::string numeric(const sockaddr* address) {
  if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = {};
  return getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

class Socket {
 public:
  Socket(const addrinfo& to, int type) : fd_(socket(to.ai_family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// `error`: result of getaddrinfo, 0 if the name is known.
Addresses look_up(const std::string& host, int port, int& error) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  return {error == 0 ? found : nullptr, freeaddrinfo};
}

/// 0 if the connection was accepted, else errno.
int try_connect(const Socket& socket, const addrinfo& to, double seconds) {
  if (connect(socket.fd(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting{socket.fd(), POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(std::ceil(seconds * 1000))) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

/// Nothing where the address is none of this machine; errno says why. Throws where the port is in use.
std::optional<Listener> listen_on(const sockaddr& address, socklen_t length) {
  const int fd = socket(address.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1, no = 0;
  if (fd < 0) return std::nullopt;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  sockaddr_storage mine{};
  socklen_t size = sizeof mine;
  if (bind(fd, &address, length) == 0 && listen(fd, SOMAXCONN) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &size) == 0) {
    const in_port_t bound = mine.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&mine)->sin6_port
                                                       : reinterpret_cast<sockaddr_in*>(&mine)->sin_port;
    return Listener{fd, ntohs(bound)};
  }
  const int error = errno;
  close(fd);
  errno = error;
  if (error == EADDRINUSE) throw std::runtime_error(std::strerror(error));
  return std::nullopt;
}

}  // namespace

std::optional<Listener> listen_at(const std::string& host, int port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  // A machine may know its own name by another address than the other machines do.
  wanted.ai_flags = host == "localhost" ? 0 : AI_NUMERICHOST;
  if (getaddrinfo(host == "localhost" ? "127.0.0.1" : host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0)
    return std::nullopt;
  const Addresses address(found, freeaddrinfo);
  return listen_on(*address->ai_addr, address->ai_addrlen);
}

Listener listen_everywhere(int port) {
  sockaddr_in6 all{};  // takes those of IPv4 as well
  all.sin6_family = AF_INET6;
  all.sin6_port = htons(static_cast<in_port_t>(port));
  if (const auto listener = listen_on(reinterpret_cast<const sockaddr&>(all), sizeof all)) return *listener;
  sockaddr_in old{};
  old.sin_family = AF_INET;
  old.sin_port = htons(static_cast<in_port_t>(port));
  if (const auto listener = listen_on(reinterpret_cast<const sockaddr&>(old), sizeof old)) return *listener;
  throw std::runtime_error(std::strerror(errno) + limit_behind(errno));
}

namespace {

/// An abstract one: it goes with its socket.
std::pair<sockaddr_un, socklen_t> address_here(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

}  // namespace

Listener listen_here(const std::string& name) {
  const auto [address, size] = address_here(name);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 && listen(fd, SOMAXCONN) == 0)
    return {fd, 0};
  const std::string why = std::strerror(errno) + limit_behind(errno);
  if (fd >= 0) close(fd);
  throw std::runtime_error(why);
}

int connect_here(const std::string& name) {
  const auto [address, size] = address_here(name);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int error = connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 ? 0 : errno;
  ucred listens{};
  socklen_t length = sizeof listens;
  if (error == 0 && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &listens, &length) != 0 || listens.uid != geteuid()))
    error = EPERM;
  if (error == 0) return fd;
  close(fd);
  errno = error;
  return -1;
}

std::string place_text(const std::string& host, int port) {
  const bool in_brackets = host.find(':') != std::string::npos;
  return (in_brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

double start_seconds(double timeout) { return std::max(timeout + 10, 30.0); }

int connect_to(const std::string& host, int port, double seconds) {
  // A pod has a name only once it is scheduled, maybe minutes after this one.
  const bool pod = std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  Patience patience(seconds), name(pod ? seconds : std::min(seconds, kNameSeconds));
  for (std::string answer;; std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
    int unknown = 0;
    const Addresses addresses = look_up(host, port, unknown);
    if (name.over() && unknown)
      throw UserError(
          pod ? Exit::rank_lost : Exit::usage, "comm",
          "the host name '" + host + "' cannot be looked up: " + gai_strerror(unknown),
          pod ? "is node 0's pod scheduled, and does a headless service with publishNotReadyAddresses select it?"
              : "write the address of node 0's machine in numbers, or correct the name");
    for (const addrinfo* to = addresses.get(); to; to = to->ai_next) {
      Socket socket(*to, SOCK_STREAM | SOCK_NONBLOCK);
      const int error = try_connect(socket, *to, std::clamp(patience.left(), 0.1, kTrySeconds));
      if (error == 0) return socket.release();
      answer = std::strerror(error);
    }
    if (patience.over())
      throw UserError(
          Exit::rank_lost, "comm",
          "the rendezvous endpoint " + place_text(host, port) + " did not answer within " +
              std::to_string(std::lround(seconds)) + " s (" + answer + ")",
          "check that node 0 is started, that the address is one of its machine, and that no firewall blocks it");
  }
}

void await_listener(const std::string& host, int port, double seconds) { close(connect_to(host, port, seconds)); }

bool has_route(const std::string& host) {
  int unknown = 0;
  const Addresses addresses = look_up(host, 9, unknown);
  for (const addrinfo* to = addresses.get(); to; to = to->ai_next)
    if (const Socket socket(*to, SOCK_DGRAM); connect(socket.fd(), to->ai_addr, to->ai_addrlen) == 0) return true;
  return unknown != 0;  // then the name is what is wrong
}

std::string address_towards(const std::string& host, int port) {
  int unknown = 0;
  const Addresses addresses = look_up(host, port, unknown);
  for (const addrinfo* to = addresses.get(); to; to = to->ai_next) {
    const Socket socket(*to, SOCK_DGRAM);  // connecting a datagram socket sends nothing but selects the route
    if (connect(socket.fd(), to->ai_addr, to->ai_addrlen) != 0) continue;
    sockaddr_storage mine{};
    socklen_t size = sizeof mine;
    char text[NI_MAXHOST] = {};
    if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&mine), &size) != 0) continue;
    if (getnameinfo(reinterpret_cast<sockaddr*>(&mine), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      return text;
  }
  return "127.0.0.1";
}

Interface interface_of(const std::string& address_or_name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> freed(list, freeifaddrs);
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    if (one->ifa_name != address_or_name && numeric(one->ifa_addr) != address_or_name) continue;
    Interface found{one->ifa_name, (one->ifa_flags & IFF_LOOPBACK) != 0, 0};
    std::ifstream speed("/sys/class/net/" + found.name + "/speed");  // -1, or an error, where it has none
    if (int megabits = 0; speed >> megabits && megabits > 0) found.megabits = megabits;
    return found;
  }
  return {};
}

std::string describe(const Interface& way, const std::string& address) {
  std::string text = "TCP at " + address;
  if (way.name.empty()) return text;
  text += " (" + way.name;
  if (way.loopback) text += ", within this machine";
  if (way.megabits > 0) text += ", " + std::to_string(way.megabits) + " Mb/s";
  return text + ")";
}

std::string slow_way(const Interface& way, int here, int world, bool on_gpu) {
  if (on_gpu) return "tensors on GPUs are sent as copies in host memory: communication takes longer than a plan says";
  if (here == world) return "";
  if (way.loopback)
    return "the ranks are on several machines and messages leave by the loopback " + way.name +
           ": set GLOO_SOCKET_IFNAME to the interface that reaches the others, or MASTER_ADDR to an address of theirs";
  constexpr int kSlow = 10000;
  if (way.megabits > 0 && way.megabits < kSlow)
    return "messages between machines leave by " + way.name + " with " + std::to_string(way.megabits) +
           " Mb/s: where a faster network reaches the others, set GLOO_SOCKET_IFNAME to its interface";
  return "";
}

}  // namespace tessera::comm
