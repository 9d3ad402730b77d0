// The device tier never takes more than the plan says, and not much less.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "matrix_cases.h"
#include "planned_memory.h"
#include "program.h"
#include "tessera/base/mesh.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("memory");
  return run;
}

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
};

class Memory : public ::testing::TestWithParam<Case> {};

// Wide enough that bytes are megabytes, short enough for a test.
const std::vector<std::string> kWide = {"--run.steps",
                                        "4",
                                        "--model.config.dim",
                                        "256",
                                        "--model.config.ffn_dim",
                                        "1024",
                                        "--model.config.num_layers",
                                        "6",
                                        "--model.config.num_heads",
                                        "4"};

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

/// Trains the case, once for all that look at it.
const Result& trained(const Case& c) {
  static std::map<std::string, Result> done;
  const auto [it, is_new] = done.try_emplace(c.name);
  if (!is_new) return it->second;
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), c.flags.begin(), c.flags.end());
  return it->second = shared().train(c.ranks, c.name, flags);
}

TEST_P(Memory, PeakIsWithinTwoPercentOfThePlanAndNeverAbove) {
  const Result& r = trained(GetParam());
  ASSERT_EQ(r.code, 0) << r.output;
  const auto steps = shared().metrics(GetParam().name);
  ASSERT_EQ(steps.size(), 4u);
  expect_planned_peaks(steps.back(), GetParam().name);
}

TEST_P(Memory, PersistentBytesAreTheShareOfTheRank) {
  const std::string name = GetParam().name;
  ASSERT_EQ(trained(GetParam()).code, 0);
  int64_t parameters = 0;
  size_t tensors = 0;
  for (const auto& [tensor, values] : shared().model(name))
    parameters += static_cast<int64_t>(values.size()), ++tensors;
  // Bytes a parameter: 4 of it and 4 of its gradient on each rank of a shard group, 8 of states on every rank.
  const std::string layout = GetParam().name;
  const double each = layout == "hybrid"      ? 16.0 / 2
                      : layout == "two_level" ? 8.0 / 2 + 8.0 / 4
                      : layout == "copies"    ? 8.0 + 8.0 / 4
                                              : 16.0 / GetParam().ranks;
  const auto steps = shared().metrics(name);
  for (const auto& rank : steps.back()["ranks"]) {
    const int64_t persistent = rank["persistent_bytes"], share = std::llround(static_cast<double>(parameters) * each);
    const int64_t padding = static_cast<int64_t>(tensors + 8) * 256;  // elements, at most 256 a tensor or shard
    EXPECT_GE(persistent, share - padding * 8) << "padding has no optimiser states: who holds it has less";
    EXPECT_LE(persistent, share + padding * 16);
  }
}

/// Slots and what is saved have half the bytes, and what is widened for a while is predicted too.
class Halves : public Memory {};

double peak_of(const Case& run, const std::string& name, const std::string& type) {
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), run.flags.begin(), run.flags.end());
  flags.insert(flags.end(), {"--plan.compute_dtype", type});
  const Result r = shared().train(run.ranks, name, flags);
  EXPECT_EQ(r.code, 0) << r.output;
  double highest = 0;
  const auto steps = shared().metrics(name);
  expect_planned_peaks(steps.back(), name);
  for (const auto& rank : steps.back()["ranks"]) {
    highest = std::max(highest, rank["peak_bytes"].get<double>());
  }
  return highest;
}

TEST_P(Halves, PeakIsWithinTwoPercentOfThePlanAndNeverAbove) {
  peak_of(GetParam(), std::string("halves-") + GetParam().name, "bf16");
}

/// Codes and their scales are planned.
class Eighths : public Memory {};

TEST_P(Eighths, PeakIsWithinTwoPercentOfThePlanAndNeverAbove) {
  peak_of(GetParam(), std::string("eighths-") + GetParam().name, "fp8");
}

