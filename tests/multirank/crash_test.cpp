// Ranks and launchers killed at random instants, also inside a checkpoint's writing: the next start goes on from the
// last whole checkpoint, nothing partial survives, no process is left behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "matrix.h"
#include "program.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::vector<pid_t> children(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  std::vector<pid_t> list;
  for (pid_t child; in >> child;) list.push_back(child);
  return list;
}

bool alive(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const size_t at = text.rfind(')');
  return at != std::string::npos && at + 2 < text.size() && text[at + 2] != 'Z';
}

void sleep_seconds(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

struct Running {
  pid_t launcher = -1;
  std::vector<pid_t> ranks;
};

Running start(const TinyRun& run, const std::string& log, int ranks, std::vector<std::string> more) {
  std::vector<std::string> argv = {TESSERA_BINARY, "launch", "-n", std::to_string(ranks), "train", run.recipe()};
  argv.insert(argv.end(), more.begin(), more.end());
  Running r;
  r.launcher = start_program(argv, log, {{"OMP_NUM_THREADS", "1"}});
  for (int i = 0; i < 500 && static_cast<int>(r.ranks.size()) < ranks; ++i)
    sleep_seconds(0.01), r.ranks = children(r.launcher);
  return r;
}

void expect_gone(const Running& r, double within) {
  for (double waited = 0; waited < within; waited += 0.05) {
    bool any = false;
    for (pid_t pid : r.ranks) any = any || alive(pid);
    if (!any) return;
    sleep_seconds(0.05);
  }
  for (pid_t pid : r.ranks) {
    EXPECT_FALSE(alive(pid)) << "rank process " << pid << " outlived its launcher";
    kill(pid, SIGKILL);
  }
}

/// Waits until the log shows training under way.
void await_text(const std::string& log, const fs::path& metrics, double timeout) {
  for (double waited = 0; waited < timeout && !fs::exists(metrics); waited += 0.02) sleep_seconds(0.02);
  (void)log;
}

TEST(Crash, TwoHundredKillsLoseNothingThatWasWhole) {
  const TinyRun run("crash");
  const fs::path checkpoints = fs::path(run.out()) / "checkpoints";
  const std::string log = (run.folder() / "log.txt").string();
  const std::vector<std::string> flags = {"--run.steps", "1000000",           "--checkpoint.every",
                                          "1",           "--checkpoint.keep", "2"};
  // The cache is made once, outside the crashes.
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  std::mt19937 random(1);
  int64_t newest = 0;
  MatrixPart part("crashes", 200);
  for (int i : part) {
    const Running r = start(run, log, 2, flags);
    ASSERT_EQ(r.ranks.size(), 2u) << text_of(log);
    sleep_seconds(0.2 + std::uniform_real_distribution<>(0, 2.5)(random));
    const bool launcher = i % 3 == 2;
    const pid_t victim = launcher ? r.launcher : r.ranks[i % 2];
    kill(victim, SIGKILL);
    const int code = wait_program(r.launcher, 20);
    EXPECT_EQ(code, launcher ? 128 + SIGKILL : 5) << text_of(log);
    if (!launcher) {
      EXPECT_NE(text_of(log).find("rank " + std::to_string(i % 2)), std::string::npos) << text_of(log);
      EXPECT_NE(text_of(log).find("signal 9"), std::string::npos) << text_of(log);
    }
    expect_gone(r, 5);
    // Whatever the instant was: the newest checkpoint is whole and never older than before.
    if (const auto latest = checkpoint::latest(checkpoints)) {
      checkpoint::TrainingCheckpoint saved(*latest);
      EXPECT_GE(saved.manifest().step, newest) << "kill " << i;
      newest = saved.manifest().step;
      std::vector<float> values(64);
      const auto& tensor = saved.manifest().tensors.front();
      saved.read_f32({tensor.name, tensor.kind, tensor.dtype, tensor.shape, {}, 0, 64}, values.data());
    } else {
      EXPECT_EQ(newest, 0) << "a checkpoint was lost by kill " << i;
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(newest, 0) << "no run ever reached a checkpoint: the kills were too early to test anything";
  // The next start removes what is partial and goes on.
  const Result last = run.train(2, "run", {"--run.steps", std::to_string(newest + 2), "--checkpoint.every", "1"});
  EXPECT_EQ(last.code, 0) << last.output;
  EXPECT_NE(last.output.find("resumed from"), std::string::npos) << last.output;
  for (const auto& entry : fs::directory_iterator(checkpoints)) EXPECT_EQ(entry.path().extension(), "") << entry.path();
  const auto steps = run.metrics("run");
  EXPECT_EQ(steps.back()["step"], newest + 2);
  for (size_t i = 1; i < steps.size(); ++i) EXPECT_EQ(steps[i]["step"].get<int>(), steps[i - 1]["step"].get<int>() + 1);
}

TEST(Crash, AKilledRankIsNamedWithinFiveSeconds) {
  const TinyRun run("killed");
  const std::string log = (run.folder() / "log.txt").string();
  const Running r = start(run, log, 2, {"--run.steps", "1000000"});
  ASSERT_EQ(r.ranks.size(), 2u);
  await_text(log, fs::path(run.out()) / "metrics.jsonl", 30);
  sleep_seconds(0.5);
  kill(r.ranks[1], SIGKILL);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(wait_program(r.launcher, 20), 5);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count(), 5.0);
  const std::string text = text_of(log);
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("step "), std::string::npos) << text;
  expect_gone(r, 1);
}

TEST(Crash, AStoppedRankIsNamedAfterTheTimeout) {
  const TinyRun run("stopped");
  const std::string log = (run.folder() / "log.txt").string();
  const Running r = start(run, log, 2, {"--run.steps", "1000000", "--fault.timeout", "3"});
  ASSERT_EQ(r.ranks.size(), 2u);
  await_text(log, fs::path(run.out()) / "metrics.jsonl", 30);
  kill(r.ranks[0], SIGSTOP);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(wait_program(r.launcher, 30), 5);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count(), 8.0);
  const std::string text = text_of(log);
  EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
  expect_gone(r, 1);
}

