// How the messages of a rank leave, and when that is told.
#include "tessera/comm/interface.h"

#include <gtest/gtest.h>

namespace tessera::comm {
namespace {

TEST(Interface, TheLoopbackIsFoundByItsAddressAndByItsName) {
  const Interface by_address = interface_of("127.0.0.1");
  ASSERT_FALSE(by_address.name.empty());
  EXPECT_TRUE(by_address.loopback);
  EXPECT_EQ(interface_of(by_address.name).name, by_address.name);
  EXPECT_EQ(describe(by_address, "127.0.0.1"), "TCP at 127.0.0.1 (" + by_address.name + ", within this machine)");
  EXPECT_EQ(describe(interface_of("192.0.2.1"), "192.0.2.1"), "TCP at 192.0.2.1") << "which no machine has";
  EXPECT_EQ(describe({"eth0", false, 25000}, "10.0.0.3"), "TCP at 10.0.0.3 (eth0, 25000 Mb/s)");
}

TEST(Interface, ASlowerWayThanThereMayBeIsTold) {
  const Interface lo{"lo", true, 0}, fast{"ib0", false, 200000}, slow{"eth0", false, 1000}, silent{"eth1", false, 0};
  EXPECT_EQ(slow_way(lo, 4, 4, false), "");
  EXPECT_EQ(slow_way(fast, 4, 8, false), "");
  EXPECT_EQ(slow_way(silent, 4, 8, false), "") << "a speed that nobody knows is no slow one";
  EXPECT_EQ(slow_way(slow, 8, 8, false), "") << "what stays on one machine does not cross it";
  EXPECT_NE(slow_way(slow, 4, 8, false).find("eth0 with 1000 Mb/s"), std::string::npos);
  EXPECT_NE(slow_way(lo, 4, 8, false).find("leave by the loopback lo: set GLOO_SOCKET_IFNAME"), std::string::npos);
  for (const int world : {4, 8})
    EXPECT_NE(slow_way(fast, 4, world, true).find("copies in host memory"), std::string::npos) << world;
}

}  // namespace
}  // namespace tessera::comm
