// Products in 8 bits in a run: a curve of 500 steps beside that of bf16, what a stop and a resume leave as it was, what the program says of
// them, and what it refuses.
#include <gtest/gtest.h>

#include "planned_memory.h"
#include "program.h"

namespace tessera::testing {
namespace {

using Flags = std::vector<std::string>;

const TinyRun& shared() {
  static const TinyRun run("eight-bits");
  return run;
}

void train(int ranks, const std::string& name, const Flags& flags) {
  const Result r = shared().train(ranks, name, flags, 600);
  ASSERT_EQ(r.code, 0) << r.output;
}

Flags in(const std::string& type, Flags more) {
  more.insert(more.end(), {"--plan.compute_dtype", type});
  return more;
}

/// The mean loss of each hundred steps.
std::vector<double> means(const std::string& name) {
  const auto losses = shared().losses(name);
  std::vector<double> means;
  for (size_t first = 0; first + 100 <= losses.size(); first += 100) {
    double sum = 0;
    for (size_t i = first; i < first + 100; ++i) sum += losses[i];
    means.push_back(sum / 100);
  }
  return means;
}

/// docs/precision.md says the bound. That fp8 differs at all says that it is really computed in.
TEST(ProductsIn8Bits, FollowTheCurveOfBf16Over500Steps) {
  const Flags flags = {"--run.steps", "500", "--train.lr", "1e-3"};
  train(1, "bf16", in("bf16", flags));
  train(1, "fp8", in("fp8", flags));
  const std::vector<double> sixteen = means("bf16"), eight = means("fp8");
  ASSERT_EQ(sixteen.size(), 5u);
  ASSERT_EQ(eight.size(), 5u);
  EXPECT_LT(sixteen[4], 0.9 * sixteen[0]) << "it learns";
  for (size_t i = 0; i < 5; ++i) {
    std::printf("steps %zu to %zu: %.5f, in fp8 %.5f\n", 100 * i, 100 * i + 100, sixteen[i], eight[i]);
    EXPECT_NEAR(eight[i] / sixteen[i], 1, 0.03) << "hundred " << i;
    EXPECT_NE(eight[i], sixteen[i]);
  }
}

TEST(ProductsIn8Bits, ResumeToTheSameBits) {
  train(2, "whole", in("fp8", {"--run.steps", "6", "--checkpoint.every", "3"}));
  train(2, "parts", in("fp8", {"--run.steps", "3", "--checkpoint.every", "3"}));
  train(2, "parts", in("auto", {"--run.steps", "6", "--checkpoint.every", "3"}));  // it keeps what the run computed in
  EXPECT_EQ(shared().losses("whole"), shared().losses("parts"));
  EXPECT_EQ(shared().model("whole"), shared().model("parts"));
}

/// Counted in steps 1 and 51 alone, of all ranks, whether these share the samples, the tokens, the columns or the blocks; and
/// it changes nothing: other steps do not count. Values of a model this small are too alike to lose more than a few; that
/// those that do are counted is tested of the kernels (ops, cuda) and of the step's numbers (engine).
TEST(ProductsIn8Bits, CountWhatTheirCodesLose) {
  train(1, "counted", in("fp8", {"--run.steps", "52", "--train.lr", "1e-3"}));
  std::vector<int64_t> steps;
  for (const nlohmann::json& line : shared().metrics("counted"))
    if (line.contains("fp8")) {
      steps.push_back(line.at("step").get<int64_t>());
      ASSERT_EQ(line.at("fp8").size(), 3u) << "blocks, neither stem nor head: " << line.dump();
      for (const nlohmann::json& unit : line.at("fp8")) {
        EXPECT_GE(unit.at("zeros").get<double>(), 0) << unit.dump();
        EXPECT_LT(unit.at("zeros").get<double>(), 0.01) << unit.dump();
        EXPECT_GE(unit.at("gradient_zeros").get<double>(), 0) << unit.dump();
        EXPECT_EQ(unit.at("clipped").get<double>(), 0) << unit.dump();
        EXPECT_EQ(unit.at("gradient_clipped").get<double>(), 0) << unit.dump();
      }
    }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 51}));
  const nlohmann::json one = shared().metrics("counted").front().at("fp8");
  for (const char* mesh : {"dp_shard=2", "sp=2", "cp=2", "tp=2", "pp=2"}) {
    train(2, mesh, in("fp8", {"--run.steps", "1", "--train.lr", "1e-3", "--mesh", mesh}));
    const nlohmann::json two = shared().metrics(mesh).front().at("fp8");
    ASSERT_EQ(two.size(), one.size()) << mesh;
    for (size_t u = 0; u < one.size(); ++u) {
      EXPECT_EQ(two[u].at("unit"), one[u].at("unit")) << mesh;
      EXPECT_NEAR(two[u].at("zeros").get<double>(), one[u].at("zeros").get<double>(), 1e-4) << mesh;
    }
  }
  const Result top = shared().tessera({"top", shared().out("counted"), "--once"});
  EXPECT_NE(top.output.find("% of gradients in blocks.0  step 51"), std::string::npos) << top.output;
}

