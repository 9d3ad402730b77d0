#include "tessera/comm/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <fstream>
#include <memory>

namespace tessera::comm {

namespace {

std::string numeric(const sockaddr* address) {
  if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = {};
  return getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

}  // namespace

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
