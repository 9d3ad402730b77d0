#pragma once
// The network interface that messages of this process leave by.
//
//   const Interface way = interface_of("10.0.0.3");               // {"eth0", false, 25000}
//   describe(way, "10.0.0.3");                                    // "TCP at 10.0.0.3 (eth0, 25000 Mb/s)"
#include <string>

namespace tessera::comm {

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
