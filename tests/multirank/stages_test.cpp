// Stages: shapes, batch and rate change while a run goes on, on any layout, planned to the line and resumed anywhere.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "program.h"

namespace tessera::testing {
namespace {

constexpr const char* kStages = R"(
[[stage]]
from = 4
data.frames = 4
train.global_batch = 6
train.lr = 5e-4

[[stage]]
from = 7
data.size = [16, 32]
data.frames = 8
train.global_batch = 3
diffusion.timesteps = "logit_normal"
sample.every = 3
sample.steps = 2
)";
constexpr int kSteps = 9;

const TinyRun& plain() {
  static const TinyRun run("batches");
  return run;
}
const TinyRun& staged() {
  static const TinyRun run("stages");
  static const bool written = static_cast<bool>(std::ofstream(run.recipe(), std::ios::app) << kStages << std::flush);
  EXPECT_TRUE(written);
  return run;
}

std::vector<std::string> exact(const std::vector<nlohmann::json>& steps) {
  std::vector<std::string> lines;
  for (const auto& s : steps)
    lines.push_back(s["step"].dump() + " " + s["loss"].dump() + " " + s["grad_norm"].dump() + " " + s["lr"].dump());
  return lines;
}

void expect_same_curve(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b, size_t steps) {
  ASSERT_EQ(a.size(), steps);
  ASSERT_EQ(b.size(), steps);
  for (size_t i = 0; i < steps; ++i) {
    const double x = a[i]["loss"], y = b[i]["loss"];
    EXPECT_LE(std::abs(x / y - 1), 2e-6) << "step " << i + 1;
    EXPECT_EQ(a[i]["samples"], b[i]["samples"]) << "step " << i + 1;
  }
}

const std::vector<nlohmann::json>& staged_curve(int ranks) {
  static std::map<int, std::vector<nlohmann::json>> known;
  const std::string name = "run-" + std::to_string(ranks);
  if (!known.count(ranks)) {
    const Result r = staged().train(
        ranks, name, {"--run.steps", std::to_string(kSteps), "--checkpoint.every", "1", "--checkpoint.keep", "0"});
    EXPECT_EQ(r.code, 0) << r.output;
    known[ranks] = staged().metrics(name);
  }
  return known[ranks];
}

TEST(Batches, MicroBatchesAndRanksChangeNothing) {
  const auto curve = [](int ranks, const std::string& micro) {
    const std::string name = "micro-" + micro + "-on-" + std::to_string(ranks);
    const Result r = plain().train(ranks, name, {"--train.micro_batch", micro, "--train.global_batch", "5"});
    EXPECT_EQ(r.code, 0) << r.output;
    return plain().metrics(name);
  };
  const auto reference = curve(1, "auto");
  for (int ranks : {1, 2})
    for (const char* micro : {"1", "2", "auto"})
      if (ranks == 2 || std::string(micro) != "auto") expect_same_curve(curve(ranks, micro), reference, 6);
}

TEST(Batches, LessMemoryMeansSmallerMicroBatchesAndTheSameCurve) {
  const auto plan = [](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"plan", plain().recipe(), "--json", "--train.global_batch", "8"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = plain().tessera(flags);
    return nlohmann::json::parse(r.output.substr(r.output.find("{\n")), nullptr, true, true);
  };
  const auto peak = [&](const std::string& micro) {
    return plan({"--train.micro_batch", micro, "--plan.recompute", "all"})["device"]["peak_bytes"].get<int64_t>();
  };
  ASSERT_LT(peak("1"), peak("8"));
  const std::string budget = std::to_string((peak("1") + peak("8")) / 2);
  const auto chosen = plan({"--plan.budget", budget});
  EXPECT_TRUE(chosen["fits"]);
  EXPECT_EQ(chosen["summary"].get<std::string>().find("at most 8"), std::string::npos) << chosen["summary"];
  const std::vector<std::string> batch = {"--train.global_batch", "8"};
  ASSERT_EQ(plain().train(1, "wide", batch).code, 0);
  const Result tight = plain().train(1, "tight", {"--train.global_batch", "8", "--plan.budget", budget});
  ASSERT_EQ(tight.code, 0) << tight.output;
  expect_same_curve(plain().metrics("tight"), plain().metrics("wide"), 6);
}

TEST(Stages, ChangeShapesBatchAndRateWithoutARestart) {
  const auto& steps = staged_curve(2);
  ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
  const auto begins = staged().metrics("run-2", "stage");
  ASSERT_EQ(begins.size(), 2u);
  EXPECT_EQ(begins[0]["step"], 4);
  EXPECT_EQ(begins[0]["stage"], 1);
  EXPECT_NE(begins[0]["changes"].get<std::string>().find("data.frames = 4"), std::string::npos);
  EXPECT_EQ(begins[1]["step"], 7);
  const std::vector<int> samples = {4, 4, 4, 6, 6, 6, 3, 3, 3};
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_EQ(steps[i]["samples"], samples[i]) << "step " << i + 1;
    EXPECT_EQ(steps[i]["lr"], i < 3 ? 1e-3 : 5e-4) << "step " << i + 1;
    // the peak that was predicted for the stage holds in the stage, and not that of the one before
    if (i % 3 > 0)
      for (const auto& rank : steps[i]["ranks"])
        EXPECT_LE(rank["peak_bytes"].get<int64_t>(), rank["predicted_peak_bytes"].get<int64_t>()) << "step " << i + 1;
  }
  EXPECT_NE(steps[0]["tokens"].get<int>() / 4, steps[3]["tokens"].get<int>() / 6);
  EXPECT_FALSE(staged().metrics("run-2", "sample").empty()) << "the last stage samples";
}

