// What the launcher refuses before it starts anything; what it does with ranks is in tests/multirank.
#include "tessera/comm/launcher.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/comm/heartbeat.h"
#include "tessera/comm/local_ranks.h"
#include "tessera/comm/machine.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/store.h"

namespace tessera::comm {
namespace {

std::string refusal(const LaunchOptions& options) {
  try {
    launch(options, {"train"}, [](const auto&, int) { std::abort(); });
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

TEST(Launch, GivesRanksEqualSharesOfTheProcessors) {
  const std::vector<int> six = {0, 4, 1, 5, 2, 6};
  EXPECT_EQ(share_of(six, 0, 1), six);
  EXPECT_EQ(share_of(six, 1, 2), (std::vector<int>{5, 2, 6}));
  EXPECT_EQ(share_of(six, 0, 4), (std::vector<int>{0}));
  EXPECT_EQ(share_of(six, 3, 4), (std::vector<int>{2, 6}));
  EXPECT_TRUE(share_of(six, 0, 7).empty()) << "then the kernel places them";
}

TEST(Launch, RefusesMoreNodesAtLeastThanThereAre) {
  EXPECT_NE(refusal({.nproc = 1, .nnodes = 2, .endpoint = "127.0.0.1:1", .min_nodes = 3}).find("--min-nodes 3"),
            std::string::npos);
}

TEST(Launch, AsksForAMeetingPointOfSeveralNodes) {
  EXPECT_NE(refusal({.nproc = 1, .nnodes = 2}).find("--nnodes 2 needs a rendezvous endpoint"), std::string::npos);
}

TEST(Rendezvous, OfOneMachineListensOnLoopbackAlone) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  const HostedStore store("127.0.0.1", 0, "");
  int listeners = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      std::string number, local, remote, state;
      std::istringstream(line) >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      const bool listens = state == "0A" && colon != std::string::npos;
      if (!listens || std::stoi(local.substr(colon + 1), nullptr, 16) != store.port()) continue;
      ++listeners;
      EXPECT_EQ(local.substr(0, colon), "0100007F") << table;
    }
  }
  EXPECT_EQ(listeners, 1);
  StoreLink link("127.0.0.1", store.port(), {}, 30);
  EXPECT_EQ(link.claim("a", "1"), "1");
}

TEST(Rendezvous, WhatAStrangerWritesThereEndsNothingWithSuccess) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  for (const std::string text : {"0\x1f"
                                 "all done",
                                 "", "x", "\x1f", "99999999999\x1fz"}) {
    const HostedStore store("127.0.0.1", 0, "");
    StoreLink stranger("127.0.0.1", store.port(), {}, 30);
    stranger.set("refused", text);
    Nodes nodes({.nproc = 1, .nnodes = 2, .node_rank = 1, .timeout = 5}, "127.0.0.1", store.port());
    try {
      nodes.rendezvous();
      ADD_FAILURE() << "no error of " << text;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::rank_lost) << error.what();
      EXPECT_NE(std::string(error.what()).find("which no launcher of this program writes"), std::string::npos)
          << error.what();
    }
  }
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

/// Two ranks that beat: of one step rank 0 waits in a collective, and rank 1 works, for as long as they live.
void wait_or_work(const std::vector<std::string>&, int) {
  Rendezvous place;
  place.local_rank = std::atoi(std::getenv("LOCAL_RANK")), place.local_world = 2;
  Heartbeat heartbeat(place);
  heartbeat.at(1, 0, "forward blocks.0");
  if (place.local_rank == 0) heartbeat.waits(true);
  std::this_thread::sleep_for(std::chrono::seconds(60));
  _exit(0);
}

TEST(LocalRanks, TheTimeThatAMachineSleptIsNeitherWorkNorWait) {
  constexpr double kTimeout = 2;
  const RankForks forks({}, wait_or_work);
  LocalRanks ranks({.ranks = 2, .world = 2, .host = "127.0.0.1", .port = 1, .timeout = kTimeout}, forks);
  const auto rest = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  for (int i = 0; i < 2000 && ranks.longest_wait() <= 0; ++i) rest(0.01), ranks.look(false);
  ASSERT_GT(ranks.longest_wait(), 0);
  rest(kTimeout + 0.3);  // what a suspend looks like: nobody was looked at
  ranks.look(true);
  EXPECT_FALSE(ranks.verdict(0)) << ranks.verdict(0)->text;
  const auto woke = std::chrono::steady_clock::now();
  std::optional<Verdict> end;
  for (int i = 0; i < 1000 && !end; ++i) rest(0.02), ranks.look(false), end = ranks.verdict(0);
  ASSERT_TRUE(end) << "who stays still is found after a further timeout";
  EXPECT_EQ(end->code, Exit::rank_lost);
  EXPECT_NE(end->text.find("rank 1 has made no progress"), std::string::npos) << end->text;
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - woke).count(), 0.8 * kTimeout);
}

