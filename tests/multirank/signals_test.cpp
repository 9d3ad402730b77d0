// Signals of people, terminals and batch systems, and readers of the log that go away: whole runs, each with its code, its
// checkpoint and its words.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>

#include "processes.h"
#include "program.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// A run that goes on until it is told to stop, with a launcher or without one.
class Endless {
 public:
  /// `ranks`: 0 is one rank without a launcher.
  Endless(const TinyRun& run, int ranks, const Words& more = {}, const std::string& drill = "") : run_(run) {
    Words argv = {TESSERA_BINARY};
    if (ranks > 0) argv.insert(argv.end(), {"launch", "-n", std::to_string(ranks)});
    argv.insert(argv.end(), {"train", run.recipe(), "--run.out", run.out(), "--run.steps", "1000000"});
    argv.insert(argv.end(), more.begin(), more.end());
    std::map<std::string, std::string> environment = {{"OMP_NUM_THREADS", "1"}};
    if (!drill.empty()) environment["TESSERA_DRILL"] = drill;
    log_ = (run.folder() / "endless.log").string();
    process_ = start_program(argv, log_, environment);
  }
  ~Endless() {
    if (!over_) kill(process_, SIGKILL), wait_program(process_, 10);
  }
  Endless(const Endless&) = delete;
  Endless& operator=(const Endless&) = delete;

  bool await(const std::function<bool()>& what, double seconds = 60) const {
    for (double waited = 0; waited < seconds; waited += 0.02, sleep_seconds(0.02))
      if (what()) return true;
    ADD_FAILURE() << "it never came\n" << output();
    return false;
  }
  bool await_steps(size_t count) const {
    return await([&] { return run_.metrics("run").size() >= count; });
  }
  bool await_words(const std::string& words) const {
    return await([&] { return output().find(words) != std::string::npos; });
  }
  void send(int signal) const { kill(process_, signal); }
  /// What a terminal does: to all of its processes.
  void control_c() const {
    const std::vector<pid_t> ranks = children(process_);
    send(SIGINT);
    for (const pid_t rank : ranks) kill(rank, SIGINT);
  }
  int wait(double seconds = 60) {
    const int code = wait_program(process_, seconds);
    over_ = code >= 0;
    return code;
  }
  std::string output() const { return text_of(log_); }
  std::optional<fs::path> newest() const { return checkpoint::latest(fs::path(run_.out()) / "checkpoints"); }

 private:
  const TinyRun& run_;
  std::string log_;
  pid_t process_ = -1;
  bool over_ = false;
};

void expect_words(const std::string& output, const Words& words) {
  for (const std::string& word : words)
    EXPECT_NE(output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << output;
}

class Signals : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { ASSERT_EQ(run_.tessera({"prepare", run_.recipe()}).code, 0); }
  const TinyRun run_{"signals"};
};
/// Without a launcher, and with one and two ranks.
INSTANTIATE_TEST_SUITE_P(Ranks, Signals, ::testing::Values(0, 2));

TEST_P(Signals, EachThatStopsARunLeavesAWholeCheckpoint) {
  for (const auto& [signal, name] : {std::pair(SIGXCPU, "SIGXCPU"),
                                     {SIGPWR, "SIGPWR"},
                                     {SIGUSR1, "SIGUSR1"},
                                     {SIGHUP, "SIGHUP"},
                                     {SIGTERM, "SIGTERM"},
                                     {SIGINT, "SIGINT"}}) {
    SCOPED_TRACE(name);
    fs::remove_all(run_.out());
    ::signal(SIGHUP, SIG_DFL);  // of this process, which nohup may have started
    Endless run(run_, GetParam(), {"--checkpoint.every", "1000000"});
    ASSERT_TRUE(run.await_steps(2));
    run.send(signal);
    if (signal != SIGINT && signal != SIGTERM) run.send(signal), sleep_seconds(0.01), run.send(signal);  // as they do
    EXPECT_EQ(run.wait(), 75) << run.output();
    expect_words(run.output(), {std::string("stopped by ") + name + " after a complete checkpoint"});
    ASSERT_TRUE(run.newest()) << run.output();
    EXPECT_EQ(checkpoint::step_of(run.newest()->filename().string()), run_.metrics("run").back()["step"]);
    EXPECT_FALSE(fs::exists(fs::path(run_.out()) / ".stopping")) << "the stop is done";
  }
}

