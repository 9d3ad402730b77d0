// Two experts in one job: each learns as it would alone, on any tier, resumed or killed anywhere; the other costs what
// was said it would.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "processes.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 8;
const std::vector<std::string> kBoth = {"--experts.train", "both", "--experts.turn", "2", "--run.seed", "3"};

const TinyRun& experts() {
  static const TinyRun run("experts");
  return run;
}

Result train(int ranks, const std::string& name, std::vector<std::string> more, int steps = kSteps) {
  more.insert(more.end(), {"--run.steps", std::to_string(steps)});
  return experts().train(ranks, name, more);
}

std::vector<std::string> with(std::vector<std::string> flags, const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// Loss, norm and rate of the steps of one expert (empty: of all), to the last digit.
std::vector<std::string> curve(const std::string& name, const std::string& expert = {}) {
  std::vector<std::string> lines;
  for (const auto& s : experts().metrics(name))
    if (expert.empty() || s.value("expert", "") == expert)
      lines.push_back(s["loss"].dump() + " " + s["grad_norm"].dump() + " " + s["lr"].dump());
  return lines;
}

/// The files of an exported model, by name.
std::map<std::string, std::string> files(const fs::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& file : fs::directory_iterator(folder)) found[file.path().filename().string()] = text_of(file.path());
  return found;
}

fs::path model(const std::string& run, const std::string& expert = {}) {
  const fs::path folder = fs::path(experts().out(run)) / "model";
  return expert.empty() ? folder : folder / (expert + "_model");
}

/// Both experts on 2 ranks, a checkpoint after every step.
const std::string& both() {
  static const std::string name = [] {
    const Result r = train(2, "both",
                           with(kBoth, {"--checkpoint.every", "1", "--checkpoint.keep", "0", "--train.schedule",
                                        "cosine", "--train.warmup_steps", "1"}));
    EXPECT_EQ(r.code, 0) << r.output;
    return "both";
  }();
  return name;
}

TEST(Experts, LearnAsEachWouldAloneBitForBit) {
  const size_t all = experts().metrics(both()).size();
  ASSERT_EQ(all, static_cast<size_t>(kSteps));
  size_t steps = 0;
  for (const char* expert : {"high_noise", "low_noise"}) {
    const auto own = curve(both(), expert);
    ASSERT_GE(own.size(), 2u) << "the seed gives both of them a turn";
    steps += own.size();
    const Result r =
        train(2, std::string("alone-") + expert,
              {"--experts.train", expert, "--run.seed", "3", "--train.schedule", "cosine", "--train.warmup_steps", "1"},
              static_cast<int>(own.size()));
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(curve(std::string("alone-") + expert), own);
    EXPECT_EQ(files(model(std::string("alone-") + expert)), files(model(both(), expert)));
  }
  EXPECT_EQ(steps, all);
  EXPECT_NE(files(model(both(), "high_noise")), files(model(both(), "low_noise")));
}

TEST(Experts, HaveTurnsOfAsManyStepsAsWereAskedForAndCountTheirOwn) {
  std::map<std::string, int> own;
  const auto steps = experts().metrics(both());
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i % 2 == 1) EXPECT_EQ(steps[i]["expert"], steps[i - 1]["expert"]) << "step " << i + 1;
    EXPECT_EQ(steps[i]["expert_step"], ++own[steps[i]["expert"].get<std::string>()]) << "step " << i + 1;
  }
  const auto manifest = json_of(experts().out(both()) + "/checkpoints/step-000008/manifest.json");
  for (const auto& [name, count] : own) EXPECT_EQ(manifest["experts"][name]["steps"], count);
}

TEST(Experts, SendWhatOneOfThemSends) {
  ASSERT_EQ(train(2, "one", {"--experts.train", "high_noise"}, 3).code, 0);
  const auto sent = [](const nlohmann::json& step) { return step["ranks"][0]["sent_bytes"]; };
  const auto one = experts().metrics("one");  // a line has the bytes of the step before
  const auto steps = experts().metrics(both());
  const nlohmann::json expected = sent(one[1]);
  ASSERT_FALSE(expected.empty());
  for (size_t i = 1; i < steps.size(); ++i)
    for (const auto& [axis, bytes] : expected.items())
      if (axis != "world") EXPECT_EQ(sent(steps[i])[axis], bytes) << "step " << i + 1;
}

