// What a rank is told of its GPU's NUMA node, by a folder like the system's, on the simulated device.
#include <gtest/gtest.h>

#include <cstdlib>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/job/device.h"

namespace tessera::job {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class FarMemory : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    setenv("TESSERA_SIMULATED_PCI", "0000:3b:00.0", 1);
    write("bus/pci/devices/0000:3b:00.0/numa_node", "1");
    write("devices/system/node/online", "0-1");
    write("devices/system/node/node1/cpulist", "0-1023");
    write("devices/system/node/node0/cpulist", "0-1023");
    write("devices/system/node/node1/meminfo", "Node 1 MemFree:      94371840 kB");  // 90 GiB
    write("devices/system/node/node0/meminfo", "Node 0 MemFree:      41943040 kB");  // 40 GiB
    write("devices/system/node/node1/distance", "21 10");
  }
  void TearDown() override {
    unsetenv("TESSERA_SIMULATED_PCI");
    engine::set_node_parts({}, {});
    FolderTest::TearDown();
  }
  std::string told(int64_t bytes) const {
    comm::Comm comm({}, Mesh{});
    ::testing::internal::CaptureStderr();
    place_host_memory(comm, bytes, folder_.string());
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(FarMemory, IsPlacedAndToldBeforeTheFirstStepWithBothNumbers) {
  EXPECT_NE(told(90 * kGiB).find("host memory of offloaded tensors: 90.00 GiB on NUMA node 1"), std::string::npos);
  const std::string said = told(120 * kGiB);
  for (const char* part : {"30.00 GiB on NUMA node 0, 90.00 GiB on NUMA node 1", "NUMA node 1 has 90.00 GiB free",
                           "is 120.00 GiB: it has 30.00 GiB on node 0", "lower plan.host_budget to 90.00 GiB"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " in: " << said;
  EXPECT_EQ(engine::take_node_parts(100 * kGiB), (engine::NodeParts{{1, 90 * kGiB}, {0, 10 * kGiB}}));
}

TEST_F(FarMemory, OfAllNodesThatIsTooLittleIsAnErrorWithBothNumbers) {
  try {
    told(140 * kGiB);
    FAIL() << "two nodes have 130 GiB";
  } catch (const UserError& error) {
    ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(error.code(), Exit::memory);
    const std::string text = error.what();
    EXPECT_NE(text.find("have 130.00 GiB"), std::string::npos) << text;
    EXPECT_NE(text.find("the host memory of its ranks is 140.00 GiB"), std::string::npos) << text;
  }
}

/// The host tier of the process takes the parts that were decided, and gives them back.
TEST_F(FarMemory, IsTakenByTheHostTier) {
  told(120 * kGiB);
  constexpr int64_t kOwn = 4 << 20;
  {
    engine::HostMemory host;
    host.reserve(kOwn);
    const engine::NodeParts rest = engine::take_node_parts(90 * kGiB);
    EXPECT_EQ(rest, (engine::NodeParts{{1, 90 * kGiB - kOwn}, {0, kOwn}}));
    engine::give_node_parts(rest);
  }
  EXPECT_EQ(engine::take_node_parts(90 * kGiB), (engine::NodeParts{{1, 90 * kGiB}}));
}

TEST_F(FarMemory, IsNotToldOfAMachineOfOneNode) {
  write("devices/system/node/online", "0");
  EXPECT_EQ(told(120 * kGiB), "");
}

}  // namespace
}  // namespace tessera::job
