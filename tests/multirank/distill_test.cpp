// A student and its frozen teacher: a step is the same on every layout, over a stop, as planned, line for line; no rank holds
// a whole network where ranks share it; and a small student learns in two steps what its teacher says in twenty.
#include <gtest/gtest.h>

#include <cmath>

#include "layout_table.h"
#include "planned_memory.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

constexpr const char* kModel = R"(preset = "sana-tiny-norms"
config = { num_cross_attention_heads = 4, num_layers = 3, caption_channels = 64, caption_length = 5, in_channels = 12 })";

Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const TinyRun& shared() {
  static const TinyRun run("distill", TESSERA_BINARY, kModel);
  return run;
}
const Flags kPictures = {"--data.frames", "1"};

/// Of timesteps of 0 to 1, trained a little.
std::string teacher() {
  static const std::string path = [] {
    const Result r = shared().train(
        1, "teacher",
        kPictures + Flags{"--model.config.timestep_scale", "0.001", "--run.steps", "6", "--train.lr", "3e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
    return shared().out("teacher") + "/model";
  }();
  return path;
}
Flags student(const Flags& more = {}) {
  return kPictures +
         Flags{"--model.preset",    "sana-tiny-sprint", "--model.path", teacher(),  "--distill.method",         "scm",
               "--distill.teacher", teacher(),          "--train.eps",  kSmoothEps, "--distill.tangent_warmup", "10"} +
         more;
}

std::vector<nlohmann::json> trained(const std::string& name, const Flags& flags, int ranks = 1) {
  const Result r = shared().train(ranks, name, flags, 300);
  EXPECT_EQ(r.code, 0) << name << "\n" << r.output;
  return shared().metrics(name);
}

TEST(Distillation, IsTheSameOnEveryLayoutAndTakesThePlannedMemory) {
  constexpr int kSteps = 20;
  const Flags flags = student({"--run.steps", std::to_string(kSteps), "--train.global_batch", "4"});
  const auto one = trained("one", flags);
  ASSERT_EQ(one.size(), static_cast<size_t>(kSteps));
  expect_planned_peaks(one.back(), "one");
  for (const char* line :
       {"dp_shard=2", "dp_shard=4", "dp_replicate=3", "tp=2", "sp=2", "cp=2", "pp=2",
        "dp_shard=1 --train.micro_batch 1", "dp_shard=2 --plan.idle host --plan.parameters device"}) {
    SCOPED_TRACE(line);
    const Layout layout = layout_of(line);
    const auto other = trained(line, flags + layout.flags, layout.ranks);
    expect_same_curve(one, other, kSteps);
    ASSERT_FALSE(other.empty());
    expect_planned_peaks(other.back(), line);
  }
}

TEST(Distillation, AStudentThatIsItsTeacherHasNothingToLearn) {
  // Without the tangent and without guidance the loss draws the student to its teacher, at whose weights it begins.
  const Flags still =
      student({"--run.steps", "3", "--train.global_batch", "2", "--train.lr", "0", "--distill.tangent_warmup",
               "1000000000", "--distill.logit_mean", "1", "--distill.logit_std", "0.5"});
  double most = 0;
  for (const auto& step : trained("still", still + Flags{"--distill.guidance", "1"}))
    most = std::max(most, std::abs(step.at("loss").get<double>()));
  EXPECT_LT(most, 1e-8);
  for (const auto& step : trained("guided", still + Flags{"--distill.guidance", "3"}))
    EXPECT_GT(step.at("loss").get<double>(), 1000 * most) << "guidance is what it lacks";
  for (const auto& step : trained("moved", still + Flags{"--distill.guidance", "1", "--distill.tangent_warmup", "0"}))
    EXPECT_GT(step.at("loss").get<double>(), 1000 * most) << "and its path bends";
}

TEST(Distillation, NoRankHoldsAWholeNetwork) {
  const Flags flags = student({"--run.steps", "2", "--train.global_batch", "4", "--plan.strategy", "full_shard"});
  const auto persistent = [&](const std::string& name, const Flags& mesh, int ranks) {
    const auto steps = trained(name, flags + mesh, ranks);
    const nlohmann::json plan = json_of(shared().out(name) + "/plan.json");
    expect_planned_peaks(steps.back(), name);
    return plan;
  };
  const nlohmann::json one = persistent("whole", {}, 1), four = persistent("shared", {"--mesh", "dp_shard=4"}, 4);
  const auto parameters = [](const nlohmann::json& plan) {
    for (const auto& part : plan.at("memory").at("parts"))
      if (part.at("name") == "parameters") return part.at("bytes").get<double>();
    return 0.0;
  };
  ASSERT_GT(parameters(one), 0);
  EXPECT_LT(parameters(four), 0.3 * parameters(one)) << "of both networks a quarter, with the ends of shards";
}

TEST(Distillation, WhatIsPlannedIsExecuted) {
  for (const auto& [mesh, ranks] : {std::pair("dp_shard=2", 2), {"pp=2", 2}, {"dp_replicate=1", 1}}) {
    SCOPED_TRACE(mesh);
    const std::string planned = shared().out("planned.jsonl"), executed = shared().out("executed.jsonl");
    const Flags flags = student({"--mesh", mesh, "--run.steps", "3", "--checkpoint.every", "2", "--train.global_batch",
                                 "3", "--run.out", shared().out(std::string("traced-") + mesh)});
    const Result p = shared().tessera(Flags{"plan", shared().recipe(), "--schedule", planned} + flags);
    ASSERT_EQ(p.code, 0) << p.output;
    EXPECT_NE(p.output.find("teacher"), std::string::npos) << p.output;
    const Result t = shared().tessera(
        Flags{"launch", "-n", std::to_string(ranks), "train", shared().recipe(), "--trace-schedule", executed} + flags);
    ASSERT_EQ(t.code, 0) << t.output;
    const auto a = lines_of(planned), b = lines_of(executed);
    ASSERT_GT(a.size(), 50u);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(a[i], b[i].substr(0, b[i].find(",\"t0\":")) + (b[i].find(",\"t0\":") == std::string::npos ? "" : "}"))
          << "line " << i + 1;
    const Result check = shared().tessera({"plan", "--check", executed});
    EXPECT_EQ(check.code, 0) << check.output;
  }
}

TEST(Distillation, GoesOnToTheBitOnTheSameLayoutAndAlongTheCurveOnAnother) {
  const Flags flags = student({"--train.global_batch", "4", "--train.optimizer", "came"});
  const auto whole = trained("whole-run", flags + Flags{"--run.steps", "8"});
  trained("parts", flags + Flags{"--run.steps", "4"});
  fs::copy(shared().out("parts"), shared().out("other"), fs::copy_options::recursive);
  const auto same = trained("parts", flags + Flags{"--run.steps", "8"});
  ASSERT_EQ(same.size(), whole.size());
  for (size_t s = 0; s < whole.size(); ++s) EXPECT_EQ(same[s]["loss"], whole[s]["loss"]) << "step " << s + 1;
  const auto other = trained("other", flags + Flags{"--run.steps", "8", "--mesh", "tp=2"}, 2);
  expect_same_curve(whole, other, 8);
}

TEST(Distillation, EverySettingOfItActs) {
  const Flags flags = student({"--run.steps", "3", "--train.global_batch", "2"});
  const auto losses = [&](const std::string& name, const Flags& more) {
    std::vector<double> all;
    for (const auto& step : trained(name, flags + more)) all.push_back(step.at("loss"));
    return all;
  };
  const std::vector<double> usual = losses("usual", {});
  EXPECT_EQ(losses("again", {}), usual);
  for (const auto& [key, value] : {std::pair("logvar", "false"),
                                   {"guidance", "1"},
                                   {"guidance", "2"},
                                   {"sigma_data", "1"},
                                   {"logit_mean", "1"},
                                   {"logit_std", "0.5"},
                                   {"tangent_warmup", "3"}})
    EXPECT_NE(losses(std::string(key) + value, {std::string("--distill.") + key, value}), usual)
        << key << " = " << value;
  ASSERT_EQ(
      shared().train(1, "second", kPictures + Flags{"--model.config.timestep_scale", "0.001", "--run.steps", "2"}).code,
      0);
  EXPECT_NE(losses("taught", {"--distill.teacher", shared().out("second") + "/model"}), usual);
}

TEST(Distillation, RefusesWhatItDoesNotHave) {
  const std::pair<Flags, const char*> refused[] = {
      {{"--distill.method", "scm", "--model.preset", "sana-tiny-sprint"}, "distill.teacher"},
      {student({"--train.mode", "lora"}), "train.mode"},
      {student({"--train.guidance_target", "3"}), "train.guidance_target"},
      {student({"--eval.share", "0.4", "--eval.every", "2"}), "eval.every"},
      {student({"--experts.router", "gate"}), "experts"},
      {student({"--plan.update", "just_in_time"}), "teacher"},
      {student({"--model.config.timestep_scale", "1000"}), "timestep_scale"},
      {student(
           {"--model.preset", "sana-tiny-norms", "--distill.method", "none", "--model.config.model_type", "sprint"}),
       "distill.method"}};
  for (const auto& [flags, word] : refused) {
    const Result r = shared().train(1, "refused", kPictures + flags);
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(word), std::string::npos) << word << "\n" << r.output;
  }
}

}  // namespace
}  // namespace tessera::testing
