// The disk and the host memory that a plan counts on are missing, full, slow or failing, or the plan is nonsense: whole
// runs, each with its message and exit code, before or at the fault; checkpoints stay whole and no process is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <thread>

#include "processes.h"
#include "program.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

Flags joined(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// The optimiser's states on disk, in a folder of the run's own.
Flags on_disk(const TinyRun& run) { return {"--plan.states", "nvme", "--plan.nvme", (run.folder() / "nvme").string()}; }

/// A run of two ranks with a checkpoint of step 2, to be found again.
void save_two_steps(const TinyRun& run) {
  const Result r = run.train(2, "run", {"--run.steps", "2", "--checkpoint.every", "1"});
  ASSERT_EQ(r.code, 0) << r.output;
}

void expect_words(int code, int expected, const std::string& output, const std::vector<std::string>& words) {
  EXPECT_EQ(code, expected) << output;
  for (const std::string& word : words)
    EXPECT_NE(output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << output;
  EXPECT_EQ(output.find("terminate called"), std::string::npos) << output;
}

/// The checkpoint of step 2 is whole, and a run goes on from it.
void expect_nothing_lost(const TinyRun& run) {
  const auto latest = checkpoint::latest(fs::path(run.out()) / "checkpoints");
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(checkpoint::TrainingCheckpoint(*latest).manifest().step, 2);
  const Result again = run.train(2, "run", joined({"--run.steps", "4"}, on_disk(run)));
  expect_words(again.code, 0, again.output, {"resumed from"});
  EXPECT_EQ(run.metrics("run").back()["step"], 4);
}

/// Two ranks that train for ever, until `fault` is done to rank 1.
struct Ended {
  int code = -1;
  std::string output;
};
Ended break_while_training(const TinyRun& run, const Flags& flags, const std::function<void(pid_t)>& fault) {
  const std::string log = (run.folder() / "log.txt").string();
  Flags argv = {TESSERA_BINARY,
                "launch",
                "-n",
                "2",
                "train",
                run.recipe(),
                "--run.steps",
                "1000000",
                "--run.out",
                run.out(),
                "--checkpoint.every",
                "1000000",
                "--fault.timeout",
                "20"};
  const pid_t launcher = start_program(joined(argv, flags), log, {{"OMP_NUM_THREADS", "1"}});
  const auto trains = [&] { return run.metrics("run").size() > 3; };  // 2 of them before
  for (int i = 0; i < 1500 && !trains(); ++i) sleep_seconds(0.02);
  const std::vector<pid_t> ranks = children(launcher);
  EXPECT_EQ(ranks.size(), 2u) << text_of(log);
  if (ranks.size() == 2) fault(ranks[1]);
  Ended ended{wait_program(launcher, 40), text_of(log)};
  if (ended.code < 0) kill(launcher, SIGKILL), wait_program(launcher, 10);
  EXPECT_TRUE(gone(ranks, 3)) << "a rank outlived its launcher\n" << ended.output;
  return ended;
}

TEST(DiskFaults, AFileThatCannotGrowStopsTheRunBeforeItsFirstStep) {
  const TinyRun run("quota");
  save_two_steps(run);
  std::string command = "ulimit -f 256; exec " TESSERA_BINARY " launch -n 2 train " + run.recipe() + " --run.out " +
                        run.out() + " --run.steps 4";
  for (const std::string& word : on_disk(run)) command += " " + word;
  const Result r = run_program({"/bin/bash", "-c", command}, {{"OMP_NUM_THREADS", "1"}});
  expect_words(r.code, 7, r.output,
               {(run.folder() / "nvme").string(), "for the plan's nvme tier cannot be set aside", "File too large",
                "set plan.nvme to another disk"});
  EXPECT_EQ(run.metrics("run").size(), 2u) << "no step ran";
  expect_nothing_lost(run);
}

TEST(DiskFaults, AFullDiskStopsTheRunBeforeItsFirstStep) {
  const TinyRun run("full");
  const std::string disk = (run.folder() / "small").string();
  fs::create_directories(disk);
  const std::string mount = "mount -t tmpfs -o size=256k tmpfs " + disk;
  if (const Result may = run_program({"/usr/bin/env", "unshare", "-rm", "/bin/sh", "-c", mount}); may.code != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here: " << may.output;
  save_two_steps(run);
  const std::string command = mount + " && exec " TESSERA_BINARY " launch -n 2 train " + run.recipe() + " --run.out " +
                              run.out() + " --run.steps 4 --plan.states nvme --plan.nvme " + disk;
  const Result r =
      run_program({"/usr/bin/env", "unshare", "-rm", "/bin/sh", "-c", command}, {{"OMP_NUM_THREADS", "1"}});
  expect_words(r.code, 7, r.output, {disk, "cannot be set aside", "No space left on device", "free space"});
  expect_nothing_lost(run);
}

TEST(DiskFaults, ADiskThatCannotBeReadAnyMoreEndsTheRunAtTheInstructionThatNeedsIt) {
  const TinyRun run("unreadable");
  save_two_steps(run);
  const Ended ended = break_while_training(run, on_disk(run), [&](pid_t rank) {
    // Its file has no name; what lies behind its new end is lost, as behind a bad sector.
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(rank) + "/fd")) {
      std::error_code gone;
      if (fs::read_symlink(entry.path(), gone).string().find("/tessera-tier-") == std::string::npos) continue;
      EXPECT_EQ(truncate(entry.path().c_str(), 4096), 0);
      // A write makes the file long again: once more, until a read has come to what is not there.
      for (int i = 0; i < 2000 && truncate(entry.path().c_str(), 4096) == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    ADD_FAILURE() << "rank 1 has no file on the disk";
  });
  expect_words(ended.code, 7, ended.output,
               {(run.folder() / "nvme").string() + ": reading", "Input/output error", "rank 1: error: failed at step",
                "states on lane disk", "start again from the last checkpoint"});
  expect_nothing_lost(run);
}

TEST(DiskFaults, ADiskThatCannotBeWrittenAnyMoreEndsTheRunAtTheInstructionThatNeedsIt) {
  const TinyRun run("unwritable");
  save_two_steps(run);
  const Ended ended = break_while_training(run, on_disk(run), [](pid_t rank) {  // rank 0 writes metrics as well
    const rlimit short_files{65536, 65536};  // longer than the log, shorter than the rank's file of states
    EXPECT_EQ(prlimit(rank, RLIMIT_FSIZE, &short_files, nullptr), 0);
  });
  expect_words(ended.code, 7, ended.output,
               {(run.folder() / "nvme").string() + ": writing", "File too large", "rank 1: error: failed at step",
                "stash", "states on lane disk"});
  expect_nothing_lost(run);
}

TEST(DiskFaults, ASlowDiskIsToldByItsLaneAndByWhatComputingWaitedFor) {
  const TinyRun run("slow-disk");
  Flags argv = {TESSERA_BINARY, "launch", "-n", "2", "train", run.recipe(), "--run.out", run.out(), "--run.steps", "4"};
  const Result r = run_program(joined(argv, on_disk(run)),
                               {{"OMP_NUM_THREADS", "1"}, {"TESSERA_DRILL", "rank=1,op=fetch,lane=disk,do=0.05"}});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto ranks = run.metrics("run").back()["ranks"];
  const double units = 5;  // stem, three blocks, head: a fetch each
  EXPECT_GT(ranks[1]["busy"]["disk"].get<double>(), 0.05 * units);
  EXPECT_LT(ranks[0]["busy"]["disk"].get<double>(), 0.05 * units);
  EXPECT_GT(ranks[1]["exposed"]["copy"].get<double>(), 0.05 * (units - 1)) << "updates wait for states";
  EXPECT_LT(ranks[0]["exposed"]["copy"].get<double>(), 0.05 * (units - 1));
}

TEST(DiskFaults, ADiskThatNeverAnswersIsNamedAfterTheTimeout) {
  const TinyRun run("dead-disk");
  save_two_steps(run);
  Flags argv = {TESSERA_BINARY, "launch",  "-n",          "2", "train",           run.recipe(),
                "--run.out",    run.out(), "--run.steps", "6", "--fault.timeout", "2"};
  const Result r =
      run_program(joined(argv, on_disk(run)),
                  {{"OMP_NUM_THREADS", "1"}, {"TESSERA_DRILL", "rank=1,step=4,op=stash,lane=disk,do=hang"}});
  expect_words(r.code, 5, r.output,
               {"rank 1 has made no progress for 2 s (fault.timeout)", "stash", "states on lane disk"});
  EXPECT_LT(r.seconds, 30);
  expect_nothing_lost(run);
}

TEST(HostFaults, MoreThanTheHostsBudgetIsRefusedBeforeAnythingIsTaken) {
  const TinyRun run("host");
  save_two_steps(run);
  for (const Flags& more : {Flags{"--plan.states", "host", "--plan.gradients", "host"},
                            Flags{"--plan.activations", "offload", "--plan.states", "host"}}) {
    const Result r = run.train(2, "run", joined({"--run.steps", "4", "--plan.host_budget", "64KiB"}, more));
    expect_words(r.code, 4, r.output, {"plan.host_budget", "KiB"});
  }
  expect_nothing_lost(run);
}

/// Plans that somebody edited: what is wrong is named with its key, before anything runs.
TEST(PlanFaults, APlanEditedIntoNonsenseIsRefusedByKeyAndLosesNothing) {
  const TinyRun run("nonsense");
  save_two_steps(run);
  const std::string whole = text_of(run.out() + "/plan.toml"), file = (run.folder() / "edited.toml").string();
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string text = whole;
    const size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what << " in:\n" << whole;
    return at == std::string::npos ? text : text.replace(at, what.size(), with);
  };
  const struct {
    std::string text;
    int code;
    std::vector<std::string> words;
  } cases[] = {
      {whole.substr(0, whole.size() / 2) + " [[[", 2, {file}},
      {"strategy = 3\n" + whole, 2, {"strategy", "unknown key"}},
      {replaced("prefetch = ", "prefetch = -"), 2, {"prefetch", "at least 0"}},
      {replaced("dp_shard = 2", "dp_shard = 3"), 2, {"dp_shard"}},
      {replaced("masters = \"fp32\"", "masters = \"split\""), 2, {"param_dtype", "contradicts"}},
      {replaced("name = \"stem\"", "name = \"stern\""), 2, {"stern", "did you mean 'stem'?"}},
      {whole + "\n[[units]]\nname = \"*\"\nstates = \"floppy\"\n", 2, {"states", "did you mean"}},
      {whole + "\n[[units]]\nname = \"*\"\nstates = \"nvme\"\n", 2, {"nvme", "plan.nvme"}},
      {whole + "\n[[units]]\nname = \"*\"\nsites = { self_atn = \"offload\" }\n", 2, {"did you mean"}},
  };
  for (const auto& edited : cases) {
    std::ofstream(file, std::ios::trunc) << edited.text;
    const Result r = run.train(2, "run", {"--run.steps", "4", "--plan.file", file});
    expect_words(r.code, edited.code, r.output, edited.words);
  }
  expect_nothing_lost(run);
}

}  // namespace
}  // namespace tessera::testing
