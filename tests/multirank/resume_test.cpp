// Going on from a checkpoint with another recipe: what matters is refused and leaves the run's folder as it was, the
// rest is told.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

Flags with(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// Every file of a folder with its bytes.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& item : fs::recursive_directory_iterator(folder))
    if (item.path().filename() != ".lock")
      files[fs::relative(item.path(), folder).string()] = item.is_regular_file() ? text_of(item.path()) : "folder";
  return files;
}

void expect_refused(const TinyRun& run, const std::string& name, const Flags& flags, const std::string& key) {
  SCOPED_TRACE(key);
  const auto before = contents(run.out(name));
  const Result r = run.train(1, name, flags);
  EXPECT_EQ(r.code, 2) << r.output;
  for (const std::string& word : {std::string("changed since step 2: ") + key, std::string("run.resume_changes")})
    EXPECT_NE(r.output.find(word), std::string::npos) << word << "\n" << r.output;
  EXPECT_TRUE(contents(run.out(name)) == before) << "something in the run's folder was changed";
}

TEST(ResumeChanges, OfModelSeedAndObjectiveAreRefusedAndLeaveTheRunByteForByte) {
  const TinyRun run("resume");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "2"}).code, 0);
  const std::string remains = run.out() + "/checkpoints/step-000009.partial";
  fs::create_directories(remains);
  for (const auto& [flag, value] : std::map<std::string, std::string>{{"model.config.num_heads", "2"},
                                                                      {"model.config.text_len", "8"},
                                                                      {"run.seed", "8"},
                                                                      {"diffusion.timesteps", "sana"},
                                                                      {"diffusion.caption_dropout", "0.1"},
                                                                      {"diffusion.shift", "3"}})
    expect_refused(run, "run", {"--run.steps", "4", "--" + flag, value}, flag);
  EXPECT_TRUE(fs::exists(remains));
}

TEST(ResumeChanges, OfAdaptersAndTheirBaseAreRefusedUnlessAllowed) {
  const TinyRun run("resume");
  for (const std::string base : {"base", "other"})
    ASSERT_EQ(run.train(1, base, {"--run.steps", "2", "--run.seed", base == "base" ? "7" : "8"}).code, 0);
  const Flags lora = {"--train.mode", "lora", "--lora.rank", "4", "--lora.targets", "q,k,v", "--run.seed", "7"};
  const Flags on_base = with(lora, {"--model.path", run.out("base") + "/model"});
  ASSERT_EQ(run.train(1, "run", with(on_base, {"--run.steps", "2"})).code, 0);
  const Flags on = with(on_base, {"--run.steps", "3"});
  expect_refused(run, "run", with(on, {"--lora.rank", "2", "--lora.alpha", "4"}), "lora.rank");
  expect_refused(run, "run", with(on, {"--lora.alpha", "6"}), "lora.alpha");
  expect_refused(run, "run", with(on, {"--lora.rslora", "true"}), "lora.rslora");
  expect_refused(run, "run", with(on, {"--lora.dora", "true"}), "lora.dora");
  expect_refused(run, "run", with(on, {"--lora.targets", "q,k"}), "lora.targets");
  expect_refused(run, "run", with(on, {"--model.path", run.out("other") + "/model"}), "base");

  const Result allowed = run.train(1, "run", with(on, {"--lora.alpha", "6", "--run.resume_changes", "allow"}));
  ASSERT_EQ(allowed.code, 0) << allowed.output;
  EXPECT_NE(allowed.output.find("changed since step 2: lora.alpha 4 -> 6"), std::string::npos) << allowed.output;

  fs::rename(run.out("base"), run.out("moved"));
  const Result moved = run.train(
      1, "run", with(lora, {"--lora.alpha", "6", "--run.steps", "4", "--model.path", run.out("moved") + "/model"}));
  EXPECT_EQ(moved.code, 0) << "the base is the same wherever it lies\n" << moved.output;
}

