// A run that was stopped goes on with the bits of one that was not: every piece of state comes back, whatever trains and in
// whichever form it is kept; and a stage is what a resume with its values would be.
#include <gtest/gtest.h>

#include <fstream>

#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

const TinyRun& shared() {
  static const TinyRun run("stops");
  return run;
}

Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void train(int ranks, const std::string& name, const Flags& flags) {
  const Result r = shared().train(ranks, name, flags, 300);
  ASSERT_EQ(r.code, 0) << name << "\n" << r.output;
}

fs::path step_of(const std::string& name, int step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%06d", step);
  return fs::path(shared().out(name)) / "checkpoints" / text;
}

/// Weights, states, counters and cursors of a checkpoint: its ranks' files, and its manifest but for where it came from.
std::map<std::string, std::string> all_of(const fs::path& checkpoint) {
  std::map<std::string, std::string> all;
  for (const auto& item : fs::recursive_directory_iterator(checkpoint))
    if (item.path().extension() == ".safetensors")
      all[fs::relative(item.path(), checkpoint).string()] = text_of(item.path());
  const nlohmann::json manifest = json_of(checkpoint / "manifest.json");
  for (const auto& [key, value] : manifest.items())
    if (key != "resumed_from") all["manifest: " + key] = value.dump();
  return all;
}

void expect_same(const std::map<std::string, std::string>& found, const std::map<std::string, std::string>& expected) {
  for (const auto& [name, bytes] : expected) {
    const auto there = found.find(name);
    ASSERT_NE(there, found.end()) << name;
    const bool tells = name.starts_with("manifest") && !name.ends_with("tensors");
    EXPECT_TRUE(there->second == bytes) << name << (tells ? ": " + there->second + ", expected " + bytes : "");
  }
  EXPECT_EQ(found.size(), expected.size());
}

/// Of what a step tells of its gate: seconds are no bits of a run.
nlohmann::json without_times(nlohmann::json told) {
  if (!told.is_object()) return told;
  told.erase("deal_seconds");
  for (auto& expert : told["experts"]) expert.erase("seconds");
  return told;
}

/// What the steps after `step` tell, to the last digit.
std::vector<std::string> told(const std::string& name, int step) {
  std::vector<std::string> lines;
  for (const char* type : {"step", "skip"})
    for (const auto& line : shared().metrics(name, type)) {
      if (line["step"].get<int>() <= step) continue;
      std::string text;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "loss_scale", "d", "expert", "gate"})
        if (line.contains(key)) text += std::string(key) + " " + without_times(line[key]).dump() + " ";
      lines.push_back(text);
    }
  return lines;
}

struct Form {
  const char* name;
  int ranks, steps, cut;  ///< the run is stopped at step `cut`, and saves each so many steps
  Flags flags;
};
std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }

class Stops : public ::testing::TestWithParam<Form> {};

TEST_P(Stops, LeaveTheBitsOfARunThatWentThrough) {
  const Form& form = GetParam();
  const Flags flags = form.flags + Flags{"--run.steps",        std::to_string(form.steps),
                                         "--checkpoint.every", std::to_string(form.cut),
                                         "--checkpoint.keep",  "0"};
  train(form.ranks, form.name, flags);
  const auto whole = all_of(step_of(form.name, form.steps));
  const auto lines = told(form.name, form.cut);
  const std::string averaged = shared().out(form.name) + "/model_ema";
  std::map<std::string, std::string> average;
  if (fs::exists(averaged))
    for (const auto& item : fs::recursive_directory_iterator(averaged))
      if (item.is_regular_file()) average[item.path().string()] = text_of(item.path());
  for (int step = form.cut + 1; step <= form.steps; ++step) fs::remove_all(step_of(form.name, step));
  train(form.ranks, form.name, flags);
  expect_same(all_of(step_of(form.name, form.steps)), whole);
  EXPECT_EQ(told(form.name, form.cut), lines);
  for (const auto& [file, bytes] : average) EXPECT_TRUE(text_of(file) == bytes) << file;
}