TEST(Crash, SignalsEndWithAWholeCheckpointAndCode75) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    const TinyRun run("signal");
    const std::string log = (run.folder() / "log.txt").string();
    const Running r = start(run, log, 2, {"--run.steps", "1000000"});
    ASSERT_EQ(r.ranks.size(), 2u);
    await_text(log, fs::path(run.out()) / "metrics.jsonl", 30);
    sleep_seconds(0.3);
    kill(r.launcher, signal);
    EXPECT_EQ(wait_program(r.launcher, 20), 75) << text_of(log);
    EXPECT_NE(text_of(log).find(std::string("stopped by SIG") + sigabbrev_np(signal)), std::string::npos)
        << text_of(log);
    const auto latest = checkpoint::latest(fs::path(run.out()) / "checkpoints");
    ASSERT_TRUE(latest.has_value()) << text_of(log);
    const int64_t step = checkpoint::TrainingCheckpoint(*latest).manifest().step;
    const Result again = run.train(2, "run", {"--run.steps", std::to_string(step + 1)});
    EXPECT_EQ(again.code, 0) << again.output;
    EXPECT_EQ(run.metrics("run").back()["step"], step + 1);
    expect_gone(r, 1);
  }
}

TEST(Crash, AHangupThatIsIgnoredStaysIgnored) {
  const TinyRun run("nohup");
  const std::string log = (run.folder() / "log.txt").string();
  const pid_t launcher = start_program({"/bin/sh", "-c",
                                        "trap '' HUP; exec " TESSERA_BINARY " launch -n 1 train " + run.recipe() +
                                            " --run.steps 60 --run.out " + run.out()},
                                       log, {{"OMP_NUM_THREADS", "1"}});
  await_text(log, fs::path(run.out()) / "metrics.jsonl", 30);
  for (pid_t rank : children(launcher)) kill(rank, SIGHUP);
  kill(launcher, SIGHUP);
  EXPECT_EQ(wait_program(launcher, 60), 0) << text_of(log);
  EXPECT_EQ(run.metrics("run").back()["step"], 60);
}

}  // namespace
}  // namespace tessera::testing
