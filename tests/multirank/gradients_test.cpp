// Gradients that rest in bf16 (plan.grad_dtype), trained on real ranks: the same bits wherever they rest and whenever
// they are used, near what fp32 gives, in half the bytes.
#include <gtest/gtest.h>

#include "planned_memory.h"
#include "program.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("gradients");
  return run;
}

using Flags = std::vector<std::string>;

/// Wide enough that gradients are most of what the form of anything changes.
Flags with(Flags more) {
  Flags flags = {"--run.steps",
                 "4",
                 "--model.config.dim",
                 "256",
                 "--model.config.ffn_dim",
                 "1024",
                 "--model.config.num_heads",
                 "4",
                 "--plan.grad_dtype",
                 "bf16"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// Loss and gradient norm of every step, after its peak was held against the plan's.
std::vector<std::string> train(int ranks, const std::string& name, const Flags& flags) {
  const Result r = shared().train(ranks, name, flags, 300);
  EXPECT_EQ(r.code, 0) << name << "\n" << r.output;
  std::vector<std::string> curve;
  const auto steps = shared().metrics(name);
  for (const auto& step : steps) curve.push_back(step["loss"].dump() + " " + step["grad_norm"].dump());
  if (!steps.empty()) expect_planned_peaks(steps.back(), name);
  return curve;
}

double of(const nlohmann::json& step, const char* key) { return step[key].get<double>(); }

TEST(GradientsInBf16, GiveTheSameBitsWhereverTheyRestAndWheneverTheyAreUsed) {
  const auto expected = train(2, "end", with({"--plan.update", "end", "--plan.strategy", "full_shard"}));
  ASSERT_EQ(expected.size(), 4u);
  const std::pair<const char*, Flags> ways[] = {
      {"in-time", {"--plan.update", "just_in_time", "--plan.states", "host"}},
      {"host", {"--plan.update_on", "host", "--plan.update", "just_in_time", "--plan.update_threads", "2"}}};
  for (const auto& [name, flags] : ways) {
    EXPECT_EQ(train(2, name, with(flags)), expected) << name;
    EXPECT_TRUE(shared().model(name) == shared().model("end")) << name << ": the weights differ";
    EXPECT_EQ(shared().tessera({"plan", "--check", shared().out(name) + "/schedule.jsonl"}).code, 0) << name;
  }
}

// Where nothing clips an update may come in the backward, and its gradient is rounded there too.
TEST(GradientsInBf16, AreRoundedAlikeWhereTheBackwardUsesThemUp) {
  const auto expected = train(2, "unclipped", with({"--train.clip_norm", "0", "--plan.update", "end"}));
  EXPECT_EQ(train(2, "used-up", with({"--train.clip_norm", "0", "--plan.update", "in_backward"})), expected);
}

// Each element is off by at most 2^-9 of itself: norms by far less, since errors of both signs meet.
TEST(GradientsInBf16, FollowTheCurveOfFp32InHalfTheBytes) {
  for (const auto& [name, more] :
       {std::pair<std::string, Flags>{"once", {}},
        {"thrice", {"--train.global_batch", "6", "--train.micro_batch", "1"}},
        {"adapters",
         {"--train.mode", "lora", "--lora.rank", "16", "--model.path", shared().out("once-32") + "/model"}}}) {
    Flags fp32 = with(more);
    fp32.insert(fp32.end(), {"--plan.grad_dtype", "fp32"});
    train(2, name + "-32", fp32);
    train(2, name + "-16", with(more));
    const auto exact = shared().metrics(name + "-32"), rounded = shared().metrics(name + "-16");
    ASSERT_EQ(rounded.size(), exact.size());
    EXPECT_NE(of(rounded[0], "grad_norm"), of(exact[0], "grad_norm")) << name << ": nothing was rounded";
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(of(rounded[i], "grad_norm") / of(exact[i], "grad_norm"), 1, 2e-3) << name << ", step " << i + 1;
      EXPECT_NEAR(of(rounded[i], "loss") / of(exact[i], "loss"), 1, 2e-3) << name << ", step " << i + 1;
    }
    const auto &before = exact.back()["ranks"][0], &after = rounded.back()["ranks"][0];
    if (name == "adapters") continue;  // their base is most of what rests
    EXPECT_NEAR(of(after, "persistent_bytes") / of(before, "persistent_bytes"), 14.0 / 16, 1e-3) << name;
  }
}

// Other ranks sum in another order, and what then falls on the other side of a tie is off by one bit of bf16.
TEST(GradientsInBf16, ResumeOnTheSameRanksToTheBitAndOnOthersWithinRounding) {
  const Flags flags = with({"--run.steps", "8", "--checkpoint.every", "4", "--train.global_batch", "4"});
  const auto through = train(2, "resumed", flags);
  const auto whole = shared().metrics("resumed");
  for (const int ranks : {4, 2}) {
    std::filesystem::remove_all(shared().out("resumed") + "/checkpoints/step-000008");
    const auto again = train(ranks, "resumed", flags);
    if (ranks == 2) EXPECT_EQ(again, through);
    const auto other = shared().metrics("resumed");
    ASSERT_EQ(other.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(of(other[i], "loss") / of(whole[i], "loss"), 1, 4e-4) << i;
  }
}

// What two units have in flight is fp32: the more units there are, the more is saved.
TEST(GradientsInBf16, AreNamedByAPlanThatDoesNotFitWithoutThem) {
  const auto plan = [&](const std::string& budget, const char* type) {
    return shared().tessera({"plan", shared().recipe(), "--model.config.dim", "256", "--model.config.ffn_dim", "1024",
                             "--model.config.num_heads", "4", "--model.config.num_layers", "12", "--plan.host_budget",
                             "0", "--plan.budget", budget, "--plan.grad_dtype", type});
  };
  const auto smallest = [&](const char* type) {
    const std::string text = plan("1MiB", type).output, before = "the smallest plan needs ";
    return std::stod(text.substr(text.find(before) + before.size()));
  };
  const std::string between = std::to_string((smallest("fp32") + smallest("bf16")) / 2) + "MiB";
  EXPECT_EQ(plan(between, "bf16").code, 0);
  const Result r = plan(between, "fp32");
  EXPECT_EQ(r.code, 4);
  EXPECT_NE(r.output.find("plan.grad_dtype = bf16"), std::string::npos) << r.output;
}

TEST(GradientsInBf16, AreSaidToSaveNothingWhereNoneRests) {
  const auto plan = [&](const char* when) {
    return shared().tessera(
        {"plan", shared().recipe(), "--train.clip_norm", "0", "--plan.grad_dtype", "bf16", "--plan.update", when});
  };
  EXPECT_NE(plan("in_backward").output.find("saves nothing"), std::string::npos);
  EXPECT_EQ(plan("end").output.find("saves nothing"), std::string::npos);
}

TEST(GradientsInBf16, RefuseFp16WithTheReason) {
  const Result r = shared().tessera({"plan", shared().recipe(), "--plan.grad_dtype", "fp16"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("bf16"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