const Flags kWide = {"--model.config.dim", "128", "--model.config.ffn_dim", "512", "--model.config.num_heads", "4"};
const Flags kFast = {"--train.lr", "1e-2", "--train.ema", "0.9"};
const Flags kProdigy = {"--train.optimizer", "prodigy", "--train.lr", "1", "--train.d0", "1e-4"};

INSTANTIATE_TEST_SUITE_P(
    , Stops,
    ::testing::Values(
        Form{"split", 2, 6, 3, kWide + kFast + Flags{"--plan.masters", "split", "--plan.moments", "int8"}},
        Form{"rounded", 1, 6, 3, {"--train.optimizer", "lion", "--plan.masters", "bf16", "--plan.moments", "bf16"}},
        Form{"adafactor", 2, 6, 3, kFast + Flags{"--train.optimizer", "adafactor", "--train.factored_beta1", "0.9"}},
        Form{"came", 1, 6, 3, kFast + Flags{"--train.optimizer", "came"}},
        Form{"prodigy", 1, 8, 4, kProdigy + Flags{"--train.ema", "0.9"}},
        Form{"bounded", 1, 10, 6, kProdigy + Flags{"--train.growth_rate", "1.05"}},
        // Overflows until the scale has found its place: updates are fewer than steps.
        Form{"fp16",
             1,
             24,
             11,
             {"--plan.compute_dtype", "fp16", "--train.loss_scale", "1e10", "--train.loss_scale_window", "4"}},
        // Never overflows: the cut lies two good steps after a growth, and the next comes two steps later.
        Form{"fp16_within_a_window",
             1,
             9,
             6,
             {"--plan.compute_dtype", "fp16", "--train.loss_scale", "64", "--train.loss_scale_window", "4"}},
        Form{"experts", 1, 8, 5,
             kFast + Flags{"--experts.train", "both", "--experts.turn", "2", "--train.schedule", "cosine"}},
        Form{"gate", 1, 6, 4, {"--experts.router", "gate", "--experts.count", "2", "--experts.balance", "0.1"}},
        Form{"adapters",
             1,
             6,
             3,
             {"--train.mode", "lora", "--model.init", "random", "--lora.rank", "4", "--lora.dropout", "0.3",
              "--train.global_batch", "3"}}),
    [](const auto& info) { return std::string(info.param.name); });

/// Prodigy's d follows from the sums of an update at the next step: a checkpoint between them has both.
TEST(Saves, ChangeNothingOfTheStepsThatFollow) {
  const Flags flags = kProdigy + Flags{"--run.steps", "6", "--train.global_batch", "3"};
  train(1, "saves", flags + Flags{"--checkpoint.every", "2"});
  train(1, "saves-not", flags + Flags{"--checkpoint.every", "100"});
  EXPECT_EQ(told("saves", 0), told("saves-not", 0));
  EXPECT_TRUE(shared().model("saves") == shared().model("saves-not"));
}

/// With a rate of 0 nothing moves: what a form loses shows.
TEST(Forms, OfMastersBecomeEachOtherWithoutALoss) {
  for (const auto& [from, to] : {std::pair("split", "fp32"), {"fp32", "split"}}) {
    const std::string name = std::string("from-") + from;
    const Flags saves = {"--checkpoint.every", "3", "--plan.param_dtype", "bf16"};
    train(2, name, kWide + saves + Flags{"--run.steps", "3", "--plan.masters", from});
    const auto weights = shared().model(name);
    train(2, name, kWide + saves + Flags{"--run.steps", "4", "--plan.masters", to, "--train.lr", "0"});
    EXPECT_TRUE(shared().model(name) == weights) << from << " to " << to;
  }
}

