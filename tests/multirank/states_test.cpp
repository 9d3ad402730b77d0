// Masters and moments in their several forms, trained on real ranks: split fp32 masters are fp32 masters bit for bit,
// 8-bit moments resume on any layout, and what the plan says of memory holds.
#include <gtest/gtest.h>

#include "planned_memory.h"
#include "program.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("states");
  return run;
}

using Flags = std::vector<std::string>;

/// Wide enough that most tensors have the 4096 elements from which moments are quantised.
Flags wide(Flags more) {
  Flags flags = {"--model.config.dim", "128", "--model.config.ffn_dim", "512", "--model.config.num_heads", "4"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// Loss and gradient norm of every step as they were written, 17 digits.
std::vector<std::string> curve(const std::string& name) {
  std::vector<std::string> lines;
  for (const auto& step : shared().metrics(name)) lines.push_back(step["loss"].dump() + " " + step["grad_norm"].dump());
  return lines;
}

void train(int ranks, const std::string& name, const Flags& flags) {
  const Result r = shared().train(ranks, name, flags, 300);
  ASSERT_EQ(r.code, 0) << r.output;
}

class SplitMasters : public ::testing::TestWithParam<int> {};

// Both gather the upper half, rounded half up; what the optimiser moves has all 32 bits in both.
TEST_P(SplitMasters, TrainAsFp32MastersThatAreGatheredAsBf16BitForBit) {
  const int ranks = GetParam();
  const std::string split = "split-" + std::to_string(ranks), whole = "whole-" + std::to_string(ranks);
  train(ranks, split, {"--run.steps", "20", "--plan.masters", "split"});
  train(ranks, whole, {"--run.steps", "20", "--plan.param_dtype", "bf16"});
  EXPECT_EQ(curve(split), curve(whole));
  EXPECT_EQ(shared().model(split), shared().model(whole)) << "exported weights are the joined fp32 masters";
}

INSTANTIATE_TEST_SUITE_P(, SplitMasters, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return "on" + std::to_string(info.param); });

/// Without clipping: the norm is the same sum of other parts.
void expect_two_levels_as_one(const std::string& name, int ranks, const std::string& mesh, const Flags& form) {
  Flags flags = wide({"--run.steps", "5", "--mesh", mesh, "--train.clip_norm", "0"});
  flags.insert(flags.end(), form.begin(), form.end());
  std::vector<std::string> losses[2];
  for (const bool two : {false, true}) {
    const std::string run = name + (two ? "-two" : "-one");
    Flags here = flags;
    here.insert(here.end(), {"--plan.strategy", two ? "two_level" : "full_shard"});
    train(ranks, run, here);
    for (const auto& step : shared().metrics(run)) losses[two].push_back(step["loss"].dump());
  }
  EXPECT_EQ(losses[0], losses[1]) << name;
  EXPECT_EQ(shared().model(name + "-one"), shared().model(name + "-two")) << name;
}

// Every element's gradient is summed in the same order, and its update is told by its name and place.
TEST(TwoLevels, UpdatePiecesAsOneLevelUpdatesShardsBitForBit) {
  const std::string four = "dp_replicate=2,dp_shard=2";
  expect_two_levels_as_one("pieces-32", 4, four, {"--train.micro_batch", "1"});
  expect_two_levels_as_one("pieces-split", 4, four, {"--plan.masters", "split", "--plan.moments", "int8"});
  expect_two_levels_as_one("pieces-16", 4, four, {"--plan.masters", "bf16", "--plan.moments", "bf16"});
  expect_two_levels_as_one("pieces-whole", 2, "dp_replicate=2", {"--plan.masters", "split", "--plan.states", "host"});
}

TEST(TwoLevels, RoundedPiecesLeaveNothingInTheNextStepsGradient) {
  Flags flags = wide({"--run.steps", "5", "--mesh", "dp_replicate=2", "--plan.strategy", "two_level"});
  train(2, "rounded-32", flags);
  flags.insert(flags.end(), {"--plan.reduce_dtype", "bf16"});
  train(2, "rounded-16", flags);
  const auto whole = shared().metrics("rounded-32"), rounded = shared().metrics("rounded-16");
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NE(rounded[i]["grad_norm"], whole[i]["grad_norm"]) << "nothing was rounded";
    EXPECT_NEAR(rounded[i]["grad_norm"].get<double>() / whole[i]["grad_norm"].get<double>(), 1, 2e-3) << i;
  }
}

