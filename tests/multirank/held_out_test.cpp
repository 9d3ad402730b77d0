// What a run measures and keeps beside its steps: held-out loss, loss by timestep, and which saves stay. The same on every
// layout, and where it goes on.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>

#include "program.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

/// With twelve clips, and three of another folder.
const TinyRun& tiny() {
  static const TinyRun run("held_out");
  static const bool copied = [] {
    const fs::path data = run.folder() / "data", clips = run.folder() / "clips";
    fs::create_directories(clips);
    for (const char* clip : {"clip0", "clip1", "clip2"})
      for (const char* ending : {".mp4", ".txt"}) {
        const std::string stem = std::string(clip) + ending;
        for (const char* more : {"a", "b", "c"}) fs::copy(data / stem, data / (more + stem));
        fs::copy(data / stem, clips / stem);
      }
    return true;
  }();
  EXPECT_TRUE(copied);
  return run;
}
const Flags kHeldOut = {"--eval.share",          "0.4",          "--eval.every",     "2",
                        "--eval.sigmas",         "1,0.25",       "--run.steps",      "4",
                        "--diffusion.timesteps", "logit_normal", "--diffusion.loss", "mse=0.5,huber=0.5"};
Flags with(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

void expect_same_held_out(const std::string& name, const std::string& reference) {
  const auto found = tiny().metrics(name, "eval"), expected = tiny().metrics(reference, "eval");
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i]["step"], expected[i]["step"]);
    EXPECT_EQ(found[i]["samples"], expected[i]["samples"]);
    for (const char* points : {"by_timestep", "by_sigma"})
      for (size_t p = 0; p < expected[i][points].size(); ++p) {
        EXPECT_EQ(found[i][points][p]["sigma"], expected[i][points][p]["sigma"]);
        const double loss = expected[i][points][p]["loss"];
        EXPECT_NEAR(found[i][points][p]["loss"].get<double>(), loss, 2e-5 * loss) << name << " " << points << p;
      }
  }
}

