// Runs that diverge: what is healthy stays, what is broken is neither saved nor exported, and the next start says so or goes
// back to what was proved.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

struct Model {
  const char *name, *table;
};
constexpr Model kModels[] = {{"wan", ""},
                             {"sana", R"(preset = "sana-tiny-norms"
config = { num_cross_attention_heads = 4, num_layers = 3, caption_channels = 64, caption_length = 5, in_channels = 12 })"},
                             {"mmdit", R"(preset = "opensora2-tiny"
config = { in_channels = 48, context_in_dim = 64, context_length = 5, vec_in_dim = 32 })"}};

/// A run whose rate is raised at step 12, so that the weights of step 12 are broken and step 13 is the first to see it.
class Diverging {
 public:
  static constexpr int kRaised = 12, kSteps = 30;

  explicit Diverging(const Model& model = kModels[0], const std::string& rate = "1e30", int raised = kRaised)
      : run(std::string("diverging-") + model.name, TESSERA_BINARY, model.table), plain_(text_of(run.recipe())) {
    set_rate(rate, raised);
  }
  void set_rate(const std::string& rate, int raised = kRaised) const {
    std::ofstream(run.recipe(), std::ios::trunc)
        << plain_ << "\n[[stage]]\nfrom = " << raised << "\ntrain.lr = " << rate << "\n";
  }
  /// Raised for this step alone.
  void raise_once(int step) const {
    set_rate("1e30", step);
    std::ofstream(run.recipe(), std::ios::app) << "\n[[stage]]\nfrom = " << step + 1 << "\ntrain.lr = 1e-3\n";
  }
  Result train(Flags more = {}, int ranks = 1, const std::string& name = "run") const {
    more.insert(more.begin(), {"--data.frames", "1", "--run.steps", std::to_string(kSteps), "--checkpoint.every", "4"});
    return run.train(ranks, name, more);
  }
  /// The same on one rank, which is killed in this step.
  Result train_to(int step, Flags more, const std::string& name = "run") const {
    Flags argv = {TESSERA_BINARY,
                  "launch",
                  "-n",
                  "1",
                  "train",
                  run.recipe(),
                  "--run.out",
                  run.out(name),
                  "--data.frames",
                  "1",
                  "--run.steps",
                  std::to_string(kSteps),
                  "--checkpoint.every",
                  "4"};
    argv.insert(argv.end(), more.begin(), more.end());
    return run_program(
        argv, {{"OMP_NUM_THREADS", "1"}, {"TESSERA_DRILL", "rank=0,step=" + std::to_string(step) + ",do=kill"}});
  }
  fs::path checkpoints(const std::string& name = "run") const { return fs::path(run.out(name)) / "checkpoints"; }
  std::string at(int64_t step) const { return checkpoint::step_folder(checkpoints(), step).string(); }
  std::vector<int64_t> saved(const std::string& name = "run") const {
    std::vector<int64_t> steps;
    for (const auto& folder : checkpoint::whole_checkpoints(checkpoints(name)))
      steps.push_back(checkpoint::load_manifest(folder).step);
    return steps;
  }
  std::optional<int64_t> proved(const std::string& name = "run") const {
    const auto found = checkpoint::newest_proved(checkpoints(name));
    return found ? std::optional(checkpoint::load_manifest(*found).step) : std::nullopt;
  }
  std::vector<std::string> exact(const std::string& name) const {
    std::vector<std::string> lines;
    for (const auto& s : run.metrics(name))
      lines.push_back(s["step"].dump() + " " + s["loss"].dump() + " " + s["grad_norm"].dump());
    return lines;
  }

  const TinyRun run;

 private:
  const std::string plain_;
};

void expect(const Result& r, int code, const Flags& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const std::string& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << word << " in\n" << r.output;
  EXPECT_EQ(r.output.find("terminate called"), std::string::npos) << r.output;
}

/// The command behind these words, up to the end of its flags.
Flags command_behind(const std::string& output, const std::string& words) {
  const size_t at = output.find(words);
  if (at == std::string::npos) return {};
  const size_t begin = at + words.size(), end = output.find_first_of(";\n", begin);
  std::istringstream in(output.substr(begin, end - begin));
  Flags flags;
  for (std::string word; in >> word;) flags.push_back(word);
  if (!flags.empty()) flags.front() = TESSERA_BINARY;
  return flags;
}

TEST(Divergence, SkippedStepsSaveNothingAndLeaveWhatIsProved) {
  for (const Model& model : kModels)
    for (const char* keep : {"3", "1"}) {
      SCOPED_TRACE(std::string(model.name) + ", keep = " + keep);
      const Diverging d(model);
      const Flags flags = {"--run.on_nan", "skip", "--checkpoint.keep", keep};
      expect(d.train(flags), 6,
             {"no checkpoint is saved: the last", "steps were skipped", "the newest proved checkpoint is " + d.at(8),
              "the model is not exported"});
      EXPECT_EQ(d.saved(), keep == std::string("3") ? (std::vector<int64_t>{4, 8, 12}) : (std::vector<int64_t>{8, 12}));
      EXPECT_EQ(d.proved(), 8);
      EXPECT_FALSE(fs::exists(d.run.out() + "/model"));
      const auto before = d.run.metrics("run", "skip");
      EXPECT_EQ(before.size(), 18u) << "steps 13 to 30";
      expect(d.train(flags), 6, {"step 13", "with the same recipe on the same data it would again", d.at(8)});
      EXPECT_EQ(d.run.metrics("run", "skip"), before) << "nothing was run";
    }
}

TEST(Divergence, AStoppedRunNamesWhatIsProvedAndTheCommandGoesOnFromIt) {
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    const Diverging d(model);
    const Result stopped = d.train({"--checkpoint.keep", "1"});
    expect(stopped, 6,
           {"step 13", "the newest proved checkpoint is " + d.at(8), "[[stage]] from step 12 on: tessera train"});
    EXPECT_EQ(d.saved(), (std::vector<int64_t>{8, 12}));
    expect(d.train({"--checkpoint.keep", "1"}), 6, {"with the same recipe on the same data it would again"});
    expect(d.run.tessera({"train", d.run.out() + "/recipe.toml"}), 6, {"it would again"});
    expect(d.train({"--checkpoint.keep", "1", "--run.steps", "40", "--sample.every", "20", "--sample.steps", "1"}), 6,
           {"it would again"});

    // Another rate goes on from there, as a run that had it from the start.
    d.set_rate("5e-4");
    expect(d.train({"--checkpoint.keep", "1"}, 1, "healthy"), 0, {});
    expect(d.train({"--checkpoint.keep", "1"}), 0,
           {"stage 1: train.lr has changed since: the run goes back to " + d.at(8), "resumed from " + d.at(8),
            "going back to step 8: 1 checkpoints"});
    EXPECT_EQ(d.exact("run"), d.exact("healthy"));
    EXPECT_EQ(d.run.model("run"), d.run.model("healthy"));
    EXPECT_FALSE(fs::exists(d.run.out() + "/diverged.json"));
  }
}