TEST(ResumeChanges, ThatMayBeAreToldALineEachAndTheEarlierRecipeStays) {
  const TinyRun run("resume");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "2", "--train.lr", "1e-3"}).code, 0);
  const std::string recipe = text_of(run.out() + "/recipe.toml");
  const Flags changed = {"--run.steps", "4", "--train.lr", "1e-5", "--plan.recompute", "all"};
  const Result r = run.train(2, "run", changed);
  ASSERT_EQ(r.code, 0) << r.output;
  std::map<std::string, std::string> told;
  std::string from;
  for (const auto& line : run.metrics("run", "resume"))
    if (line.contains("key"))
      told[line.at("key")] = line.at("text");
    else
      from = line.at("from").get<std::string>();
  EXPECT_TRUE(from.ends_with("step-000002")) << from;
  EXPECT_EQ(told.at("train.lr"), "changed since step 2: train.lr 1e-3 -> 1e-5");
  for (const char* key : {"run.steps", "plan.recompute", "mesh.dp_shard"}) EXPECT_TRUE(told.count(key)) << key;
  for (const auto& [key, text] : told) EXPECT_NE(r.output.find(text), std::string::npos) << r.output;
  EXPECT_EQ(text_of(run.out() + "/recipe-1.toml"), recipe);
  EXPECT_NE(text_of(run.out() + "/recipe.toml"), recipe);
  ASSERT_EQ(run.train(2, "run", changed).code, 0);
  EXPECT_FALSE(fs::exists(run.out() + "/recipe-2.toml")) << "the text is the same";
  std::vector<nlohmann::json> lines = run.metrics("run", "resume");
  EXPECT_FALSE(lines.back().contains("key")) << "nothing was changed since step 4";
}

TEST(ResumeChanges, OfWhatLiesInTheDataFolderAreTold) {
  const TinyRun run("resume");
  const fs::path data = run.folder() / "data";
  const auto told = [&](const char* steps, const Flags& more = {}) {
    const Result r = run.train(1, "run", with({"--run.steps", steps}, more));
    EXPECT_EQ(r.code, 0) << r.output;
    std::map<std::string, std::string> changes;
    for (const auto& line : run.metrics("run", "resume"))
      if (line.contains("key") && r.output.find(line.at("text")) != std::string::npos)
        changes[line.at("key")] = line.at("text");
    return changes;
  };
  told("2");
  EXPECT_FALSE(told("4").contains("data set")) << "nothing has changed";
  fs::remove(data / "clip2.mp4"), fs::remove(data / "clip2.txt");
  EXPECT_TRUE(told("6").at("data set").starts_with("changed since step 4: data set 3 samples (")) << "a clip is gone";
  std::ofstream(data / "clip1.txt") << "another caption";
  const std::string caption = told("8").at("data set");
  EXPECT_NE(caption.find("step 6: data set 2 samples ("), std::string::npos) << caption;
  EXPECT_FALSE(told("10", {"--data.repeats", "2"}).contains("data set")) << "the key says it";
}

/// A default is the same however it is written.
TEST(ResumeChanges, OfWritingAreNone) {
  const TinyRun run("resume");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "2"}).code, 0);
  const Result r = run.train(1, "run",
                             {"--run.steps", "4", "--diffusion.logit_std", "1.0", "--diffusion.huber_c", "1e-1",
                              "--diffusion.strata", "00", "--diffusion.shift", "5.00"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("changed since step 2: diffusion"), std::string::npos) << r.output;
}

