// Ranks as threads of one process: what the pace does when one is slow, fails or is lost.
#include "tessera/prepare/pace.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "tessera/comm/rendezvous.h"
#include "tessera/report/progress.h"

namespace tessera::prepare {
namespace {

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

/// Runs `work` as each of `world` ranks at once, with a time-out of `timeout` seconds on every collective.
void on_ranks(int world, double timeout, const std::function<void(int rank, comm::Comm&, const Mesh&)>& work) {
  const int port = free_port();
  Mesh mesh;
  mesh[Axis::dp_shard] = world;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      comm::Rendezvous place;
      place.rank = place.local_rank = rank;
      place.world = place.local_world = world;
      place.port = port;
      comm::Comm comm(place, mesh, timeout);
      work(rank, comm, mesh);
    });
  for (std::thread& rank : ranks) rank.join();
}

void sleep_seconds(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

class PaceOfRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_gloo()) GTEST_SKIP() << "ranks need a build with Gloo";
  }
};
class FailuresOfRanks : public PaceOfRanks {};

TEST_F(PaceOfRanks, ARankThatWorksLongerThanTheTimeoutIsWaitedFor) {
  std::atomic<int64_t> shown{0};
  std::atomic<int> met{0};
  on_ranks(2, 1, [&](int rank, comm::Comm& comm, const Mesh& mesh) {
    Pace pace(comm, mesh, [&](int64_t done) { shown = done; });
    pace.run([&] {
      if (rank == 1) sleep_seconds(2.5);
      pace.report(10 + rank);
      pace.barrier();
      ++met;
      pace.barrier();
    });
  });
  EXPECT_EQ(met, 2);
  EXPECT_EQ(shown, 21) << "what all ranks have done";
}

TEST_F(PaceOfRanks, AWaitThatTakesLongNamesTheRankThatIsWaitedFor) {
  ::testing::internal::CaptureStderr();
  on_ranks(3, 10, [&](int rank, comm::Comm& comm, const Mesh& mesh) {
    Pace pace(comm, mesh, {}, Pace::Seconds(0.2));
    pace.run([&] {
      if (rank == 1) sleep_seconds(0.7);
      pace.barrier();
    });
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  size_t told = 0;
  for (size_t at = 0; (at = text.find("waiting for rank 1", at)) != std::string::npos; ++at) ++told;
  EXPECT_EQ(told, 2u) << "after 0.2 and 0.4 s, by one rank: " << text;
}

TEST_F(PaceOfRanks, NobodyPassesAMeetingBeforeTheLastHasCome) {
  std::atomic<int> arrived{0};
  on_ranks(3, 10, [&](int rank, comm::Comm& comm, const Mesh& mesh) {
    Pace pace(comm, mesh);
    for (int round = 1; round <= 5; ++round) {
      sleep_seconds(0.01 * ((rank + round) % 3));
      ++arrived;
      pace.barrier();
      EXPECT_GE(arrived, 3 * round);
      pace.barrier();
    }
  });
}

TEST_F(PaceOfRanks, ARankThatFailsTakesTheOthersAlongWithItsCode) {
  std::atomic<int> ended{0};
  on_ranks(2, 10, [&](int rank, comm::Comm& comm, const Mesh& mesh) {
    Pace pace(comm, mesh);
    try {
      pace.run([&] {
        if (rank == 1) throw UserError(Exit::disk, "test", "the disk is full");
        pace.barrier();
        ADD_FAILURE() << "met a rank that had failed";
      });
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::disk);
      if (rank == 0) EXPECT_NE(std::string(error.what()).find("rank 1 stopped"), std::string::npos) << error.what();
      ++ended;
    }
  });
  EXPECT_EQ(ended, 2);
}

TEST_F(PaceOfRanks, OfOneRankNeverWaits) {
  comm::Comm comm({}, Mesh{});
  int64_t shown = 0;
  Pace pace(comm, Mesh{}, [&](int64_t done) { shown = done; });
  pace.run([&] { pace.report(4), pace.barrier(); });
  EXPECT_EQ(shown, 4);
}

TEST_F(FailuresOfRanks, AreKnownToAllRanksOnceShared) {
  on_ranks(3, 10, [&](int rank, comm::Comm& comm, const Mesh& mesh) {
    Failures failures(9);
    if (rank == 1) failures.add(4, "cut short"), failures.add(7, "no video stream");
    if (rank == 2) failures.add(8, std::string(2000, 'x'));
    failures.share(comm, mesh, rank);
    EXPECT_FALSE(failures.failed(0));
    EXPECT_EQ(failures.text(4), "cut short");
    EXPECT_EQ(failures.text(7), "no video stream");
    EXPECT_EQ(failures.text(8).substr(0, 100), std::string(100, 'x'));
    Failures none(9);
    none.share(comm, mesh, rank);
    EXPECT_TRUE(none.empty());
  });
}

TEST(CountProgress, InALogSaysTheLastCountAndHowLongItTook) {
  ::testing::internal::CaptureStderr();
  {
    report::CountProgress progress(true, "prepare", "clips", 3);
    for (int64_t done = 1; done <= 3; ++done) progress.at(done);
    report::CountProgress silent(false, "prepare", "clips", 3);
    silent.at(3);
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("prepare 3/3 clips"), 0u) << text;
  EXPECT_NE(text.find("clips/s  in "), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::prepare