TEST(Moments, In8BitsLearnAsFp32OnesDo) {
  train(2, "moments-8", wide({"--run.steps", "40", "--plan.moments", "int8"}));
  train(2, "moments-32", wide({"--run.steps", "40"}));
  const auto eight = shared().metrics("moments-8"), whole = shared().metrics("moments-32");
  ASSERT_EQ(eight.size(), whole.size());
  double sum8 = 0, sum32 = 0;
  for (size_t i = eight.size() - 10; i < eight.size(); ++i)
    sum8 += eight[i]["loss"].get<double>(), sum32 += whole[i]["loss"].get<double>();
  EXPECT_NEAR(sum8 / sum32, 1, 0.01);
  EXPECT_NE(curve("moments-8"), curve("moments-32"));
}

/// A run stopped half way on two ranks and finished on four, beside one that ran through on two.
void expect_resume_elsewhere(const std::string& name, const Flags& form, bool same_bits_at_once) {
  Flags flags = wide({"--run.steps", "20", "--checkpoint.every", "10"});
  flags.insert(flags.end(), form.begin(), form.end());
  train(2, name, flags);
  const auto through = shared().metrics(name);
  std::filesystem::remove_all(shared().out(name) + "/checkpoints/step-000020");
  train(4, name, flags);
  const auto moved = shared().metrics(name);
  ASSERT_EQ(moved.size(), through.size());
  for (size_t i = 10; i < moved.size(); ++i)
    EXPECT_NEAR(moved[i]["loss"].get<double>() / through[i]["loss"].get<double>(), 1, i == 10 ? 2e-6 : 2e-4) << i;
  // Back on two ranks, the same checkpoint gives the same bits as never having stopped.
  if (!same_bits_at_once) return;
  std::filesystem::remove_all(shared().out(name) + "/checkpoints/step-000020");
  train(2, name, flags);
  const auto again = shared().metrics(name);
  for (size_t i = 10; i < again.size(); ++i) EXPECT_EQ(again[i]["loss"].dump(), through[i]["loss"].dump()) << i;
}

TEST(Resume, Of8BitMomentsAndSplitMastersOnAnotherLayout) {
  expect_resume_elsewhere("resume-8", {"--plan.masters", "split", "--plan.moments", "int8"}, true);
}

TEST(Resume, OfBf16MastersAndMomentsOnAnotherLayoutRoundsByElementNotByRank) {
  expect_resume_elsewhere("resume-16", {"--plan.masters", "bf16", "--plan.moments", "bf16"}, true);
}

TEST(Resume, WithOtherMastersConvertsThemAndWithOtherMomentsIsRefused) {
  const Flags base = wide({"--run.steps", "6", "--checkpoint.every", "3"});
  train(2, "convert", base);
  const auto whole = shared().model("convert");
  std::filesystem::remove_all(shared().out("convert") + "/checkpoints/step-000003");
  Flags split = wide({"--run.steps", "7", "--checkpoint.every", "3", "--plan.masters", "split", "--train.lr", "0"});
  train(2, "convert", split);
  EXPECT_EQ(shared().model("convert"), whole) << "with a rate of 0 nothing moves, and splitting loses nothing";
  Flags eight = base;
  eight.insert(eight.end(), {"--plan.moments", "int8", "--run.steps", "9"});
  const Result refused = shared().train(2, "convert", eight);
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_NE(refused.output.find("plan.moments = \"fp32\""), std::string::npos) << refused.output;
}

TEST(Checkpoint, OfAnyMastersIsSampledFrom) {
  for (const std::string masters : {"split", "bf16"}) {
    train(1, "sampled-" + masters, {"--run.steps", "1", "--plan.masters", masters});
    const Result r = shared().tessera({"sample", shared().out("sampled-" + masters) + "/recipe.toml", "--prompt", "a",
                                       "--sample.steps", "2", "--out", (shared().folder() / "a.mp4").string()});
    EXPECT_EQ(r.code, 0) << masters << "\n" << r.output;
  }
}

