// Machines and containers that lack something: what is missing is named, with what to do, before anything is lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "processes.h"
#include "program.h"
#include "small_memory.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

void expect(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
  EXPECT_EQ(r.output.find("this is a fault in tessera"), std::string::npos) << r.output;
}

Result shell(const std::string& command, double timeout = 120) {
  return run_program({"/bin/bash", "-c", command}, {{"OMP_NUM_THREADS", "1"}}, timeout);
}

const std::string kProgram = TESSERA_BINARY;

TEST(Machines, ThatCannotHoldSoManyRanksSayHowManyTheyCanBeforeAFork) {
  const TinyRun run("many");
  for (const char* ranks : {"100000", "999999"}) {
    const Result r = run.tessera({"launch", "-n", ranks, "train", run.recipe()}, 20);
    expect(r, 2, {std::string("-n ") + ranks + ": this machine can hold ", "ranks at the very most: "});
    EXPECT_LT(r.seconds, 10);
  }
  EXPECT_FALSE(fs::exists(run.out()));
}

TEST(Machines, WithoutALoopbackSayThatItIsDown) {
  const TinyRun run("down");
  const std::string command = " launch -n 2 train " + run.recipe() + " --run.steps 2";
  if (const Result may = shell("unshare -rn true"); may.code != 0)
    GTEST_SKIP() << "no network namespace: " << may.output;
  const Result r = shell("exec unshare -rn " + kProgram + command);
  expect(r, 2,
         {"processes of this machine cannot reach 127.0.0.1 (Network is unreachable)",
          "the loopback interface of this machine or container is down", "ip link set lo up"});
  EXPECT_LT(r.seconds, 20);
  expect(shell("exec unshare -rn /bin/sh -c 'ip link set lo up && exec " + kProgram + command + "'"), 0, {"step 2/2"});
  // One rank needs no network.
  expect(shell("exec unshare -rn " + kProgram + " train " + run.recipe() + " --run.steps 3"), 0, {"step 3/3"});
}

TEST(Machines, ThatForbidCallsOfTheSystemAreNamedByThem) {
  const TinyRun run("forbidden");
  const auto without = [&](const std::string& calls, const std::string& start) {
    return shell("exec " FORBID " " + calls + " -- " + kProgram + " " + start + " " + run.recipe() + " --run.steps 2");
  };
  if (const Result may = shell(FORBID " flock -- /bin/true"); may.code == 65)
    GTEST_SKIP() << "no seccomp: " << may.output;
  expect(without("memfd_create", "launch -n 2 train"), 2,
         {"may not call memfd_create (Operation not permitted)", "seccomp profile"});
  // The system has other random numbers, and a rank alone needs no status of ranks.
  expect(without("getrandom", "launch -n 2 train"), 0, {"step 2/2"});
  expect(without("getrandom,memfd_create", "train"), 0, {});
}

TEST(Machines, WithAStackTooSmallSayWhichLimitItIs) {
  const TinyRun run("stack");
  for (const char* start : {"train ", "launch -n 2 train "})
    for (const char* kilobytes : {"128", "256"})
      expect(shell(std::string("ulimit -s ") + kilobytes + "; exec " + kProgram + " " + start + run.recipe()), 2,
             {"the limit of the stack is " + std::string(kilobytes), " KiB (ulimit -s)", "ulimit -s 8192"});
  expect(shell("ulimit -s 1024; exec " + kProgram + " launch -n 2 train " + run.recipe() + " --run.steps 2"), 0,
         {"step 2/2"});
}

TEST(Machines, InAFolderThatIsGoneOrMayNotBeEnteredSaySo) {
  const TinyRun run("nowhere");
  const std::string train = "exec " + kProgram + " launch -n 2 train " + run.recipe() + " --run.steps 2";
  const std::string folder = (run.folder() / "gone").string();
  expect(shell("mkdir " + folder + " && cd " + folder + " && rmdir " + folder + " && " + train), 2,
         {"the current folder", "cd "});
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become a user without rights";
  const std::string user = "setpriv --reuid=65534 --clear-groups --inh-caps=-all --bounding-set=-all ";
  if (shell(user + "true").code != 0) GTEST_SKIP() << "setpriv is not here";
  fs::permissions(run.folder(), fs::perms::all);
  fs::create_directories(folder);
  fs::permissions(folder, fs::perms::none);
  expect(shell("cd " + folder + " && exec " + user + kProgram + " launch -n 2 train " + run.recipe()), 2,
         {"the current folder", "Permission denied", "cd "});
}

/// A file system in memory, in a mount namespace that goes with it.
Result on_a_disk(const TinyRun& run, const std::string& options, const std::string& command) {
  const std::string disk = (run.folder() / "disk").string();
  fs::create_directories(disk);
  const std::string mount = "mount -t tmpfs -o " + options + " tmpfs " + disk;
  return run_program({"/usr/bin/env", "unshare", "-rm", "/bin/bash", "-c", mount + " || exit 99; " + command},
                     {{"OMP_NUM_THREADS", "1"}});
}

TEST(Machines, WithoutInodesAreNotCalledFull) {
  const TinyRun run("inodes");
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  const std::string disk = (run.folder() / "disk").string();
  const std::string train =
      "exec " + kProgram + " launch -n 2 train " + run.recipe() + " --run.steps 2 --run.out " + disk;
  const Result one = on_a_disk(run, "nr_inodes=2", train + "/run");
  if (one.code == 99) GTEST_SKIP() << "a file system cannot be mounted here: " << one.output;
  for (const char* inodes : {"2", "3", "8", "12", "18"}) {
    SCOPED_TRACE(inodes);
    const Result r = on_a_disk(run, std::string("nr_inodes=") + inodes, train + "/run");
    expect(r, 7, {"No space left on device", std::string("all of its ") + inodes + " inodes are in use", "df -i"});
    EXPECT_EQ(r.output.find("the disk is full"), std::string::npos) << r.output;
  }
}

