// One run, one folder, one history: going back leaves the other line behind, a second start is refused, and what a run
// wrote down stays readable whatever lies beside it.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "processes.h"
#include "program.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

class HistoryTest : public ::testing::Test {
 protected:
  fs::path out() const { return run_.out(); }
  std::string checkpoint(int64_t step) const { return checkpoint::step_folder(out() / "checkpoints", step).string(); }
  Result train(const std::string& steps, Flags more = {}, int ranks = 1) const {
    more.insert(more.begin(), {"--run.steps", steps, "--checkpoint.every", "2", "--checkpoint.keep", "2"});
    return run_.train(ranks, "run", more);
  }
  static void expect(const Result& r, int code, const Flags& words) {
    EXPECT_EQ(r.code, code) << r.output;
    for (const std::string& word : words)
      EXPECT_NE(r.output.find(word), std::string::npos) << word << " in " << r.output;
  }
  std::vector<int64_t> steps(const fs::path& folder) const {
    std::vector<int64_t> found;
    for (const auto& path : checkpoint::whole_checkpoints(folder))
      found.push_back(checkpoint::load_manifest(path).step);
    return found;
  }
  void expect_contiguous(int64_t last) const {
    const auto lines = run_.metrics("run");
    ASSERT_EQ(static_cast<int64_t>(lines.size()), last);
    for (int64_t s = 1; s <= last; ++s) EXPECT_EQ(lines[static_cast<size_t>(s - 1)]["step"], s);
  }
  std::vector<int64_t> saved_steps() const {
    std::vector<int64_t> found;
    for (const auto& line : run_.metrics("run", "checkpoint")) found.push_back(line["step"]);
    return found;
  }

  TinyRun run_{"history"};
};

TEST_F(HistoryTest, GoingBackLeavesTheOtherLineBehindAndTheSameCommandGoesOn) {
  ASSERT_EQ(train("8", {"--checkpoint.keep", "4"}).code, 0);
  const auto before = run_.metrics("run");
  const Flags back = {"--run.resume", checkpoint(4)};
  expect(train("6", back), 0, {"going back to step 4: 2 checkpoints", "abandoned-1", "resumed from " + checkpoint(4)});
  EXPECT_EQ(steps(out() / "abandoned-1/checkpoints"), (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(run_.metrics("run/abandoned-1").size(), 4u) << "steps 5 to 8";
  EXPECT_EQ(run_.metrics("run/abandoned-1").back()["loss"], before.back()["loss"]);
  EXPECT_EQ(steps(out() / "checkpoints"), (std::vector<int64_t>{4, 6})) << "keep counts the new line alone";
  expect_contiguous(6);

  // The same command goes on; where it went back to may be pruned by then.
  const Result again = train("10", back);
  expect(again, 0, {"resumed from there before", "resumed from " + checkpoint(6)});
  EXPECT_FALSE(fs::exists(checkpoint(4)));
  expect(train("12", back), 0, {"resumed from " + checkpoint(10)});
  EXPECT_FALSE(fs::exists(out() / "abandoned-2"));
  expect_contiguous(12);
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{2, 4, 6, 8, 10, 12}));
  for (size_t s = 0; s < before.size(); ++s) EXPECT_EQ(run_.metrics("run")[s]["loss"], before[s]["loss"]) << s;
}

TEST_F(HistoryTest, ARestartBeforeTheNewLinesFirstCheckpointBeginsWhereTheLineDoes) {
  ASSERT_EQ(train("8", {"--checkpoint.keep", "4"}, 2).code, 0);
  const Flags argv = {TESSERA_BINARY,
                      "launch",
                      "-n",
                      "2",
                      "--max-restarts",
                      "1",
                      "train",
                      run_.recipe(),
                      "--run.out",
                      run_.out(),
                      "--run.steps",
                      "6",
                      "--checkpoint.every",
                      "2",
                      "--checkpoint.keep",
                      "4",
                      "--run.resume",
                      checkpoint(2)};
  const Result r = run_program(argv, {{"OMP_NUM_THREADS", "1"}, {"TESSERA_DRILL", "rank=1,step=3,attempt=0,do=kill"}});
  EXPECT_EQ(r.code, 0) << r.output;
  const std::string resumed = "resumed from " + checkpoint(2);
  const size_t first = r.output.find(resumed);
  ASSERT_NE(first, std::string::npos) << r.output;
  EXPECT_NE(r.output.find(resumed, first + 1), std::string::npos) << r.output;
  EXPECT_EQ(steps(out() / "checkpoints"), (std::vector<int64_t>{2, 4, 6}));
  EXPECT_EQ(run_.metrics("run", "fault").size(), 1u);
  expect_contiguous(6);
}

