// The same loss curve on every layout; the same bits on the same layout; resume on any other.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tessera::testing