std::vector<std::string> saves(const std::string& run, const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(tiny().out(run) + "/" + folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(HeldOut, LossIsTheSameOnEveryLayoutAndTrainingDoesNotFeelIt) {
  const Result one = tiny().train(1, "one", kHeldOut);
  ASSERT_EQ(one.code, 0) << one.output;
  const auto evals = tiny().metrics("one", "eval");
  ASSERT_EQ(evals.size(), 3u) << "before the first step, and behind the second and the last";
  EXPECT_EQ(evals[0]["step"], 0);
  EXPECT_EQ(evals[2]["step"], 4);
  ASSERT_EQ(evals[0]["by_timestep"].size(), 9u);
  double mean = 0, before = 0;
  for (const auto& point : evals[0]["by_timestep"]) {
    mean += point["loss"].get<double>() / 9;
    EXPECT_GT(point["sigma"].get<double>(), before);
    before = point["sigma"];
  }
  EXPECT_NEAR(mean, evals[0]["loss"].get<double>(), 1e-12);
  ASSERT_EQ(evals[0]["by_sigma"].size(), 2u);
  EXPECT_EQ(evals[0]["by_sigma"][0]["sigma"], 1);

  for (const auto& [name, ranks, mesh] : {std::tuple("shard", 2, "dp_shard=2"),
                                          {"tp", 2, "tp=2"},
                                          {"pp", 2, "pp=2"},
                                          {"sp", 2, "sp=2"},
                                          {"replicas", 3, "dp_replicate=3"}}) {
    const Result r = tiny().train(ranks, name, with(kHeldOut, {"--mesh", mesh}));
    ASSERT_EQ(r.code, 0) << mesh << "\n" << r.output;
    expect_same_held_out(name, "one");
  }
  // The same clips are trained without a measurement: eval.every is only to be far away.
  const Result seldom = tiny().train(1, "seldom", with(kHeldOut, {"--eval.every", "1000000"}));
  ASSERT_EQ(seldom.code, 0) << seldom.output;
  EXPECT_EQ(tiny().losses("seldom"), tiny().losses("one")) << "to the bit";
  const std::string page = text_of(tiny().out("one") + "/report.html");
  for (const char* wanted : {"Held-out loss", "best", "Loss by timestep"})
    EXPECT_NE(page.find(wanted), std::string::npos) << wanted;
}

TEST(HeldOut, GoesOnAsIfNeverStoppedAndTheBestSaveStays) {
  const Flags best =
      with(kHeldOut, {"--checkpoint.every", "1", "--checkpoint.keep", "1", "--checkpoint.keep_best", "1",
                      "--eval.every", "1", "--train.lr", "1e-2"});  // learns, and oversteps before the end
  ASSERT_EQ(tiny().train(1, "whole", best).code, 0);
  const Result first = tiny().train(2, "parts", with(best, {"--run.steps", "2"}));
  ASSERT_EQ(first.code, 0) << first.output;
  const Result second = tiny().train(2, "parts", best);
  ASSERT_EQ(second.code, 0) << second.output;
  expect_same_held_out("parts", "whole");
  double least = 1e300;
  int64_t step = 0;
  for (const auto& eval : tiny().metrics("parts", "eval"))
    if (eval["step"] > 0 && eval["loss"] < least) least = eval["loss"], step = eval["step"];
  EXPECT_LT(least, tiny().metrics("parts", "eval")[0]["loss"].get<double>());
  ASSERT_LT(step, 4) << "the newest would stay anyway";
  const auto left = saves("parts", "checkpoints");
  EXPECT_EQ(std::ranges::count(left, "step-00000" + std::to_string(step)), 1) << step;
  EXPECT_EQ(std::ranges::count(left, "step-000004"), 1);
}

TEST(HeldOut, ClipsOfTheirOwnAreNotTrainedAndTheAverageIsMeasured) {
  const fs::path clips = tiny().folder() / "clips";
  const Result r = tiny().train(1, "path",
                                {"--eval.path", clips.string(), "--eval.every", "1", "--run.steps", "2", "--train.ema",
                                 "0.5", "--eval.seed", "3"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto evals = tiny().metrics("path", "eval");
  ASSERT_EQ(evals.size(), 3u);
  EXPECT_EQ(evals[0]["set"], clips.string());
  const Result trained = tiny().train(1, "trained",
                                      {"--eval.path", clips.string(), "--eval.every", "1", "--run.steps", "2",
                                       "--train.ema", "0.5", "--eval.seed", "3", "--eval.weights", "trained"});
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(tiny().metrics("trained", "eval")[0]["loss"], evals[0]["loss"]) << "the average begins as the weights";
  EXPECT_NE(tiny().metrics("trained", "eval")[2]["loss"], evals[2]["loss"]);
  EXPECT_EQ(tiny().losses("trained"), tiny().losses("path"));
}

/// Mean levels of red, green and blue in a part of a frame.
std::array<double, 3> mean_of(const data::Frames& frames, int frame, int top, int left, int height, int width) {
  std::array<double, 3> sum{};
  for (int y = top; y < top + height; ++y)
    for (int x = left; x < left + width; ++x)
      for (size_t c = 0; c < 3; ++c)
        sum[c] += frames.frame(frame)[(static_cast<size_t>(y) * frames.width + x) * 3 + c] / double(height * width);
  return sum;
}

TEST(Samples, StandInOneGridARowAPromptAndAColumnAStepAlsoAfterAStop) {
  const Flags flags = {"--sample.every",   "1",   "--sample.steps",     "1", "--sample.guidance", "1",
                       "--sample.prompts", "a,b", "--checkpoint.every", "1"};
  const fs::path grid = fs::path(tiny().out("grid")) / "samples/grid.jpg";
  constexpr int kCell = 192, kGap = 2, kBand = 14;
  for (const int steps : {1, 3}) {  // the second goes on
    const Result r = tiny().train(1, "grid", with(flags, {"--run.steps", std::to_string(steps)}));
    ASSERT_EQ(r.code, 0) << r.output;
    const data::Frames shown = data::decode_clip(grid, {});
    EXPECT_EQ(shown.width, steps * (kCell + kGap));
    EXPECT_EQ(shown.height, kBand + 2 * (kCell + kGap));
    for (int step = 1; step <= steps; ++step)
      for (int prompt = 0; prompt < 2; ++prompt) {
        char name[64];
        std::snprintf(name, sizeof name, "step-%06d-%d.mp4", step, prompt);
        const data::Frames sample = data::decode_clip(grid.parent_path() / name, {});
        const auto in_grid =
                       mean_of(shown, 0, kBand + prompt * (kCell + kGap), (step - 1) * (kCell + kGap), kCell, kCell),
                   own = mean_of(sample, (sample.count - 1) / 2, 0, 0, sample.height, sample.width);
        for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(in_grid[c], own[c], 6) << name;
      }
  }
  const std::string page = text_of(tiny().out("grid") + "/report.html");
  EXPECT_NE(page.find("samples/grid.jpg"), std::string::npos);
}

TEST(LossByTimestep, CountsEverySampleOnceOnEveryLayout) {
  const Flags flags = {"--run.steps", "3", "--train.global_batch", "5", "--diffusion.weighting", "sigma"};
  std::vector<nlohmann::json> reference;
  for (const auto& [name, ranks, mesh] : {std::tuple("bins", 1, "dp_shard=1"),
                                          {"bins-shard", 2, "dp_shard=2"},
                                          {"bins-tp", 2, "tp=2"},
                                          {"bins-pp", 2, "pp=2"},
                                          {"bins-sp", 2, "sp=2"}}) {
    const Result r = tiny().train(ranks, name, with(flags, {"--mesh", mesh}));
    ASSERT_EQ(r.code, 0) << mesh << "\n" << r.output;
    const auto steps = tiny().metrics(name);
    if (reference.empty()) reference = steps;
    for (size_t s = 0; s < steps.size(); ++s) {
      const auto &bins = steps[s]["loss_by_timestep"], &expected = reference[s]["loss_by_timestep"];
      ASSERT_EQ(bins.size(), 10u);
      int64_t samples = 0;
      for (size_t b = 0; b < bins.size(); ++b) {
        samples += bins[b]["count"].get<int64_t>();
        EXPECT_EQ(bins[b]["count"], expected[b]["count"]) << mesh;
        ASSERT_EQ(bins[b].contains("loss"), bins[b]["count"] > 0);
        if (!bins[b].contains("loss")) continue;
        const double loss = expected[b]["loss"];
        EXPECT_NEAR(bins[b]["loss"].get<double>(), loss, 1e-4 * loss) << mesh << " bin " << b;
      }
      EXPECT_EQ(samples, 5);
    }
  }
}

TEST(Timesteps, NewKindsTrainTheSameOnTwoRanksAndGoOnToTheBit) {
  const Flags kinds[] = {
      {"--diffusion.timesteps", "qinglong_flux", "--diffusion.logit_std", "1.5"},
      {"--diffusion.timesteps", "mode", "--diffusion.strata", "4", "--diffusion.weighting", "cosmap",
       "--diffusion.loss", "smooth_l1", "--diffusion.huber_schedule", "snr"},
      {"--diffusion.bands", "0:0.5=1,0.5:1=3", "--diffusion.loss", "true_huber", "--diffusion.huber_c", "0.3"}};
  for (size_t k = 0; k < std::size(kinds); ++k) {
    const std::string name = "kind-" + std::to_string(k);
    const Flags flags = with(kinds[k], {"--run.steps", "4", "--checkpoint.every", "2", "--checkpoint.keep", "0"});
    ASSERT_EQ(tiny().train(1, name, flags).code, 0);
    const Result two = tiny().train(2, name + "-two", flags);
    ASSERT_EQ(two.code, 0) << two.output;
    const auto one_losses = tiny().losses(name), two_losses = tiny().losses(name + "-two");
    ASSERT_EQ(one_losses.size(), 4u);
    for (size_t s = 0; s < one_losses.size(); ++s)
      EXPECT_NEAR(two_losses[s], one_losses[s], 1e-4 * one_losses[s]) << name;
    ASSERT_EQ(tiny().train(1, name + "-parts", with(flags, {"--run.steps", "2"})).code, 0);
    ASSERT_EQ(tiny().train(1, name + "-parts", flags).code, 0);
    EXPECT_EQ(tiny().losses(name + "-parts"), one_losses) << name;
  }
}

TEST(Saves, EveryFewMinutesAreMadeBesideThoseOfTheSteps) {
  const Result r = tiny().train(2, "minutes",
                                {"--run.steps", "3", "--checkpoint.every", "0", "--checkpoint.every_minutes",
                                 "0.0000001", "--checkpoint.keep", "1", "--checkpoint.keep_steps", "1"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("checkpoint.every_minutes are over"), std::string::npos) << r.output;
  std::vector<int64_t> steps;
  for (const auto& line : tiny().metrics("minutes", "checkpoint")) steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
  const auto left = saves("minutes", "checkpoints");
  EXPECT_EQ(std::ranges::count(left, "step-000002"), 1) << "within the window of a step";
  const Result never = tiny().train(1, "hours", {"--run.steps", "2", "--checkpoint.every_minutes", "600"});
  EXPECT_EQ(tiny().metrics("hours", "checkpoint").size(), 1u);
}

TEST(Captions, OfATriggerStayWhereTheyAreDroppedAndVariantsAreCached) {
  const Flags flags = {
      "--data.trigger",           "sks", "--data.caption_prefix", "film: ", "--data.caption_shuffle", "3",
      "--data.caption_delimiter", " ",   "--run.steps",           "3",      "--checkpoint.every",     "2"};
  const Result dropped = tiny().train(1, "dropped", with(flags, {"--diffusion.caption_dropout", "1"}));
  ASSERT_EQ(dropped.code, 0) << dropped.output;
  const Result none = tiny().train(1, "none", {"--run.steps", "3", "--diffusion.caption_dropout", "1"});
  ASSERT_EQ(none.code, 0) << none.output;
  EXPECT_NE(tiny().losses("dropped"), tiny().losses("none")) << "prefix and trigger are left of a dropped caption";
  ASSERT_EQ(tiny().train(1, "tags", flags).code, 0);
  ASSERT_EQ(tiny().train(2, "tags-two", flags).code, 0);
  const auto one = tiny().losses("tags"), two = tiny().losses("tags-two");
  for (size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(two[s], one[s], 1e-4 * one[s]);
}

TEST(Settings, WithoutAnEffectAreToldAndImpossibleOnesRefused) {
  const Result r =
      tiny().tessera({"plan", tiny().recipe(), "--checkpoint.keep_best", "2", "--eval.sigmas", "1",
                      "--diffusion.huber_c", "0.2", "--data.keep_tokens", "1", "--diffusion.mode_scale", "1"});
  for (const char* key :
       {"checkpoint.keep_best", "eval.sigmas", "diffusion.huber_c", "data.keep_tokens", "diffusion.mode_scale"})
    EXPECT_NE(r.output.find(std::string(key) + " = "), std::string::npos) << key << "\n" << r.output;
  for (const Flags& wrong : {Flags{"--diffusion.loss", "hubber"},
                             {"--diffusion.bands", "0.5:0.2=1"},
                             {"--diffusion.bands", "0:1"},
                             {"--eval.sigmas", "0", "--eval.share", "0.5", "--eval.every", "1"},
                             {"--eval.weights", "ema", "--eval.share", "0.5", "--eval.every", "1"},
                             {"--diffusion.mode_scale", "3"},
                             {"--diffusion.loss", "mse=0"}}) {
    const Result refused = tiny().tessera(with({"plan", tiny().recipe()}, wrong));
    EXPECT_EQ(refused.code, 2) << wrong[0] << " " << wrong[1] << "\n" << refused.output;
    EXPECT_NE(refused.output.find(wrong[0].substr(2)), std::string::npos) << refused.output;
  }
}

}  // namespace
}  // namespace tessera::testing