TEST_F(HistoryTest, ASecondStartIsRefusedAndTheFirstGoesOn) {
  const std::string log = (run_.folder() / "log.txt").string();
  const pid_t first = start_program({TESSERA_BINARY, "launch", "-n", "2", "train", run_.recipe(), "--run.steps",
                                     "100000", "--run.out", run_.out(), "--checkpoint.every", "1"},
                                    log, {{"OMP_NUM_THREADS", "1"}});
  for (int i = 0; i < 1500 && !checkpoint::latest(out() / "checkpoints"); ++i) sleep_seconds(0.02);
  const Flags named = {out().string() + " is in use", "process " + std::to_string(first), "run.out"};
  expect(train("3"), 2, named);
  expect(run_.tessera({"train", run_.recipe(), "--run.out", run_.out()}), 2, named);
  for (const char* command : {"report", "sample"})
    EXPECT_NE(run_.tessera({command, command == std::string("report") ? run_.out() : run_.recipe()}).code, 2)
        << command;
  const size_t before = text_of(run_.out() + "/metrics.jsonl").size();
  const auto trains_on = [&] { return text_of(run_.out() + "/metrics.jsonl").size() > before; };
  for (int i = 0; i < 1000 && !trains_on(); ++i) sleep_seconds(0.02);
  EXPECT_TRUE(trains_on()) << text_of(log);
  kill(first, SIGKILL);
  EXPECT_EQ(wait_program(first, 20), 128 + SIGKILL);
  // At once: its ranks may still be dying.
  const int64_t done = checkpoint::load_manifest(*checkpoint::latest(out() / "checkpoints")).step;
  expect(train(std::to_string(done + 2)), 0, {"resumed from"});
}

TEST_F(HistoryTest, StrayLinesAreToldAndAHistoryOlderThanItsCheckpointToo) {
  ASSERT_EQ(train("4").code, 0);
  const fs::path file = out() / "metrics.jsonl";
  const std::string whole = text_of(file);
  std::ofstream(file, std::ios::trunc) << "5\n[]\n\xff\n" << whole;
  expect(train("6"), 0, {"skipped lines 1, 2, 3, which are not events of a run"});
  expect(run_.tessera({"report", run_.out()}), 0, {});
  EXPECT_TRUE(text_of(file).starts_with("5\n[]\n\xff\n" + whole)) << "nothing of it was taken away";

  std::ofstream(file, std::ios::trunc) << whole.substr(0, whole.find("{\"type\":\"step\",\"step\":2"));
  expect(train("8"), 0, {"metrics.jsonl ends at step 1 and the checkpoint is of step 6"});
  EXPECT_EQ(run_.metrics("run", "warning").size(), 1u);
  EXPECT_EQ(run_.metrics("run").size(), 3u) << "steps 1, 7 and 8";
}

TEST_F(HistoryTest, ADamagedEntryOfTheCacheEndsTrainingAndIsPreparedAgain) {
  ASSERT_EQ(run_.tessera({"prepare", run_.recipe()}).code, 0);
  std::vector<fs::path> entries;
  for (const auto& entry : fs::recursive_directory_iterator(run_.folder() / "cache"))
    if (entry.path().extension() == ".safetensors") entries.push_back(entry.path());
  ASSERT_EQ(entries.size(), 6u) << "three clips, three captions";
  std::map<fs::path, std::string> whole;
  for (const fs::path& entry : entries) {  // all of them: whichever comes first
    whole[entry] = text_of(entry);
    std::fstream file(entry, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-40, std::ios::end) << std::string(32, '\0');
  }
  const Result trained = train("2");
  expect(trained, 3, {"damaged: the bytes of", "tessera prepare"});
  EXPECT_TRUE(std::ranges::any_of(entries, [&](const fs::path& entry) {
    return trained.output.find(entry.filename().string()) != std::string::npos;
  })) << trained.output;
  expect(run_.tessera({"launch", "-n", "2", "prepare", run_.recipe()}), 0, {"damaged", "made again"});
  for (const fs::path& entry : entries) EXPECT_EQ(text_of(entry), whole[entry]) << entry;
  expect(train("2"), 0, {});
}

TEST_F(HistoryTest, WhatAKilledStartLeftGoesAndWhatIsTheUsersStays) {
  ASSERT_EQ(train("2").code, 0);
  const Flags ours = {"plan.txt.0123456789abcdef-0.partial", "recipe.toml.77-1.partial", "schedule.jsonl.rank-3",
                      "checkpoints/step-000004.partial/rank-00000.safetensors"};
  const Flags users = {"x.partial", "notes.txt", "checkpoints/step-77/weights", "checkpoints/best.partial/weights"};
  for (const Flags& names : {ours, users})
    for (const std::string& name : names) {
      fs::create_directories((out() / name).parent_path());
      std::ofstream(out() / name) << "bytes";
    }
  ASSERT_EQ(train("4").code, 0);
  for (const std::string& name : ours) EXPECT_FALSE(fs::exists(out() / name)) << name;
  for (const std::string& name : users) EXPECT_TRUE(fs::exists(out() / name)) << name;
}

}  // namespace
}  // namespace tessera::testing