/// A pod that is evicted: TERM, and KILL when its grace period is over. Step 5 takes longer than that.
TEST_P(Signals, AKillBeforeTheCheckpointIsToldByTheNextStart) {
  Endless run(run_, GetParam(), {"--checkpoint.every", "2"}, "rank=0,step=5,op=loss,do=hang");
  ASSERT_TRUE(run.await([&] { return run.newest() && run.newest()->filename() == "step-000004"; }));
  sleep_seconds(0.3);  // it is in step 5
  run.send(SIGTERM);
  ASSERT_TRUE(run.await_words("SIGTERM: the run stops behind this step, with a checkpoint; a step takes "));
  ASSERT_TRUE(run.await_words(" s, a checkpoint "));
  run.send(SIGKILL);
  EXPECT_EQ(run.wait(10), 128 + SIGKILL) << run.output();
  const char* told = "the start before was asked to end by SIGTERM and did not get to its checkpoint";
  const Result again = run_.train(1, "run", {"--run.steps", "6"});
  EXPECT_EQ(again.code, 0) << again.output;
  expect_words(again.output, {told, "A step takes ", ", a checkpoint ", "terminationGracePeriodSeconds"});
  const auto warnings = run_.metrics("run", "warning");
  EXPECT_EQ(std::ranges::count_if(warnings, [](const auto& line) { return line["what"] == "stop"; }), 1);
  EXPECT_EQ(run_.train(1, "run", {"--run.steps", "7"}).output.find(told), std::string::npos) << "once is enough";
}

/// As in a container without an init: tessera is process 1 of its own processes.
class ProcessOne : public Signals {
 protected:
  void SetUp() override {
    if (const Result may = run_program(as_first({"/bin/true"})); may.code != 0)
      GTEST_SKIP() << "a namespace of processes cannot be made here: " << may.output;
    Signals::SetUp();
  }
  static Words as_first(Words argv) {
    argv.insert(argv.begin(), {"/usr/bin/env", "unshare", "-rpf", "--mount-proc", "--kill-child"});
    return argv;
  }
  /// Process 1, once `begun` is true.
  pid_t start(Words argv, std::map<std::string, std::string> environment, const std::function<bool()>& begun) {
    environment["OMP_NUM_THREADS"] = "1";
    outer_ = start_program(as_first(std::move(argv)), log_, environment);
    for (int i = 0; i < 3000 && !begun(); ++i) sleep_seconds(0.02);
    const std::vector<pid_t> inner = children(outer_);
    EXPECT_EQ(inner.size(), 1u) << text_of(log_);
    return inner.empty() ? outer_ : inner[0];
  }
  int wait() { return wait_program(outer_, 30); }
  void TearDown() override {
    if (outer_ > 0 && wait_program(outer_, 0) < 0) kill(outer_, SIGKILL), wait_program(outer_, 10);
  }
  const std::string log_ = (run_.folder() / "first.log").string();
  pid_t outer_ = -1;
};

TEST_F(ProcessOne, EndsByASignalThatItHasNoHandlerFor) {
  const pid_t first =
      start({TESSERA_BINARY, "prepare", run_.recipe()},  // waits for rank 0, which never comes
            {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "9"}},
            [&] { return outer_ > 0 && !children(outer_).empty() && !children(children(outer_)[0]).empty(); });
  sleep_seconds(0.5);
  kill(first, SIGTERM);
  EXPECT_EQ(wait(), 128 + SIGTERM) << text_of(log_);
}

TEST_F(ProcessOne, PassesSignalsOnAndTakesTheExitsOfOrphans) {
  const std::string orphan = (run_.folder() / "orphan").string();
  const pid_t first =
      start({TESSERA_BINARY, "launch", "-n", "2", "train", run_.recipe(), "--run.out", run_.out(), "--run.steps",
             "1000000", "--run.on_event", "(sh -c 'sleep 0.2; touch " + orphan + "' &); exec cat > /dev/null"},
            {}, [&] { return run_.metrics("run").size() >= 2 && fs::exists(orphan); });
  ASSERT_TRUE(fs::exists(orphan)) << text_of(log_);
  sleep_seconds(0.3);
  for (const pid_t child : children(first)) EXPECT_TRUE(alive(child)) << "a zombie";
  kill(first, SIGTERM);
  EXPECT_EQ(wait(), 75) << text_of(log_);
  EXPECT_TRUE(checkpoint::latest(fs::path(run_.out()) / "checkpoints"));
}

