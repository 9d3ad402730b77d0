// Which NUMA node a GPU hangs on, read from a folder like the system's.
#include "tessera/engine/store/node_parts.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

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
  EXPECT_EQ(node->room, 1 << 20);
}

TEST_F(Numa, NodesHaveWhatTheSystemTellsOfThem) {
  write_machine();
  write("devices/system/node/node1/meminfo",
        "Node 1 MemFree: 1024 kB\nNode 1 Active(file): 512 kB\nNode 1 Inactive(file):   256 kB");
  write("devices/system/node/node1/distance", "21 10");
  const std::vector<NumaNode> nodes = numa_nodes(folder_.string());
  ASSERT_EQ(nodes.size(), 2);
  EXPECT_EQ(nodes[0].free, -1) << "node 0 does not tell";
  EXPECT_EQ(nodes[1].free, 1 << 20);
  EXPECT_EQ(nodes[1].room, 1792 << 10) << "files that are cached make room";
  EXPECT_EQ(nodes[1].distance, (std::map<int, int>{{0, 21}, {1, 10}}));
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

/// Virtual machines have one node: their host tier would be touched by one thread.
TEST_F(Numa, OfAMachineOfOneNodeAllProcessorsThatTheProcessMayUseTouchMemory) {
  write_machine();
  write("devices/system/node/online", "0");
  ASSERT_FALSE(found());
  EXPECT_EQ(touching_cpus({}), allowed());
  EXPECT_EQ(touching_cpus({own}), std::vector<int>{own}) << "of several nodes those near the GPU alone";
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

/// The memory of a virtual machine grows while it is used; here that of a file does, 200 ms late.
TEST(TouchPages, WaitForMemoryThatAMachineGetsLater) {
  constexpr size_t kSize = size_t{4} << 20;
  const int file = memfd_create("grows", 0);
  ASSERT_GE(file, 0);
  void* mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
#ifdef MADV_POPULATE_WRITE
  const bool known = madvise(mapped, kSize, MADV_POPULATE_WRITE) != 0 && errno != EINVAL;
#else
  const bool known = false;
#endif
  if (known) {
    std::jthread machine([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_EQ(ftruncate(file, kSize), 0);
    });
    EXPECT_TRUE(touch_pages(mapped, kSize, {}));
  }
  munmap(mapped, kSize);
  close(file);
  if (!known) GTEST_SKIP() << "this kernel cannot take pages without a use of them";
}

}  // namespace
}  // namespace tessera::engine
