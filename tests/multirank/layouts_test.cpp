// The same loss curve on every layout; the same bits on the same layout; resume on any other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "program.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("layouts");
  return run;
}

constexpr int kSteps = 100;

const std::vector<nlohmann::json>& curve(const std::string& name, int ranks,
                                         const std::vector<std::string>& more = {}) {
  static std::map<std::string, std::vector<nlohmann::json>> known;
  if (!known.count(name)) {
    std::vector<std::string> flags = {"--run.steps", std::to_string(kSteps)};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = shared().train(ranks, name, flags, 300);
    EXPECT_EQ(r.code, 0) << r.output;
    known[name] = shared().metrics(name);
  }
  return known[name];
}

void expect_same_curve(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b) {
  ASSERT_EQ(a.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(b.size(), a.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(a[i]["loss"].get<double>() / b[i]["loss"].get<double>() - 1));
  EXPECT_LE(worst, 2e-6) << "relative difference of the loss over " << kSteps << " steps";
}

/// Final weights: within 5e-5 of each tensor's largest value and 1e-3 of its move.
void expect_same_weights(const std::string& a, const std::string& b) {
  const auto one = shared().model(a), other = shared().model(b), start = shared().model("start");
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, values] : one) {
    double difference = 0, largest = 0, move = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference = std::max<double>(difference, std::abs(values[i] - other.at(name)[i]));
      largest = std::max<double>(largest, std::abs(values[i]));
      move = std::max<double>(move, std::abs(values[i] - start.at(name)[i]));
    }
    EXPECT_LE(difference, 5e-5 * largest) << name;
    EXPECT_LE(difference, 1e-3 * move) << name;
  }
}

void make_start() {
  static const bool once = [] {
    const Result r = shared().train(1, "start", {"--run.steps", "1", "--train.lr", "0"});
    EXPECT_EQ(r.code, 0) << r.output;
    return true;
  }();
  (void)once;
}

std::vector<std::string> exact(const std::vector<nlohmann::json>& steps, size_t from = 0) {
  std::vector<std::string> lines;
  for (size_t i = from; i < steps.size(); ++i)
    lines.push_back(steps[i]["step"].dump() + " " + steps[i]["loss"].dump() + " " + steps[i]["grad_norm"].dump() + " " +
                    steps[i]["lr"].dump());
  return lines;
}

TEST(Layouts, TwoRanksEqualOneRank) {
  make_start();
  expect_same_curve(curve("one", 1), curve("two", 2));
  expect_same_weights("one", "two");
}

TEST(Layouts, FourRanksEqualOneRank) {
  make_start();
  expect_same_curve(curve("one", 1), curve("four", 4));
  expect_same_weights("one", "four");
}

TEST(Layouts, ReplicasOfShardsEqualOneRank) {
  make_start();
  expect_same_curve(curve("one", 1), curve("hybrid", 4, {"--mesh", "dp_replicate=2,dp_shard=2"}));
  expect_same_weights("one", "hybrid");
}

TEST(Layouts, MicroBatchesRecomputeAndPrefetchChangeNothing) {
  expect_same_curve(curve("one", 1),
                    curve("micro", 2, {"--train.micro_batch", "1", "--plan.recompute", "all", "--plan.prefetch", "0"}));
}

TEST(Layouts, AGlobalBatchThatRanksCannotShareEvenlyEqualsOneRank) {
  const std::vector<std::string> three = {"--train.global_batch", "3"};
  expect_same_curve(curve("three-on-one", 1, three), curve("three-on-four", 4, three));
}

/// A pipeline: its mesh, how stages take turns, and what else is different.
struct Stages {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
};

class Pipelines : public ::testing::TestWithParam<Stages> {};

TEST_P(Pipelines, EqualOneRank) {
  make_start();
  const std::string name = std::string("pipeline-") + GetParam().name;
  std::vector<std::string> flags = {"--train.micro_batch", "1"};
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  expect_same_curve(curve("one", 1), curve(name, GetParam().ranks, flags));
  expect_same_weights("one", name);
}

