#pragma once
// The NUMA node that a GPU hangs on. Memory lies on the node of the thread that touches it first, and copies to a GPU of
// another socket cross the link between the two: host memory of a GPU is touched by threads on its own node.
//
//   const std::optional<NumaNode> node = near_node(properties.pci);
//   touch_pages(mapped, size, node ? node->cpus : std::vector<int>());
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

struct NumaNode {
  int number = 0;
  std::vector<int> cpus;  ///< of the node, those that this process may use
  int64_t free = -1;      ///< bytes; -1: not known
};

/// The node of the device at this address of the bus ("0000:3b:00.0"). Empty: the machine has one node, the system does not
/// say, or the process may use none of its processors. `sysfs`: where the system says it.
std::optional<NumaNode> near_node(const std::string& pci, const std::string& sysfs = "/sys");

/// What a rank takes of its GPU's node.
struct NodeShare {
  int64_t machine = 0;  ///< the same number on ranks of one machine (this_machine())
  int node = -1;        ///< NumaNode::number; -1: there is none
  int64_t free = -1;    ///< bytes of it, before any rank took some; -1: not known
  int64_t bytes = 0;    ///< of the rank's host tier
};
/// A number that processes of one machine share, containers or not; at most 2^53.
int64_t this_machine();
/// For each node on which the ranks take more than it has free: that, with both numbers, and with what plan.host_budget all of
/// it lies near. By rank.
std::vector<std::string> beyond_nodes(const std::vector<NodeShare>& ranks);

/// Runs task(0) to task(threads - 1), each on a thread of its own that stays on `cpus`, and waits for them.
void on_cpus(const std::vector<int>& cpus, int threads, const std::function<void(int)>& task);

/// Takes the pages of a mapping now, in huge ones where the system has them, by threads on `cpus`; empty: by this thread. False
/// where the machine has too little memory.
bool touch_pages(void* mapped, size_t size, const std::vector<int>& cpus);

}  // namespace tessera::engine