TEST(Machines, WithAFullDiskAreCalledThat) {
  const TinyRun run("full");
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  const std::string disk = (run.folder() / "disk").string();
  const Result r = on_a_disk(run, "size=4m",
                             "head -c 4190000 /dev/zero > " + disk + "/filler; exec " + kProgram +
                                 " launch -n 2 train " + run.recipe() + " --run.steps 2 --run.out " + disk + "/run");
  if (r.code == 99) GTEST_SKIP() << "a file system cannot be mounted here: " << r.output;
  EXPECT_EQ(r.code, 7) << r.output;
}

/// Another program of the same cgroup takes the memory, and the kernel takes the rank.
TEST(Machines, WhoseKernelKillsARankForMemoryNameItBesideThePlansHostBytes) {
  const SmallMemory memory(int64_t{600} << 20);
  if (!memory.made()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
  const TinyRun run("killed");
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  const auto within = [&](const std::string& command, const std::string& log, const std::string& score) {
    return start_program(
        {"/bin/bash", "-c",
         "echo " + score + " > /proc/self/oom_score_adj; echo $$ > " + memory.procs() + " && exec " + command},
        (run.folder() / log).string(), {{"OMP_NUM_THREADS", "1"}, {"TESSERA_TEST_EXEC", "1"}});
  };
  const pid_t launcher = within(kProgram + " launch -n 2 train " + run.recipe() + " --run.steps 1000000", "log", "0");
  for (int i = 0; i < 3000 && run.metrics("run").size() < 2; ++i) sleep_seconds(0.02);
  const std::vector<pid_t> ranks = children(launcher);
  ASSERT_EQ(ranks.size(), 2u) << text_of(run.folder() / "log");
  std::ofstream("/proc/" + std::to_string(ranks[1]) + "/oom_score_adj") << 1000;
  const pid_t hungry = within("tail /dev/zero", "hungry", "-900");
  EXPECT_EQ(wait_program(launcher, 60), 5);
  kill(hungry, SIGKILL);
  wait_program(hungry, 10);
  const std::string said = text_of(run.folder() / "log");
  // rank 0 may follow while the pages of rank 1 are still being freed
  for (const char* words : {" was killed by signal 9 (Killed)", "the kernel's memory killer ended it",
                            "its cgroup has a limit of 600.00 MiB", "the plan counts ", " of host memory for a rank, ",
                            " for the 2 of this machine"})
    EXPECT_NE(said.find(words), std::string::npos) << words << " in " << said;
}

/// The check of free space counts what a run exports.
TEST(Machines, WithoutRoomForExportsRefuseTheRunAtItsStart) {
  const TinyRun run("exports");
  ASSERT_EQ(run.train(1, "whole", {"--run.steps", "1"}).code, 0);
  const auto bytes_of = [&](const std::string& folder) {
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(run.out("whole")) / folder))
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    return bytes;
  };
  // Room for the checkpoint alone, and some: not for the model beside it.
  const int64_t room = bytes_of("checkpoints") + bytes_of("model") / 2;
  const std::string disk = (run.folder() / "disk").string();
  const Result r =
      on_a_disk(run, "size=" + std::to_string(room),
                "exec " + kProgram + " train " + run.recipe() + " --run.steps 1 --run.out " + disk + "/run");
  if (r.code == 99) GTEST_SKIP() << "a file system cannot be mounted here: " << r.output;
  expect(r, 7, {"1 checkpoint of ", ", model of ", " are free", "set run.out to another disk"});
  EXPECT_EQ(r.output.find("step 1/1"), std::string::npos) << "no step ran\n" << r.output;
}

TEST(Machines, TellAHistoryThatWasRemoved) {
  const TinyRun run("history");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "4", "--checkpoint.every", "2", "--checkpoint.keep", "0"}).code, 0);
  fs::remove(fs::path(run.out()) / "metrics.jsonl");
  Result r = run.train(1, "run", {"--run.steps", "6", "--checkpoint.every", "2", "--checkpoint.keep", "0"});
  expect(r, 0, {"there is no metrics.jsonl, removed or left behind", "the checkpoint is of step 4"});
  EXPECT_EQ(run.metrics("run", "warning").size(), 1u);
  // Behind a step back the history begins anew, and is missed as well.
  const std::string second = run.out() + "/checkpoints/step-000002";
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "6", "--checkpoint.every", "2", "--run.resume", second}).code, 0);
  fs::remove(fs::path(run.out()) / "metrics.jsonl");
  r = run.train(1, "run", {"--run.steps", "8", "--checkpoint.every", "2", "--run.resume", second});
  expect(r, 0, {"there is no metrics.jsonl, removed or left behind", "the checkpoint is of step 6"});
}

TEST(Machines, ReadAPickleAsWhatItIs) {
  const TinyRun run("pickle");
  const std::string file = (run.folder() / "model.pth").string();
  std::ofstream(file, std::ios::binary) << std::string("\x80\4\x95\x40\0\0\0\0\0\0\0}\x8c\1a\x94K\1s.", 19)
                                        << std::string(70, 'x');
  const Result r = run.tessera({"inspect", file});
  expect(r, 3, {"model.pth is a plain pickle and no file of torch.save"});
  EXPECT_EQ(r.output.find("header of"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
