// The report is a function of run folders: of one with everything, of several side by side, of one that was stopped.
#include "tessera/report/run_report.h"

#include "report/run_files.h"
#include "tessera/data/video.h"

namespace tessera::report {
namespace {

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

class Report : public RunTest {
 protected:
  std::filesystem::path trained(const std::string& name, int64_t steps, int64_t done) const {
    const auto path = new_run(name, steps);
    MetricsWriter metrics(path / "metrics.jsonl", 0);
    for (int64_t s = 1; s <= done; ++s) metrics.step(step(s, 1.0 / static_cast<double>(s)));
    metrics.skip(done, "loss nan, sample <clips>/7.mp4");
    return path;
  }
  std::string page(const std::vector<std::filesystem::path>& runs) const {
    write_run_report(runs, folder_ / "page.html");
    return read(folder_ / "page.html");
  }
};

TEST_F(Report, OneRunHasItsFactsMemoryOfEveryRankAndWhatWentWrong) {
  const std::string html = page({trained("run", 20, 12)});
  for (const char* wanted : {"12 of 20", "7.0 M", "Loss", "Gradient norm", "Seconds a step", "<b>rank 1</b>",
                             "planned 8.00 MiB", "reserved 10.00 MiB", "&lt;clips&gt;/7.mp4", "global_batch = 4",
                             "What compute waited for, a step", "<td>20 ms</td>", "<td>30 ms</td>", "10 ms on rank 1"})
    EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
  EXPECT_EQ(html.find("<clips>"), std::string::npos) << "text of the data set is escaped";
}

TEST_F(Report, TellsWhatEachRankMadeOfItsDeviceAndOfItsLanes) {
  const auto path = new_run("run", 4);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  for (int64_t s = 1; s <= 4; ++s) {
    StepMetrics m = step(s, 1.0);
    m.ranks[0].model_flops = 10e9, m.ranks[1].model_flops = 20e9;
    for (RankMetrics& rank : m.ranks) rank.utilisation = {{"compute", s == 4 ? 0.9 : 0.7}, {"gather", 0.1}};
    m.count_mfu(s == 1 ? 1e9 : 160e9);  // the first step warms up and does not count
    metrics.step(m);
  }
  const std::string html = page({path});
  for (const char* wanted : {"Utilisation, mean of the steps", "<td>25.0 %</td>", "<td>50.0 %</td>", "<td>80 %</td>",
                             "compute busy", "<td>10 %</td>", "37.5 % of 160 GFLOP/s a rank"})
    EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
}

TEST_F(Report, TellsWhatProductsIn8BitsLost) {
  const auto path = new_run("run", 2);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  StepMetrics m = step(1, 1.0);
  m.fp8 = {{"blocks.0", {0.125, 0}, {0.0025, 0.5}}};
  metrics.step(m), metrics.step(step(2, 1.0));
  const std::string html = page({path});
  for (const char* wanted :
       {"Products in 8 bits: values lost, step 1", "<td>12.5 %</td><td>0 %</td><td>0.25 %</td><td>50 %</td>"})
    EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
  EXPECT_EQ(page({trained("other", 4, 4)}).find("Products in 8 bits"), std::string::npos);
}

TEST_F(Report, TellsWhatTheDriversOfGpusSaid) {
  const auto path = new_run("run", 4);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  for (int64_t s = 1; s <= 4; ++s) metrics.step(gpu_step(s));  // the first step warms up and does not count
  const std::string html = page({path});
  for (const char* wanted :
       {"<th>GPU busy, by its driver</th><th>power</th><th>most memory taken</th>",
        "<td>93 %</td><td>403 W</td><td>74.00 GiB</td>", "<td>not known</td><td>not known</td><td>not known</td>"})
    EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
  EXPECT_EQ(page({trained("other", 4, 4)}).find("by its driver"), std::string::npos);
}

TEST_F(Report, LinesThatAreNoEventsAreSkippedWithAWord) {
  const auto path = trained("run", 5, 5);
  std::ofstream(path / "metrics.jsonl", std::ios::app) << std::string(200'000, '[') << "\n";
  ::testing::internal::CaptureStderr();
  EXPECT_NE(page({path}).find("<h2>Loss"), std::string::npos);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("metrics.jsonl: skipped line 7, which is not an event of a run"), std::string::npos) << said;
}

TEST_F(Report, BeginsWithTheCurvesAndEverySampleOfAPrompt) {
  if (!data::has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
  const auto path = new_run("run", 6);
  std::filesystem::create_directories(path / "samples");
  {
    MetricsWriter metrics(path / "metrics.jsonl", 0);
    for (int64_t s = 1; s <= 6; ++s) {
      metrics.step(step(s, 1.0));
      if (s % 2 != 0) continue;
      data::Frames clip{.count = 1, .height = 16, .width = 16, .fps = 8, .rgb = std::vector<uint8_t>(16 * 16 * 3, 90)};
      const std::string name = "samples/step-00000" + std::to_string(s) + "-0.mp4";
      data::write_mp4(path / name, clip);
      metrics.sample(s, name, "a cat", 20.0 + static_cast<double>(s), {});
    }
  }
  const std::string html = page({path});
  size_t before = html.find("<h2>Loss");
  ASSERT_NE(before, std::string::npos);
  for (const char* next :
       {"sample of step 2, PSNR 22.0 dB against the reconstruction<", "sample of step 4, PSNR 24.0 dB",
        "sample of step 6, PSNR 26.0 dB", "What compute waited for", "<b>rank 1</b>"}) {
    const size_t at = html.find(next);
    ASSERT_NE(at, std::string::npos) << next;
    EXPECT_GT(at, before) << next;
    before = at;
  }
  EXPECT_NE(html.find("PSNR of the last sample against its clip&#39;s reconstruction"), std::string::npos);
}

TEST_F(Report, NeedsNothingElseAndFitsAPhone) {
  const std::string html = page({trained("run", 5, 5)});
  for (const char* outside : {"http://", "https://", "<script", "<link"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_NE(html.find("name=viewport"), std::string::npos);
}

TEST_F(Report, LanesOfEveryRankAreDrawn) {
  const auto path = trained("run", 5, 5);
  std::string lines;
  for (int rank = 0; rank < 3; ++rank)
    for (const char* op : {"forward", "backward"})
      lines += R"({"rank":)" + std::to_string(rank) + R"(,"step":2,"i":0,"phase":"train","op":")" + op +
               R"(","unit":"stem","micro":0,"lane":"compute","bytes":0,"wait":[],"comm":[],"t0":0.0,"t1":0.1})" + "\n";
  write("run/schedule.jsonl", lines);
  const std::string html = page({path});
  EXPECT_NE(html.find("Lanes over time, step 2"), std::string::npos);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_NE(html.find(">rank " + std::to_string(rank) + "</text>"), std::string::npos) << rank;
  EXPECT_EQ(count(html, "<title>forward stem"), 3u);
}

TEST_F(Report, BeyondSixteenRanksLanesAreCounted) {
  std::vector<ReportInput::Bar> bars;
  for (int rank = 0; rank < 20; ++rank) bars.push_back({rank, "compute", "forward", "forward", 0, 1});
  const std::string html = lanes_card(bars, "Lanes");
  EXPECT_EQ(count(html, "<rect"), 16u);
  EXPECT_NE(html.find("4 more ranks"), std::string::npos);
}

TEST_F(Report, SeveralRunsShareTheirCurvesAndAreLabelled) {
  const std::string html = page({trained("a", 10, 10), trained("b", 10, 6)});
  EXPECT_NE(html.find("Tessera: 2 runs"), std::string::npos);
  EXPECT_EQ(count(html, "<polyline"), 8u) << "two lines in each of four charts";
  for (const char* name : {"a", "b"})
    EXPECT_GE(count(html, (folder_ / name).string()), 3u) << "legend, table and recipe name the run";
  EXPECT_NE(html.find("<td>dp_shard 2</td>"), std::string::npos);
}

TEST_F(Report, ALossThatIsNaNLeavesTheCurveWithoutIt) {
  const auto path = new_run("run", 3);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  metrics.step(step(1, 0.5));
  metrics.step(step(2, NAN));
  metrics.step(step(3, 0.25));
  EXPECT_EQ(page({path}).find("nan,"), std::string::npos);
}

TEST_F(Report, ARunBeforeItsFirstStepHasAPageToo) {
  EXPECT_NE(page({new_run("run", 3)}).find("0 of 3"), std::string::npos);
}

}  // namespace
}  // namespace tessera::report