/// Who edits RUN/recipe.toml overwrites the text by which the run went.
TEST(ResumeChanges, ARunFromItsOwnEditedRecipeKeepsTheEarlierOne) {
  const TinyRun run("resume");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "2", "--train.lr", "1e-3"}).code, 0);
  const std::string file = run.out() + "/recipe.toml", recipe = text_of(file);
  std::string edited = recipe;
  const size_t lr = edited.find("lr = 1e-3");
  ASSERT_NE(lr, std::string::npos) << edited;
  edited.replace(lr, 9, "lr = 1e-5");
  std::ofstream(file, std::ios::trunc) << edited;
  const Result r = run.tessera({"train", file, "--run.steps", "3"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(text_of(run.out() + "/recipe-1.toml"), recipe);
  EXPECT_NE(text_of(file).find("lr = 1e-05"), std::string::npos) << text_of(file);
}

TEST(ResumeChanges, ResumeNoMovesTheOldLineAway) {
  const TinyRun run("resume");
  const Flags flags = {"--run.steps", "4", "--checkpoint.every", "2"};
  ASSERT_EQ(run.train(1, "run", flags).code, 0);
  const std::string metrics = text_of(run.out() + "/metrics.jsonl");
  const auto first = run.metrics("run");
  const fs::path checkpoints = run.out() + "/checkpoints";
  const auto before = contents(checkpoints);
  const Result again = run.train(1, "run", with(flags, {"--run.resume", "no", "--run.seed", "9"}));
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("abandoned-1"), std::string::npos) << again.output;
  EXPECT_TRUE(contents(run.out() + "/abandoned-1/checkpoints") == before);
  const size_t of_steps = metrics.find("{\"type\":\"step\"");  // before them: what the first start told, at step 0
  EXPECT_EQ(text_of(run.out() + "/abandoned-1/metrics.jsonl"), metrics.substr(of_steps));
  EXPECT_TRUE(text_of(run.out() + "/metrics.jsonl").starts_with(metrics.substr(0, of_steps)));
  EXPECT_EQ(run.metrics("run").size(), 4u);
  EXPECT_NE(run.metrics("run").front().at("loss"), first.front().at("loss"));
  ASSERT_EQ(run.train(1, "run", with(flags, {"--run.resume", "no"})).code, 0);
  EXPECT_TRUE(fs::exists(run.out() + "/abandoned-2/checkpoints/step-000004/manifest.json"));
  EXPECT_EQ(run.metrics("run").back().at("loss"), first.back().at("loss"));
}

/// The types of the lines about a step, in their order.
std::string types_of(const TinyRun& run, int64_t step) {
  std::ifstream in(run.out() + "/metrics.jsonl");
  std::string types;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("step") == step) types += (types.empty() ? "" : " ") + json.at("type").get<std::string>();
  }
  return types;
}

