#pragma once
// On which NUMA nodes the host memory of ranks lies: each takes the node of its GPU, and what that has no room for from the
// nearest node that has. Decided once, by all ranks of a machine alike, before any of it is taken.
//
//   const std::vector<NodeParts> all = place_on_nodes(ranks);   // the same on every rank
//   set_node_parts(all[rank], numa_nodes());                    // host memory of this process lies there (host_memory.h)
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/engine/memory/numa.h"

namespace tessera::engine {

inline constexpr int kMostNodes = 16;  ///< of a machine; memory on others is used as the system likes

/// What a rank knows of its machine, and needs of it.
struct NodeShare {
  int64_t machine = 0;                        ///< the same number on ranks of one machine (this_machine())
  int node = -1;                              ///< of its GPU; -1: it has none, and its memory lies where it may
  int64_t bytes = 0;                          ///< of the rank's host tier
  std::array<int64_t, kMostNodes> free = {};  ///< by number of the node, before any rank took some
  std::array<int64_t, kMostNodes> room = {};  ///< likewise: NumaNode::room
  std::array<int, kMostNodes> distance = {};  ///< from `node`; 0: there is no such node
};
/// Of this process. `near`: near_node() of its GPU.
NodeShare node_share(const std::vector<NumaNode>& nodes, const std::optional<NumaNode>& near, int64_t bytes);
/// A number that processes of one machine share, containers or not; at most 2^53.
int64_t this_machine();

struct NodePart {
  int node = 0;
  int64_t bytes = 0;
  bool operator==(const NodePart&) const = default;
};
using NodeParts = std::vector<NodePart>;  ///< of a rank, nearest first

/// By rank. A node is shared alike by the ranks whose GPUs hang on it; what it has left goes to others, nearest first. What no
/// node has free, because it keeps files, is on the GPU's own: the system makes room there. None for ranks without a node.
std::vector<NodeParts> place_on_nodes(const std::vector<NodeShare>& ranks);

struct NodeText {
  std::string near;              ///< how much lies where; empty: no rank has a node
  std::vector<std::string> far;  ///< of each node whose ranks have memory elsewhere: how much, and what to do
  std::string shortage;          ///< of the first machine whose nodes together have too little; empty: none has
};
NodeText describe(const std::vector<NodeShare>& ranks, const std::vector<NodeParts>& parts);

/// Host memory of the process lies on these parts, which mappings take in their order.
void set_node_parts(NodeParts parts, std::vector<NumaNode> nodes);
/// The next `bytes`, which give_node_parts() gives back; what is beyond all parts is on the first of them. Empty: there are none.
NodeParts take_node_parts(int64_t bytes);
void give_node_parts(const NodeParts& parts);
/// touch_pages() of each part by threads on its node.
bool touch_parts(void* mapped, size_t size, const NodeParts& parts);

}  // namespace tessera::engine