Flags gathering(const std::string& form, Flags more) {
  more.insert(more.end(), {"--plan.gather", form, "--run.steps", "4", "--train.lr", "1e-3"});
  return in("fp8", std::move(more));
}

/// Codes are made of shards that cut rows anywhere: the run is that whose gathers send bf16, to the bit, on every axis over which
/// weights are shared and with every use of a gather: rows for forwards, columns for backwards, both where it recomputes or
/// its weights stay.
TEST(ProductsIn8Bits, GathersOfCodesChangeNoBitOfARun) {
  for (const auto& [ranks, flags] : std::vector<std::pair<int, Flags>>{
           {2, {"--mesh", "dp_shard=2"}},
           {3, {"--mesh", "dp_shard=3", "--train.global_batch", "3", "--plan.prefetch", "0"}},
           {4, {"--mesh", "dp_shard=4", "--train.global_batch", "4", "--plan.masters", "split"}},
           {2, {"--mesh", "dp_shard=2", "--plan.recompute", "all"}},
           {2, {"--mesh", "dp_shard=2", "--plan.strategy", "shard_grad_op", "--train.micro_batch", "1"}},
           {2, {"--mesh", "dp_shard=2", "--plan.parameters", "host", "--plan.states", "host"}},
           {4, {"--mesh", "dp_shard=2,tp=2"}},
           {4, {"--mesh", "dp_shard=2,pp=2"}},
           {2, {"--mesh", "sp=2"}},
           {2, {"--mesh", "cp=2"}},
           {4, {"--mesh", "dp_replicate=2,dp_shard=2", "--train.global_batch", "4"}},
           {4, {"--mesh", "dp_replicate=2,dp_shard=2", "--plan.strategy", "two_level", "--train.global_batch", "4"}},
           {2, {"--mesh", "dp_shard=2", "--train.mode", "lora", "--model.init", "random", "--lora.rank", "4"}}}) {
    std::string name;
    for (const std::string& flag : flags) name += flag + " ";
    SCOPED_TRACE(name);
    train(ranks, "in-bf16", gathering("bf16", flags));
    train(ranks, "in-codes", gathering("fp8", flags));
    if (HasFatalFailure()) return;
    EXPECT_EQ(shared().losses("in-bf16"), shared().losses("in-codes"));
    EXPECT_EQ(shared().model("in-bf16"), shared().model("in-codes"));
    EXPECT_NE(text_of(shared().out("in-codes") + "/plan.toml").find("gather = \"fp8\""), std::string::npos);
    expect_planned_peaks(shared().metrics("in-codes").back(), name);
    for (const char* folder : {"in-bf16", "in-codes"}) std::filesystem::remove_all(shared().out(folder));
  }
}

/// A checkpoint knows nothing of gathers: what one run left is resumed by another, on other ranks, to the bits of runs that
/// gather bf16.
TEST(ProductsIn8Bits, ARunThatGatheredCodesResumesOnAnotherLayout) {
  const auto moved = [](const std::string& name, const std::string& first, const std::string& then) {
    const Flags both = {"--train.global_batch", "4", "--checkpoint.every", "2"};
    Flags before = {"--mesh", "dp_shard=4"}, after = {"--mesh", "dp_shard=2,tp=2"};
    before.insert(before.end(), both.begin(), both.end()), after.insert(after.end(), both.begin(), both.end());
    before = gathering(first, before);
    before.insert(before.end(), {"--run.steps", "2"});
    train(4, name, before);
    train(4, name, gathering(then, after));
    ASSERT_EQ(shared().losses(name).size(), 4u);
  };
  moved("in-bf16", "bf16", "bf16");
  moved("in-codes", "fp8", "fp8");
  moved("in-both", "fp8", "bf16");
  if (HasFatalFailure()) return;
  for (const char* name : {"in-codes", "in-both"}) {
    EXPECT_EQ(shared().losses(name), shared().losses("in-bf16")) << name;
    EXPECT_EQ(shared().model(name), shared().model("in-bf16")) << name;
  }
}