TEST(Divergence, TheCommandWithAnotherSeedIsWholeAndASeedAloneIsRefused) {
  const Diverging d;
  const Result stopped = d.train();
  ASSERT_EQ(stopped.code, 6) << stopped.output;
  expect(d.train({"--run.seed", "8"}), 2, {"run.seed 7 -> 8", "run.resume_changes"});
  const Flags command = command_behind(stopped.output, "or with another seed: ");
  ASSERT_GT(command.size(), 5u) << stopped.output;
  const Result again = run_program(command, {{"OMP_NUM_THREADS", "1"}});
  expect(again, 6,
         {"resumed from " + d.at(8), "changed since step 8: run.seed 7 -> 8"});  // its stage has the rate still
  // That went on from there: so does the next, though the line has gone on since.
  const Flags lower = command_behind(again.output, "on: ");
  ASSERT_GT(lower.size(), 3u) << again.output;
  expect(run_program(lower, {{"OMP_NUM_THREADS", "1"}}), 6, {"resumed from " + d.at(8)});
}

TEST(Divergence, WhatAChangedRecipeIsAndWhatNot) {
  const Diverging d(kModels[0], "1e-3");  // diverges by its own rate, from step 2 on
  const Flags high = {"--train.lr", "1e30", "--train.clip_norm", "0", "--run.steps", "6", "--checkpoint.every", "1"};
  const auto with = [&](const Flags& more) {
    Flags flags = high;
    flags.insert(flags.end(), more.begin(), more.end());
    return d.train(flags);
  };
  expect(with({}), 6, {"step 2", "no checkpoint is proved", "--run.resume no --train.lr 5e+29"});
  for (const Flags& same : std::vector<Flags>{{"--checkpoint.keep", "2"},
                                              {"--fault.timeout", "50"},
                                              {"--train.micro_batch", "2"},
                                              {"--data.cache", (d.run.folder() / "other-cache").string()},
                                              {"--run.spike", "9"}})
    expect(with(same), 6, {"it would again"});
  expect(d.run.train(2, "run",
                     [&] {
                       Flags flags = {"--data.frames", "1"};
                       flags.insert(flags.end(), high.begin(), high.end());
                       return flags;
                     }()),
         6, {"it would again"});
  expect(with({"--train.betas", "0.9,0.99"}), 6,
         {"train.betas has changed since: the run goes back to its beginning", "step 2"});
  expect(with({"--train.betas", "0.9,0.99"}), 6, {"it would again"});
  std::ofstream(d.run.folder() / "data/clip0.txt") << "another caption";
  expect(with({"--train.betas", "0.9,0.99"}), 6, {"the data has changed since: the run goes back to its beginning"});
  expect(with({"--train.betas", "0.9,0.99", "--train.lr", "1e-3"}), 0, {"train.lr has changed since"});
}

