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

TEST(Launch, AsksForAMeetingPointOfSeveralNodes) {
  EXPECT_NE(refusal({.nproc = 1, .nnodes = 2}).find("--nnodes 2 needs a meeting point"), std::string::npos);
}

TEST(Heartbeat, TellsTheBoardWhereTheRankIs) {
  StatusBoard board(2);
  setenv("TESSERA_STATUS", board.path().c_str(), 1);
  Rendezvous place;
  place.local_rank = 1, place.local_world = 2;
  {
    Heartbeat heartbeat(place);
    heartbeat.at(12, 7, "forward blocks.3");
    for (int i = 0; i < 500 && board.read(1).beats < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_GE(board.read(1).beats, 2u);
    EXPECT_EQ(board.read(1).step, 12);
    EXPECT_EQ(board.read(1).text, "forward blocks.3");
    heartbeat.at(13, 0, std::string(500, 'x'));
    EXPECT_EQ(board.read(1).text, std::string(103, 'x'));
  }
  EXPECT_EQ(board.read(1).beats, 0u) << "a rank that is done is not silent";
  EXPECT_EQ(board.read(0).text, "");
  unsetenv("TESSERA_STATUS");
}

TEST(Heartbeat, DoesNothingWithoutALauncher) {
  unsetenv("TESSERA_STATUS");
  Heartbeat heartbeat({});
  heartbeat.at(1, 1, "forward");
}

}  // namespace
}  // namespace tessera::comm