TEST(Experts, RestOnAnyTierWithTheSameBitsAndTheMemoryThatWasPredicted) {
  const auto memory = [](const std::string& name, const std::string& key) {
    int64_t most = 0;
    for (const auto& step : experts().metrics(name))
      if (step["step"] > 2)  // peaks count from the end of the first
        for (const auto& rank : step["ranks"]) most = std::max(most, rank[key].get<int64_t>());
    return most;
  };
  const std::vector<std::string> rate = {"--train.schedule", "cosine", "--train.warmup_steps", "1"};
  const std::string nvme = (experts().folder() / "nvme").string();
  const std::map<std::string, std::vector<std::string>> tiers = {
      {"host", {"--plan.idle", "host"}},
      {"nvme", {"--plan.idle", "nvme", "--plan.nvme", nvme}},
      {"mixed", {"--plan.idle", "host", "--plan.states", "nvme", "--plan.parameters", "host", "--plan.nvme", nvme}},
      {"in_time", {"--plan.idle", "host", "--plan.update", "just_in_time"}},
      {"by_host", {"--plan.update", "just_in_time", "--plan.update_on", "host"}}};
  for (const auto& [name, flags] : tiers) {
    const Result r = train(2, name, with(with(kBoth, rate), flags));
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(curve(name), curve(both())) << name;
    for (const char* expert : {"high_noise", "low_noise"})
      EXPECT_EQ(files(model(name, expert)), files(model(both(), expert))) << name;
    EXPECT_LE(memory(name, "peak_bytes"), memory(name, "predicted_peak_bytes")) << name;
  }
  EXPECT_LE(memory(both(), "peak_bytes"), memory(both(), "predicted_peak_bytes"));
  ASSERT_EQ(train(2, "alone", {"--experts.train", "low_noise"}, 3).code, 0);
  EXPECT_EQ(memory("host", "predicted_peak_bytes"), memory("alone", "predicted_peak_bytes"))
      << "on the host an idle expert costs no byte of the device";
  EXPECT_GT(memory(both(), "predicted_peak_bytes"), memory("alone", "predicted_peak_bytes"));
  int64_t moved = 0;
  for (const auto& step : experts().metrics("host")) moved += step.value("moved_bytes", int64_t{0});
  EXPECT_GT(moved, 0);
}

/// [[plan.units]] of one expert: its blocks stay gathered, the other's are gathered for the backward once more.
TEST(Experts, HaveAStrategyOfTheirOwnEachWithTheSameBits) {
  const std::vector<std::string> rate = {"--train.schedule", "cosine", "--train.warmup_steps", "1"};
  const std::vector<std::string> units = {"--plan.units",
                                          "high_noise.* strategy=shard_grad_op,low_noise.* strategy=full_shard "
                                          "activations=recompute"};
  for (const char* update : {"end", "just_in_time"}) {
    const std::string name = std::string("own-units-") + update;
    const Result r = train(2, name, with(with(with(kBoth, rate), units), {"--plan.update", update}));
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(curve(name), curve(both())) << name;
    for (const char* expert : {"high_noise", "low_noise"})
      EXPECT_EQ(files(model(name, expert)), files(model(both(), expert))) << name;
    std::map<std::string, int64_t> sent;  // by expert, of its gathers and reductions
    const auto steps = experts().metrics(name);
    for (const auto& step : steps) sent[step["expert"]] = step["ranks"][0]["sent_bytes"]["dp_shard"].get<int64_t>();
    EXPECT_LT(sent.at("high_noise"), sent.at("low_noise")) << name;
    for (const auto& step : steps)
      for (const auto& rank : step["ranks"])
        if (step["step"] > 2) EXPECT_LE(rank["peak_bytes"], rank["predicted_peak_bytes"]) << name;
    const std::string plan = text_of(experts().out(name) + "/plan.toml");
    EXPECT_NE(plan.find("expert = 1"), std::string::npos) << plan;
  }
  const Result refused = train(2, "no-such-units", with(kBoth, {"--plan.units", "mid_noise.* strategy=full_shard"}));
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("of one expert: high_noise. or low_noise."), std::string::npos) << refused.output;
}

