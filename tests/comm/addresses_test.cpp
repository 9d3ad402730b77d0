// The address where ranks meet: found when someone is there, named within the stated time when nobody is.
#include "tessera/comm/addresses.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>

#include "tessera/base/check.h"

namespace tessera::comm {
namespace {

/// A port of this machine; `listens`: somebody answers there.
class Port {
 public:
  explicit Port(bool listens) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    if (listens) {
      EXPECT_EQ(listen(socket_, 4), 0);
    }
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    number = ntohs(address.sin_port);
  }
  ~Port() { close(socket_); }
  int number = 0;

 private:
  int socket_;
};

struct Refusal {
  Exit code = Exit::done;
  std::string text;
  double seconds = 0;
};

Refusal await(const std::string& host, int port, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  Refusal refusal;
  try {
    await_listener(host, port, seconds);
  } catch (const UserError& error) {
    refusal.code = error.code(), refusal.text = error.what();
  }
  refusal.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return refusal;
}

TEST(MeetingPoint, IsThereAsSoonAsSomeoneListens) {
  const Port port(true);
  EXPECT_EQ(await("127.0.0.1", port.number, 5).text, "");
  EXPECT_LT(await("localhost", port.number, 5).seconds, 2);
}

TEST(MeetingPoint, IsNamedWithTheSecondsWhenNobodyListens) {
  const Port port(false);
  const Refusal refusal = await("127.0.0.1", port.number, 0.6);
  EXPECT_EQ(refusal.code, Exit::rank_lost);
  EXPECT_NE(
      refusal.text.find("127.0.0.1:" + std::to_string(port.number) + " did not answer within 1 s (Connection refused)"),
      std::string::npos)
      << refusal.text;
  EXPECT_LT(refusal.seconds, 3);
}

TEST(MeetingPoint, ThatSwallowsConnectionsIsNamedInTheSameTime) {
  // 192.0.2.0/24 is for documents: no route, or a silent one
  const Refusal refusal = await("192.0.2.77", 29500, 1);
  EXPECT_EQ(refusal.code, Exit::rank_lost);
  EXPECT_NE(refusal.text.find("192.0.2.77:29500"), std::string::npos) << refusal.text;
  EXPECT_LT(refusal.seconds, 4);
}

TEST(MeetingPoint, OfAnUnknownHostIsAMistakeOfTheUser) {
  const Refusal refusal = await("no-such-host.invalid", 29500, 0.2);
  EXPECT_EQ(refusal.code, Exit::usage);
  EXPECT_NE(refusal.text.find("'no-such-host.invalid' cannot be looked up"), std::string::npos) << refusal.text;
}

/// Pods are scheduled one after another, and each may be started anew: no reason to end the job.
TEST(MeetingPoint, OfAPodThatHasNoNameYetIsWaitedFor) {
  setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1", 1);
  const Refusal refusal = await("no-such-host.invalid", 29500, 0.2);
  unsetenv("KUBERNETES_SERVICE_HOST");
  EXPECT_EQ(refusal.code, Exit::rank_lost);
  EXPECT_NE(refusal.text.find("headless service"), std::string::npos) << refusal.text;
}

TEST(MeetingPoint, TellsTheAddressAtThisEnd) {
  EXPECT_EQ(address_towards("127.0.0.1", 29500), "127.0.0.1");
  EXPECT_EQ(address_towards("no-such-host.invalid", 29500), "127.0.0.1");
}

// How the messages of a rank leave, and when that is told.
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