const Case kEighths[] = {
    {"two", 2, {}},
    {"recompute", 2, {"--plan.recompute", "all"}},
    {"features", 2, {"--mesh", "tp=2", "--plan.recompute", "2"}},
    {"stages", 2, {"--mesh", "pp=2", "--train.micro_batch", "1", "--plan.pipeline", "zero_bubble"}},
    {"lora", 1, {"--train.mode", "lora", "--model.init", "random", "--lora.rank", "4", "--lora.base_dtype", "fp8"}}};
INSTANTIATE_TEST_SUITE_P(ByTurns, Eighths, ::testing::ValuesIn(in_turn("memory of products in 8 bits", kEighths)),
                         name_of);

TEST(HalvesOfShards, TakeLessThanFp32WhereParametersAreSharded) {
  const Case sharded = {"sharded", 2, {"--plan.strategy", "full_shard"}};
  EXPECT_LT(peak_of(sharded, "halves-16", "bf16"), peak_of(sharded, "halves-32", "fp32"));
}

const Case kHalves[] = {
    {"two", 2, {}},
    {"recompute", 2, {"--plan.recompute", "all"}},
    {"offload", 2, {"--plan.activations", "offload"}},
    {"ulysses_in_ring", 4, {"--mesh", "cp=2,sp=2"}},
    {"ring", 3, {"--mesh", "cp=3", "--plan.recompute", "2"}},
    {"features", 2, {"--mesh", "tp=2", "--plan.recompute", "2"}},
    {"stages", 2, {"--mesh", "pp=2", "--train.micro_batch", "1", "--plan.pipeline", "zero_bubble"}}};
INSTANTIATE_TEST_SUITE_P(ByTurns, Halves, ::testing::ValuesIn(in_turn("memory in 16 bits", kHalves)), name_of);

/// What is made again need not be kept: a budget between the two peaks holds the run that rebuilds, to the same bits.
TEST(Rebuild, FitsWhereKeepingEverythingDoesNotAndGivesItsBits) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), kWide.begin(), kWide.end());
    for (const char* word : {"--plan.compute_dtype", "bf16", "--data.frames", "8", "--train.global_batch", "12",
                             "--train.micro_batch", "12", "--run.steps", "2"})
      more.emplace_back(word);
    return more;
  };
  const auto peak = [&](const std::string& name) {
    return shared().metrics(name).back()["ranks"][0]["peak_bytes"].get<int64_t>();
  };
  for (const char* policy : {"keep", "rebuild"})
    ASSERT_EQ(shared().train(1, std::string("all-") + policy, with({"--plan.activations", policy})).code, 0);
  EXPECT_LT(peak("all-rebuild"), peak("all-keep"));
  const std::string budget = std::to_string((peak("all-keep") + 3 * peak("all-rebuild")) / 4);
  const Result refused = shared().train(1, "refused", with({"--plan.activations", "keep", "--plan.budget", budget}));
  EXPECT_NE(refused.code, 0) << "not all of it can stay";
  const Result r = shared().train(1, "budget", with({"--plan.recompute", "none", "--plan.budget", budget}));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("rebuild "), std::string::npos) << r.output;
  EXPECT_LE(peak("budget"), std::stoll(budget));
  const auto expected = shared().metrics("all-keep");
  for (const char* name : {"all-rebuild", "budget"}) {
    const auto steps = shared().metrics(name);
    ASSERT_EQ(steps.size(), expected.size());
    for (size_t s = 0; s < steps.size(); ++s)
      for (const char* key : {"loss", "grad_norm"}) EXPECT_EQ(steps[s][key], expected[s][key]) << name;
    EXPECT_TRUE(shared().model(name) == shared().model("all-keep")) << name << ": the weights differ";
  }
}

/// Stages of a pipeline differ in what they hold; each is predicted.
class Pipelines : public Memory {};

TEST_P(Pipelines, PeakIsWithinTwoPercentOfThePlanAndNeverAbove) {
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  const std::string name = std::string("pipeline-") + GetParam().name;
  const Result r = shared().train(GetParam().ranks, name, flags);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto steps = shared().metrics(name);
  ASSERT_EQ(steps.size(), 4u);
  expect_planned_peaks(steps.back(), name);
  for (const auto& rank : steps.back()["ranks"]) {
    EXPECT_GT(rank["sent_bytes"]["pp"].get<int64_t>(), 0) << name;
  }
}