/// Beats once and is stopped, as all processes of a machine that sleeps.
void beat_and_stop(const std::vector<std::string>&, int) {
  Rendezvous place;
  place.local_rank = std::atoi(std::getenv("LOCAL_RANK")), place.local_world = 2;
  Heartbeat heartbeat(place);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  raise(SIGSTOP);
  _exit(0);
}

TEST(LocalRanks, AreNotSilentForTheTimeThatTheMachineSlept) {
  const RankForks forks({}, beat_and_stop);
  LocalRanks ranks({.ranks = 2, .world = 2, .host = "127.0.0.1", .port = 1, .timeout = 1.0}, forks);
  const auto rest = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  for (int i = 0; i < 60; ++i) rest(0.01), ranks.look(false);
  rest(1.2);
  ranks.look(true);  // before a rank that wakes with it has beaten
  EXPECT_FALSE(ranks.verdict(0)) << ranks.verdict(0)->text;
  rest(1.2);
  ranks.look(false);
  ASSERT_TRUE(ranks.verdict(0));
  EXPECT_NE(ranks.verdict(0)->text.find("has not answered"), std::string::npos) << ranks.verdict(0)->text;
}

void ignore_signals(const std::vector<std::string>&, int) {
  signal(SIGTERM, SIG_IGN);
  Rendezvous place;
  place.local_rank = std::atoi(std::getenv("LOCAL_RANK")), place.local_world = 1;
  Heartbeat heartbeat(place);
  heartbeat.at(1, 0, "forward");
  std::this_thread::sleep_for(std::chrono::seconds(60));
  _exit(0);
}

TEST(LocalRanks, ASecondSignalEndsThemAtOnce) {
  const RankForks forks({}, ignore_signals);
  LocalRanks ranks({.ranks = 1, .world = 1, .host = "127.0.0.1", .port = 1, .timeout = 30}, forks);
  for (int i = 0; i < 100; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10)), ranks.look(false);
  ranks.signal(SIGTERM);
  ranks.look(false);
  EXPECT_FALSE(ranks.verdict(0)) << "the first asks them to end by themselves: " << ranks.verdict(0)->text;
  ranks.signal(SIGTERM);
  const auto end = ranks.verdict(0);
  ASSERT_TRUE(end);
  EXPECT_NE(end->text.find("stopped at once by a second signal"), std::string::npos) << end->text;
}

/// Rank 0's next collective stands behind the one in which it waits; what rank 1 is at is seen half a second later.
void queue_or_work_seen_late(const std::vector<std::string>&, int) {
  Rendezvous place;
  place.local_rank = std::atoi(std::getenv("LOCAL_RANK")), place.local_world = 2;
  Heartbeat heartbeat(place);
  if (place.local_rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  heartbeat.at(1, 0, "reduce blocks.1");
  if (place.local_rank == 0) heartbeat.at(1, 0, "reduce head", kOnDevice), heartbeat.waits(true);
  std::this_thread::sleep_for(std::chrono::seconds(60));
  _exit(0);
}

TEST(LocalRanks, ARankThatWaitsIsNotNamedForOneWhoseWorkWasSeenLater) {
  const RankForks forks({}, queue_or_work_seen_late);
  LocalRanks ranks({.ranks = 2, .world = 2, .host = "127.0.0.1", .port = 1, .timeout = 1.0}, forks);
  std::optional<Verdict> end;
  for (int i = 0; i < 1000 && !end; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.look(false), end = ranks.verdict(0);
  }
  ASSERT_TRUE(end);
  EXPECT_NE(end->text.find("rank 1 has made no progress"), std::string::npos) << end->text;
}

}  // namespace
}  // namespace tessera::comm