INSTANTIATE_TEST_SUITE_P(
    , Pipelines,
    ::testing::Values(
        Stages{"gpipe", 2, {"--mesh", "pp=2", "--plan.pipeline", "gpipe"}},
        Stages{"1f1b", 2, {"--mesh", "pp=2", "--plan.pipeline", "1f1b", "--plan.recompute", "1"}},
        Stages{"interleaved", 2, {"--mesh", "pp=2", "--plan.pipeline", "interleaved", "--plan.chunks", "2"}},
        Stages{"zero_bubble", 2, {"--mesh", "pp=2", "--plan.pipeline", "zero_bubble"}},
        Stages{"shards",
               4,
               {"--mesh", "pp=2,dp_shard=2", "--plan.pipeline", "zero_bubble", "--plan.strategy", "full_shard"}},
        Stages{"replicas", 4, {"--mesh", "pp=2,dp_replicate=2", "--plan.prefetch", "0"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Layouts, TheSameLayoutTwiceIsBitIdentical) {
  const Result r = shared().train(2, "two-again", {"--run.steps", std::to_string(kSteps)}, 300);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(exact(curve("two", 2)), exact(shared().metrics("two-again")));
  EXPECT_EQ(shared().model("two"), shared().model("two-again"));
}

TEST(Layouts, SixtyStepsEqualThirtyAndThirtyAfterAResume) {
  ASSERT_EQ(shared().train(2, "sixty", {"--run.steps", "60", "--train.warmup_steps", "5"}, 300).code, 0);
  // The schedule spans the whole run, so the first half is told where the end is by stopping at a checkpoint.
  ASSERT_EQ(shared()
                .train(2, "halves", {"--run.steps", "60", "--train.warmup_steps", "5", "--checkpoint.every", "30"}, 300)
                .code,
            0);
  std::filesystem::remove_all(shared().out("halves") + "/checkpoints/step-000060");
  const Result resumed =
      shared().train(2, "halves", {"--run.steps", "60", "--train.warmup_steps", "5", "--checkpoint.every", "30"}, 300);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from"), std::string::npos) << resumed.output;
  EXPECT_EQ(exact(shared().metrics("sixty")), exact(shared().metrics("halves")));
  EXPECT_EQ(shared().model("sixty"), shared().model("halves"));
}

TEST(Layouts, ResumeOnAnotherLayoutKeepsTheCurve) {
  make_start();
  ASSERT_EQ(shared().train(2, "moved", {"--run.steps", "100", "--checkpoint.every", "50"}, 300).code, 0);
  std::filesystem::remove_all(shared().out("moved") + "/checkpoints/step-000100");
  const Result resumed = shared().train(4, "moved", {"--run.steps", "100", "--checkpoint.every", "50"}, 300);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  expect_same_curve(curve("one", 1), shared().metrics("moved"));
  expect_same_weights("one", "moved");
}

struct Layout {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

/// Twenty steps on one rank, and where they began.
const Layout kOneRank = {"one-of-twenty", 1, {}};

/// Ranks that share the tokens of a sample. The three samples of a micro-batch are cut wherever the shares end.
const std::vector<Layout> kSequenceLayouts = {
    {"ulysses", 2, {"--mesh", "sp=2"}},
    {"ring", 2, {"--mesh", "cp=2"}},
    {"ring-of-three", 3, {"--mesh", "cp=3"}},  // tokens that three do not divide
    {"ring-of-four-recomputed", 4, {"--mesh", "cp=4", "--plan.recompute", "all"}},
    {"ulysses-in-ring", 4, {"--mesh", "cp=2,sp=2"}},
    {"ulysses-accumulating", 2, {"--mesh", "sp=2", "--train.micro_batch", "1", "--plan.recompute", "2"}},
    {"ulysses-sharded", 4, {"--mesh", "dp_shard=2,sp=2", "--plan.recompute", "all", "--plan.prefetch", "2"}},
    {"ring-offloaded", 2, {"--mesh", "cp=2", "--plan.activations", "offload"}},
    {"ring-replicated", 4, {"--mesh", "dp_replicate=2,cp=2", "--plan.strategy", "no_shard"}},
    {"ulysses-away", 2, {"--mesh", "sp=2", "--plan.states", "host", "--plan.gradients", "host"}},
    {"all", 8, {"--mesh", "dp_shard=2,cp=2,sp=2", "--plan.recompute", "1"}},
};

/// Ranks that share the features of linears, alone and with every other axis.
const std::vector<Layout> kTensorLayouts = {
    {"tensor", 2, {"--mesh", "tp=2"}},
    {"tensor-recomputed", 2, {"--mesh", "tp=2", "--plan.recompute", "all", "--train.micro_batch", "1"}},
    {"tensor-sharded", 4, {"--mesh", "dp_shard=2,tp=2", "--plan.recompute", "1"}},
    {"tensor-replicated", 4, {"--mesh", "dp_replicate=2,tp=2", "--plan.strategy", "no_shard"}},
    {"tensor-ulysses", 4, {"--mesh", "sp=2,tp=2"}},
    {"tensor-ring", 4, {"--mesh", "cp=2,tp=2", "--plan.activations", "offload"}},
    {"tensor-away", 2, {"--mesh", "tp=2", "--plan.states", "host", "--plan.gradients", "host"}},
};

class SequenceLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(SequenceLayouts, EqualOneRankInMemoryThatWasPredicted) {
  make_start();
  const auto run = [](const Layout& layout) {
    static std::map<std::string, std::vector<nlohmann::json>> known;
    if (!known.contains(layout.name)) {
      std::vector<std::string> flags = {"--run.steps", "20", "--train.global_batch", "3"};
      flags.insert(flags.end(), layout.flags.begin(), layout.flags.end());
      const Result r = shared().train(layout.ranks, layout.name, flags, 300);
      EXPECT_EQ(r.code, 0) << r.output;
      known[layout.name] = shared().metrics(layout.name);
    }
    return known[layout.name];
  };
  const auto one = run(kOneRank), here = run(GetParam());
  ASSERT_EQ(here.size(), 20u);
  for (size_t i = 0; i < here.size(); ++i)
    EXPECT_NEAR(here[i]["loss"].get<double>() / one[i]["loss"].get<double>(), 1, 2e-6) << "step " << i + 1;
  expect_same_weights(kOneRank.name, GetParam().name);
  for (const auto& rank : here.back()["ranks"])
    EXPECT_LE(rank["peak_bytes"].get<double>(), rank["predicted_peak_bytes"].get<double>());
  // A group of one sends nothing; every other axis does.
  const std::string& mesh = GetParam().flags[1];
  for (const auto& [axis, bytes] : here.back()["ranks"][0]["sent_bytes"].items()) {
    EXPECT_NE(mesh.find(axis + "="), std::string::npos) << axis;
    EXPECT_GT(bytes.get<int64_t>(), 0) << axis;
  }
}

INSTANTIATE_TEST_SUITE_P(Tensor, SequenceLayouts, ::testing::ValuesIn(kTensorLayouts), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

INSTANTIATE_TEST_SUITE_P(, SequenceLayouts, ::testing::ValuesIn(kSequenceLayouts), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(SequenceParallel, HeadsThatSpDoesNotDivideAreRefusedWithTheNearestValues) {
  const Result r = shared().train(3, "three-heads", {"--mesh", "sp=3", "--run.steps", "1"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("sp = 3 does not divide the model's 4 heads"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("sp = 2"), std::string::npos) << r.output;
}

TEST(Layouts, PipelinesResumeOnLayoutsWithoutOneAndBack) {
  make_start();
  const std::vector<std::string> flags = {"--run.steps", "100", "--checkpoint.every", "50"};
  const auto half = [&](const std::string& name, int ranks, std::vector<std::string> mesh) {
    mesh.insert(mesh.end(), flags.begin(), flags.end());
    const Result r = shared().train(ranks, name, mesh, 300);
    ASSERT_EQ(r.code, 0) << r.output;
  };
  const std::vector<std::string> pipeline = {"--mesh", "pp=2", "--train.micro_batch", "1"};
  for (const bool back : {false, true}) {
    const std::string name = back ? "into-pipeline" : "out-of-pipeline";
    half(name, 2, back ? std::vector<std::string>{} : pipeline);
    std::filesystem::remove_all(shared().out(name) + "/checkpoints/step-000100");
    half(name, 2, back ? pipeline : std::vector<std::string>{});
    expect_same_curve(curve("one", 1), shared().metrics(name));
    expect_same_weights("one", name);
  }
}

}  // namespace
}  // namespace tessera::testing