const Case kPipelines[] = {
    {"gpipe", 2, {"--mesh", "pp=2", "--train.micro_batch", "1", "--plan.pipeline", "gpipe"}},
    {"recompute", 2, {"--mesh", "pp=2", "--train.micro_batch", "1", "--plan.recompute", "all"}},
    {"interleaved", 2, {"--mesh", "pp=2", "--train.micro_batch", "1", "--plan.pipeline", "interleaved"}},
    {"zero_bubble", 2, {"--mesh", "pp=2", "--train.micro_batch", "1", "--plan.pipeline", "zero_bubble"}},
    {"four", 4, {"--mesh", "pp=4", "--train.micro_batch", "1", "--plan.chunks", "2"}}};
INSTANTIATE_TEST_SUITE_P(ByTurns, Pipelines, ::testing::ValuesIn(in_turn("memory of pipelines", kPipelines)), name_of);

/// 1F1B holds other numbers of micro-batches on each stage: seven units on two and three of them, for every number of
/// samples in a micro-batch.
TEST(PipelinesOfSevenUnits, AreWithinTheirPlansForEveryMicroBatch) {
  const std::vector<std::string> seven = {"--run.steps",
                                          "3",
                                          "--model.config.dim",
                                          "96",
                                          "--model.config.ffn_dim",
                                          "168",
                                          "--model.config.num_layers",
                                          "5",
                                          "--model.config.num_heads",
                                          "3",
                                          "--data.size",
                                          "48,48",
                                          "--plan.pipeline",
                                          "1f1b",
                                          "--train.global_batch",
                                          "6"};
  const std::vector<std::string> pictures = {"--train.mode",
                                             "lora",
                                             "--model.init",
                                             "random",
                                             "--model.config.model_type",
                                             "i2v",
                                             "--model.config.in_dim",
                                             "28",
                                             "--model.config.image_dim",
                                             "24",
                                             "--model.config.image_len",
                                             "5"};
  for (const int stages : {2, 3})
    for (const char* samples : {"1", "2", "4", "6"}) {
      std::vector<std::string> flags = seven;
      if (stages == 3) flags.insert(flags.end(), pictures.begin(), pictures.end());
      flags.insert(flags.end(), {"--mesh", "pp=" + std::to_string(stages), "--train.micro_batch", samples});
      const std::string name = "seven-" + std::to_string(stages) + "-" + samples;
      const Result r = shared().train(stages, name, flags);
      ASSERT_EQ(r.code, 0) << r.output;
      expect_planned_peaks(shared().metrics(name).back(), name);
    }
}

using Flags = std::vector<std::string>;

/// Latents of 48 channels beside a narrow model: what packing a micro-batch takes is no part of the plan.
void expect_packed_within_plan(int ranks, const std::string& name, Flags more) {
  Flags flags = {"--run.steps",        "2",  "--model.config.in_dim",   "48", "--model.config.out_dim",  "48",
                 "--model.config.dim", "96", "--model.config.text_len", "24", "--model.config.text_dim", "64"};
  flags.insert(flags.end(), more.begin(), more.end());
  const Result r = shared().train(ranks, name, flags);
  ASSERT_EQ(r.code, 0) << r.output;
  std::string run = name;
  for (const std::string& flag : flags) run += " " + flag;
  expect_planned_peaks(shared().metrics(name).back(), run);
}

const Flags kPicturesByLora = {"--train.mode",
                               "lora",
                               "--lora.rank",
                               "5",
                               "--model.init",
                               "random",
                               "--model.config.model_type",
                               "i2v",
                               "--model.config.in_dim",
                               "100",
                               "--model.config.image_dim",
                               "24",
                               "--model.config.image_len",
                               "5"};

