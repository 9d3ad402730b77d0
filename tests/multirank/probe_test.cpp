// What `tessera probe` measures of a machine: a whole profile, also of what the engine adds to its operators.
#include <gtest/gtest.h>

#include <cmath>

#include "program.h"
#include "tessera/plan/simulate/profile.h"

namespace tessera::testing {
namespace {

/// A short measurement: this test runs beside others, so its numbers are of a busy machine. `small`: of small sizes, for what
/// does not depend on them.
plan::Profile probed(int ranks, bool small) {
  const TinyRun run("probe" + std::to_string(ranks));
  const std::string file = run.out("machine.toml");
  std::vector<std::string> words = {"launch", "-n",       std::to_string(ranks), "probe", "--seconds",
                                    "0.001",  "--folder", run.folder().string(), "--out", file};
  if (small) words.push_back("--small");
  const Result r = run.tessera(words, /*timeout=*/600);
  EXPECT_EQ(r.code, 0) << r.output;
  return r.code == 0 ? plan::find_profile(file) : plan::Profile();
}

void expect_positive(const plan::Profile& p) {
  for (const char* op : {"forward", "recompute", "backward", "loss", "norm", "update", "release"})
    ASSERT_TRUE(p.starts.contains(op)) << op;
  for (const auto& [op, seconds] : p.starts) EXPECT_TRUE(seconds >= 0 && seconds < 1) << op << " " << seconds;
  EXPECT_GT(p.starts.at("release"), 0) << "the cost model has nothing else of it";
  for (const double value : {p.device.kept_write, p.device.kept_read, p.wake})
    EXPECT_TRUE(std::isfinite(value) && value >= 0) << value;
  EXPECT_GT(p.device.gemm.at("fp32").top, 0);
  EXPECT_TRUE(p.copy_beside > 0 && p.copy_beside <= 1) << p.copy_beside;
  for (const auto* products : {&p.device.products, &p.device.uncached_products})
    EXPECT_EQ(products->at("fp32").axes[0].front(), 1);
  EXPECT_TRUE(p.device.cached > 0 && p.device.cached < p.device.uncached);
}

TEST(Probe, OfOneRankHasWhatTheEngineAddsToEachInstruction) {
  const plan::Profile p = probed(1, /*small=*/false);
  expect_positive(p);
  EXPECT_TRUE(p.waits.empty()) << "one rank shares no tokens";
}

TEST(Probe, SecondsThatAreNoNumberAreRefused) {
  const TinyRun run("probe-seconds");
  for (const char* seconds : {"soon", "-1", "inf", ""}) {
    const Result r = run.tessera({"probe", "--seconds", seconds});
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find("expected a number, at least 0"), std::string::npos) << r.output;
  }
}

TEST(Probe, OfTwoRanksHasTheWaitOfEachCollectiveInsideUnits) {
  const plan::Profile p = probed(2, /*small=*/true);
  expect_positive(p);
  for (const char* purpose : {"tensor", "norms", "sequence", "ring"}) {
    ASSERT_TRUE(p.waits.contains(purpose)) << purpose;
    const auto& [forward, backward] = p.waits.at(purpose);
    for (const plan::WaitOf& of : {forward, backward}) {
      EXPECT_TRUE(of.start >= 0 && of.start < 1) << purpose << " " << of.start;
      EXPECT_TRUE(of.share >= 0 && of.share < 10) << purpose << " " << of.share;
    }
  }
  EXPECT_GT(p.link.gather, 0);
}

}  // namespace
}  // namespace tessera::testing
