#pragma once
// Ranks of one machine read each other's memory: one copy by the kernel instead of two through a socket.
//
//   transport = read_same_host(std::move(gloo), index, size);   // by all members; returns `gloo` if not possible
#include <memory>

#include "tessera/comm/comm.h"

namespace tessera::comm {

/// Collective over the group. Returns `link` unless all members are on one host (the same kernel and the same process
/// and network namespaces) and could read a word of each other's memory. Otherwise returns a transport that sends
/// addresses and acknowledgements over `link` and reads large messages with process_vm_readv. The environment variable
/// TESSERA_SAME_HOST is the size in bytes from which a message is large (default 32 MiB; the largest value among the
/// members counts); 0 on any member disables it.
std::unique_ptr<Transport> read_same_host(std::unique_ptr<Transport> link, int index, int size);

}  // namespace tessera::comm
