#pragma once
// The NUMA node that a GPU hangs on. Memory lies on the node of the thread that touches it first, and copies to a GPU of
// another socket cross the link between the two: host memory of a GPU is touched by threads on its own node.
//
//   const std::optional<NumaNode> node = near_node(properties.pci);
//   touch_pages(mapped, size, node ? node->cpus : std::vector<int>());
// Which node has room for what is in node_parts.h.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

struct NumaNode {
  int number = 0;
  std::vector<int> cpus;  ///< of the node, those that this process may use
  int64_t free = -1;      ///< bytes; -1: not known
  int64_t room = -1;      ///< bytes: free, or of files that the system keeps there and can read again; -1: not known
  std::map<int, int> distance = {};  ///< of each node, by its number, as the firmware tells it: 10 is itself
};

/// The nodes of the machine, by number; empty: it has one, or the system does not say.
std::vector<NumaNode> numa_nodes(const std::string& sysfs = "/sys");

/// The node of the device at this address of the bus ("0000:3b:00.0"). Empty: the machine has one node, the system does not
/// say, or the process may use none of its processors. `sysfs`: where the system says it.
std::optional<NumaNode> near_node(const std::string& pci, const std::string& sysfs = "/sys");

/// Runs task(0) to task(threads - 1), each on a thread of its own that stays on `cpus`, and waits for them.
void on_cpus(const std::vector<int>& cpus, int threads, const std::function<void(int)>& task);

/// Takes the pages of a mapping now, in huge ones where the system has them, by up to eight threads on touching_cpus(). False
/// where the machine has too little memory, and gets no more within some seconds.
bool touch_pages(void* mapped, size_t size, const std::vector<int>& near);
/// `near`, the processors near a GPU; where none are known, as on a machine of one node, all that the process may use.
std::vector<int> touching_cpus(const std::vector<int>& near);
/// Pages of the mapping that are taken from here on come from this node while it has some free. A system that refuses that
/// (seccomp of containers) takes them from the node of the thread that touches them, as it does without.
void prefer_node(void* mapped, size_t size, int node);

}  // namespace tessera::engine