/// Of every key that acts on updates and losses: a stage with another value from step 3 on, the run that was stopped after
/// step 2 and goes on with it, and the run without.
TEST(Stages, AreWhatAResumeWithTheirValuesWouldBe) {
  struct Key {
    const char *key, *value;
    Flags flags = {};
  };
  const std::vector<Key> keys = {{"train.weight_decay", "0.9"}, {"train.betas", "[0.5, 0.6]"},
                                 {"train.eps", "0.1"},          {"train.clip_norm", "0.001"},
                                 {"diffusion.shift", "1.5"},    {"diffusion.weighting", "\"diffsynth\""},
                                 {"train.lr_scale", "\"3\""},   {"train.betas", "[0.2, 0.3]", kProdigy}};
  std::map<std::string, std::string> without;  // by flags: the name of the run
  const Flags all = {"--train.lr", "1e-2", "--run.steps", "4", "--checkpoint.every", "2", "--checkpoint.keep", "0"};
  for (const Key& key : keys) {
    SCOPED_TRACE(key.key);
    std::string& base = without[key.flags.empty() ? "" : key.flags[1]];
    const Flags flags = all + key.flags;
    if (base.empty()) {
      base = "without-" + std::to_string(without.size());
      train(1, base, flags);
    }
    std::string word = key.value;
    std::erase_if(word, [](char c) { return c == '[' || c == ']' || c == '"' || c == ' '; });
    const std::string name = std::string(key.key) + "-" + base;
    const fs::path at = fs::path("checkpoints") / step_of(base, 2).filename();
    fs::create_directories(fs::path(shared().out(name)) / "checkpoints");
    fs::copy(step_of(base, 2), fs::path(shared().out(name)) / at, fs::copy_options::recursive);
    fs::copy(shared().out(base) + "/metrics.jsonl", shared().out(name) + "/metrics.jsonl");
    train(1, name, flags + Flags{"--" + std::string(key.key), word, "--run.resume_changes", "allow"});

    const std::string recipe = (shared().folder() / "staged.toml").string();
    std::ofstream(recipe) << text_of(shared().recipe()) << "\n[[stage]]\nfrom = 3\n"
                          << key.key << " = " << key.value << "\n";
    const std::string staged = name + "-staged";
    const Result r = shared().tessera(Flags{"train", recipe, "--run.out", shared().out(staged)} + flags);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(told(staged, 2), told(name, 2));
    EXPECT_TRUE(shared().model(staged) == shared().model(name)) << "the stage does what the resume does";
    EXPECT_FALSE(shared().model(staged) == shared().model(base)) << "and it does something";
  }
}

/// Losses and norms of another layout are near those of one rank; d, which sums over all elements, tells who counts twice.
TEST(Layouts, CountReplicatedElementsOnceInProdigysStepSize) {
  const Flags flags = kProdigy + Flags{"--run.steps", "5", "--train.clip_norm", "0"};
  train(1, "d-one", flags);
  const auto one = shared().metrics("d-one");
  EXPECT_NE(one.front()["d"], one.back()["d"]);
  for (const Flags& layout : {Flags{"--mesh", "tp=2"}, Flags{"--mesh", "tp=2", "--plan.strategy", "no_shard"},
                              Flags{"--mesh", "dp_shard=2", "--plan.strategy", "no_shard"},
                              Flags{"--mesh", "dp_replicate=2", "--plan.strategy", "two_level"}}) {
    const std::string name = "d" + layout[1] + (layout.size() > 2 ? layout[3] : "");
    train(2, name, flags + layout);
    const auto other = shared().metrics(name);
    ASSERT_EQ(other.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(other[i]["d"].get<double>() / one[i]["d"].get<double>(), 1, 1e-4) << name << ", step " << i + 1;
  }
}

/// Each replica updates its own partition of a shard, and averages it.
TEST(Layouts, OfTwoLevelsExportTheAverageOfOne) {
  std::map<std::string, std::vector<float>> averages[2];
  for (const bool two : {false, true}) {
    const std::string name = two ? "average-two" : "average-one";
    train(2, name,
          kFast + Flags{"--run.steps", "3", "--mesh", "dp_replicate=2", "--train.clip_norm", "0", "--plan.strategy",
                        two ? "two_level" : "full_shard"});
    EXPECT_FALSE(text_of(shared().out(name) + "/model_ema/diffusion_pytorch_model.safetensors").empty());
    fs::create_directories(shared().out(name + "-ema"));
    fs::copy(shared().out(name) + "/model_ema", shared().out(name + "-ema") + "/model", fs::copy_options::recursive);
    averages[two] = shared().model(name + "-ema");
    EXPECT_FALSE(averages[two] == shared().model(name)) << "the average is another model";
  }
  EXPECT_TRUE(averages[0] == averages[1]);
}

}  // namespace
}  // namespace tessera::testing