TEST(Divergence, EveryLayoutComesToTheSame) {
  for (const char* mesh : {"dp_shard=2", "dp_replicate=2", "tp=2", "pp=2", "cp=2"}) {
    SCOPED_TRACE(mesh);
    const Diverging d;
    expect(d.train({"--run.on_nan", "skip", "--mesh", mesh, "--checkpoint.keep", "1", "--run.steps", "18"}, 2), 6,
           {"the newest proved checkpoint is " + d.at(8), "launch -n 2 train"});
    EXPECT_EQ(d.saved(), (std::vector<int64_t>{8, 12}));
    EXPECT_EQ(d.proved(), 8);
  }
}

/// The last update makes infinities, which no step sees any more.
TEST(Divergence, ValuesThatAreNotFiniteAreNeitherSavedNorExportedOnAnyLayout) {
  for (const char* mesh : {"", "dp_shard=2", "tp=2", "pp=2"}) {
    SCOPED_TRACE(mesh);
    const Diverging d(kModels[0], "1e39");
    Flags flags = {"--run.steps", "12", "--checkpoint.keep", "1"};
    if (*mesh) flags.insert(flags.end(), {"--mesh", mesh});
    expect(d.train(flags, *mesh ? 2 : 1), 6,
           {"has values that are not finite", "no checkpoint is saved", "the newest proved checkpoint is " + d.at(8),
            "the model is not exported"});
    EXPECT_EQ(d.saved(), (std::vector<int64_t>{8}));
    EXPECT_FALSE(fs::exists(d.run.out() + "/model"));
    for (const auto& entry : fs::directory_iterator(d.checkpoints()))
      EXPECT_EQ(entry.path().filename().string().find(".partial"), std::string::npos) << entry.path();
  }
}

TEST(Divergence, AnEarlierModelIsNotReplacedByWhatIsBroken) {
  const Diverging d;
  expect(d.train({"--run.steps", "10"}), 0, {});
  const auto model = d.run.model("run");
  expect(d.train({"--run.on_nan", "skip", "--run.steps", "16"}), 6, {"the model is not exported"});
  EXPECT_EQ(d.run.model("run"), model);
}