TEST(Checkpoint, NamesEveryStateByItsKind) {
  train(2, "kinds", wide({"--run.steps", "2", "--plan.masters", "split", "--plan.moments", "int8"}));
  const auto manifest = json_of(shared().out("kinds") + "/checkpoints/step-000002/manifest.json");
  std::map<std::string, std::string> kinds;
  for (const auto& tensor : manifest["tensors"])
    if (tensor["name"] == "blocks.0.ffn.0.weight") kinds[tensor["kind"]] = tensor["dtype"];
  EXPECT_EQ(kinds, (std::map<std::string, std::string>{{"param", "BF16"},
                                                       {"master_low", "I16"},
                                                       {"exp_avg", "U8"},
                                                       {"exp_avg_scale", "F32"},
                                                       {"exp_avg_sq", "U8"},
                                                       {"exp_avg_sq_scale", "F32"}}));
}

struct Form {
  const char* name;
  const char* masters;
  const char* moments;
  double bytes;  ///< a parameter, gradients included
};

class StateMemory : public ::testing::TestWithParam<Form> {};

TEST_P(StateMemory, PeakIsWithinThePlanAndPersistentBytesAreThoseOfTheForm) {
  const Form form = GetParam();
  Flags flags = {"--run.steps",
                 "3",
                 "--model.config.dim",
                 "256",
                 "--model.config.ffn_dim",
                 "1024",
                 "--plan.masters",
                 form.masters,
                 "--plan.moments",
                 form.moments,
                 "--model.config.num_heads",
                 "4",
                 "--model.config.num_layers",
                 "4"};
  train(2, form.name, flags);
  double parameters = 0;
  for (const auto& [tensor, values] : shared().model(form.name)) parameters += static_cast<double>(values.size());
  const auto steps = shared().metrics(form.name);
  expect_planned_peaks(steps.back(), form.name);
  for (const auto& rank : steps.back()["ranks"]) {
    const double persistent = rank["persistent_bytes"];
    // Small tensors keep fp32 moments, and starts are padded: a little more than the formula.
    EXPECT_NEAR(persistent / (parameters * form.bytes / 2), 1, 0.04);
  }
}

INSTANTIATE_TEST_SUITE_P(, StateMemory,
                         ::testing::Values(Form{"fp32", "fp32", "fp32", 16}, Form{"split8", "split", "int8", 10.03},
                                           Form{"bf16", "bf16", "bf16", 10}, Form{"bf16x8", "bf16", "int8", 8.03}),
                         [](const auto& info) { return std::string(info.param.name); });

// Computing in 16 bits: what a step sends and takes, and the curve.

double loss_of(const nlohmann::json& step) { return step["loss"].get<double>(); }

double sent(const std::string& name) {
  double bytes = 0;
  const auto steps = shared().metrics(name);
  for (const auto& rank : steps.back()["ranks"])
    for (const auto& [axis, n] : rank["sent_bytes"].items()) bytes += n.get<double>();
  return bytes;
}

// A product of bf16 operands is off by 2^-9 of each, at random; a loss is the mean of thousands of them. One percent is
// what is left of them in a curve that falls by half.
TEST(Compute, InBf16FollowsTheCurveOfFp32AndIsTheSameOnTwoRanks) {
  const Flags steps = {"--run.steps", "16", "--train.global_batch", "2", "--train.lr", "1e-3"};
  const auto with = [&](Flags more) { return more.insert(more.end(), steps.begin(), steps.end()), more; };
  train(1, "compute-fp32", with({}));
  train(1, "compute-bf16", with({"--plan.compute_dtype", "bf16"}));
  train(2, "compute-bf16-2", with({"--plan.compute_dtype", "bf16"}));
  const auto whole = shared().metrics("compute-fp32"), half = shared().metrics("compute-bf16"),
             two = shared().metrics("compute-bf16-2");
  ASSERT_EQ(half.size(), whole.size());
  ASSERT_EQ(two.size(), whole.size());
  EXPECT_NE(curve("compute-bf16"), curve("compute-fp32"));
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(loss_of(half[i]) / loss_of(whole[i]), 1, 0.01) << "step " << i + 1;
    EXPECT_NEAR(loss_of(two[i]) / loss_of(half[i]), 1, i == 0 ? 1e-4 : 2e-3) << "step " << i + 1;
  }
}