TEST_P(Signals, Usr2SavesAndTheRunGoesOnToTheSameNumbers) {
  ASSERT_EQ(run_.train(GetParam() > 0 ? GetParam() : 1, "whole", {"--run.steps", "12"}).code, 0);
  Endless run(run_, GetParam(), {"--checkpoint.every", "1000000", "--checkpoint.keep", "0"}, "rank=0,op=loss,do=0.05");
  std::optional<fs::path> first;
  for (int save = 0; save < 2; ++save) {
    ASSERT_TRUE(run.await_steps(static_cast<size_t>(3 + 4 * save)));
    run.send(SIGUSR2);
    ASSERT_TRUE(run.await([&] { return run.newest() && run.newest() != first; }));
    first = run.newest();
  }
  ASSERT_TRUE(run.await_steps(12));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 75) << run.output();
  expect_words(run.output(), {"a checkpoint is saved, as a signal asked for it"});
  EXPECT_EQ(run_.metrics("run", "checkpoint").size(), 3u) << "two that were asked for, and the last";
  const std::vector<double> whole = run_.losses("whole"), saved = run_.losses("run");
  ASSERT_GE(saved.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(saved[i], whole[i]) << "step " << i + 1;
  // and the first of them is as good as any
  const Result again =
      run_.train(GetParam() > 0 ? GetParam() : 1, "run",
                 {"--run.steps", "12", "--run.resume",
                  checkpoint::whole_checkpoints(fs::path(run_.out()) / "checkpoints").front().string()});
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(run_.losses("run"), whole);
}

TEST_P(Signals, Usr2BeforeTheFirstStepEndsNothing) {
  Endless run(run_, GetParam());
  ASSERT_TRUE(run.await_words("model: "));  // before that it may not have begun, and is ended as any program
  for (int i = 0; i < 20; ++i) run.send(SIGUSR2), sleep_seconds(0.05);
  ASSERT_TRUE(run.await_steps(2));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 75) << run.output();
}

/// Step 5 never ends, so the first Ctrl-C saves nothing.
TEST_P(Signals, ASecondControlCEndsAtOnceAndNamesTheLastCheckpoint) {
  Endless run(run_, GetParam(), {"--checkpoint.every", "2"}, "rank=0,step=5,op=loss,do=hang");
  ASSERT_TRUE(run.await([&] { return run.newest() && run.newest()->filename() == "step-000004"; }));
  sleep_seconds(0.3);  // it is in step 5
  run.control_c();
  sleep_seconds(1);
  run.control_c();
  EXPECT_EQ(run.wait(10), 75) << run.output();
  expect_words(run.output(), {"stopped at once by a second", "the last complete checkpoint is",
                              (fs::path(run_.out()) / "checkpoints/step-000004").string()});
  EXPECT_EQ(run.output().find("was lost"), std::string::npos) << run.output();
  const Result again = run_.train(1, "run", {"--run.steps", "6"});
  EXPECT_EQ(again.code, 0) << again.output;
  expect_words(again.output, {"resumed from"});
}

TEST_P(Signals, ASecondControlCBeforeACheckpointSaysThatThereIsNone) {
  Endless run(run_, GetParam(), {"--checkpoint.every", "1000"}, "rank=0,step=3,op=loss,do=hang");
  ASSERT_TRUE(run.await_steps(2));
  sleep_seconds(0.3);
  run.control_c();
  sleep_seconds(1);
  run.control_c();
  EXPECT_EQ(run.wait(10), 5) << run.output();
  expect_words(run.output(), {"stopped at once by a second", "there is no complete checkpoint"});
}