TEST(Divergence, ASpikeIsToldAndProvesNothing) {
  const Diverging d(kModels[0], "3");
  const Result r = d.train({"--checkpoint.keep", "1", "--train.clip_norm", "0"});
  expect(r, 0, {"step 13: ", "times its running median (run.spike = 50)"});
  EXPECT_EQ(d.proved(), 8) << r.output;
  EXPECT_EQ(d.saved(), (std::vector<int64_t>{8, 30}));
  int spikes = 0;
  for (const auto& line : d.run.metrics("run", "warning")) spikes += line["what"] == "spike";
  EXPECT_GE(spikes, 1);
  EXPECT_LE(spikes, 6) << "1, 2, 4, 8, 16 in a row are told";

  // Stopped in between it still knows what was usual before.
  expect(d.train({"--checkpoint.keep", "1", "--train.clip_norm", "0", "--run.steps", "12"}, 1, "halves"), 0, {});
  expect(d.train({"--checkpoint.keep", "1", "--train.clip_norm", "0"}, 1, "halves"), 0, {"step 13: "});
  EXPECT_EQ(d.proved("halves"), 8);
  expect(d.train({"--checkpoint.keep", "1", "--train.clip_norm", "0", "--run.spike", "0"}, 1, "off"), 0, {});
  EXPECT_EQ(d.proved("off"), 28);
}

TEST(Divergence, OfTwoExpertsOneThatIsBrokenIsNotProvedByTheOther) {
  const Diverging d(kModels[0], "1e-3");
  const Flags both = {"--experts.train",   "both", "--experts.turn", "2",    "--run.seed",         "3",
                      "--run.steps",       "16",   "--run.on_nan",   "skip", "--checkpoint.every", "1",
                      "--checkpoint.keep", "4"};
  expect(d.train(both, 1, "healthy"), 0, {});
  EXPECT_GE(d.proved("healthy").value_or(0), 12);
  const auto steps = d.run.metrics("healthy");
  int last = 6;  // of one expert, before the other's turn
  while (steps.at(static_cast<size_t>(last) - 1)["expert"] == steps.at(static_cast<size_t>(last))["expert"]) ++last;
  d.raise_once(last);
  const Result r = d.train(both);
  expect(r, 6, {"skipped", "the newest proved checkpoint is "});
  EXPECT_FALSE(d.run.metrics("run", "skip").empty());
  ASSERT_TRUE(d.proved()) << r.output;
  EXPECT_LT(*d.proved(), last) << "the other's steps were finite, and say nothing of it";
  EXPECT_GE(*d.proved(), last - 4);
}

/// A turn that ended with a checkpoint is tested when the expert has its next one: a start in between knows that.
TEST(Divergence, AStartInTheOthersTurnProvesNothingOfAnExpertThatWaits) {
  const Diverging d(kModels[0], "1e-3");
  const Flags both = {"--experts.train", "both", "--experts.turn",     "3", "--run.seed",        "3",
                      "--run.on_nan",    "skip", "--checkpoint.every", "1", "--checkpoint.keep", "5"};
  expect(d.train(both, 1, "healthy"), 0, {});
  const auto steps = d.run.metrics("healthy");
  const auto expert = [&](int step) { return steps.at(static_cast<size_t>(step) - 1)["expert"]; };
  int last = 5;  // of one expert, before a turn of the other's
  while (expert(last) == expert(last + 1) || expert(last + 1) != expert(last + 3)) ++last;
  d.raise_once(last);
  expect(d.train_to(last + 2, both), 5, {});
  expect(d.train_to(last + 4, both), 5, {"resumed from " + d.at(last + 1)});
  ASSERT_TRUE(d.proved());
  EXPECT_LT(*d.proved(), last) << "the other's steps were finite, and say nothing of it";
  EXPECT_GE(*d.proved(), last - 4);
}

