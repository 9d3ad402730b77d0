// A run's folder on a disk that behaves as network file systems do (far_disk.cpp): whole runs end with the bits of those on a
// disk of this machine, and what cannot be is told.
#include <gtest/gtest.h>
#include <signal.h>

#include "processes.h"
#include "program.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class NetworkDisk : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(run_.train(2, "near", {"--run.steps", "6"}).code, 0); }

  std::map<std::string, std::string> far(const std::string& does, const std::string& out) const {
    return {{"LD_PRELOAD", FAR_DISK},
            {"TESSERA_FAR_DISK", run_.out(out)},
            {"TESSERA_FAR_DISK_LOG",
             (fs::temp_directory_path() / (run_.folder().filename().string() + ".renames")).string()},
            {"TESSERA_FAR_DISK_DOES", does},
            {"TESSERA_TEST_EXEC", "1"},
            {"OMP_NUM_THREADS", "1"}};
  }
  Words train(const std::string& out, const Words& more) const {
    Words argv = {TESSERA_BINARY, "launch",      "-n",          "2", "--max-restarts",     "1", "train", run_.recipe(),
                  "--run.out",    run_.out(out), "--run.steps", "6", "--checkpoint.every", "2"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  Result on(const std::string& does, const std::string& out, const Words& more = {},
            const std::map<std::string, std::string>& variables = {}) const {
    auto all = far(does, out);
    all.insert(variables.begin(), variables.end());
    return run_program(train(out, more), all, 180);
  }
  void expect_as_near(const std::string& out) const {
    EXPECT_EQ(run_.losses(out), run_.losses("near"));
    EXPECT_EQ(run_.model(out), run_.model("near"));
    EXPECT_TRUE(fs::exists(fs::path(run_.out(out)) / "checkpoints/step-000006/manifest.json"));
    for (const auto& entry : fs::recursive_directory_iterator(run_.out(out)))
      EXPECT_NE(entry.path().extension(), ".partial") << entry.path();
  }
  void TearDown() override { fs::remove(far("", "").at("TESSERA_FAR_DISK_LOG")); }

  const TinyRun run_{"far"};
};

/// Rank 0 needs the other rank's record of each checkpoint. Rank 1 dies when the one of step 4 is there, and sees that only a
/// while after it has been started again.
TEST_F(NetworkDisk, RenamesThatAreSeenLateAreWaitedFor) {
  const Result r = on("late=2", "late", {}, {{"TESSERA_DRILL", "rank=1,step=5,op=forward,do=kill,attempt=0"}});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("restart 1 of 1"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("step-000004"), std::string::npos) << "and both went on from there\n" << r.output;
  expect_as_near("late");
}

/// And the cache with the samples is made there too.
TEST_F(NetworkDisk, InterruptedCallsStaleNamesAndLostAnswersEndNothing) {
  const Words cache = {"--data.cache", run_.out("rough") + "/cache"};
  const Result r = on("eintr estale lost", "rough", cache);
  EXPECT_EQ(r.code, 0) << r.output;
  expect_as_near("rough");
  const Result again = on("eintr estale lost", "rough", {cache[0], cache[1], "--run.steps", "7"});
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("resumed from"), std::string::npos) << again.output;
}

TEST_F(NetworkDisk, WithoutLocksWarnsAndTrains) {
  const Result r = on("nolock", "free");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("this file system has no locks"), std::string::npos) << r.output;
  expect_as_near("free");
}

}  // namespace
}  // namespace tessera::testing