/// Of RUN/exports, by name.
std::vector<std::string> exported(const TinyRun& run, const std::string& name = "run") {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(fs::path(run.out(name)) / "exports", none))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(Exports, AFullModelOfASaveIsThatOfARunThatEndedThere) {
  const TinyRun run("beside");
  const Flags export_models = {"--checkpoint.every", "2", "--checkpoint.export", "model", "--mesh", "dp_shard=2"};
  ASSERT_EQ(run.train(2, "long", with({"--run.steps", "4"}, export_models)).code, 0);
  ASSERT_EQ(run.train(2, "short", {"--run.steps", "2", "--mesh", "dp_shard=2"}).code, 0);
  const fs::path exports = run.out("long") + "/exports";
  const auto at_two = contents(exports / "step-000002"), at_end = contents(exports / "step-000004");
  EXPECT_GE(at_two.size(), 2u) << "weights and a config";
  EXPECT_EQ(at_two, contents(run.out("short") + "/model"));
  EXPECT_EQ(at_end, contents(run.out("long") + "/model"));
  EXPECT_NE(at_two, at_end);
  EXPECT_FALSE(fs::exists(run.out("long") + "/checkpoints/step-000004/model")) << "it is there once";
  // It is a model like any other.
  const Result r = run.train(1, "on", {"--run.steps", "1", "--model.path", exports / "step-000002"});
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST(Exports, StayWhenCheckpointsGoUnlessTheyArePruned) {
  const TinyRun run("exports");
  const Flags lora = {"--train.mode",  "lora",    "--model.init",       "random", "--lora.rank",       "2",
                      "--lora.export", "comfyui", "--checkpoint.every", "2",      "--checkpoint.keep", "1"};
  const auto train = [&](const std::string& name, const Flags& more) {
    const Result r = run.train(1, name, with(lora, more));
    EXPECT_EQ(r.code, 0) << r.output;
  };
  train("run", {"--run.steps", "6"});
  EXPECT_EQ(exported(run), (Flags{"step-000002", "step-000004", "step-000006"}));
  const fs::path last = run.out() + "/exports/step-000006";
  EXPECT_EQ(contents(last), contents(run.out() + "/checkpoints/step-000006/lora"));
  EXPECT_TRUE(fs::exists(last / "lora_comfyui.safetensors"));
  // One that a kill or a full disk kept from being written is made by the next start; another number of them goes too.
  const auto before = contents(last);
  fs::remove_all(last);
  fs::create_directories(run.out() + "/exports/step-000006.0123456789abcdef-3.partial");
  train("run", {"--run.steps", "6"});
  EXPECT_EQ(exported(run), (Flags{"step-000002", "step-000004", "step-000006"}));
  EXPECT_EQ(contents(last), before);
  train("run", {"--run.steps", "8", "--checkpoint.keep_exports", "1"});
  EXPECT_EQ(exported(run), (Flags{"step-000006", "step-000008"})) << "and that of the newest proved checkpoint";

  train("none", {"--run.steps", "2", "--checkpoint.export", "none"});
  EXPECT_EQ(exported(run, "none"), Flags{});
  const Result r = run.train(
      1, "none", with(lora, {"--run.steps", "2", "--checkpoint.export", "none", "--checkpoint.keep_exports", "1"}));
  EXPECT_NE(r.output.find("checkpoint.keep_exports = 1 has no effect: saves are not exported"), std::string::npos)
      << r.output;
}

TEST(Exports, BehindACheckpointToWhichTheRunGoesBackAreLeftBehind) {
  const TinyRun run("exports");
  const Flags flags = {"--checkpoint.every",  "2",     "--checkpoint.keep", "0",
                       "--checkpoint.export", "model", "--data.frames",     "1"};
  ASSERT_EQ(run.train(2, "run", with(flags, {"--run.steps", "6"})).code, 0);
  const auto of_four = contents(run.out() + "/exports/step-000004"),
             of_six = contents(run.out() + "/exports/step-000006");
  const std::string second = run.out() + "/checkpoints/step-000002";
  const Result r = run.train(2, "run", with(flags, {"--run.steps", "4", "--run.resume", second, "--train.lr", "1e-4"}));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("2 checkpoints and 2 exports beyond it"), std::string::npos) << r.output;
  EXPECT_EQ(exported(run), (Flags{"step-000002", "step-000004"}));
  EXPECT_NE(contents(run.out() + "/exports/step-000004"), of_four);
  EXPECT_EQ(contents(run.out() + "/abandoned-1/exports/step-000004"), of_four);
  EXPECT_EQ(contents(run.out() + "/abandoned-1/exports/step-000006"), of_six);
}

/// Each expert in its folder, and what tells them apart: their boundary, or the gate.
TEST(Exports, OfSeveralExpertsAreWhatTheEndWrites) {
  const TinyRun run("exports");
  const std::map<std::string, Flags> kinds = {
      {"windows", {"--experts.train", "both"}},
      {"gate", {"--experts.router", "gate", "--experts.count", "2"}},
      {"adapters", {"--experts.train", "both", "--train.mode", "lora", "--model.init", "random", "--lora.rank", "2"}}};
  for (const auto& [name, flags] : kinds) {
    SCOPED_TRACE(name);
    const Result r = run.train(
        2, name, with(flags, {"--run.steps", "4", "--checkpoint.every", "2", "--checkpoint.export", "model"}));
    ASSERT_EQ(r.code, 0) << r.output;
    const auto at_end = contents(run.out(name) + "/model");
    const auto at_four = contents(run.out(name) + "/exports/step-000004");
    std::vector<std::string> names, expected;
    for (const auto& [file, bytes] : at_four) names.push_back(file);
    for (const auto& [file, bytes] : at_end) expected.push_back(file);
    EXPECT_EQ(names, expected);
    EXPECT_GE(names.size(), 5u) << "two folders with a file each, and what tells them apart";
    // Tensors of a LoRA that comes from a checkpoint's parts are in another order.
    if (name != "adapters") EXPECT_TRUE(at_four == at_end) << "other bytes";
    EXPECT_FALSE(contents(run.out(name) + "/exports/step-000002") == at_end);
  }
}

