#include "tessera/plan/search/scenario.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>

#include "tessera/base/check.h"

namespace tessera::plan {
namespace {

std::string published() {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/bench/published.toml");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Scenario small() {
  Scenario s;
  s.sizes = {.dim = 1024, .ffn_dim = 4096, .layers = 4};
  s.tokens = 4096;
  s.machine.profile = find_profile("h200");
  return s;
}

TEST(Scenario, PublishedRunsAreReadAndComparedInTheUnitOfTheirSource) {
  const auto scenarios = parse_scenarios(published(), "published.toml");
  ASSERT_GE(scenarios.size(), 5u);
  for (const Scenario& s : scenarios) {
    EXPECT_FALSE(s.source.empty()) << s.name;
    const ScenarioResult result = run(s);
    const auto compared = compare(s, result);
    ASSERT_TRUE(compared) << s.name;
    constexpr double kNear = 0.15, kSame = 0.02;
    if (s.off) {
      EXPECT_FALSE(s.note.empty()) << s.name << ": what it is off by has no explanation";
      EXPECT_GT(std::abs(*s.off), kNear) << s.name << ": near enough to need none";
    }
    EXPECT_NEAR(compared->error(), s.off.value_or(0), s.off ? kSame : kNear) << s.name;
    const StepSeconds& step = result.prediction.step;
    EXPECT_NEAR(step.compute + step.exposed_comm + step.exposed_copy + step.optimizer, step.total, 1e-6 * step.total);
  }
}

TEST(Scenario, AttentionByFlashTakesFlashsRates) {
  const auto of = [](const char* flash, const char* profile) {
    const std::string text =
        std::string("[[run]]\nname = \"x\"\ndim = 1024\nffn_dim = 4096\nlayers = 4\ntokens = 65536\n") +
        "profile = \"" + profile + "\"\nflash = " + flash + "\n";
    return run(parse_scenarios(text, "x.toml").front()).seconds;
  };
  EXPECT_EQ(of("true", "1xa100-80"), of("false", "1xa100-80")) << "no other kernel is known there";
  const Profile h100 = find_profile("1xh100");
  const auto rate = [&](const char* dtype) {
    return 4.0 * 65536 * 65536 * 1024 * 4 / h100.device.attention.at(dtype).top;
  };
  EXPECT_GT(of("true", "1xh100") - of("false", "1xh100"), rate("bf16") - rate("bf16_cudnn"))
      << "the backward differs too";
}

TEST(Scenario, AThousandRanksOfWan14BTakeUnderASecond) {
  Scenario s;
  s.sizes = {.dim = 5120, .ffn_dim = 13824, .layers = 40, .text_tokens = 512};
  s.tokens = 32760;
  s.mesh = Mesh::parse("dp_replicate=128,dp_shard=8");
  s.global_batch = 1024;
  s.machine.profile = find_profile("h200");
  const auto start = std::chrono::steady_clock::now();
  const ScenarioResult result = run(s);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1.0);
  ASSERT_EQ(result.prediction.groups.size(), 1u);
  EXPECT_EQ(result.prediction.groups[0].ranks, 1024);
  EXPECT_GT(result.teraflops, 300);
}

TEST(Scenario, FlopsOfABlockAreThoseOfItsSizes) {
  Scenario s = small();
  const ModelSpec model = model_of(s);
  const double t = 4096, d = 1024, f = 4096;
  EXPECT_NEAR(model.units[1].cost.forward_flops, 2 * t * (4 * d * d + 2 * d * f) + 4 * t * t * d, 1);
  EXPECT_EQ(model.units[1].params[0].numel(), 4 * 1024 * 1024 + 2 * 1024 * 4096);
  s.mesh = Mesh::parse("sp=2,tp=2");
  EXPECT_NEAR(model_of(s).units[1].cost.forward_flops * 4, model.units[1].cost.forward_flops, 1);
}

TEST(Scenario, FrozenWeightsHaveOneProductInBackward) {
  Scenario s = small();
  const double full = run(s).seconds;
  s.frozen = true;
  EXPECT_LT(run(s).seconds, 0.85 * full);
}

TEST(Scenario, RefusalsNameFileRunAndKey) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_scenarios(text, "s.toml");
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(
      refusal("[[run]]\nname = \"a\"\nlayer = 3").find("s.toml: run 1 (a): layer: unknown key; did you mean layers?"),
      std::string::npos);
  EXPECT_NE(refusal("[[run]]\ndim = 4").find("ffn_dim: expected a number above zero"), std::string::npos);
  EXPECT_NE(refusal("x = 1").find("no [[run]] table"), std::string::npos);
}

}  // namespace
}  // namespace tessera::plan