TEST(Compute, In16BitsHalvesWhatAStepSends) {
  const Flags flags = {"--run.steps",     "3", "--plan.strategy",     "full_shard", "--plan.recompute", "none",
                       "--plan.prefetch", "1", "--train.micro_batch", "1"};
  const auto with = [&](Flags more) { return more.insert(more.end(), flags.begin(), flags.end()), more; };
  train(2, "sent-32", with({}));
  train(2, "sent-16", with({"--plan.compute_dtype", "bf16", "--plan.reduce_dtype", "bf16"}));
  train(2, "sent-gathers-16", with({"--plan.compute_dtype", "bf16"}));
  EXPECT_EQ(sent("sent-16") * 2, sent("sent-32"));
  EXPECT_LT(sent("sent-gathers-16"), sent("sent-32"));
  EXPECT_GT(sent("sent-gathers-16"), sent("sent-16"));
  // Gradients of replicas and of units that are whole on every rank go another way.
  train(2, "sent-whole-16", {"--run.steps", "3", "--plan.strategy", "no_shard", "--plan.reduce_dtype", "bf16"});
  train(2, "sent-whole-32", {"--run.steps", "3", "--plan.strategy", "no_shard"});
  EXPECT_EQ(sent("sent-whole-16") * 2, sent("sent-whole-32"));
  const auto rounded = shared().metrics("sent-whole-16"), exact = shared().metrics("sent-whole-32");
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(loss_of(rounded[i]) / loss_of(exact[i]), 1, 2e-3) << i;
}

/// Step -> loss scale it ran with; negative where it was skipped.
std::map<int64_t, double> scales(const std::string& name) {
  std::map<int64_t, double> all;
  for (const char* type : {"step", "skip"})
    for (const auto& line : shared().metrics(name, type)) {
      const double scale = line["loss_scale"];
      all[line["step"].get<int64_t>()] = std::string(type) == "skip" ? -scale : scale;
    }
  return all;
}

TEST(LossScale, HalvesWithEveryStepThatOverflowsGrowsAgainAndIsKeptByCheckpoints) {
  const Flags flags = {
      "--run.steps",        "24",         "--checkpoint.every",        "20", "--plan.compute_dtype", "fp16",
      "--train.loss_scale", "4294967296", "--train.loss_scale_window", "3"};
  train(2, "fp16", flags);
  const auto all = scales("fp16");
  ASSERT_EQ(all.size(), 24u) << "every step ran or was skipped";
  EXPECT_EQ(all.at(1), 4294967296.0) << "2^32; the head is zero at first, and so are the gradients of blocks";
  int whole = 0, steps = 0;
  for (int64_t step = 1; step < 24; ++step) {
    const double scale = all.at(step);
    whole = scale < 0 ? 0 : whole + 1;
    steps += scale > 0;
    const double next = scale < 0 ? -scale / 2 : whole == 3 ? 2 * scale : scale;
    EXPECT_EQ(std::abs(all.at(step + 1)), next) << "after step " << step;
    if (whole == 3) whole = 0;
  }
  EXPECT_GT(steps, 5) << "the scale found its place";
  EXPECT_LT(steps, 23) << "and overflowed on the way";
  // From the checkpoint on it goes as if it had not stopped.
  std::filesystem::remove_all(shared().out("fp16") + "/checkpoints/step-000024");
  train(2, "fp16", flags);
  EXPECT_EQ(scales("fp16"), all);
}

TEST(Compute, RefusesWhatItCannotHonour) {
  const auto refusal = [&](Flags flags) {
    flags.insert(flags.end(), {"--run.steps", "1"});
    const Result r = shared().train(1, "refused", flags);
    EXPECT_EQ(r.code, 2) << r.output;
    return r.output;
  };
  EXPECT_NE(refusal({"--plan.compute_dtype", "fp16", "--plan.masters", "split"}).find("gathered as \"bf16\""),
            std::string::npos);
  EXPECT_NE(refusal({"--plan.compute_dtype", "bf16", "--plan.param_dtype", "fp32"}).find("follows compute_dtype"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
