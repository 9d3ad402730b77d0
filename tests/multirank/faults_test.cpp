// A rank that dies, stops or hangs in any kind of collective is named with its instruction and with what the others
// wait for; runs go on from their last checkpoint when they may. Faults are injected (train/ranks.h).
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "matrix.h"
#include "processes.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct Ended {
  int code = -1;
  double seconds = 0;
  std::string output;
};

/// `launch -n 2 ARGUMENTS` with an injected fault; fails when a process is left behind.
Ended launch(const TinyRun& run, const std::string& drill, std::vector<std::string> before,
             std::vector<std::string> more) {
  std::vector<std::string> argv = {TESSERA_BINARY, "launch", "-n", "2"};
  argv.insert(argv.end(), before.begin(), before.end());
  argv.insert(argv.end(), {"train", run.recipe()});
  argv.insert(argv.end(), more.begin(), more.end());
  const std::string log = (run.folder() / "log.txt").string();
  const auto start = std::chrono::steady_clock::now();
  const pid_t launcher = start_program(argv, log, {{"OMP_NUM_THREADS", "1"}, {"TESSERA_DRILL", drill}});
  std::vector<pid_t> ranks;
  Ended ended;
  for (; ended.code < 0 && ended.seconds < 90;
       ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()) {
    for (pid_t pid : children(launcher))
      if (std::ranges::find(ranks, pid) == ranks.end()) ranks.push_back(pid);
    ended.code = wait_program(launcher, 0.02);
  }
  if (ended.code < 0) kill(launcher, SIGKILL), wait_program(launcher, 10);
  ended.output = text_of(log);
  EXPECT_TRUE(gone(ranks, 3)) << "a rank outlived its launcher\n" << ended.output;
  return ended;
}

void expect_text(const Ended& ended, const std::string& words) {
  EXPECT_NE(ended.output.find(words), std::string::npos) << "missing: " << words << "\n" << ended.output;
}

/// One line an act: what the launcher says of it.
struct Act {
  const char *name, *words;
};
constexpr Act kActs[] = {{"kill", "rank 1 was killed by signal 9 (Killed) at step 2"},
                         {"stop", "rank 1 has not answered for 2 s (fault.timeout): it is stopped at step 2"},
                         {"hang", "rank 1 has made no progress for 2 s (fault.timeout): it is slow or hangs at step 2"},
                         {"30", "rank 1 has made no progress for 2 s (fault.timeout): it is slow or hangs at step 2"}};
/// One line a kind of collective: the instruction that runs it, as the message has it, and the layout that has it.
struct Kind {
  const char *at, *words, *mesh;
  std::vector<std::string> more = {};
  int timeouts = 1;  ///< as many times fault.timeout it may take
};
const Kind kKinds[] = {
    {"op=gather", "on gather:dp_shard[0,1]", "dp_shard=2"},
    {"op=reduce", "on reduce:dp_shard[0,1]", "dp_shard=2"},
    {"op=norm", "norm on control:dp_shard[0,1]", "dp_shard=2"},
    {"op=flush", "flush on control:dp_shard[0,1]", "dp_shard=2", {}, 10},
    {"op=reduce_outer", "dp_replicate[0,1]", "dp_replicate=2"},
    {"op=gather_outer", "on gather_outer:dp_replicate[0,1]", "dp_replicate=2", {"--plan.strategy", "two_level"}},
    {"op=forward,unit=blocks.1", "forward blocks.1 (micro-batch 0) on sequence:sp[0,1]", "sp=2"},
    {"op=backward,unit=blocks.1", "backward blocks.1 (micro-batch 0) on ring:cp[0,1]", "cp=2"},
    {"op=forward,unit=blocks.1", "forward blocks.1 (micro-batch 0) on tensor:tp[0,1]", "tp=2"},
    {"op=recv", "on activations:pp[0,1]", "pp=2", {"--train.micro_batch", "1"}},
    {"op=send", "on gradients:pp[0,1]", "pp=2", {"--train.micro_batch", "1"}},
    {"op=finish",
     "on results:pp[0,1]",
     "pp=2",
     {"--sample.every", "2", "--sample.steps", "1", "--sample.prompts", "a"}},
};