/// Where turns end with a checkpoint, the newest one waits for the other expert's whole turn.
TEST(Divergence, OfTwoExpertsTheProvedCheckpointFollowsThoughOneIsKept) {
  for (const bool restarts : {false, true}) {
    SCOPED_TRACE(restarts);
    const Diverging d(kModels[0], "1e-3");
    const auto both = [](int steps) {
      return Flags{"--experts.train",    "both", "--experts.turn",    "2", "--run.steps", std::to_string(steps),
                   "--checkpoint.every", "2",    "--checkpoint.keep", "1"};
    };
    if (restarts)
      for (const int steps : {5, 10, 15}) expect(d.train(both(steps)), 0, {});
    expect(d.train(both(24)), 0, {});
    ASSERT_TRUE(d.proved());
    EXPECT_GE(*d.proved(), 18) << "two turns behind, at most";
    EXPECT_LE(d.saved().size(), 3u) << "the newest, the newest proved, and one that waits";
    EXPECT_EQ(d.saved().back(), 24);
  }
}

TEST(Divergence, AnOverflowOfTheLossScaleKeepsNothingFromBeingSaved) {
  const Diverging d(kModels[0], "1e-3");
  expect(d.train({"--plan.compute_dtype", "fp16", "--train.loss_scale", "1e9", "--run.steps", "14",
                  "--checkpoint.every", "1", "--checkpoint.keep", "0"}),
         0, {"gradients overflowed fp16"});
  const size_t skipped = d.run.metrics("run", "skip").size();
  ASSERT_GT(skipped, 1u);
  EXPECT_EQ(d.saved().size(), 14u);
  EXPECT_EQ(d.proved(), 13);
}

