#pragma once
// Ranks of one machine read each other's memory: one copy by the kernel instead of two through a socket.
//
//   transport = read_same_host(std::move(gloo), index, size);   // all members together; `gloo` itself where it cannot
//   be
#include <memory>

#include "tessera/comm/comm.h"

namespace tessera::comm {

/// Collective over the group. Returns `link` unless all members are on one host (the same kernel, the same namespaces
/// of processes and network) and have read a word of each other's memory; else a transport that sends addresses and
/// acknowledgements over `link` and fetches what is large with process_vm_readv. TESSERA_SAME_HOST in the environment
/// says from how many bytes a message is large (default 32 MiB; the largest among the members counts); 0 for any member
/// switches it off.
std::unique_ptr<Transport> read_same_host(std::unique_ptr<Transport> link, int index, int size);

}  // namespace tessera::comm
