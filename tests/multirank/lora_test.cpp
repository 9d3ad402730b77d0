// Adapters as a user trains them: on a base of one's own, on any layout, resumed, exported, merged, sampled.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "program.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
constexpr int kSteps = 12;

/// A base trained in full for some steps: the head of a model without weights is zero, and adapters under it learn
/// nothing.
const TinyRun& shared() {
  static const TinyRun run("lora");
  static const bool once = [] {
    const Result r = run.train(1, "base", {"--run.steps", "30", "--train.lr", "2e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
    return true;
  }();
  (void)once;
  return run;
}

std::vector<std::string> lora(std::vector<std::string> more = {}) {
  std::vector<std::string> flags = {
      "--train.mode", "lora", "--model.path", shared().out("base") + "/model", "--lora.rank", "4",
      "--train.lr",   "2e-2", "--run.steps",  std::to_string(kSteps)};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

void train(int ranks, const std::string& name, std::vector<std::string> more = {}) {
  const Result r = shared().train(ranks, name, lora(std::move(more)), 300);
  ASSERT_EQ(r.code, 0) << r.output;
}

std::vector<double> losses(const std::string& name) {
  std::vector<double> values;
  for (const auto& step : shared().metrics(name)) values.push_back(step["loss"].get<double>());
  return values;
}

void expect_same_losses(const std::string& a, const std::string& b) {
  const auto one = losses(a), other = losses(b);
  ASSERT_EQ(one.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(other.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i] / one[i], 1, 2e-6) << "step " << i + 1;
}

double mean(const std::vector<double>& values, size_t from, size_t to) {
  double sum = 0;
  for (size_t i = from; i < to; ++i) sum += values[i];
  return sum / static_cast<double>(to - from);
}

TEST(Lora, LearnsAndIsTheSameOnTwoRanks) {
  train(1, "one");
  train(2, "two");
  expect_same_losses("one", "two");
  const auto curve = losses("one");
  EXPECT_NE(curve.front(), curve.back());
  // the same draws without training: what the adapters gained on each step's own samples
  train(1, "still", {"--train.lr", "0"});
  EXPECT_LT(mean(curve, kSteps / 2, kSteps), mean(losses("still"), kSteps / 2, kSteps));
}

TEST(Lora, TrainsAndKeepsAdaptersAlone) {
  train(1, "alone");
  const auto adapters = shared().model("alone");
  EXPECT_FALSE(adapters.empty());
  for (const auto& [name, values] : adapters) EXPECT_NE(name.find(".lora_"), name.npos) << name;
  const auto ranks = shared().metrics("alone")[1]["ranks"][0]["bytes"],
             full = shared().metrics("base")[1]["ranks"][0]["bytes"];
  EXPECT_LT(ranks["states"].get<int64_t>() * 4, full["states"].get<int64_t>());
  EXPECT_LT(ranks["gradients"].get<int64_t>() * 4, full["gradients"].get<int64_t>());
  const auto manifest = nlohmann::json::parse(
      std::ifstream(fs::path(shared().out("alone")) / "checkpoints" / "step-000012" / "manifest.json"));
  for (const auto& tensor : manifest["tensors"])
    EXPECT_NE(tensor["name"].get<std::string>().find(".lora_"), std::string::npos);
}

TEST(Lora, ResumesOnAnotherLayoutWithItsStates) {
  train(1, "whole");
  train(2, "cut", {"--run.steps", "5"});
  train(1, "cut");
  expect_same_losses("whole", "cut");
}

TEST(Lora, VariantsTrainAlikeOnAnyLayout) {
  const std::vector<std::vector<std::string>> kVariants = {
      {"--lora.dropout", "0.2"},
      {"--lora.dora", "true"},
      {"--lora.rslora", "true", "--lora.alpha", "8", "--lora.targets", "blocks.*.self_attn.*,ffn.0"},
      {"--lora.targets", "blocks.1.ffn.2", "--plan.recompute", "all"},
  };
  for (size_t i = 0; i < kVariants.size(); ++i) {
    const std::string one = "one-" + std::to_string(i), two = "two-" + std::to_string(i);
    train(1, one, kVariants[i]);
    train(2, two, kVariants[i]);
    expect_same_losses(one, two);
  }
}

TEST(Lora, MergedItIsAModelThatGoesOnWhereTheAdaptersWere) {
  train(1, "merge", {"--lora.export", "diffusers,kohya"});
  const std::string model = shared().out("merge") + "/model", merged = (shared().folder() / "merged").string();
  const Result r = shared().tessera(
      {"convert", shared().out("base") + "/model", merged, "--merge", model + "/lora_kohya.safetensors"});
  ASSERT_EQ(r.code, 0) << r.output;
  // one step without a rate: the loss of base + adapters, and of the merged model
  train(1, "with-adapters", {"--run.steps", "1", "--train.lr", "0", "--lora.init", model + "/lora_kohya.safetensors"});
  const Result full = shared().train(1, "of-merged", {"--run.steps", "1", "--train.lr", "0", "--model.path", merged});
  ASSERT_EQ(full.code, 0) << full.output;
  EXPECT_NEAR(losses("with-adapters")[0] / losses("of-merged")[0], 1, 1e-5);
  train(1, "of-base", {"--run.steps", "1", "--train.lr", "0"});
  EXPECT_GT(std::abs(losses("of-base")[0] / losses("of-merged")[0] - 1), 1e-4) << "the adapters do something";
}

TEST(Lora, MistakesAreNamed) {
  const auto refused = [](const std::vector<std::string>& more, int code, const std::vector<std::string>& texts) {
    const Result r = shared().train(1, "wrong", lora(more));
    EXPECT_EQ(r.code, code) << r.output;
    for (const auto& text : texts) EXPECT_NE(r.output.find(text), std::string::npos) << text << "\n" << r.output;
  };
  refused({"--lora.targets", "self_atn"}, 2, {"lora.targets", "self_atn"});
  refused({"--lora.targets", "blocks.(q"}, 2, {"regular expression"});
  refused({"--lora.rank", "100000"}, 2, {"lora.rank", "rank of 1 to"});
  refused({"--lora.alpha", "much"}, 2, {"lora.alpha", "auto or a number"});
  refused({"--lora.dora", "true", "--lora.dropout", "0.1"}, 2, {"exclude each other"});
  refused({"--lora.export", "comfy"}, 2, {"did you mean comfyui?"});
  refused({"--lora.init", shared().out("base") + "/model"}, 3, {"is no LoRA"});
}

}  // namespace
}  // namespace tessera::testing
