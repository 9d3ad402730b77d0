// metrics.jsonl when a run goes on: what was written stays, what comes again is cut, what is no event is told.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/run_files.h"
#include "tessera/report/run_folder.h"

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

TEST_F(Metrics, OfALongHistoryOnlyTheLinesAroundTheCheckpointAreRead) {
  constexpr int64_t kSteps = 400;
  std::string text, strange;
  std::vector<int64_t> ends(kSteps + 1);  // of the lines up to a step
  for (int64_t s = 1; s <= kSteps; ++s) {
    const std::string number = std::to_string(s);
    if (s % 7 == 0) text += R"({"type":"stage","step":)" + number + "}\n";
    text += R"({"type":")" + std::string(s % 5 == 0 ? "skip" : "step") + R"(","step":)" + number + R"(,"pad":")" +
            std::string(s % 3 == 0 ? 60'000 : 20'000, 'x') + "\"}\n";
    if (s % 10 == 0)
      text += R"({"type":"sample","step":)" + number + R"(,"file":"samples/)" + number + ".mp4\"}\nno event\n" +
              R"({"type":"warning","step":0})" + "\n" + R"({"type":"checkpoint","step":)" + number + "}\n";
    ends[static_cast<size_t>(s)] = static_cast<int64_t>(text.size());
  }
  write("metrics.jsonl", text);
  ASSERT_GT(text.size(), size_t{12} << 20);
  for (const int64_t done : {1, 2, 9, 10, 77, 100, 199, 200, 301, 399, 400, 500}) {
    const int64_t last = std::min(done, kSteps);
    const History history = read_history(file(), done);
    EXPECT_EQ(history.bytes, static_cast<int64_t>(text.size()));
    EXPECT_EQ(history.kept, ends[static_cast<size_t>(last)]) << done;
    EXPECT_EQ(history.last_step, last) << done;
    EXPECT_EQ(history.has("checkpoint"), done % 10 == 0 && done <= kSteps) << done;
    EXPECT_EQ(history.samples.size(), done % 10 == 0 && done <= kSteps ? 1u : 0u) << done;
    EXPECT_LE(history.kept - history.begin, int64_t{3} << 20) << done;
    if (done >= 200) {
      EXPECT_GT(history.begin, 0) << done;
      EXPECT_LT(history.strays.size(), 10u) << "of " << kSteps / 10;
      EXPECT_NE(told_strays({1, 2}, history.begin).find(" behind byte " + std::to_string(history.begin)),
                std::string::npos);
    }
  }
  { MetricsWriter metrics(file(), 77); }
  EXPECT_EQ(read(file()), text.substr(0, static_cast<size_t>(ends[77])));
}

TEST_F(Metrics, OfManyRanksALineNamesAFewAndHasWhatAllHaveBetweenThem) {
  const auto with = [](int ranks, int64_t number) {
    StepMetrics m = step(number, 1, ranks);
    for (RankMetrics& rank : m.ranks) {
      rank.peak_bytes += rank.rank == 11 ? 100 : 0;
      rank.sample_seconds = rank.rank == 5 ? 3 : 1;
      rank.bytes.parameters = rank.rank;
    }
    return m;
  };
  {
    MetricsWriter metrics(file(), 0);
    for (const auto& [ranks, number] : {std::pair(16, 1), {17, 2}, {40, 99}, {40, 100}, {16, 101}})
      metrics.step(with(ranks, number));
  }
  std::vector<nlohmann::json> lines;
  std::istringstream in(read(file()));
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  const auto named = [&](size_t line) {
    std::vector<int> ranks;
    for (const auto& rank : lines[line]["ranks"]) ranks.push_back(rank["rank"]);
    return ranks;
  };
  EXPECT_EQ(named(0).size(), 16u);
  EXPECT_FALSE(lines[0].contains("ranks_summary"));
  EXPECT_EQ(named(1), (std::vector<int>{0, 5, 11})) << "rank 0, the slowest and the fullest";
  EXPECT_EQ(named(2), (std::vector<int>{0, 5, 11}));
  EXPECT_EQ(named(3).size(), 40u) << "every hundred steps all";
  EXPECT_EQ(lines[2]["world"], 40);
  const auto& summary = lines[2]["ranks_summary"];
  EXPECT_EQ(summary["peak_bytes"], (nlohmann::json{{"min", 8 << 20}, {"median", 8 << 20}, {"max", (8 << 20) + 100}}));
  EXPECT_EQ(summary["bytes.parameters"], (nlohmann::json{{"min", 0}, {"median", 20}, {"max", 39}}));
  EXPECT_EQ(summary["sample_seconds"]["max"], 3);
  EXPECT_EQ(summary["busy.compute"]["median"], 0.2);
  EXPECT_FALSE(summary.contains("rank"));
  EXPECT_EQ(summary, lines[3]["ranks_summary"]);
  EXPECT_LT(lines[2].dump().size(), 8000u);

  const auto written = read(file());
  for (const auto& [last, world, shown] : {std::tuple(size_t{3}, 40, size_t{3}), {4, 40, 40}, {5, 16, 16}}) {
    const std::filesystem::path of_many = new_run("of-many", 101);
    size_t end = 0;
    for (size_t line = 0; line < last; ++line) end = written.find('\n', end) + 1;
    write("of-many/metrics.jsonl", written.substr(0, end));
    const RunFolder run(of_many);
    EXPECT_EQ(run.world(), world);
    EXPECT_EQ(run.ranks().size(), shown);
    EXPECT_EQ(run.waits().size(), last > 3 ? 40u : 0u) << "means are of lines that have every rank";
  }
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
