// The screen of `tessera top`: everything on it, within the width and height there is.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "report/run_files.h"
#include "tessera/report/top.h"

namespace tessera::report {
namespace {

/// Columns a line takes: without colours, a character for each that is not a continuation byte.
int columns(const std::string& line) {
  int width = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b')
      i = line.find('m', i);
    else if ((static_cast<unsigned char>(line[i]) & 0xc0) != 0x80)
      ++width;
  }
  return width;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

class Top : public RunTest {
 protected:
  RunFolder run_of(int64_t steps, int64_t done, int ranks = 2) const {
    const auto path = new_run("run", steps);
    MetricsWriter metrics(path / "metrics.jsonl", 0);
    for (int64_t s = 1; s <= done; ++s) metrics.step(step(s, 1.0 / static_cast<double>(s), ranks));
    if (done > 2) {
      metrics.checkpoint(done, "run/checkpoints/step-000003", 0.5);
      metrics.skip(done, "loss nan, sample clips/7.mp4");
    }
    return RunFolder(path);
  }
};

TEST_F(Top, TellsStepLossSpeedMemoryLanesAndEvents) {
  const std::string text = joined(top_screen(run_of(12, 4), {.width = 120, .utf8 = true}));
  for (const char* wanted : {"running",
                             "4/12",
                             "33 %",
                             "ETA 2.0 s",
                             "0.25000",
                             "grad norm 0.5",
                             "lr 0.001",
                             "250 ms/step",
                             "4,000 tokens/s",
                             "rank 0",
                             "rank 1",
                             "8.00 MiB of 8.00 MiB planned",
                             "10.00 MiB reserved",
                             "parameters",
                             "temporaries",
                             "compute",
                             "80%",
                             "gather",
                             "20%",
                             "waits",
                             "collectives 12%",
                             "copies 4%",
                             "loss nan, sample clips/7.mp4",
                             "7.0 M parameters",
                             "dp_shard 2"})
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << "\n" << text;
}

TEST_F(Top, TellsWhichUnitLosesMostToProductsIn8Bits) {
  const auto path = new_run("eight", 3);
  StepMetrics m = step(1, 1.0);
  EXPECT_EQ(joined(top_screen(run_of(3, 1), {.width = 120})).find("fp8"), std::string::npos);
  m.fp8 = {{"blocks.0", {0.02, 0}, {0.01, 0}}, {"blocks.1", {0.01, 0}, {0.03, 0}}};
  MetricsWriter(path / "metrics.jsonl", 0).step(m);
  const std::string text = joined(top_screen(RunFolder(path), {.width = 120}));
  EXPECT_NE(text.find("fp8 2 % of x and W in blocks.0  3 % of gradients in blocks.1  became zero"), std::string::npos)
      << text;
}

/// Of more than 16 ranks a line names a few; what all take is its summary.
TEST_F(Top, UsedAndReservedAreThoseOfAllRanks) {
  for (const int ranks : {1, 2, 16, 17, 64}) {
    const auto path = new_run("run" + std::to_string(ranks), 3);
    StepMetrics m = step(2, 0.5, ranks);  // not one of the steps that name all
    for (RankMetrics& rank : m.ranks) {
      rank.peak_bytes = (100 + rank.rank) << 20, rank.predicted_peak_bytes = int64_t{200} << 20;
      rank.reserved_bytes = (300 + 2 * rank.rank) << 20;
    }
    MetricsWriter(path / "metrics.jsonl", 0).step(m);
    const std::string text = joined(top_screen(RunFolder(path), {.width = 140}));
    const auto mib = [](int n) { return std::to_string(n) + ".00 MiB"; };
    const std::string median = ranks > 2 ? " (median " + mib(100 + ranks / 2) + ")" : "";
    const std::string used = ranks == 1 ? mib(100) : mib(100) + " to " + mib(99 + ranks) + median;
    EXPECT_NE(text.find("used " + used + " of 200.00 MiB planned, reserved 300.00 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks")), std::string::npos) << text;
  }
}

TEST_F(Top, MfuIsShownWhereItIsKnown) {
  const auto path = new_run("run", 3);
  StepMetrics m = step(1, 0.5);
  m.ranks[0].model_flops = 10e12, m.ranks[1].model_flops = 30e12;
  m.count_mfu(100e12);  // 250 ms a step
  MetricsWriter(path / "metrics.jsonl", 0).step(m);
  const std::string text = joined(top_screen(RunFolder(path), {.width = 100}));
  for (const char* wanted : {"MFU 80.0 % of 100 TFLOP/s a rank", "MFU of the step", "40%", "120%"})
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << "\n" << text;
}

TEST_F(Top, UtilisationOfLanesIsWhatTheRanksMeasured) {
  const auto path = new_run("run", 3);
  StepMetrics m = step(1, 0.5);
  for (RankMetrics& rank : m.ranks) rank.utilisation = {{"compute", 0.63}, {"gather", 0.17}};
  MetricsWriter(path / "metrics.jsonl", 0).step(m);
  const std::string text = joined(top_screen(RunFolder(path), {.width = 100}));
  EXPECT_NE(text.find("63%"), std::string::npos) << text;
  EXPECT_NE(text.find("17%"), std::string::npos) << text;
  EXPECT_EQ(text.find("80%"), std::string::npos) << "a step's seconds do not count where the span is known\n" << text;
}

/// A rank that waited while the other wrote a sample waited longer than the step took.
TEST_F(Top, WaitsAreAShareOfTheTimeThatTheyAreMeasuredIn) {
  const auto path = new_run("run", 3);
  StepMetrics m = step(1, 0.5);  // 250 ms
  m.ranks[1].busy = {{"compute", 0.05}, {"gather", 0.8}};
  m.ranks[1].utilisation = {{"compute", 0.05}, {"gather", 0.8}};
  m.ranks[1].exposed.comm = 0.75;
  MetricsWriter(path / "metrics.jsonl", 0).step(m);
  const std::string text = joined(top_screen(RunFolder(path), {.width = 100}));
  EXPECT_NE(text.find("collectives 75%"), std::string::npos) << text;
}

TEST_F(Top, TellsWhatTheDriversOfGpusSay) {
  const auto path = new_run("run", 6);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  metrics.step(gpu_step(3));
  const auto shown = [&](TerminalStyle style) { return joined(top_screen(RunFolder(path), style)); };
  const std::string text = shown({.width = 100});
  EXPECT_NE(text.find("GPU by its driver"), std::string::npos) << text;
  EXPECT_NE(text.find(" 93%  403 W  73.00 GiB taken"), std::string::npos) << text;
  EXPECT_EQ(text.find(" taken"), text.rfind(" taken")) << "rank 1's says nothing\n" << text;
  EXPECT_NE(shown({.width = 47}).find(" 93%  403 W  73.00 GiB taken"), std::string::npos);
  metrics.step(step(4, 0.5));
  EXPECT_EQ(shown({.width = 100}).find("GPU by its driver"), std::string::npos) << "no driver said anything";
  metrics.step(gpu_step(5, 9));
  for (int width : {20, 32, 64, 130})
    for (const auto& line : top_screen(RunFolder(path), {.width = width, .colour = true, .utf8 = true}))
      EXPECT_LE(columns(line), width) << line;
}

TEST_F(Top, LinesThatAreNoEventsAreSkippedWithAWord) {
  const auto path = new_run("run", 3);
  MetricsWriter(path / "metrics.jsonl", 0).step(step(1, 0.5));
  EXPECT_EQ(joined(top_screen(RunFolder(path), {.width = 100})).find("skipped"), std::string::npos);
  std::ofstream(path / "metrics.jsonl", std::ios::app) << std::string(200'000, '[') << "\n5\n";
  const std::string text = joined(top_screen(RunFolder(path), {.width = 100}));
  EXPECT_NE(text.find("metrics.jsonl: skipped lines 2, 3, which are not events of a run"), std::string::npos) << text;
  EXPECT_NE(text.find("1/3"), std::string::npos) << text;
}

TEST_F(Top, AStopThatWasAskedForIsNoStuckRun) {
  const auto path = new_run("run", 30);
  {
    MetricsWriter metrics(path / "metrics.jsonl", 0);
    metrics.step(step(1, 0.5));
    metrics.stop(1, "stopped by SIGTERM");
  }
  const auto shown = [&] { return joined(top_screen(RunFolder(path), {.width = 160})); };
  EXPECT_NE(shown().find("stopped by SIGTERM at step 1; the same command resumes it"), std::string::npos) << shown();
  MetricsWriter(path / "metrics.jsonl", 1).step(step(2, 0.4));
  EXPECT_NE(shown().find("running"), std::string::npos) << "it went on\n" << shown();

  std::ofstream(path / ".lock") << "";
  EXPECT_EQ(RunFolder(path).held(), false);
  EXPECT_NE(shown().find("ago without a stop event"), std::string::npos) << shown();
  const int lock = ::open((path / ".lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(RunFolder(path).held(), true);
  EXPECT_NE(shown().find("running"), std::string::npos) << shown();
  std::filesystem::last_write_time(path / "metrics.jsonl",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_NE(shown().find("stuck or very slow, its processes are alive"), std::string::npos) << shown();
  ::close(lock);
}

TEST_F(Top, TheNewestRunIsFoundByItself) {
  const auto base = new_run("runs/old", 30).parent_path();
  const auto newest = new_run("runs/new", 30);
  for (const char* name : {"old", "new"}) MetricsWriter(base / name / "metrics.jsonl", 0).step(step(1, 0.5));
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(base / "old/metrics.jsonl", now - std::chrono::hours(2));
  EXPECT_EQ(std::filesystem::weakly_canonical(newest_run(base.parent_path())),
            std::filesystem::weakly_canonical(newest));
  EXPECT_EQ(std::filesystem::weakly_canonical(newest_run(newest)), std::filesystem::weakly_canonical(newest));
  std::filesystem::create_directories(base / "empty");
  try {
    newest_run(base / "empty/.");
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("/empty or up to three folders below"), std::string::npos) << error.what();
  }
}

TEST(Wrapped, LinesGoOnUnderTheirLastColumn) {
  const std::string text =
      "a title\n  plan          keep 6 of 8 units, recompute 2, prefetch 1\n  total         1 MiB   while it runs\n";
  EXPECT_EQ(wrapped(text, 0), text);
  EXPECT_EQ(wrapped(text, 200), text);
  EXPECT_EQ(wrapped(text, 40),
            "a title\n"
            "  plan          keep 6 of 8 units,\n"
            "                recompute 2, prefetch 1\n"
            "  total         1 MiB   while it runs\n");
  EXPECT_EQ(wrapped("averylongwordthatcannotbebroken", 10), "averylongwordthatcannotbebroken");
  EXPECT_EQ(wrapped("averylongwordthatcannotbebroken and more", 10), "averylongwordthatcannotbebroken\nand more");
  EXPECT_EQ(wrapped("\u00d7\u00d7\u00d7 \u00d7\u00d7\u00d7", 7), "\u00d7\u00d7\u00d7 \u00d7\u00d7\u00d7")
      << "columns, not bytes";
  for (int width = 1; width < 60; ++width) {
    std::string joined;
    for (char c : wrapped(text, width)) joined += c == ' ' || c == '\n' ? "" : std::string(1, c);
    EXPECT_EQ(joined.size(), 64u) << width << ": no word is lost\n" << wrapped(text, width);
  }
}

TEST_F(Top, NoLineIsWiderThanTheTerminal) {
  const RunFolder run = run_of(1000, 30, 6);
  for (int width : {20, 32, 47, 64, 80, 97, 132, 200})
    for (bool colour : {false, true})
      for (bool utf8 : {false, true})
        for (const auto& line : top_screen(run, {.width = width, .colour = colour, .utf8 = utf8}))
          EXPECT_LE(columns(line), width) << line;
}

TEST_F(Top, TheLegendIsWholeInANarrowTerminal) {
  const RunFolder run = run_of(10, 3);
  for (int width : {24, 47, 80, 120}) {
    const std::string text = joined(top_screen(run, {.width = width}));
    for (const char* part : {"P=parameters", "T=temporaries", "r=reserved"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " at " << width << "\n" << text;
  }
}

TEST_F(Top, ManyRanksAreCountedWhereTheHeightEnds) {
  const RunFolder run = run_of(1000, 100, 64);
  for (int height : {12, 16, 24, 40}) {
    const auto lines = top_screen(run, {.width = 100, .height = height});
    EXPECT_LE(lines.size(), static_cast<size_t>(height));
    EXPECT_NE(joined(lines).find(" more; highest: rank "), std::string::npos) << joined(lines);
  }
  const std::string all = joined(top_screen(run, {.width = 100}));
  EXPECT_NE(all.find("rank 63"), std::string::npos);
  EXPECT_EQ(all.find(" more"), std::string::npos);
}

TEST_F(Top, OfManyRanksAStepNamesAFewAndTheOthersAreCounted) {
  const RunFolder run = run_of(1000, 101, 64);
  for (int height : {0, 12, 16, 24, 40}) {
    const auto lines = top_screen(run, {.width = 100, .height = height});
    if (height > 0) EXPECT_LE(lines.size(), static_cast<size_t>(height));
    EXPECT_NE(joined(lines).find("64 ranks"), std::string::npos) << joined(lines);
    EXPECT_NE(joined(lines).find(" more; highest: rank "), std::string::npos) << joined(lines);
  }
}

TEST_F(Top, PlainTextIsAsciiAndHasLettersForColours) {
  const std::string text = joined(top_screen(run_of(12, 4), {.width = 100}));
  for (char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << text;
  // An eighth each, states and activations a quarter, of the bar; the rest is reserved.
  EXPECT_NE(text.find("PPPGGG"), std::string::npos) << text;
  EXPECT_NE(text.find("Tr"), std::string::npos) << text;
}

/// Frequencies are those of the newest steps, the rest of the last one.
TEST_F(Top, TellsHowOftenEachExpertIsChosen) {
  const auto path = new_run("run", 9);
  {
    MetricsWriter metrics(path / "metrics.jsonl", 0);
    for (int64_t s = 1; s <= 4; ++s) {
      StepMetrics m = step(s, 1.0);
      m.gate.emplace();
      m.gate->experts = {{.samples = s == 4 ? 1 : 3, .seconds = 0.5}, {.samples = s == 4 ? 3 : 1, .seconds = 2}};
      m.gate->entropy = 0.625, m.gate->idle = 0.25, m.gate->dummies = 0.5;
      metrics.step(m);
    }
  }
  const std::string text = joined(top_screen(RunFolder(path), {.width = 100}));
  for (const char* wanted : {"entropy 0.625", "ranks idle 25%", "dummies 50%", "62% of the samples, 2 samples/s",
                             "38% of the samples, 1.5 samples/s"})
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " is missing in\n" << text;
  EXPECT_EQ(joined(top_screen(run_of(9, 4), {.width = 100})).find("gate"), std::string::npos);
}

TEST_F(Top, ARunBeforeItsFirstStepSaysSo) {
  const std::string text = joined(top_screen(RunFolder(new_run("run", 10)), {.width = 80}));
  EXPECT_NE(text.find("starting"), std::string::npos) << text;
  EXPECT_NE(text.find("No step is finished yet"), std::string::npos) << text;
}

TEST_F(Top, AFinishedAndASilentRunAreToldApart) {
  EXPECT_NE(joined(top_screen(run_of(4, 4), {.width = 80})).find("finished"), std::string::npos);
  const RunFolder stopped = run_of(40, 4);
  std::filesystem::last_write_time(folder_ / "run/metrics.jsonl",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::minutes(10));
  const std::string text = joined(top_screen(stopped, {.width = 80}));
  EXPECT_NE(text.find("no event for 10 min"), std::string::npos) << text;
}

TEST(Sparkline, SpansTheRangeAndLeavesGapsForNaN) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({0, 0, 7, 7}, 2, false), "_#") << "means of stretches";
  EXPECT_EQ(sparkline({1, NAN, 1}, 3, false), "_ _");
  EXPECT_EQ(sparkline({}, 10, true), "");
}

}  // namespace
}  // namespace tessera::report