TEST(PackedBatches, AreNoPartOfAPeakThatIsAboveThePlan) {
  const auto by_lora = [](Flags more) {
    more.insert(more.begin(), kPicturesByLora.begin(), kPicturesByLora.end());
    return more;
  };
  expect_packed_within_plan(2, "packed-stages",
                            {"--mesh", "pp=2", "--plan.pipeline", "1f1b", "--train.global_batch", "6", "--data.size",
                             "64,80", "--model.config.num_layers", "5"});
  expect_packed_within_plan(
      3, "packed-lora",
      by_lora({"--mesh", "pp=3", "--plan.pipeline", "1f1b", "--train.global_batch", "5", "--train.micro_batch", "2",
               "--data.size", "64,80", "--model.config.num_layers", "6"}));
  expect_packed_within_plan(4, "packed-unequal",
                            by_lora({"--mesh", "dp_replicate=2,sp=2", "--train.global_batch", "5", "--plan.activations",
                                     "offload", "--plan.host_budget", "2GiB"}));
}

/// Runs of drawn models, batches and schedules on every axis.
TEST(PackedBatches, OfDrawnRunsAreNoPartOfAPeakThatIsAboveThePlan) {
  const std::vector<std::string> meshes = {"pp=2",
                                           "pp=3",
                                           "pp=2,dp_replicate=2",
                                           "pp=2,sp=2",
                                           "pp=2,dp_shard=2",
                                           "pp=2,cp=2",
                                           "pp=2,tp=2",
                                           "dp_replicate=2,sp=2",
                                           "dp_replicate=3",
                                           "dp_shard=2,cp=2",
                                           "dp_shard=3",
                                           "dp_replicate=2,tp=2"};
  MatrixPart part("memory of drawn runs", 48);
  for (const int i : part) {
    std::mt19937_64 random(static_cast<uint64_t>(i));
    const auto draw = [&](int64_t least, int64_t most) {
      return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
    };
    const auto of = [&](const char* key, int64_t value) { return Flags{key, std::to_string(value)}; };
    const std::string& mesh = meshes[static_cast<size_t>(i) % meshes.size()];
    const Mesh ranks = Mesh::parse(mesh);
    Flags flags = draw(0, 1) ? kPicturesByLora : Flags{};
    const auto add = [&](const Flags& more) { flags.insert(flags.end(), more.begin(), more.end()); };
    add({"--mesh", mesh, "--model.config.num_heads", "2"});
    add(of("--model.config.dim", 4 * draw(11, 35)));
    add(of("--model.config.ffn_dim", 2 * draw(45, 150)));
    add(of("--model.config.num_layers", draw(4, 6)));
    add(of("--train.global_batch", draw(ranks.dp_size(), 4 * ranks.dp_size())));
    add(of("--train.micro_batch", draw(1, 3)));
    add({"--data.size", std::to_string(16 * draw(2, 5)) + "," + std::to_string(16 * draw(2, 5))});
    const char* schedules[] = {"1f1b", "interleaved", "zero_bubble", "gpipe"};
    if (ranks[Axis::pp] > 1) add({"--plan.pipeline", schedules[draw(0, 3)]});
    const char* policies[] = {"keep", "recompute", "rebuild", "offload"};
    add({"--plan.activations", policies[draw(0, 3)], "--plan.host_budget", "2GiB"});
    expect_packed_within_plan(ranks.world(), "drawn-" + std::to_string(i), flags);
  }
}

/// What rests elsewhere, or leaves between forward and backward.
class Tiers : public Memory {};

