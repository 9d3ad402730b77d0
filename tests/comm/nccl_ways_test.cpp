#include "tessera/device/nccl_ways.h"

#include <gtest/gtest.h>

namespace tessera::device {
namespace {

/// Lines in the forms of NCCL 2.18 to 2.28.
constexpr char kBegins[] =
    "node:12:34 [0] NCCL INFO comm 0x55d35c3a9ec0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
    "node:12:34 [0] NCCL INFO NVLS Head  0:  0  8\n";
constexpr char kNvlink[] =
    "node:12:34 [0] NCCL INFO Pattern 4, crossNic 1, nChannels 4, bw 24.000000/24.000000, type NVL/PIX, sameChannels 0\n";
constexpr char kPcie[] =
    "node:12:34 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type PHB/PIX, sameChannels 1\n";
constexpr char kPeers[] = "node:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n";
constexpr char kHost[] = "node:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n";
constexpr char kRdma[] = "node:12:34 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/3/GDRDMA\n";
constexpr char kByHost[] = "node:12:34 [0] NCCL INFO Channel 09/0 : 26[2] -> 33[1] [send] via NET/IBext_v8/4\n";
constexpr char kSockets[] = "node:12:34 [0] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/Socket/0\n";

Ways read(std::initializer_list<const char*> lines) {
  Ways ways;
  std::string log = kBegins;
  for (const char* line : lines) log += line;
  ways.read(log);
  return ways;
}

TEST(NcclWays, AreThoseThatItsLogNames) {
  EXPECT_FALSE(read({}).known());
  EXPECT_EQ(read({}).text(), "");
  EXPECT_EQ(read({kNvlink, kPeers}).text(), "NVLink");
  EXPECT_EQ(read({kPcie, kPeers}).text(), "PCIe from GPU to GPU");
  EXPECT_EQ(read({kNvlink, kPeers, kRdma}).text(), "NVLink, RDMA into GPU memory");
  EXPECT_EQ(read({kHost, kSockets}).text(), "host memory, sockets");
  EXPECT_FALSE(read({kNvlink}).known()) << "a search that found NVLink has not sent by it yet";
}

TEST(NcclWays, ThatAreSlowerThanTheyNeedBeWarn) {
  EXPECT_EQ(read({kNvlink, kPeers}).warning(true), "");
  EXPECT_EQ(read({kNvlink, kPeers, kRdma}).warning(false), "");
  EXPECT_NE(read({kHost}).warning(true).find("nvidia-smi topo -p2p r"), std::string::npos);
  EXPECT_NE(read({kPeers, kByHost}).warning(false).find("nvidia_peermem"), std::string::npos);
  EXPECT_NE(read({kPeers, kSockets}).warning(false).find("TCP sockets"), std::string::npos);
  EXPECT_NE(read({kSockets}).warning(true).find("takes them for those of several"), std::string::npos);
}

TEST(NcclWays, SharedMemoryOfAContainerMayBeTooSmall) {
  EXPECT_NE(small_shared_memory(int64_t{64} << 20, 8).find("--shm-size=1g"), std::string::npos);
  EXPECT_EQ(small_shared_memory(int64_t{64} << 20, 1), "") << "one rank on the machine shares nothing";
  EXPECT_EQ(small_shared_memory(int64_t{1} << 30, 8), "");
}

}  // namespace
}  // namespace tessera::device
