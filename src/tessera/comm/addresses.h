#pragma once
// Addresses between ranks and launchers: the rendezvous that is waited for, this machine's address towards it, and the
// network interface that messages leave by.
//
//   await_listener("10.0.0.1", 29500, 70);           // returns as soon as a connection is accepted
//   address_towards("10.0.0.1", 29500);              // "10.0.0.7": this machine's address for connections from there
//   describe(interface_of("10.0.0.3"), "10.0.0.3");  // "TCP at 10.0.0.3 (eth0, 25000 Mb/s)"
#include <optional>
#include <string>

namespace tessera::comm {

/// "10.0.0.1:29500", and "[fd00::1]:29500" for an address of IPv6.
std::string place_text(const std::string& host, int port);

/// Whether the host is this machine, which only its own processes reach so.
bool is_loopback(const std::string& host);

/// Seconds that ranks and launchers wait for each other at the start: `timeout` (fault.timeout) + 10 and at least 30,
/// because loading LibTorch on a busy machine may take longer than a short time-out.
double start_seconds(double timeout);

/// Waits until something listens at the endpoint. Throws UserError: rank_lost naming the address, the last answer and
/// the seconds; usage after 10 seconds for a host name that cannot be resolved, but in a pod of Kubernetes rank_lost after
/// all of them.
void await_listener(const std::string& host, int port, double seconds);
/// The same; returns the connection, a descriptor that does not block.
int connect_to(const std::string& host, int port, double seconds);

struct Listener {
  int fd = -1, port = 0;  ///< the descriptor is the caller's
};
/// A socket that listens at this address alone, so that no other network sees it: where `host` is an address in numbers
/// (or localhost) and one of this machine, else nothing. Throws std::runtime_error where the port is in use.
std::optional<Listener> listen_at(const std::string& host, int port);
/// The same at every address of this machine. Throws std::runtime_error.
Listener listen_everywhere(int port);

/// The same for processes of this machine and network namespace alone, under a name that is no file. Throws
/// std::runtime_error where the name is in use, or there can be none.
Listener listen_here(const std::string& name);
/// A connection to it, that does not block; -1 and errno where nobody of this user listens under the name.
int connect_here(const std::string& name);

/// Whether this machine has an interface that leads to the host; else errno says why.
bool has_route(const std::string& host);

/// The local address of a connection to the host; "127.0.0.1" if there is no route.
std::string address_towards(const std::string& host, int port);

struct Interface {
  std::string name;       ///< empty: none of this machine has the address
  bool loopback = false;  ///< messages stay on this machine
  int megabits = 0;       ///< a second, as the system says; 0: it does not
};

/// The interface that has this numeric address; or, with its name in place of one, that interface.
Interface interface_of(const std::string& address_or_name);
std::string describe(const Interface& way, const std::string& address);

/// What is slower than it need be for `world` ranks of which `here` are on this machine; empty: nothing. `on_gpu`: the
/// tensors lie on GPUs.
std::string slow_way(const Interface& way, int here, int world, bool on_gpu);

}  // namespace tessera::comm