TEST(Faults, EveryFaultInEveryKindOfCollectiveIsNamedByRankInstructionAndWhatTheOthersWaitFor) {
  const TinyRun run("faults");
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  const auto drill = [&](const Act& act, const Kind& kind) {
    SCOPED_TRACE(std::string(act.name) + " at " + kind.at + " of " + kind.mesh);
    fs::remove_all(run.out());
    std::vector<std::string> flags = {"--run.steps", "4",      "--checkpoint.every", "1", "--fault.timeout", "2",
                                      "--mesh",      kind.mesh};
    flags.insert(flags.end(), kind.more.begin(), kind.more.end());
    const Ended ended = launch(run, "rank=1,step=2," + std::string(kind.at) + ",do=" + act.name, {}, flags);
    EXPECT_EQ(ended.code, 5) << ended.output;
    EXPECT_LT(ended.seconds, 20 + 2 * kind.timeouts);
    std::string words = act.words;
    if (const size_t time = words.find("no progress for 2 s (fault"); kind.timeouts > 1 && time != words.npos)
      words.replace(time, 26, "no progress for 20 s (10 times fault");
    expect_text(ended, words);
    const size_t at = ended.output.find(words);
    const std::string said = at == ended.output.npos ? "" : ended.output.substr(at, ended.output.find('\n', at) - at);
    const size_t others = said.find("; rank 0 waits in ");
    ASSERT_NE(others, said.npos) << said;
    EXPECT_NE(said.substr(0, others).find(kind.words), said.npos) << "rank 1's instruction: " << said;
    EXPECT_NE(said.substr(others).find(" of step 2"), said.npos) << said;
  };
  // every kind once, whatever the matrix has; a stopped rank is waited for, so only some are
  for (size_t i = 0; i < std::size(kKinds); ++i) drill(kActs[i % 4 == 1], kKinds[i]);
  MatrixPart part("faults", static_cast<int>(std::size(kKinds) * std::size(kActs)));
  for (int i : part) drill(kActs[i % std::size(kActs)], kKinds[i / std::size(kActs)]);
}

TEST(Faults, WithoutOurLauncherTheSurvivorNamesTheRankAndItsOwnInstruction) {
  const TinyRun run("torchrun");
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  const std::string log = (run.folder() / "log").string();
  const auto start = [&](const std::string& rank) {
    return start_program({TESSERA_BINARY, "train", run.recipe()}, log + rank,
                         {{"RANK", rank},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_PORT", std::to_string(20000 + getpid() % 9000)},
                          {"OMP_NUM_THREADS", "1"},
                          {"TESSERA_DRILL", "rank=1,step=2,op=reduce,do=kill"}});
  };
  const pid_t survivor = start("0"), victim = start("1");
  EXPECT_EQ(wait_program(victim, 60), 128 + SIGKILL) << text_of(log + "1");
  EXPECT_EQ(wait_program(survivor, 20), 5);
  const std::string said = text_of(log + "0");
  EXPECT_NE(said.find("did not finish: rank 1 died"), said.npos) << said;
  EXPECT_NE(said.find("another rank was lost while this one was at step 2: "), said.npos) << said;
  EXPECT_NE(said.find("on reduce:dp_shard[0,1]"), said.npos) << said;
}

