#include "tessera/comm/machine.h"

#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"

namespace tessera::comm {
namespace {

TEST(Machine, HoldsAFewRanksAndNotAHundredThousand) {
  EXPECT_NO_THROW(require_room(1));
  EXPECT_NO_THROW(require_room(4));
  for (const int ranks : {100'000'000, 1'000'000'000}) {
    try {
      require_room(ranks);
      ADD_FAILURE() << ranks << " ranks";
    } catch (const UserError& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_NE(text.find("-n " + std::to_string(ranks) + ": this machine can hold "), std::string::npos) << text;
      EXPECT_NE(text.find("--nnodes K"), std::string::npos) << text;
    }
  }
}

/// A machine as its kernel shows it, in a folder.
class MemoryKillsTest : public FolderTest {
 protected:
  /// Of version 2: its memory.events say `kills`.
  void events(const std::string& cgroup, int kills, const std::string& most = "2147483648") {
    write("sys/fs/cgroup" + cgroup + "/memory.events",
          "low 0\nhigh 0\nmax 7\noom 3\noom_kill " + std::to_string(kills) + "\noom_group_kill 0\n");
    write("sys/fs/cgroup" + cgroup + "/memory.max", most + "\n");
  }
};

TEST_F(MemoryKillsTest, AreCountedFromTheBeginning) {
  write("proc/self/cgroup", "0::/slice/job\n");
  events("/slice/job", 4);
  events("", 9);  // of others
  const MemoryKills kills(folder_);
  EXPECT_FALSE(kills.any());
  EXPECT_EQ(kills.limit(), "; its cgroup has a limit of 2.00 GiB");
  events("", 12);
  EXPECT_FALSE(kills.any());
  events("/slice/job", 5);
  EXPECT_TRUE(kills.any());
  events("/slice/job", 5, "max");
  EXPECT_EQ(kills.limit(), "");
}

TEST_F(MemoryKillsTest, OfAContainerAreThoseOfItsMountedTree) {
  write("proc/self/cgroup", "0::/docker/0123abcd\n");  // a path of the host's
  events("", 1);
  const MemoryKills kills(folder_);
  events("", 2);
  EXPECT_TRUE(kills.any());
}

TEST_F(MemoryKillsTest, OfVersionOneStandInOomControl) {
  const auto control = [&](int count) {
    write("sys/fs/cgroup/memory/job/memory.oom_control",
          "oom_kill_disable 0\nunder_oom 0\noom_kill " + std::to_string(count) + "\n");
  };
  write("proc/self/cgroup", "9:name=systemd:/\n8:pids:/\n4:cpu,memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  control(0);
  const MemoryKills kills(folder_);
  EXPECT_EQ(kills.limit(), "") << "a number of pages stands for none";
  EXPECT_FALSE(kills.any());
  control(1);
  EXPECT_TRUE(kills.any());
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(kills.limit(), "; its cgroup has a limit of 1.00 GiB");
}

TEST_F(MemoryKillsTest, WithoutACgroupAreThoseOfTheMachine) {
  write("proc/vmstat", "nr_free_pages 12\noom_kill 2\n");
  const MemoryKills kills(folder_);
  EXPECT_FALSE(kills.any());
  EXPECT_EQ(kills.limit(), "");
  write("proc/vmstat", "nr_free_pages 12\noom_kill 3\n");
  EXPECT_TRUE(kills.any());
}

TEST_F(MemoryKillsTest, OfAMachineThatShowsNothingThereAreNone) { EXPECT_FALSE(MemoryKills(folder_).any()); }

}  // namespace
}  // namespace tessera::comm
