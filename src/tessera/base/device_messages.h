#pragma once
// What the groups of a purpose send between devices. NCCL takes buffers for each other rank that a communicator exchanges with,
// in each of its channels, and for the rings of its collectives: only what a purpose needs is connected, and plans count that.
//
//   device_messages("gather");      // the library's all_gather alone, along rings
//   device_messages("ring");        // exchanges with the member before and the one after
//   device_messages("norms");       // exchanges of each with each, in few channels
#include <string_view>
#include <vector>

namespace tessera {

struct DeviceMessages {
  enum class Peers { none, neighbours, all };
  Peers peers = Peers::all;  ///< with whom messages of a member's own are exchanged
  bool rings = false;        ///< the library's collectives: all_gather, or sums where run.sums = "library"
  int channels = 0;          ///< at most (ncclConfig_t::maxCTAs); 0: as many as the library wants

  /// The members that member `index` of `size` exchanges messages with.
  std::vector<int> peers_of(int index, int size) const;
};

/// `purpose`: the name of the group without its axes. `library_sums`: whether run.sums = "library".
DeviceMessages device_messages(std::string_view purpose, bool library_sums = false);

}  // namespace tessera