TEST(Stages, TheCurveIsThatOfOneRank) { expect_same_curve(staged_curve(2), staged_curve(1), kSteps); }

TEST(Stages, ResumedInsideAnyStageTheCurveIsTheSame) {
  namespace fs = std::filesystem;
  const auto expected = exact(staged_curve(2));
  const std::string from = staged().out("run-2");
  for (const char* step : {"2", "3", "5", "6", "8"}) {  // within a stage and just before one
    const std::string name = std::string("resumed-at-") + step,
                      checkpoint = "/checkpoints/step-00000" + std::string(step);
    fs::create_directories(staged().out(name) + "/checkpoints");
    fs::copy(from + checkpoint, staged().out(name) + checkpoint, fs::copy_options::recursive);
    fs::copy(from + "/metrics.jsonl", staged().out(name) + "/metrics.jsonl");
    const Result r = staged().train(2, name, {"--run.steps", std::to_string(kSteps)});
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(exact(staged().metrics(name)), expected) << "resumed after step " << step;
    EXPECT_EQ(staged().metrics(name, "stage").size(), 2u) << "resumed after step " << step;
    EXPECT_EQ(staged().model(name), staged().model("run-2")) << "resumed after step " << step;
  }
}

TEST(Stages, AStageThatRepeatsWhatHoldsChangesNothing) {
  ASSERT_EQ(plain().train(1, "whole").code, 0);
  const std::string recipe = plain().out("repeats.toml");
  std::filesystem::copy_file(plain().recipe(), recipe);
  std::ofstream(recipe, std::ios::app) << "\n[[stage]]\nfrom = 3\ntrain.global_batch = 4\n";
  const Result r = plain().tessera({"train", recipe, "--run.out", plain().out("repeats")});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(plain().metrics("repeats", "stage").size(), 1u);
  EXPECT_EQ(exact(plain().metrics("repeats")), exact(plain().metrics("whole")));
}

TEST(Stages, TheResolvedRecipeReproducesTheRun) {
  const auto& expected = staged_curve(2);
  const Result r = staged().tessera(
      {"launch", "-n", "2", "train", staged().out("run-2") + "/recipe.toml", "--run.out", staged().out("again")});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(exact(staged().metrics("again")), exact(expected));
}

TEST(Stages, EveryStepOfEveryStageIsPlannedAndExecuted) {
  const std::string planned = staged().out("planned.jsonl"), executed = staged().out("executed.jsonl");
  const std::vector<std::string> flags = {
      "--mesh", "dp_shard=2", "--run.steps",         std::to_string(kSteps), "--checkpoint.every",
      "4",      "--run.out",  staged().out("traced")};
  std::vector<std::string> plan = {"plan", staged().recipe(), "--schedule", planned};
  plan.insert(plan.end(), flags.begin(), flags.end());
  const Result p = staged().tessera(plan);
  ASSERT_EQ(p.code, 0) << p.output;
  EXPECT_NE(p.output.find("stage 2 (from step 7)"), std::string::npos) << p.output;
  std::vector<std::string> train = {"launch", "-n", "2", "train", staged().recipe(), "--trace-schedule", executed};
  train.insert(train.end(), flags.begin(), flags.end());
  const Result t = staged().tessera(train);
  ASSERT_EQ(t.code, 0) << t.output;
  const auto a = lines_of(planned), b = lines_of(executed);
  ASSERT_GT(a.size(), 100u);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(a[i], b[i].substr(0, b[i].find(",\"t0\":")) + "}") << "line " << i + 1;
  const Result check = staged().tessera({"plan", "--check", executed});
  EXPECT_EQ(check.code, 0) << check.output;
}