TEST(Exports, OneThatCannotBeWrittenIsAWarningAndTheNextStartMakesIt) {
  const TinyRun run("exports");
  const Flags flags = {"--checkpoint.every", "2", "--checkpoint.export", "model", "--data.frames", "1"};
  fs::create_directories(run.out());
  std::ofstream(run.out() + "/exports") << "no folder";
  const Result r = run.train(1, "run", with(flags, {"--run.steps", "2"}));
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(run.metrics("run", "warning").at(0).at("what"), "export");
  fs::remove(run.out() + "/exports");
  ASSERT_EQ(run.train(1, "run", with(flags, {"--run.steps", "2"})).code, 0);
  EXPECT_EQ(exported(run), Flags{"step-000002"});
  EXPECT_EQ(contents(run.out() + "/exports/step-000002"), contents(run.out() + "/model"));
}

TEST(MadeUp, ASampleThatCannotBeWrittenIsAWarningAndIsMadeAtTheNextStart) {
  const TinyRun run("resume");
  const Flags flags = {"--run.steps",        "4", "--sample.every",   "2",       "--sample.steps", "2",
                       "--checkpoint.every", "2", "--sample.prompts", "a square"};
  const fs::path sample = run.out() + "/samples/step-000004-0.mp4";
  fs::create_directories(sample);  // where the file is to be
  const Result first = run.train(2, "run", flags);
  ASSERT_EQ(first.code, 0) << first.output;
  EXPECT_NE(first.output.find("the sample failed"), std::string::npos) << first.output;
  EXPECT_EQ(types_of(run, 2), "step checkpoint sample");
  EXPECT_EQ(types_of(run, 4), "step checkpoint warning");
  EXPECT_EQ(run.metrics("run", "warning").at(0).at("what"), "sample");
  fs::remove_all(sample);
  const Result again = run.train(2, "run", flags);
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_TRUE(fs::is_regular_file(sample));
  EXPECT_EQ(types_of(run, 4), "step checkpoint warning resume start sample");
  const Result nothing_owed = run.train(2, "run", flags);
  EXPECT_EQ(nothing_owed.output.find("generating them now"), std::string::npos) << nothing_owed.output;
}

TEST(MadeUp, AnExportThatCannotBeWrittenLeavesTheReportAndIsToldByTheCode) {
  for (const bool lora : {false, true}) {
    const TinyRun run("resume");
    fs::create_directories(run.out());
    std::ofstream(run.out() + "/model") << "no folder";
    Flags flags = {"--run.steps", "2"};
    if (lora) flags = with(flags, {"--train.mode", "lora", "--model.init", "random", "--lora.rank", "2"});
    const Result r = run.train(2, "run", flags);
    EXPECT_EQ(r.code, 7) << r.output;
    EXPECT_EQ(run.metrics("run", "warning").at(0).at("what"), "export");
    EXPECT_TRUE(fs::exists(run.out() + "/report.html"));
    fs::remove(run.out() + "/model");
    const Result again = run.train(2, "run", flags);
    EXPECT_EQ(again.code, 0) << again.output;
    EXPECT_TRUE(fs::is_directory(run.out() + "/model"));
  }
}

TEST(MadeUp, SamplesOfClipsAtTheirOwnFrameRateAreWritten) {
  const TinyRun run("resume");
  const Result r = run.train(1, "run",
                             {"--run.steps", "1", "--data.fps", "0", "--sample.every", "1", "--sample.steps", "1",
                              "--sample.prompts", "a square"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(run.metrics("run", "warning").empty());
  EXPECT_TRUE(fs::is_regular_file(run.out() + "/samples/step-000001-0.mp4"));
}

}  // namespace
}  // namespace tessera::testing
