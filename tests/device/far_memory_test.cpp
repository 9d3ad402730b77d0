// What a rank is told of its GPU's NUMA node, by a folder like the system's, on the simulated device.
#include <gtest/gtest.h>

#include <cstdlib>

#include "folder_test.h"
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
    write("devices/system/node/node1/meminfo", "Node 1 MemFree:      94371840 kB");  // 90 GiB
  }
  void TearDown() override {
    unsetenv("TESSERA_SIMULATED_PCI");
    FolderTest::TearDown();
  }
  std::string told(int64_t bytes) const {
    comm::Comm comm({}, Mesh{});
    ::testing::internal::CaptureStderr();
    tell_far_memory(comm, bytes, folder_.string());
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(FarMemory, IsToldBeforeTheFirstStepWithBothNumbers) {
  EXPECT_EQ(told(90 * kGiB), "");
  const std::string said = told(120 * kGiB);
  for (const char* part : {"NUMA node 1 has 90.00 GiB free", "takes 120.00 GiB: 30.00 GiB will lie on other nodes",
                           "lower plan.host_budget to 90.00 GiB"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " in: " << said;
}

TEST_F(FarMemory, IsNotToldOfAMachineOfOneNode) {
  write("devices/system/node/online", "0");
  EXPECT_EQ(told(120 * kGiB), "");
}

}  // namespace
}  // namespace tessera::job
