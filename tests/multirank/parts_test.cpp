// Runs that train parts of a model: what is frozen keeps its bits on every layout, and is in checkpoints and exports.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "layout_table.h"
#include "matrix_cases.h"
#include "planned_memory.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;
using Weights = std::map<std::string, std::vector<float>>;

constexpr int kSteps = 10;

/// A base trained in full for some steps: the head of a model without weights is zero, and what is below it learns nothing.
const TinyRun& shared() {
  static const TinyRun run("parts", TESSERA_BINARY, R"(preset = "wan-tiny"
config = { dim = 96, ffn_dim = 192, num_heads = 4, num_layers = 4, in_dim = 12, out_dim = 12, text_dim = 64, text_len = 16 })");
  static const bool once = [] {
    const Result r = run.train(1, "base", {"--run.steps", "8", "--train.lr", "2e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
    return true;
  }();
  (void)once;
  return run;
}

Arguments parts(Arguments more) {
  Arguments flags = {"--model.path", shared().out("base") + "/model",
                     "--run.steps",  std::to_string(kSteps),
                     "--train.lr",   "1e-3",
                     "--train.eps",  kSmoothEps};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

Result train(int ranks, const std::string& name, Arguments more) {
  return shared().train(ranks, name, parts(std::move(more)), 300);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool is_trained(const std::string& name) { return name.starts_with("blocks.2.") && !name.ends_with(".bias"); }

/// What is frozen has the bits of the base, and all else moved.
void expect_frozen(const Weights& found) {
  const Weights base = shared().model("base");
  ASSERT_EQ(found.size(), base.size());
  for (const auto& [name, values] : base) EXPECT_EQ(same_bits(found.at(name), values), !is_trained(name)) << name;
}

constexpr const char* kLayouts[] = {
    "dp_shard=2",
    "dp_shard=2 --plan.recompute all --plan.prefetch 0",
    "dp_shard=2 --plan.parameters host --plan.states host --plan.gradients host",
    "dp_shard=2 --plan.activations offload --plan.update in_backward --train.clip_norm 0",
    "dp_replicate=2 --plan.strategy two_level --train.micro_batch 1",
    "dp_replicate=2 --plan.strategy no_shard --plan.update just_in_time",
    "sp=2 --plan.recompute 2",
    "cp=2 --train.micro_batch 1",
    "tp=2",
    "pp=2 --plan.pipeline 1f1b --train.micro_batch 1",
    "pp=2 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2 --plan.pipeline interleaved --plan.chunks 2 --train.micro_batch 1",
    "pp=4 --train.micro_batch 1 --plan.recompute all"};

const Arguments kPart = {"--train.only", "blocks.2", "--train.freeze", "bias"};

TEST(TrainedParts, WhatIsFrozenKeepsItsBitsOnEveryLayout) {
  const Result one = train(1, "one", kPart);
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_NE(one.output.find("; trains "), std::string::npos) << one.output;
  expect_frozen(shared().model("one"));
  MatrixPart part("parts", std::size(kLayouts));
  for (const int i : part) {
    const Layout layout = layout_of(kLayouts[i]);
    const bool unclipped = layout.text.find("clip_norm") != std::string::npos;
    if (unclipped)
      ASSERT_EQ(
          train(1, "one-unclipped", {"--train.only", "blocks.2", "--train.freeze", "bias", "--train.clip_norm", "0"})
              .code,
          0);
    Arguments flags = kPart;
    flags.insert(flags.end(), layout.flags.begin(), layout.flags.end());
    const std::string name = "layout-" + std::to_string(i);
    const Result r = train(layout.ranks, name, flags);
    ASSERT_EQ(r.code, 0) << layout.text << "\n" << r.output;
    SCOPED_TRACE(layout.text);
    expect_frozen(shared().model(name));
    expect_same_curve(shared().metrics(unclipped ? "one-unclipped" : "one"), shared().metrics(name), kSteps);
    expect_planned_peaks(shared().metrics(name).back(), name);
    fs::remove_all(shared().out(name));
  }
}

/// No gradient, no state and no backward for what is not trained; a checkpoint and an export have all of it.
TEST(TrainedParts, CostNothingAndAreSaved) {
  ASSERT_EQ(train(1, "whole", {}).code, 0);
  ASSERT_EQ(train(1, "small",
                  {"--train.only", "blocks.2", "--train.freeze", "bias", "--checkpoint.every", "4",
                   "--checkpoint.export", "model"})
                .code,
            0);
  const auto bytes = [](const std::string& run, const char* part) {
    return shared().metrics(run)[1]["ranks"][0]["bytes"][part].get<int64_t>();
  };
  EXPECT_LT(bytes("small", "states") * 3, bytes("whole", "states"));
  EXPECT_LT(bytes("small", "gradients") * 3, bytes("whole", "gradients"));
  std::set<std::string> params, states;
  const auto manifest = json_of(fs::path(shared().out("small")) / "checkpoints/step-000004/manifest.json");
  for (const auto& tensor : manifest["tensors"])
    (tensor["kind"] == "param" ? params : states).insert(tensor["name"].get<std::string>());
  const Weights base = shared().model("base");
  EXPECT_EQ(params.size(), base.size());
  for (const std::string& name : states) EXPECT_TRUE(is_trained(name)) << name;
  const auto exported = shared().tessera({"inspect", "--json", shared().out("small") + "/exports/step-000004"});
  EXPECT_EQ(exported.code, 0) << exported.output;

  const fs::path lines = shared().folder() / "lines.jsonl";
  Arguments plan = {"plan", shared().recipe(), "--schedule", lines.string()};
  const Arguments flags = parts(kPart);
  plan.insert(plan.end(), flags.begin(), flags.end());
  const Result planned = shared().tessera(plan);
  ASSERT_EQ(planned.code, 0) << planned.output;
  std::set<std::string> backward, forward;
  for (const std::string& line : lines_of(lines)) {
    const auto in = nlohmann::json::parse(line);
    if (in["phase"] == "train" && in["op"] == "backward") backward.insert(in["unit"].get<std::string>());
    if (in["phase"] == "train" && in["op"] == "forward") forward.insert(in["unit"].get<std::string>());
  }
  EXPECT_EQ(backward, (std::set<std::string>{"blocks.2", "blocks.3", "head"}));
  EXPECT_EQ(forward.size(), 6U);
  EXPECT_EQ(shared().tessera({"plan", "--check", lines.string()}).code, 0);
}

TEST(TrainedParts, GoOnOnAnotherLayout) {
  ASSERT_EQ(train(1, "one", kPart).code, 0);
  Arguments half = kPart;
  half.insert(half.end(), {"--run.steps", "5", "--mesh", "tp=2"});
  ASSERT_EQ(train(2, "cut", half).code, 0);
  Arguments rest = kPart;
  rest.insert(rest.end(), {"--mesh", "dp_shard=2"});
  const Result r = train(2, "cut", rest);
  ASSERT_EQ(r.code, 0) << r.output;
  expect_same_curve(shared().metrics("one"), shared().metrics("cut"), kSteps);
  expect_frozen(shared().model("cut"));
  const Result other = train(1, "cut", {"--train.only", "blocks.3", "--run.steps", "12"});
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("train.only"), std::string::npos) << other.output;
}

/// What is trained beside frozen weights of the same linears and norms gets the gradient that it has among all.
TEST(TrainedParts, OneStepOfAPartIsThatOfTheWhole) {
  const Arguments once = {"--run.steps", "1", "--train.clip_norm", "0", "--train.eps", "1e-3", "--train.lr", "1e-2"};
  const auto step = [&](int ranks, const std::string& name, Arguments more) {
    more.insert(more.end(), once.begin(), once.end());
    const Result r = train(ranks, name, std::move(more));
    EXPECT_EQ(r.code, 0) << r.output;
    return shared().model(name);
  };
  const Weights base = shared().model("base"), whole = step(1, "step-whole", {});
  int at = 0;
  for (const char* only : {"bias", "norm3.weight,head.head.bias", "ffn.0.weight,ffn.2.bias"})
    for (const char* mesh : {"dp_shard=1", "tp=2"}) {
      const Weights part =
          step(layout_of(mesh).ranks, "step-" + std::to_string(++at), {"--train.only", only, "--mesh", mesh});
      int trained = 0;
      for (const auto& [name, values] : base) {
        if (same_bits(part.at(name), values)) continue;
        ++trained;
        double difference = 0, move = 0, largest = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          difference = std::max<double>(difference, std::abs(part.at(name)[i] - whole.at(name)[i]));
          move = std::max<double>(move, std::abs(whole.at(name)[i] - values[i]));
          largest = std::max<double>(largest, std::abs(values[i]));
        }
        EXPECT_LE(difference, 1e-5 * move + 1e-7 * largest) << only << " on " << mesh << ": " << name;
      }
      EXPECT_GE(trained, 5) << only;
    }
}

TEST(TrainedParts, AMistakeIsToldBeforeAnythingElse) {
  const auto refused = [](Arguments more, const std::string& says) {
    const Result r = train(1, "refused", std::move(more));
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(says), std::string::npos) << r.output;
  };
  refused({"--train.only", "block.2"}, "did you mean \"blocks.2\"?");
  refused({"--train.freeze", "blocks,head,*embedding*,*projection*"}, "nothing of the model is left");
  refused({"--train.group", "norm_q lr=1e-4 lr_factor=2"}, "lr and lr_factor");
  refused({"--train.group", "norm_q speed=2"}, "unknown key 'speed'");
  refused({"--train.group", "norm_qq lr=1e-4"}, "did you mean \"norm_q\"?");
  refused({"--train.optimizer", "prodigy", "--train.group", "norm_q lr=1e-4"}, "finds one for all");
}

/// A group of rate 0 is frozen; others move by their own rate.
TEST(ParameterGroups, HaveARateOfTheirOwnOnEveryLayout) {
  std::ofstream(shared().folder() / "groups.toml") << text_of(shared().recipe()) << R"(
[[train.group]]
match = "blocks.0"
lr = 0
[[train.group]]
match = "blocks.*.ffn"
lr = 1e-7
weight_decay = 0
[[train.group]]
match = "head"
lr_factor = 3
)";
  const auto run = [&](int ranks, const std::string& name, Arguments more) {
    Arguments command = {"launch",
                         "-n",
                         std::to_string(ranks),
                         "train",
                         (shared().folder() / "groups.toml").string(),
                         "--run.out",
                         shared().out(name)};
    const Arguments flags = parts(std::move(more));
    command.insert(command.end(), flags.begin(), flags.end());
    const Result r = shared().tessera(command, 300);
    EXPECT_EQ(r.code, 0) << r.output;
  };
  run(1, "grouped", {});
  run(2, "grouped-two", {"--mesh", "dp_shard=2", "--plan.states", "host"});
  expect_same_curve(shared().metrics("grouped"), shared().metrics("grouped-two"), kSteps);
  const Weights base = shared().model("base"), found = shared().model("grouped");
  const auto move = [&](const std::string& name) {
    double most = 0;
    for (size_t i = 0; i < base.at(name).size(); ++i)
      most = std::max<double>(most, std::abs(found.at(name)[i] - base.at(name)[i]));
    return most;
  };
  EXPECT_EQ(move("blocks.0.self_attn.q.weight"), 0);
  EXPECT_EQ(move("blocks.0.ffn.0.weight"), 0) << "the first group that matches holds";
  EXPECT_GT(move("blocks.1.ffn.0.weight"), 0);
  EXPECT_LT(move("blocks.1.ffn.0.weight"), 1e-5);
  EXPECT_GT(move("blocks.1.self_attn.q.weight"), 1e-3);
  EXPECT_GT(move("head.head.weight"), move("blocks.1.self_attn.q.weight"));
}

}  // namespace
}  // namespace tessera::testing
