// Run folders of strangers: `top` and `report` refuse them with file and line.
#include <nlohmann/json.hpp>

#include "bounded.h"
#include "report/run_files.h"
#include "tessera/report/history.h"
#include "tessera/report/page.h"
#include "tessera/report/run_folder.h"
#include "tessera/report/run_report.h"

namespace tessera::report {

class ReportAttacks : public RunTest {
 protected:
  void refused(const std::string& file, const std::string& text, const std::vector<std::string>& words) const {
    const auto run = new_run("run", 3);
    write("run/metrics.jsonl", "");
    write("run/" + file, text);
    expect_refused_cheaply([&] { RunFolder folder(run); }, words);
  }
};

TEST_F(ReportAttacks, FieldsOfAnotherTypeAreNamedWithFileAndLine) {
  const std::string whole = "{\"type\":\"step\",\"step\":1}\n";
  for (const std::string line :
       {R"({"type":"step","step":"one"})", R"({"type":"step","step":1,"ranks":[1]})",
        R"({"type":"step","step":1,"ranks":[{"bytes":3}]})", R"({"type":"step","step":1,"ranks":[{"busy":{"a":"b"}}]})",
        R"({"type":"step","step":1e300})", R"({"type":"step","step":1,"gate":{"experts":{}}})", R"({"type":7})",
        R"({"type":"sample","step":18446744073709551615})"})
    refused("metrics.jsonl", whole + line + "\n", {"metrics.jsonl, line 2"});
  refused("plan.json", R"({"mesh":{"tp":"2"}})", {"plan.json", "tp"});
  refused("plan.json", R"({"device":[]})", {"plan.json", "device"});
}

TEST_F(ReportAttacks, AGateThatBeginsLateHasItsTable) {
  const auto run = new_run("run", 2);
  write("run/metrics.jsonl",
        "{\"type\":\"step\",\"step\":1,\"loss\":2,\"samples\":4}\n"
        "{\"type\":\"step\",\"step\":2,\"loss\":1,\"samples\":4,\"gate\":{\"temperature\":0.25,\"entropy\":0.5,"
        "\"balance_loss\":1,\"experts\":[{\"samples\":3,\"updates\":1},{\"samples\":1,\"updates\":1}]}}\n");
  write_run_report({run}, run / "report.html");
  const std::string page = read(run / "report.html");
  const size_t row = page.find("<td>temperature</td>");
  ASSERT_NE(row, std::string::npos) << page.substr(0, 4096);
  const std::string cells = page.substr(row, page.find("</tr>", row) - row);
  const size_t from = cells.find("0.25");
  ASSERT_NE(from, std::string::npos) << cells;
  EXPECT_NE(cells.find("0.25", from + 1), std::string::npos) << "from the first step that has a gate: " << cells;
}

/// Shares over the steps as a picture, by timestep as a table; numbers that make no sense do no harm.
TEST_F(ReportAttacks, ExpertsBehindAGateAreDrawnAndCountedByTimestep) {
  const auto run = new_run("run", 3);
  std::string lines;
  for (int s = 1; s <= 3; ++s)
    lines +=
        "{\"type\":\"step\",\"step\":" + std::to_string(s) +
        ",\"loss\":1,\"samples\":4,\"gate\":{\"idle_share\":0.25,\"undealt_idle_share\":0.5,\"dummy_share\":0.125,"
        "\"moved_samples\":2,\"experts\":[{\"samples\":3,\"seconds\":0.5,\"by_timestep\":[{\"count\":3},{\"count\":-7}]},"
        "{\"samples\":1,\"by_timestep\":[{\"count\":1}]},{\"samples\":-5}]}}\n";
  write("run/metrics.jsonl", lines);
  write_run_report({run}, run / "report.html");
  const std::string page = read(run / "report.html");
  for (const char* wanted :
       {"Share of the samples by expert", "<title>expert_1</title>", "Experts by timestep, newest tenth of the steps",
        "<td>0.0 to 0.5</td><td>75.0 %</td><td>25.0 %</td>", "<td>0.5 to 1.0</td><td></td>",
        "<td>ranks idle</td><td>25.0 %</td>", "<td>without a deal</td><td>50.0 %</td>",
        "<td>dummies</td><td>12.5 %</td>", "<td>dealt</td><td>2</td>"})
    EXPECT_NE(page.find(wanted), std::string::npos) << wanted;
  const std::vector<double> often = RunFolder(run).expert_frequencies();
  ASSERT_EQ(often.size(), 3u);
  EXPECT_EQ(often[0], 0.75);
  EXPECT_EQ(often[2], 0);
  refused("metrics.jsonl",
          R"({"type":"step","step":1,"gate":{"experts":[{"by_timestep":[1]}]}})"
          "\n",
          {"metrics.jsonl, line 1"});
}

TEST_F(ReportAttacks, DepthAndLinesWithoutEndTakeNoMemory) {
  const auto run = new_run("run", 3);
  write("run/metrics.jsonl", repeated("[", 200'000) + "\n" + repeated("{\"a\":", 200'000) + "\n");
  EXPECT_EQ(RunFolder(run).last_step(), 0) << "not events of a run";
  EXPECT_EQ(read_history(run / "metrics.jsonl", 5).strays.size(), 2u);
  std::filesystem::resize_file(run / "metrics.jsonl", int64_t{1} << 40);
  expect_refused_cheaply([&] { RunFolder folder(run); }, {"metrics.jsonl, line 3: longer than"});
  std::filesystem::remove(run / "metrics.jsonl");
  std::filesystem::create_symlink("/dev/zero", run / "metrics.jsonl");
  expect_refused_cheaply([&] { RunFolder folder(run); }, {"is no regular file"});
  expect_refused_cheaply([&] { read_history(run / "metrics.jsonl", 5); }, {"is no regular file"});
}

TEST_F(ReportAttacks, ControlCharactersReachNeitherTerminalNorPage) {
  const auto run = new_run("run", 3);
  write("run/metrics.jsonl",
        "{\"type\":\"sample\",\"step\":1,\"file\":\"a\\u001b[2J.mp4\",\"prompt\":\"\\u009b1m\"}\n");
  const RunFolder folder(run);
  ASSERT_EQ(folder.events().size(), 1u);
  EXPECT_EQ(folder.events()[0].text, "a\\x1b[2J.mp4");
  EXPECT_EQ(folder.events()[0].prompt, "\\u{9b}1m");
  EXPECT_EQ(escape_html("<a\x1b>\n"), "&lt;a\\x1b&gt;\n");
}

}  // namespace tessera::report
