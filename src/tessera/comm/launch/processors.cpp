#include "tessera/comm/launch/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <tuple>

namespace tessera::comm {

namespace {

/// The number that a file of the processor's topology begins with; -1: there is none.
int topology(int processor, const std::string& file) {
  int number = -1;
  std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/" + file) >> number;
  return number;
}

}  // namespace

std::vector<int> own_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::vector<std::tuple<int, int, int>> sorted;  // by package, first thread of the core, number
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed))
      sorted.emplace_back(topology(i, "physical_package_id"), topology(i, "thread_siblings_list"), i);
  std::ranges::sort(sorted);
  std::vector<int> processors;
  for (const auto& entry : sorted) processors.push_back(std::get<2>(entry));
  return processors;
}

std::vector<int> share_of(const std::vector<int>& processors, int local, int ranks) {
  const auto count = static_cast<int>(processors.size());
  if (count < ranks) return {};
  return {processors.begin() + local * count / ranks, processors.begin() + (local + 1) * count / ranks};
}

}  // namespace tessera::comm