TEST(Faults, ALostRankIsReplacedAndTheRunGoesOnFromItsLastCheckpoint) {
  const TinyRun run("restarts");
  ASSERT_EQ(run.train(2, "whole", {"--checkpoint.every", "2"}).code, 0);
  const Ended ended = launch(run, "rank=1,step=4,op=reduce,do=kill", {"--max-restarts", "1"},
                             {"--run.out", run.out("parts"), "--checkpoint.every", "2"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  expect_text(ended, "rank 1 was killed by signal 9");
  expect_text(ended, "restart 1 of 1: restarting from the last complete checkpoint");
  expect_text(ended, "resumed from");
  const auto whole = run.metrics("whole"), parts = run.metrics("parts");
  ASSERT_EQ(whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(parts[i]["step"], whole[i]["step"]);
    EXPECT_EQ(parts[i]["loss"], whole[i]["loss"]) << "step " << i + 1;
  }
  const auto faults = run.metrics("parts", "fault");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0]["kind"], "restart");
  EXPECT_EQ(faults[0]["step"], 2) << "of the checkpoint that it goes on from";
  EXPECT_NE(faults[0]["text"].get<std::string>().find("rank 1 was killed"), std::string::npos);
}

TEST(Faults, WhatARestartWouldNotMendIsNotTriedAgain) {
  const TinyRun run("counted");
  const Ended nan = launch(run, "rank=5,do=kill", {"--max-restarts", "3"}, {"--train.lr", "1e30"});
  EXPECT_EQ(nan.code, 6) << nan.output;
  EXPECT_EQ(nan.output.find("restart 1"), std::string::npos) << nan.output;
}

TEST(Faults, ASlowRankIsNamedAndWithLessToDoTheCurveIsTheSame) {
  const TinyRun run("slow");
  const std::vector<std::string> flags = {
      "--run.steps",         "10",  "--fault.slow_steps", "3", "--train.global_batch", "6", "--train.micro_batch", "1",
      "--fault.slow_factor", "1.6", "--run.out"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string slow = "rank=1,op=forward,do=0.02";
  const Ended even = launch(run, slow, {}, with({run.out("even")}));
  ASSERT_EQ(even.code, 0) << even.output;
  expect_text(even, "rank 1 is slow: over the last 3 steps");
  const auto named = run.metrics("even", "fault");
  ASSERT_EQ(named.size(), 1u) << "once";
  EXPECT_EQ(named[0]["kind"], "slow_rank");
  EXPECT_EQ(named[0]["rank"], 1);
  const auto last = run.metrics("even").back()["ranks"];
  EXPECT_GT(last[1]["sample_seconds"].get<double>(), 1.6 * last[0]["sample_seconds"].get<double>());

  const Ended shared = launch(run, slow, {}, with({run.out("shared"), "--fault.rebalance", "true"}));
  ASSERT_EQ(shared.code, 0) << shared.output;
  const auto faults = run.metrics("shared", "fault");
  ASSERT_GE(faults.size(), 2u) << shared.output;
  EXPECT_EQ(faults[1]["kind"], "rebalance");
  EXPECT_GT(faults[1]["shares"][0], faults[1]["shares"][1]);
  const auto a = run.metrics("even"), b = run.metrics("shared");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i]["loss"].get<double>(), b[i]["loss"].get<double>(), 2e-6 * a[i]["loss"].get<double>())
        << "step " << i + 1;
}

TEST(Faults, RanksTakeTheSameStepsWhereBatchesAndEpochsDoNotDivide) {
  const TinyRun run("uneven");  // three clips, global batches of four, three ranks: an epoch ends inside a step
  const std::string trace = (run.folder() / "trace.jsonl").string();
  const Result r = run.train(3, "run", {"--run.steps", "7", "--train.micro_batch", "1", "--trace-schedule", trace}, 60);
  ASSERT_EQ(r.code, 0) << r.output;
  std::map<int, std::map<int64_t, int>> losses;  // by rank and step: micro-batches, idle or not
  std::ifstream in(trace);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["op"] == "reduce") ++losses[json["rank"].get<int>()][json["step"].get<int64_t>()];
  }
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_EQ(losses[0].size(), 7u);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

}  // namespace
}  // namespace tessera::testing