TEST_P(Tiers, PeakIsWithinTwoPercentOfThePlanAndTheResultIsTheSame) {
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  const std::string name = std::string("tiers-") + GetParam().name;
  const Case near = GetParam().ranks == 1 ? Case{"one", 1, {}} : Case{"two", 2, {}};  // all on the device
  for (const std::string& word : {std::string("--plan.nvme"), (shared().folder() / "nvme").string()})
    flags.push_back(word);
  const Result r = shared().train(GetParam().ranks, name, flags);
  ASSERT_EQ(r.code, 0) << r.output;
  ASSERT_EQ(trained(near).code, 0);
  const auto steps = shared().metrics(name), expected = shared().metrics(near.name);
  ASSERT_EQ(steps.size(), 4u);
  for (size_t s = 0; s < steps.size(); ++s) {
    EXPECT_EQ(steps[s]["loss"], expected[s]["loss"]) << "step " << s + 1;
    EXPECT_EQ(steps[s]["grad_norm"], expected[s]["grad_norm"]) << "step " << s + 1;
  }
  expect_planned_peaks(steps.back(), name);
  for (const auto& rank : steps.back()["ranks"]) {
    EXPECT_GT(rank["bytes"]["host"].get<int64_t>(), 0) << name;
  }
  EXPECT_TRUE(shared().model(name) == shared().model(near.name)) << "the weights differ";
}

const Case kOnDisk = {"nvme", 2, {"--plan.parameters", "nvme", "--plan.gradients", "host", "--plan.states", "nvme"}};
const Case kTiers[] = {
    {"states", 2, {"--plan.states", "host"}},
    {"all", 2, {"--plan.parameters", "host", "--plan.gradients", "host", "--plan.states", "host"}},

    {"just_in_time",
     2,
     {"--plan.states", "nvme", "--plan.gradients", "host", "--plan.update", "just_in_time", "--sample.every", "3"}},
    {"activations", 1, {"--plan.activations", "offload"}},
    {"activations_on_disk",
     2,
     {"--plan.activations", "offload", "--plan.offload_to", "nvme", "--plan.nvme_checksum", "true"}}};
INSTANTIATE_TEST_SUITE_P(, Tiers, ::testing::Values(kOnDisk), name_of);
INSTANTIATE_TEST_SUITE_P(ByTurns, Tiers, ::testing::ValuesIn(in_turn("memory of tiers", kTiers)), name_of);

/// What the plan says a checkpoint takes, held against the tensors of one. A LoRA's has its adapters alone, and those of its
/// file beside them.
class CheckpointBytes : public Memory {};

TEST_P(CheckpointBytes, AreThoseThatAreWritten) {
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  flags.insert(flags.end(), {"--run.steps", "2"});
  const std::string name = std::string("checkpoint-") + GetParam().name;
  const Result r = shared().train(GetParam().ranks, name, flags);
  ASSERT_EQ(r.code, 0) << r.output;
  const int64_t predicted = json_of(shared().out(name) + "/plan.json")["disk"]["checkpoint_bytes"];
  int64_t written = 0;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(shared().out(name) + "/checkpoints/step-000002"))
    if (file.path().extension() == ".safetensors") {
      const checkpoint::WeightSet weights = checkpoint::open_weights(file.path());
      for (const std::string& tensor : weights.names()) written += weights.at(tensor).bytes();
    }
  EXPECT_GT(written, 0);
  EXPECT_NEAR(predicted, written, 0.01 * static_cast<double>(written));
}

const Case kCheckpoints[] = {
    {"full", 2, {}},
    {"split_masters_and_8bit_moments", 2, {"--plan.masters", "split", "--plan.moments", "int8"}},
    {"lora", 2, {"--train.mode", "lora", "--model.init", "random"}},
    {"lora_of_rank_64", 1, {"--train.mode", "lora", "--model.init", "random", "--lora.rank", "64"}},
    {"lora_without_exports", 1, {"--train.mode", "lora", "--model.init", "random", "--checkpoint.export", "none"}},
    {"two_experts", 1, {"--experts.train", "both", "--experts.turn", "1"}}};
INSTANTIATE_TEST_SUITE_P(, CheckpointBytes, ::testing::ValuesIn(kCheckpoints), name_of);

/// Where a batch does not divide, ranks have other numbers of samples: each is held to its own prediction.
class UnevenShares : public Memory {};

TEST_P(UnevenShares, EachRankIsWithinItsOwnPlan) {
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  const std::string name = std::string("uneven-") + GetParam().name;
  const Result r = shared().train(GetParam().ranks, name, flags);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto steps = shared().metrics(name);
  ASSERT_FALSE(steps.empty());
  expect_planned_peaks(steps.back(), name);
  std::set<double> planned;
  for (const auto& rank : steps.back()["ranks"]) planned.insert(rank["predicted_peak_bytes"].get<double>());
  EXPECT_GE(planned.size(), 2u) << name << ": ranks of fewer samples take less";
}

