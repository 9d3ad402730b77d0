// metrics.jsonl when a run goes on: what was written stays, what comes again is cut, what is no event is told.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "report/run_files.h"

namespace tessera::report {
namespace {

class Metrics : public RunTest {
 protected:
  std::filesystem::path file() const { return folder_ / "metrics.jsonl"; }
  void write_steps(int64_t first, int64_t last) const {
    MetricsWriter metrics(file(), first - 1);
    for (int64_t s = first; s <= last; ++s) metrics.step(step(s, 1.0 / static_cast<double>(s)));
  }
};

TEST_F(Metrics, GoingOnKeepsTheBytesUpToTheCheckpointAndCutsWhatComesAgain) {
  write_steps(1, 4);
  const std::string four = read(file());
  write_steps(5, 7);
  ASSERT_TRUE(read(file()).starts_with(four));
  std::filesystem::create_hard_link(file(), folder_ / "same");
  MetricsWriter metrics(file(), 4);
  EXPECT_EQ(read(file()), four);
  EXPECT_EQ(read(folder_ / "same"), four) << "the file itself was cut, no other took its place";
  EXPECT_EQ(metrics.found().last_step, 4);
  metrics.step(step(5, 0.5));
  EXPECT_TRUE(read(file()).starts_with(four + "{\"type\":\"step\",\"step\":5,"));
}

TEST_F(Metrics, AHistoryThatCannotBeCutIsLeftAsItIs) {
  write_steps(1, 5);
  const std::string before = read(file());
  pid_t child = fork();
  if (child == 0) {  // a limit on files stops writing, as a full disk does
    const rlimit none{0, 0};
    std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    try {
      MetricsWriter(file(), 3).step(step(4, 0.25));
    } catch (const UserError& error) {
      _exit(error.code() == Exit::disk ? 7 : 1);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(before.starts_with(read(file())));
  EXPECT_EQ(read_history(file(), 5).last_step, 3) << "nothing up to the checkpoint is lost";
}

TEST_F(Metrics, AHalfWrittenLineGoesAndOneThatLacksItsNewlineAloneStays) {
  write_steps(1, 3);
  const std::string three = read(file());
  write("metrics.jsonl", three + R"({"type":"step","step":4,"lo)");
  { MetricsWriter metrics(file(), 5); }
  EXPECT_EQ(read(file()), three);
  write("metrics.jsonl", three.substr(0, three.size() - 1));
  { MetricsWriter metrics(file(), 5); }
  EXPECT_EQ(read(file()), three);
}

TEST_F(Metrics, LinesThatAreNoEventsAreSkippedAndTold) {
  write_steps(1, 2);
  const std::string two = read(file());
  const std::string strays = "5\n[]\n\xff\xfe\n{\"step\":\"one\",\"type\":\"step\"}\nnull\n{}\n";
  write("metrics.jsonl", two + strays);
  write_steps(3, 4);
  const History history = read_history(file(), 4);
  EXPECT_EQ(history.strays, (std::vector<int64_t>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(told_strays(history.strays), "skipped lines 3, 4, 5, 6, 7, 8, which are not events of a run");
  EXPECT_EQ(history.last_step, 4);
  EXPECT_EQ(history.kept, history.bytes);
  EXPECT_EQ(read_history(file(), 2).kept, static_cast<int64_t>(two.size() + strays.size()));
}

TEST_F(Metrics, AHistoryKnowsWhichEventsOfTheCheckpointsStepItHas) {
  write_steps(1, 2);
  EXPECT_FALSE(read_history(file(), 2).has("checkpoint"));
  {
    MetricsWriter metrics(file(), 2);
    metrics.checkpoint(2, "checkpoints/step-000002", 0.5);
    metrics.restart(2, "rank 1 was killed", 1234);
    metrics.sample(2, "runs/a/samples/step-000002-0.mp4", "a cat", std::nullopt, std::nullopt);
  }
  EXPECT_EQ(read_history(file(), 2).samples, std::set<std::string>{"step-000002-0.mp4"});
  EXPECT_TRUE(read_history(file(), 1).samples.empty());
  EXPECT_TRUE(read_history(file(), 2).has("checkpoint"));
  EXPECT_TRUE(read_history(file(), 2).fault_times.contains(1234));
  EXPECT_FALSE(read_history(file(), 1).has("checkpoint"));
}

TEST_F(Metrics, AMissingFileIsAnEmptyHistoryAndAnUnreadableOneAnError) {
  EXPECT_EQ(read_history(file(), 3).bytes, 0);
  std::filesystem::create_directory(file());
  EXPECT_THROW(read_history(file(), 3), UserError);
}

TEST_F(Metrics, NamesThatAreNoTextAreWrittenAllTheSame) {
  MetricsWriter(file(), 0).sample(0, "samples/\xff.mp4", "a prompt \xc3", {});
  const auto line = nlohmann::json::parse(read(file()));
  EXPECT_EQ(line["file"], "samples/\xef\xbf\xbd.mp4");
}

}  // namespace
}  // namespace tessera::report
