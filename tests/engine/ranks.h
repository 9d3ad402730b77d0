#pragma once
// Ranks as threads of the test: real collectives, in milliseconds.
//
//   on_ranks(2, [&](const comm::Rendezvous& place) { comm::Comm comm(place, mesh); ... });
#include <ATen/Parallel.h>

#include <functional>
#include <thread>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/store.h"

namespace tessera::engine {

/// Calls it once for each rank, at the same time. What one throws ends the program: the others would wait for it.
inline void on_ranks(int world, const std::function<void(const comm::Rendezvous&)>& rank_of) {
  const comm::HostedStore store("127.0.0.1", 0, "");
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);  // as many as there are ranks compute
      comm::Rendezvous place;
      place.rank = rank, place.world = world, place.port = store.port(), place.store_is_hosted = true;
      rank_of(place);
    });
  for (auto& rank : ranks) rank.join();
}

}  // namespace tessera::engine