const Case kUneven[] = {{"experts",
                         4,
                         {"--mesh", "dp_shard=4", "--train.global_batch", "6", "--experts.train", "both",
                          "--experts.turn", "1", "--plan.states", "host", "--plan.update", "just_in_time"}},
                        {"lora",
                         2,
                         {"--mesh", "dp_shard=2", "--train.global_batch", "5", "--plan.recompute", "all",
                          "--train.mode", "lora", "--model.init", "random"}}};
INSTANTIATE_TEST_SUITE_P(, UnevenShares, ::testing::ValuesIn(kUneven), name_of);

/// When and where updates run: the bits of updates at the end, in the memory that was predicted.
class Updates : public Memory {};

TEST_P(Updates, GiveTheBitsOfUpdatesAtTheEndInTheMemoryTheyPredict) {
  const auto train = [](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> flags = kWide;
    flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
    for (const char* word : {"--train.clip_norm", "0", "--checkpoint.every", "2", "--sample.every", "3"})
      flags.emplace_back(word);
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = shared().train(GetParam().ranks, name, flags);
    EXPECT_EQ(r.code, 0) << name << "\n" << r.output;
    return shared().metrics(name);
  };
  const std::string at_end = std::string("updates-") + GetParam().name;
  const auto expected = train(at_end, {"--plan.update", "end"});
  ASSERT_EQ(expected.size(), 4u);
  const double before = expected.back()["ranks"][0]["predicted_peak_bytes"];
  const std::vector<std::string> host = {"--plan.update_on", "host", "--plan.update_threads", "2"};
  const std::pair<const char*, bool> ways[] = {
      {"end", true}, {"just_in_time", false}, {"just_in_time", true}, {"in_backward", false}, {"in_backward", true}};
  MatrixPart part(std::string("ways to update, ") + GetParam().name, static_cast<int>(std::size(ways)));
  for (const int way : part) {
    const auto& [when, on_host] = ways[way];
    const std::string name = at_end + "-" + when + (on_host ? "-host" : "");
    std::vector<std::string> more = {"--plan.update", when};
    if (on_host) more.insert(more.end(), host.begin(), host.end());
    const auto steps = train(name, more);
    ASSERT_EQ(steps.size(), expected.size()) << name;
    for (size_t s = 0; s < steps.size(); ++s)
      for (const char* key : {"loss", "grad_norm", "lr"})
        EXPECT_EQ(steps[s][key], expected[s][key]) << name << ", " << key << " of step " << s + 1;
    EXPECT_TRUE(shared().model(name) == shared().model(at_end)) << name << ": the weights differ";
    expect_planned_peaks(steps.back(), name);
    if (!on_host && std::string_view(when) == "in_backward" && GetParam().ranks == 2 && GetParam().flags.empty())
      EXPECT_LT(steps.back()["ranks"][0]["predicted_peak_bytes"].get<double>(), before) << "no gradient rests";
    EXPECT_EQ(shared().tessera({"plan", "--check", shared().out(name) + "/schedule.jsonl"}).code, 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Updates,
    // One schedule by hand: left on auto, each way gets the fastest one, and they round otherwise.
    ::testing::Values(Case{"two", 2, {}},
                      Case{"stages", 2, {"--mesh", "pp=2", "--train.micro_batch", "1", "--plan.pipeline", "1f1b"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(JustInTime, ClipsAndResumesInTheMiddleAndLosesNoUpdate) {
  const std::vector<std::string> tiers = {"--run.steps", "4", "--checkpoint.every", "2", "--plan.states", "host"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tiers.begin(), tiers.end());
    return more;
  };
  ASSERT_EQ(shared().train(2, "at-end", with({"--plan.update", "end"})).code, 0);
  ASSERT_EQ(shared().train(2, "in-time", with({"--plan.update", "just_in_time"})).code, 0);
  const std::string half = shared().out("in-time") + "/checkpoints/step-000002";
  ASSERT_EQ(shared().train(2, "resumed", with({"--plan.update", "just_in_time", "--run.resume", half})).code, 0);
  EXPECT_TRUE(shared().model("in-time") == shared().model("at-end")) << "the weights differ";
  EXPECT_TRUE(shared().model("resumed") == shared().model("at-end")) << "the weights differ after half of the run";
  const auto whole = shared().metrics("at-end"), resumed = shared().metrics("resumed");
  ASSERT_EQ(resumed.size(), 2u);
  EXPECT_EQ(resumed[0]["loss"], whole[2]["loss"]);
}

TEST(JustInTime, SkipsWhatIsSkippedAndTrainsWhatIsTrained) {
  const std::map<std::string, std::vector<std::string>> runs = {
      {"scaled", {"--plan.compute_dtype", "fp16", "--train.loss_scale", "4294967296"}},
      {"skipped", {"--train.lr", "1e30", "--train.clip_norm", "0", "--run.on_nan", "skip"}},
      {"adapters", {"--train.mode", "lora", "--model.init", "random", "--lora.rank", "4"}}};
  for (const auto& [name, flags] : runs) {
    for (const char* when : {"end", "just_in_time"}) {
      std::vector<std::string> more = {"--run.steps", "8", "--plan.states", "host", "--plan.update", when};
      more.insert(more.end(), flags.begin(), flags.end());
      const Result r = shared().train(2, name + "-" + when, more);
      ASSERT_EQ(r.code, name == "skipped" ? 6 : 0) << name << "\n" << r.output;
    }
    const auto expected = shared().metrics(name + "-end"), found = shared().metrics(name + "-just_in_time");
    ASSERT_EQ(found.size(), expected.size()) << name;
    for (size_t s = 0; s < found.size(); ++s)
      for (const char* key : {"step", "loss", "grad_norm"}) EXPECT_EQ(found[s][key], expected[s][key]) << name;
    if (name == "scaled") EXPECT_LT(found.size(), 8u) << "the first steps overflow";
    if (name == "scaled") EXPECT_TRUE(shared().model(name + "-just_in_time") == shared().model(name + "-end")) << name;
  }
}

TEST(InBackward, IsRefusedWhereSomethingWaitsForTheNormOfAll) {
  const auto refused = [&](const std::string& why, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"plan", shared().recipe(), "--plan.update", "in_backward"});
    const Result r = shared().tessera(flags);
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
  };
  refused("train.clip_norm = 1 needs the norm of all gradients", {"--train.clip_norm", "1"});
  refused("run.on_nan = \"skip\"", {"--train.clip_norm", "0", "--run.on_nan", "skip"});
  refused("fp16 scales the loss", {"--train.clip_norm", "0", "--plan.reduce_dtype", "fp16"});
}

/// Activations in fewer bits: lossy, measured, and smaller.
TEST(Compressed, ActivationsTakeLessAndTheirErrorIsInMetricsAndReport) {
  const auto trained = [&](const std::string& policy) {
    std::vector<std::string> flags = kWide;
    for (const char* word : {"--plan.activations", policy.c_str()}) flags.emplace_back(word);
    const Result r = shared().train(1, "compressed-" + policy, flags);
    EXPECT_EQ(r.code, 0) << r.output;
    return shared().metrics("compressed-" + policy);
  };
  const auto exact = trained("keep");
  EXPECT_FALSE(exact.back()["ranks"][0].contains("compression_error"));
  for (const auto& [policy, bound] : {std::pair("int8", 0.02), {"offload_fp8", 0.05}}) {
    const auto steps = trained(policy);
    ASSERT_EQ(steps.size(), exact.size());
    EXPECT_EQ(steps[0]["loss"], exact[0]["loss"]) << "the forward is exact";
    EXPECT_NE(steps.back()["grad_norm"], exact.back()["grad_norm"]) << "and the backward is not";
    for (size_t s = 0; s < steps.size(); ++s) {
      const auto& error = steps[s]["ranks"][0]["compression_error"];
      EXPECT_GT(error["mean"].get<double>(), 0);
      EXPECT_GE(error["max"].get<double>(), error["mean"].get<double>());
      EXPECT_LT(error["max"].get<double>(), bound) << policy;
      EXPECT_NEAR(steps[s]["loss"].get<double>(), exact[s]["loss"].get<double>(),
                  bound * exact[s]["loss"].get<double>());
    }
    const auto& rank = steps.back()["ranks"][0];
    expect_planned_peaks(steps.back(), policy);
    EXPECT_LT(rank["peak_bytes"].get<double>(), exact.back()["ranks"][0]["peak_bytes"].get<double>()) << policy;
    const std::string page = text_of(shared().out(std::string("compressed-") + policy) + "/report.html");
    EXPECT_NE(page.find("error of quantised activations"), std::string::npos);
  }
}

// 90 blocks of 1 MiB: the parameters alone are more than twenty times what the device may hold, which is little more
// than the slots of two blocks.
TEST(LargeModel, AModelTwentyTimesTheDeviceTrainsFromDiskToTheSameLoss) {
  const std::vector<std::string> flags = {"--run.steps",
                                          "3",
                                          "--model.config.dim",
                                          "128",
                                          "--model.config.ffn_dim",
                                          "512",
                                          "--model.config.num_layers",
                                          "90",
                                          "--model.config.num_heads",
                                          "4",
                                          "--train.global_batch",
                                          "1"};
  ASSERT_EQ(shared().train(1, "whole", flags).code, 0);
  const int64_t parameters = [&] {
    int64_t count = 0;
    for (const auto& [tensor, values] : shared().model("whole")) count += static_cast<int64_t>(values.size());
    return 4 * count;
  }();
  std::vector<std::string> small = flags;
  for (const std::string& word :
       {std::string("--plan.budget"), std::to_string(parameters / 20), std::string("--plan.host_budget"),
        std::string("1GiB"), std::string("--plan.nvme"), (shared().folder() / "nvme").string(),
        std::string("--plan.parameters"), std::string("nvme"), std::string("--plan.gradients"), std::string("nvme"),
        std::string("--plan.states"), std::string("nvme")})
    small.push_back(word);
  const Result r = shared().train(1, "small", small);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto a = shared().metrics("whole"), b = shared().metrics("small");
  ASSERT_EQ(a.size(), b.size());
  for (size_t s = 0; s < a.size(); ++s) EXPECT_EQ(a[s]["loss"], b[s]["loss"]) << "step " << s + 1;
  EXPECT_LE(b.back()["ranks"][0]["peak_bytes"].get<int64_t>(), parameters / 20);
}

const Case kLayouts[] = {{"hybrid", 4, {"--mesh", "dp_replicate=2,dp_shard=2", "--plan.strategy", "full_shard"}},
                         {"two_level", 4, {"--mesh", "dp_replicate=2,dp_shard=2", "--plan.strategy", "two_level"}},
                         {"copies", 4, {"--mesh", "dp_replicate=4", "--plan.strategy", "two_level"}},
                         {"recompute", 2, {"--plan.recompute", "all"}},
                         {"rebuild", 2, {"--plan.activations", "rebuild"}},
                         {"some", 2, {"--plan.recompute", "3", "--plan.prefetch", "2"}},
                         {"micro", 2, {"--train.micro_batch", "1"}},
                         {"serial", 2, {"--plan.prefetch", "0", "--plan.strategy", "full_shard"}},
                         {"idle", 4, {"--train.global_batch", "3"}}};
INSTANTIATE_TEST_SUITE_P(, Memory, ::testing::Values(Case{"one", 1, {}}, Case{"two", 2, {}}, Case{"four", 4, {}}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ByTurns, Memory, ::testing::ValuesIn(in_turn("memory of layouts and policies", kLayouts)),
                         name_of);

}  // namespace
}  // namespace tessera::testing
