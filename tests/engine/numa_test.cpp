// Which NUMA node a GPU hangs on, read from a folder like the system's.
#include "tessera/engine/memory/numa.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "folder_test.h"

namespace tessera::engine {
namespace {

constexpr const char* kPci = "0000:3b:00.0";

/// Processors that this process may use.
std::vector<int> allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

class Numa : public FolderTest {
 protected:
  /// A machine of two sockets, the GPU on the second, of which the process may use one processor.
  void write_machine() const {
    write("bus/pci/devices/" + std::string(kPci) + "/numa_node", "1");
    write("devices/system/node/online", "0-1");
    write("devices/system/node/node1/cpulist", std::to_string(own) + ",900-903");
    write("devices/system/node/node1/meminfo", "Node 1 MemTotal:       2048 kB\nNode 1 MemFree:        1024 kB");
  }
  std::optional<NumaNode> found(const std::string& pci = kPci) const { return near_node(pci, folder_.string()); }

  const int own = allowed().back();
};

TEST_F(Numa, IsTheNodeOfTheDeviceWithTheProcessorsThatTheProcessMayUse) {
  write_machine();
  const std::optional<NumaNode> node = found();
  ASSERT_TRUE(node);
  EXPECT_EQ(node->number, 1);
  EXPECT_EQ(node->cpus, std::vector<int>{own});
  EXPECT_EQ(node->free, 1 << 20);
}

TEST_F(Numa, IsNoneWhereTheSystemDoesNotSayOrThereIsNoChoice) {
  EXPECT_FALSE(found()) << "an empty folder";
  write_machine();
  EXPECT_FALSE(found("")) << "a device that does not tell its address";
  EXPECT_FALSE(found("0000:af:00.0")) << "another device";
  write("devices/system/node/online", "0");
  EXPECT_FALSE(found()) << "one node";
  write_machine();
  write("bus/pci/devices/" + std::string(kPci) + "/numa_node", "-1");
  EXPECT_FALSE(found()) << "the firmware does not know";
  for (const char* cpus : {"900-903", "", "x-y", "0-99999999"}) {
    write_machine();
    write("devices/system/node/node1/cpulist", cpus);
    EXPECT_FALSE(found()) << "no processor that the process may use: " << cpus;
  }
}

/// Of the eight ranks of two machines those of one node take more than it has; a rank without a node is nobody's.
TEST(NumaShares, WhatANodeHasNoRoomForIsToldWithBothNumbersAndTheBudgetThatFits) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  std::vector<NodeShare> ranks;
  for (int rank = 0; rank < 8; ++rank)
    ranks.push_back({.machine = rank / 4, .node = rank % 4 / 2, .free = 90 * kGiB, .bytes = 40 * kGiB});
  EXPECT_EQ(beyond_nodes(ranks), std::vector<std::string>()) << "80 of 90 GiB on each of four nodes";
  ranks[7] = {.machine = 1, .node = -1, .free = -1, .bytes = 500 * kGiB};
  ranks[4].node = ranks[5].node = ranks[6].node = 1;
  ranks[5].free = 96 * kGiB;  // read a little earlier
  EXPECT_EQ(beyond_nodes(ranks),
            std::vector<std::string>(
                {"NUMA node 1 has 90.00 GiB free, and the host tiers of ranks 4, 5 and 6, whose GPUs hang on it, take "
                 "120.00 GiB: 30.00 GiB will lie on other nodes, and their copies cross the link between the sockets; "
                 "lower plan.host_budget to 120.00 GiB, or end what uses that node's memory (numactl -H)"}));
  ranks = {{.machine = 0, .node = 0, .free = kGiB, .bytes = 2 * kGiB}};
  const std::vector<std::string> one = beyond_nodes(ranks);
  ASSERT_EQ(one.size(), 1);
  EXPECT_NE(one[0].find("the host tier of rank 0, whose GPU hangs on it, takes"), std::string::npos) << one[0];
  ranks[0].free = -1;
  EXPECT_EQ(beyond_nodes(ranks), std::vector<std::string>()) << "the system does not say what is free";
  EXPECT_EQ(this_machine(), this_machine());
  EXPECT_GT(this_machine(), 0);
}

TEST_F(Numa, AThreadStaysOnTheGivenProcessorsAndTheCallerWhereItWas) {
  const std::vector<int> before = allowed();
  std::mutex mutex;
  std::set<int> tasks, cpus;
  on_cpus({own}, 3, [&](int task) {
    const std::lock_guard lock(mutex);
    tasks.insert(task), cpus.insert(sched_getcpu());
  });
  EXPECT_EQ(tasks, (std::set{0, 1, 2}));
  EXPECT_EQ(cpus, std::set{own});
  EXPECT_EQ(allowed(), before);
}

TEST(TouchPages, TakesAllOfThemByThreadsOrWithout) {
  constexpr size_t kPage = 4096, kSize = (size_t{130} << 20) + 3 * kPage;  // of three threads
  for (const std::vector<int>& cpus : {std::vector<int>(), allowed()}) {
    void* mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_TRUE(touch_pages(mapped, kSize, cpus));
    std::vector<unsigned char> there(kSize / kPage);
    ASSERT_EQ(mincore(mapped, kSize, there.data()), 0);
    EXPECT_EQ(std::ranges::count_if(there, [](unsigned char page) { return page & 1; }),
              static_cast<std::ptrdiff_t>(there.size()));
    munmap(mapped, kSize);
  }
}

}  // namespace
}  // namespace tessera::engine