TEST(Stages, WhatCannotBeTrainedIsRefusedBeforeStepOneByStage) {
  const auto refused = [](const std::string& stage, int code, const std::string& why,
                          const std::vector<std::string>& more = {}) {
    TinyRun run("refused");
    std::ofstream(run.recipe(), std::ios::app) << "\n[[stage]]\nfrom = 4\n" << stage << "\n";
    const Result r = run.train(1, "run", more);
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find("stage 1"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
    EXPECT_TRUE(run.metrics("run").empty()) << "refused before step one";
  };
  refused("data.size = [512, 512]", 4, "plan.budget", {"--plan.budget", "12MiB", "--data.vae", "haar"});
  refused("data.frames = 64", 3, "clip0.mp4");
  refused("data.path = \"nowhere\"", 3, "nowhere");
}

TEST(Stages, WhatOneStageMustPutOnTheHostRestsThereInAll) {
  const std::string recipe = plain().out("growing.toml");
  std::filesystem::copy_file(plain().recipe(), recipe);
  std::ofstream(recipe, std::ios::app) << "\n[[stage]]\nfrom = 4\ndata.size = [128, 128]\ndata.frames = 4\n";
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"plan", recipe, "--json", "--train.global_batch", "1"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = plain().tessera(flags);
    EXPECT_EQ(r.code, 0) << r.output;
    return nlohmann::json::parse(r.output.substr(r.output.find("{\n")));
  };
  const int64_t start = plan({})["device"]["peak_bytes"];
  const int64_t stage = plan({"--plan.recompute", "all"})["stages"][0]["device"]["peak_bytes"];
  ASSERT_GT(stage, start);
  const std::vector<std::string> tight = {"--plan.budget", std::to_string((start + stage) / 2), "--plan.host_budget",
                                          "1GiB"};
  const auto chosen = plan(tight);
  ASSERT_TRUE(chosen["fits"]) << chosen["advice"];
  EXPECT_NE(chosen["summary"].get<std::string>().find("on host"), std::string::npos) << chosen["summary"];
  EXPECT_NE(chosen["why"].get<std::string>().find("for all stages together"), std::string::npos) << chosen["why"];

  const auto train = [&](const std::string& name, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"train", recipe, "--train.global_batch", "1", "--run.out", plain().out(name)});
    const Result r = plain().tessera(flags);
    EXPECT_EQ(r.code, 0) << r.output;
    return plain().metrics(name);
  };
  const auto roomy = train("roomy", {}), on_host = train("on-host", tight);
  expect_same_curve(on_host, roomy, 6);
  for (const auto& step : on_host)
    EXPECT_LE(step["ranks"][0]["peak_bytes"].get<int64_t>(), (start + stage) / 2) << step["step"];
}

TEST(Stages, APlanByHandServesAllStages) {
  const std::string file = staged().out("hand.toml");
  ASSERT_EQ(staged()
                .tessera({"plan", staged().recipe(), "--mesh", "dp_shard=2", "--plan.recompute", "all",
                          "--train.micro_batch", "1", "--write", file})
                .code,
            0);
  const Result r = staged().train(2, "by-hand", {"--run.steps", std::to_string(kSteps), "--plan.file", file});
  ASSERT_EQ(r.code, 0) << r.output;
  expect_same_curve(staged().metrics("by-hand"), staged_curve(1), kSteps);
}

TEST(Stages, WhatAPlanWritesAndTheLargestThatFitsCoverEveryStage) {
  const std::string page = staged().out("plan.html"), trace = staged().out("plan.trace.json");
  const Result r = staged().tessera(
      {"plan", staged().recipe(), "--run.steps", std::to_string(kSteps), "--html", page, "--trace", trace});
  ASSERT_EQ(r.code, 0) << r.output;
  for (const char* part : {"plan", "plan-stage-1", "plan-stage-2"})
    EXPECT_NE(lines_of(staged().out(std::string(part) + ".html")).size(), 0u) << part << "\n" << r.output;
  for (const char* part : {"plan.trace", "plan.trace-stage-1", "plan.trace-stage-2"})
    EXPECT_NE(lines_of(staged().out(std::string(part) + ".json")).size(), 0u) << part << "\n" << r.output;
  const Result largest = staged().tessera({"plan", staged().recipe(), "--run.steps", std::to_string(kSteps),
                                           "--plan.budget", "100MiB", "--largest", "batch"});
  ASSERT_EQ(largest.code, 0) << largest.output;
  for (const char* wanted : {"stage 1 (from step 4), largest batch: ", "stage 2 (from step 7), largest batch: "})
    EXPECT_NE(largest.output.find(wanted), std::string::npos) << largest.output;
}

}  // namespace
}  // namespace tessera::testing
