// Run folders of strangers: `top` and `report` refuse them with file and line.
#include <nlohmann/json.hpp>

#include "bounded.h"
#include "report/run_files.h"
#include "tessera/report/history.h"
#include "tessera/report/page.h"
#include "tessera/report/run_folder.h"

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

TEST_F(ReportAttacks, DepthAndLinesWithoutEndTakeNoMemory) {
  const auto run = new_run("run", 3);
  write("run/metrics.jsonl", repeated("[", 200'000) + "\n" + repeated("{\"a\":", 200'000) + "\n");
  EXPECT_EQ(RunFolder(run).last_step(), 0) << "no event of a run: skipped";
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
