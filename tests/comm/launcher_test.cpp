// What the launcher refuses before it starts anything; what it does with ranks is in tests/multirank.
#include "tessera/comm/launcher.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/comm/heartbeat.h"

namespace tessera::comm {
namespace {

std::string refusal(const LaunchOptions& options) {
  try {
    launch(options, {"train"});
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "none";
}

TEST(Launch, RefusesCountsThatDoNotGoTogether) {
  EXPECT_NE(refusal({.nproc = 0}).find("-n 0"), std::string::npos);
  EXPECT_NE(refusal({.nproc = 1, .nnodes = 2, .node_rank = 2}).find("--node-rank 2"), std::string::npos);
}

TEST(Launch, RefusesMoreNodesAtLeastThanThereAre) {
  EXPECT_NE(refusal({.nproc = 1, .nnodes = 2, .endpoint = "127.0.0.1:1", .min_nodes = 3}).find("--min-nodes 3"),
            std::string::npos);
}

TEST(Launch, AsksForAMeetingPointOfSeveralNodes) {
  EXPECT_NE(refusal({.nproc = 1, .nnodes = 2}).find("--nnodes 2 needs a rendezvous endpoint"), std::string::npos);
}

/// A board, and a rank that writes on it as local rank 1 of 2.
class HeartbeatTest : public ::testing::Test {
 protected:
  HeartbeatTest() {
    setenv("TESSERA_STATUS", board.path().c_str(), 1);
    Rendezvous place;
    place.local_rank = 1, place.local_world = 2;
    heartbeat = std::make_unique<Heartbeat>(place);
    unsetenv("TESSERA_STATUS");
  }
  StatusBoard board{2};
  std::unique_ptr<Heartbeat> heartbeat;
};

TEST_F(HeartbeatTest, TellsTheBoardWhereTheRankIs) {
  EXPECT_EQ(board.read(1).where(), " before the first step");
  heartbeat->at(12, 7, "forward blocks.3");
  for (int i = 0; i < 500 && board.read(1).beats < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(board.read(1).beats, 2u);
  EXPECT_EQ(board.read(1).where(), " at step 12, forward blocks.3");
  heartbeat->done();
  EXPECT_EQ(board.read(1).where(), " at step 12, after forward blocks.3");
  heartbeat->at(13, 0, std::string(500, 'x'));
  EXPECT_EQ(board.read(1).text, std::string(163, 'x'));
  EXPECT_EQ(board.read(0).text, "");
  heartbeat.reset();
  EXPECT_EQ(board.read(1).beats, 0u) << "a rank that is done is not silent";
}

TEST_F(HeartbeatTest, TellsWorkFromWaiting) {
  heartbeat->at(3, 1, "forward blocks.1");
  heartbeat->waits(false);
  std::thread lane([&] {
    heartbeat->at(3, 2, "gather blocks.2", 1);
    heartbeat->waits(true);
  });
  lane.join();
  const auto status = board.read(1);
  EXPECT_EQ(status.where(), " at step 3, forward blocks.1; gather blocks.2");
  ASSERT_TRUE(status.longest_wait());
  EXPECT_EQ(status.longest_wait()->text, "gather blocks.2");
  ASSERT_TRUE(status.longest_work());
  EXPECT_EQ(status.longest_work()->text, "forward blocks.1");
  EXPECT_FALSE(board.read(0).longest_wait());
}

TEST(Heartbeat, DoesNothingWithoutALauncher) {
  unsetenv("TESSERA_STATUS");
  Heartbeat heartbeat({});
  heartbeat.at(1, 1, "forward");
}

}  // namespace
}  // namespace tessera::comm