TEST(Experts, ResumeInsideAnyTurnOfEither) {
  for (const char* step : {"1", "2", "3", "5", "7"}) {
    const std::string name = std::string("resumed-at-") + step,
                      checkpoint = "/checkpoints/step-00000" + std::string(step);
    fs::create_directories(experts().out(name) + "/checkpoints");
    fs::copy(experts().out(both()) + checkpoint, experts().out(name) + checkpoint, fs::copy_options::recursive);
    fs::copy(experts().out(both()) + "/metrics.jsonl", experts().out(name) + "/metrics.jsonl");
    const Result r =
        train(2, name, with(kBoth, {"--train.schedule", "cosine", "--train.warmup_steps", "1", "--plan.idle", "host"}));
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(curve(name), curve(both())) << "resumed after step " << step;
    for (const char* expert : {"high_noise", "low_noise"})
      EXPECT_EQ(files(model(name, expert)), files(model(both(), expert))) << "resumed after step " << step;
  }
}

TEST(Experts, KilledWhileTheyLearnTheyGoOnToTheSameEnd) {
  std::vector<std::string> argv = {TESSERA_BINARY, "launch",
                                   "-n",           "2",
                                   "train",        experts().recipe(),
                                   "--run.out",    experts().out("killed"),
                                   "--run.steps",  std::to_string(kSteps)};
  argv =
      with(with(argv, kBoth), {"--checkpoint.every", "1", "--train.schedule", "cosine", "--train.warmup_steps", "1"});
  const pid_t launcher = start_program(argv, experts().out("killed.log"), {{"OMP_NUM_THREADS", "1"}});
  for (int i = 0; i < 3000 && experts().metrics("killed", "checkpoint").size() < 3; ++i) sleep_seconds(0.01);
  for (const pid_t rank : children(launcher)) kill(rank, SIGKILL);
  wait_program(launcher, 60);
  ASSERT_EQ(run_program(argv, {{"OMP_NUM_THREADS", "1"}}).code, 0);
  EXPECT_EQ(curve("killed"), curve(both()));
}

TEST(Experts, AreFoundInTheirFoldersAndSampleTogether) {
  const std::vector<std::string> from = {"--model.path", model(both()).string(), "--experts.turn", "2"};
  const std::vector<std::string> samples = {"--sample.every",   "2",       "--sample.steps", "3",
                                            "--sample.prompts", "a square"};
  const Result r = train(2, "again", with(from, samples), 4), plain = train(2, "unsampled", from, 4);
  ASSERT_EQ(r.code, 0) << r.output;
  ASSERT_EQ(plain.code, 0) << plain.output;
  EXPECT_NE(r.output.find("trains two experts, one a step"), std::string::npos) << r.output;
  EXPECT_EQ(experts().metrics("again", "sample").size(), 2u);
  EXPECT_EQ(curve("again"), curve("unsampled")) << "samples change nothing";
  const auto sample = [&](const std::string& weights, const std::vector<std::string>& more) {
    const std::string file = experts().out("sample.gif");
    const Result made = experts().tessera(with({"sample", experts().recipe(), "--weights", weights, "--out", file,
                                                "--sample.steps", "3", "--sample.prompts", "a square"},
                                               more));
    EXPECT_EQ(made.code, 0) << made.output;
    return text_of(file);
  };
  const std::vector<std::string> two = {"--experts.train", "both"};
  const std::string clip = sample(model("again").string(), two);
  EXPECT_EQ(sample(experts().out("again") + "/checkpoints/step-000004", two), clip);
  EXPECT_EQ(sample(model("again").string(), with(two, {"--plan.idle", "host"})), clip);
  EXPECT_NE(sample(model("again", "low_noise").string(), {}), clip) << "high noise is the other's";
}

TEST(Experts, WhatDoesNotGoTogetherIsRefusedWithAReason) {
  const auto refused = [](const Result& r, int code, const std::string& why) {
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
  };
  both();
  refused(train(2, "both", {"--experts.train", "both", "--experts.turn", "3", "--run.seed", "3"}), 2,
          "by the recipe's expert schedule");
  refused(train(2, "both", {}), 2, "the experts high_noise and low_noise");
  refused(train(1, "wrong", with(kBoth, {"--experts.boundary", "875"})), 2, "experts.boundary");
  refused(train(1, "wrong", with(kBoth, {"--experts.shares", "1,2,3"})), 2, "3 numbers for 2 experts");
  refused(train(1, "wrong", with(kBoth, {"--diffusion.max_t", "0.5"})), 2, "high_noise expert's window");
  fs::remove_all(experts().out("half"));
  fs::create_directories(experts().out("half") + "/high_noise_model");
  refused(train(1, "wrong", {"--model.path", experts().out("half")}), 3, "there is no low_noise_model");
}

}  // namespace
}  // namespace tessera::testing
