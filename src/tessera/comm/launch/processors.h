#pragma once
// The processors of this machine that a rank runs on.
//
//   share_of(own_processors(), 1, 2)   // the second of two ranks, on eight processors: {4, 5, 6, 7}
//
// [Note: bound ranks]
// Ranks that compute on processors are bound to equal shares of them. Where the kernel places their threads, those of two ranks
// meet on one processor while another one idles, until it balances them a tick later, and the other rank waits for that in the
// next collective: steps of 64 plans on two cores took 6 % longer in the median, and spread twice as far.
#include <vector>

namespace tessera::comm {

/// Those that this process may run on, threads of one core and cores of one package side by side. Empty: not known.
std::vector<int> own_processors();

/// The share of rank `local` of `ranks` on this machine; empty: there are fewer processors than ranks.
std::vector<int> share_of(const std::vector<int>& processors, int local, int ranks);

}  // namespace tessera::comm