TEST(ProductsIn8Bits, ARunOnACpuSaysThatItIsTheSlowTwin) {
  const Result r = shared().train(1, "told", in("fp8", {"--run.steps", "1"}), 300);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("a CPU computes, which has no products of 8 bits"), std::string::npos) << r.output;
  const std::string plan = text_of(shared().out("told") + "/plan.toml");
  EXPECT_NE(plan.find("compute_dtype = \"fp8\""), std::string::npos) << plan;
  EXPECT_NE(plan.find("param_dtype = \"bf16\""), std::string::npos) << plan;
}

/// One search: the codes are all that the same plan in bf16 does without.
TEST(ProductsIn8Bits, APlanIsToldBesideTheSameOneInBf16) {
  const Result r =
      shared().tessera({"plan", shared().recipe(), "--gpu", "1xh100", "--plan.compute_dtype", "fp8", "--json"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("with products in fp8 a step of "), std::string::npos) << r.output;
  EXPECT_NE(r.output.find(", the same plan in bf16 a step of "), std::string::npos) << r.output;
}

/// Codes of a shard are made once for all ranks, and half the bytes are sent: the plan says both times, and takes the shorter.
TEST(ProductsIn8Bits, APlanGathersWhatIsFaster) {
  const auto plan = [&](const char* form) {
    const Result r = shared().tessera({"plan", shared().recipe(), "--gpu", "8xrtx4090", "--mesh", "dp_shard=8",
                                       "--train.global_batch", "8", "--plan.compute_dtype", "fp8", "--plan.strategy",
                                       "full_shard", "--plan.gather", form, "--json"});
    EXPECT_EQ(r.code, 0) << r.output;
    return r;
  };
  const auto seconds = [&](const Result& r) {
    return nlohmann::json::parse(r.output.substr(r.output.find('{'))).at("step_seconds").at("total").get<double>();
  };
  const Result chosen = plan("auto"), sixteen = plan("bf16"), eight = plan("fp8");
  EXPECT_DOUBLE_EQ(seconds(chosen), std::min(seconds(sixteen), seconds(eight)));
  EXPECT_NE(chosen.output.find("gathers of weights in bf16 make a step of "), std::string::npos) << chosen.output;
  EXPECT_NE(chosen.output.find(", in which a rank sends "), std::string::npos) << chosen.output;
  EXPECT_EQ(sixteen.output.find("gathers codes of 8 bits"), std::string::npos);
  EXPECT_NE(eight.output.find("gathers codes of 8 bits"), std::string::npos);
}

/// One rank gathers nothing, and neither does a run whose weights are whole or stored in 8 bits.
TEST(ProductsIn8Bits, GathersOfCodesAreWarnedAboutWhereNothingIsGathered) {
  const auto told = [](const Flags& flags, const std::string& why) {
    Flags all = {"plan", shared().recipe(), "--plan.gather", "fp8"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Result r = shared().tessera(all);
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
    EXPECT_EQ(r.output.find("gathers codes of 8 bits"), std::string::npos) << r.output;
  };
  told({}, "plan.compute_dtype is not fp8");
  told(in("fp8", {}), "no rank gathers weights of another");
  told(in("fp8", {"--mesh", "dp_shard=2", "--plan.strategy", "no_shard"}), "no rank gathers weights of another");
  told(in("fp8",
          {"--mesh", "dp_shard=2", "--train.mode", "lora", "--model.init", "random", "--lora.base_dtype", "int8"}),
       "lora.base_dtype stores these weights in 8 bits already");
}

TEST(ProductsIn8Bits, AreRefusedByNameWhereTheyCannotAct) {
  const auto refused = [](const Flags& flags) {
    const Result r = shared().train(1, "refused", flags, 300);
    EXPECT_EQ(r.code, 2) << r.output;
    return r.output;
  };
  for (const auto& [profile, chip] : {std::pair("1xa100-80", "sm_80"), {"rtx3090", "sm_86"}})
    EXPECT_NE(refused(in("fp8", {"--plan.profile", profile}))
                  .find("is of " + std::string(chip) + ", which has no products of 8 bits"),
              std::string::npos);
  EXPECT_NE(refused(in("fp8", {"--train.mode", "lora", "--model.init", "random", "--lora.dora", "true"}))
                .find("lora.dora with plan.compute_dtype"),
            std::string::npos);
  EXPECT_NE(refused(in("fp8", {"--plan.param_dtype", "fp32"})).find("\"fp8\" contradicts parameters"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