TEST_P(Signals, OneControlCIsOneForLauncherAndRanks) {
  Endless run(run_, GetParam(), {"--checkpoint.every", "1000000"}, "rank=0,op=loss,do=0.5");
  ASSERT_TRUE(run.await_steps(2));
  run.control_c();
  EXPECT_EQ(run.wait(), 75) << run.output();
  expect_words(run.output(), {"stopped by SIGINT after a complete checkpoint"});
}

/// torchrun and mpirun pass on what the terminal has sent to the ranks as well.
TEST_F(Signals, OfSeveralRanksWithoutALauncherTwoAtOnceAreOne) {
  const std::string port = std::to_string(20000 + getpid() % 10000);
  std::vector<pid_t> ranks;
  Words logs;
  for (const char* rank : {"0", "1"}) {
    logs.push_back((run_.folder() / (std::string("rank") + rank)).string());
    ranks.push_back(start_program({TESSERA_BINARY, "train", run_.recipe(), "--run.out", run_.out(), "--run.steps",
                                   "1000000", "--checkpoint.every", "1000000"},
                                  logs.back(),
                                  {{"RANK", rank},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_RANK", rank},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", port},
                                   {"TESSERA_DRILL", "rank=0,op=loss,do=0.3"},
                                   {"OMP_NUM_THREADS", "1"}}));
  }
  for (int i = 0; i < 3000 && run_.metrics("run").size() < 2; ++i) sleep_seconds(0.02);
  for (int twice = 0; twice < 2; ++twice, sleep_seconds(0.1))
    for (const pid_t rank : ranks) kill(rank, SIGINT);
  for (size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(wait_program(ranks[i], 60), 75) << text_of(logs[i]);
  EXPECT_TRUE(checkpoint::latest(fs::path(run_.out()) / "checkpoints"));
}

/// The log's reader is gone behind its first line, and the run does not care.
TEST_P(Signals, AReaderOfTheLogThatGoesAwayEndsNothing) {
  const std::string start = GetParam() > 0 ? "launch -n " + std::to_string(GetParam()) + " train " : "train ";
  const std::string command = std::string(TESSERA_BINARY) + " " + start + run_.recipe() +
                              " --run.steps 5 --sample.every 2 --checkpoint.every 2 --run.out ";
  struct Reader {
    const char *name, *by;
  };
  for (const auto& [name, by] : {Reader{"head", " 2>&1 | head -n 1"},
                                 {"none", " 2>&1 | true"},
                                 {"closed", " 2>&- >&- <&- | cat"},
                                 {"full", " > /dev/full 2>&1 | cat"}}) {
    SCOPED_TRACE(by);
    const Result r = run_program({"/bin/bash", "-c", command + run_.out(name) + by + "; exit ${PIPESTATUS[0]}"},
                                 {{"OMP_NUM_THREADS", "1"}});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(run_.losses(name).size(), 5u);
    EXPECT_TRUE(fs::exists(fs::path(run_.out(name)) / "report.html"));
    for (const std::string& line : lines_of(fs::path(run_.out(name)) / "metrics.jsonl"))
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
}

/// As a pager that was left open, or Ctrl-S: nobody waits for it, and what is written for it is more than a pipe takes.
TEST_P(Signals, AReaderOfTheLogThatStopsReadingStopsNothing) {
  const std::string start = GetParam() > 0 ? "launch -n " + std::to_string(GetParam()) + " train " : "train ";
  const std::string done = (run_.folder() / "done").string();
  const std::string reader =
      "import fcntl, os, sys, time\n"
      "fcntl.fcntl(0, 1031, 4096)\n"  // F_SETPIPE_SZ
      "print(os.read(0, 1))\n"
      "while not os.path.exists('" +
      done + "'): time.sleep(0.05)\n";
  const Result r =
      run_program({"/bin/bash", "-c",
                   "{ " + std::string(TESSERA_BINARY) + " " + start + run_.recipe() + " --run.out " + run_.out() +
                       " --run.steps 90 --train.lr 1e30 --run.on_nan skip --data.frames 1; echo $? > " + done +
                       ".code; touch " + done + "; } 2>&1 | python3 -c \"" + reader + "\""},
                  {{"OMP_NUM_THREADS", "1"}}, 100);
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(text_of(done + ".code"), "6\n");
  EXPECT_GT(run_.metrics("run", "skip").size(), 80u);
}

}  // namespace
}  // namespace tessera::testing