TEST(Divergence, AStopWhileStepsAreSkippedSavesNothingAndNamesWhatIsProved) {
  const Diverging d;
  const std::string log = (d.run.folder() / "log.txt").string();
  const pid_t launcher =
      start_program({TESSERA_BINARY, "launch", "-n", "2", "train", d.run.recipe(), "--run.out", d.run.out(),
                     "--data.frames", "1", "--run.steps", "1000", "--checkpoint.every", "4", "--run.on_nan", "skip"},
                    log, {{"OMP_NUM_THREADS", "1"}, {"TESSERA_DRILL", "rank=1,step=16,do=3"}});
  for (int i = 0; i < 3000 && text_of(log).find("step 15 skipped") == std::string::npos; ++i) usleep(20'000);
  kill(launcher, SIGTERM);
  EXPECT_EQ(wait_program(launcher, 60), 75) << text_of(log);
  const std::string text = text_of(log);
  EXPECT_NE(text.find("no checkpoint was saved: the last"), std::string::npos) << text;
  EXPECT_NE(text.find("the newest proved checkpoint is " + d.at(8)), std::string::npos) << text;
  EXPECT_EQ(d.saved(), (std::vector<int64_t>{4, 8, 12}));

  // The same recipe on the same data goes on from the newest one, since the next step may be finite; another goes back.
  const Flags flags = {"--run.on_nan", "skip", "--run.steps", "1000"};
  for (const char* name : {"same", "others"}) fs::copy(d.run.out(), d.run.out(name), fs::copy_options::recursive);
  expect(d.train(flags, 1, "same"), 6,
         {"resumed from " + d.run.out("same") + "/checkpoints/step-000012", "100 steps in a row were skipped"});
  std::ofstream(d.run.folder() / "data/clip0.txt") << "another caption";
  expect(d.train({"--run.on_nan", "skip", "--run.steps", "1000"}, 1, "others"), 6,
         {"the data has changed since: the run goes back to " + d.run.out("others") + "/checkpoints/step-000008",
          "resumed from " + d.run.out("others") + "/checkpoints/step-000008"});
  d.set_rate("5e-4");
  expect(d.train({"--run.on_nan", "skip", "--run.steps", "30"}), 0,
         {"has changed since: the run goes back to " + d.at(8), "resumed from " + d.at(8)});
  EXPECT_FALSE(fs::exists(d.run.out() + "/diverged.json"));
}

/// However it ended: by a kill too.
TEST(Divergence, AKillWhileStepsAreSkippedIsKnownToAStartWithAnotherRate) {
  const Diverging d;
  const Flags flags = {"--run.on_nan", "skip", "--checkpoint.keep", "1"};
  expect(d.train_to(16, flags), 5, {"step 15 skipped"});
  EXPECT_TRUE(fs::exists(d.run.out() + "/diverged.json"));
  d.set_rate("5e-4");
  expect(d.train(flags), 0,
         {"step 13 was not finite, and stage 1: train.lr has changed since", "resumed from " + d.at(8)});
}

/// A sample whose latent is not finite: the steps with it are skipped, those between them are finite.
TEST(Divergence, StepsThatWereSkippedAndAreOverAreNoReasonToGoBack) {
  const Diverging d(kModels[0], "1e-3");
  const Flags flags = {"--run.on_nan",      "skip", "--train.global_batch", "1",
                       "--checkpoint.keep", "2",    "--checkpoint.every",   "1"};
  ASSERT_EQ(d.train(flags, 1, "clean").code, 0);
  for (const auto& entry : fs::directory_iterator(d.run.folder() / "cache")) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = checkpoint::SafetensorsFile::open(entry.path());
    if (!file.find("latent")) continue;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& entry : file.entries()) {
      bytes.push_back(file.bytes(entry.name));
      if (entry.name == "latent") std::ranges::fill(bytes.back(), std::byte{0xff});  // NaN, all of it
    }
    for (size_t i = 0; i < bytes.size(); ++i)
      tensors.push_back({file.entries()[i].name, file.entries()[i].dtype, file.entries()[i].shape, bytes[i].data()});
    auto said = file.metadata();
    said.erase("crc32c.latent");
    checkpoint::write_safetensors(entry.path(), tensors, said);
    break;
  }
  d.train(flags, 1, "probe");  // its last step may be a bad one
  std::set<int> skipped;
  for (const auto& line : d.run.metrics("probe", "skip")) skipped.insert(line["step"].get<int>());
  ASSERT_GE(skipped.size(), 3u);
  int bad = 10;  // the next step is finite
  while (!skipped.contains(bad) || skipped.contains(bad + 1)) ASSERT_LT(++bad, 28);
  for (const int last : {bad, bad + 1}) {
    SCOPED_TRACE(last);
    const std::string name = "to-" + std::to_string(last);
    expect(d.train_to(last + 1, flags, name), 5, {"step " + std::to_string(bad) + " skipped"});
    EXPECT_EQ(fs::exists(d.run.out(name) + "/diverged.json"), last == bad);
    const auto newest = checkpoint::latest(d.checkpoints(name));
    ASSERT_TRUE(newest);
    // What goes on from the newest one has its bad steps again, and is told nothing of going back.
    const Result again = d.train(flags, 1, name);
    expect(again, again.code, {"resumed from " + newest->string()});
    EXPECT_EQ(again.output.find("goes back"), std::string::npos) << again.output;
  }
}

/// A checkpoint too many, as a kill before the last prune leaves it.
TEST(Divergence, AStartPrunesAlsoThatOfAFinishedRun) {
  const Diverging d(kModels[0], "1e-3");
  expect(d.train({"--run.steps", "16", "--checkpoint.keep", "0"}), 0, {});
  EXPECT_EQ(d.saved(), (std::vector<int64_t>{4, 8, 12, 16}));
  EXPECT_EQ(d.proved(), 12);
  for (const std::string folder : {"model/x", "model_ema", "model"}) {
    fs::create_directories(fs::path(d.run.out()) / folder);
    std::ofstream(fs::path(d.run.out()) / folder / "w.safetensors.0123456789abcdef-3.partial") << "half";
  }
  expect(d.train({"--run.steps", "16", "--checkpoint.keep", "1"}), 0, {"nothing to train"});
  EXPECT_EQ(d.saved(), (std::vector<int64_t>{12, 16})) << "the newest, and the newest proved";
  for (const char* folder : {"model_ema", "model"})
    EXPECT_FALSE(fs::exists(fs::path(d.run.out()) / folder / "w.safetensors.0123456789abcdef-3.partial")) << folder;
}

}  // namespace
}  // namespace tessera::testing
