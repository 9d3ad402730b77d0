// Every optimiser on real ranks: layouts agree, updates run where and when the plan says with the same result, states
// resume on another layout, and what the plan says of memory and collectives holds.
#include <gtest/gtest.h>

#include "matrix.h"
#include "program.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("optimisers");
  return run;
}

using Flags = std::vector<std::string>;

struct Case {
  const char* name;
  Flags flags;
  const char* elsewhere = "tp=2";  ///< blocks of 8-bit moments are those of the same tp
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Wide enough that most tensors have the 4096 elements from which moments are quantised.
void train(const Case& optimiser, int ranks, const std::string& name, const Flags& more) {
  Flags flags = {"--run.steps",
                 "5",
                 "--model.config.dim",
                 "128",
                 "--model.config.ffn_dim",
                 "512",
                 "--model.config.num_heads",
                 "4",
                 "--train.global_batch",
                 "4"};
  flags.insert(flags.end(), optimiser.flags.begin(), optimiser.flags.end());
  flags.insert(flags.end(), more.begin(), more.end());
  const Result r = shared().train(ranks, name, flags, 300);
  ASSERT_EQ(r.code, 0) << name << "\n" << r.output;
  for (const auto& step : shared().metrics(name))
    for (const auto& rank : step["ranks"]) EXPECT_LE(rank["peak_bytes"], rank["predicted_peak_bytes"]) << name;
  EXPECT_EQ(shared().tessera({"plan", "--check", shared().out(name) + "/schedule.jsonl"}).code, 0) << name;
}

void expect_near(const std::string& found, const std::string& expected, double relative) {
  const auto a = shared().metrics(found), b = shared().metrics(expected);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i]["loss"].get<double>() / b[i]["loss"].get<double>(), 1, relative) << found << ", step " << i + 1;
}

class Optimisers : public ::testing::TestWithParam<Case> {};

constexpr double kNear = 4e-4;  // of the loss: what layouts agree to (docs/precision.md)

TEST_P(Optimisers, TrainOnOtherLayoutsAsOnOneRank) {
  const std::string name = GetParam().name;
  train(GetParam(), 1, name + "-one", {});
  EXPECT_NE(shared().metrics(name + "-one").front()["loss"], shared().metrics(name + "-one").back()["loss"]);
  const std::pair<const char*, Flags> layouts[] = {
      {"shard", {"--mesh", "dp_shard=2"}},
      {"tp", {"--mesh", "tp=2"}},
      {"pp", {"--mesh", "pp=2"}},
      {"two_level", {"--mesh", "dp_replicate=2", "--plan.strategy", "two_level"}}};
  MatrixPart part("layouts of " + name, static_cast<int>(std::size(layouts)));
  for (const int chosen : part) {
    const auto& [layout, flags] = layouts[chosen];
    train(GetParam(), 2, name + "-" + layout, flags);
    expect_near(name + "-" + layout, name + "-one", kNear);
  }
}

TEST_P(Optimisers, UpdateWhereAndWhenThePlanSaysWithTheSameBits) {
  const std::string name = std::string(GetParam().name) + "-when";
  const Flags base = {"--mesh", "dp_shard=2", "--train.clip_norm", "0"};
  train(GetParam(), 2, name, base);
  const std::pair<const char*, Flags> ways[] = {
      {"in_time", {"--plan.update", "just_in_time", "--plan.states", "host"}},
      {"in_backward", {"--plan.update", "in_backward"}},
      {"on_host",
       {"--plan.update_on", "host", "--plan.update_threads", "2", "--plan.states", "host", "--plan.gradients", "host",
        "--plan.parameters", "host"}},
      {"nvme", {"--plan.states", "nvme", "--plan.nvme", shared().folder().string()}}};
  MatrixPart part("ways of " + name, static_cast<int>(std::size(ways)));
  for (const int chosen : part) {
    const auto& [way, more] = ways[chosen];
    Flags flags = base;
    flags.insert(flags.end(), more.begin(), more.end());
    train(GetParam(), 2, name + "-" + way, flags);
    EXPECT_TRUE(shared().model(name + "-" + way) == shared().model(name)) << way;
  }
}

TEST_P(Optimisers, ResumeOnAnotherLayout) {
  const std::string name = std::string(GetParam().name) + "-resume";
  const Flags flags = {"--run.steps", "6", "--checkpoint.every", "3"};
  train(GetParam(), 2, name, flags);
  const auto through = shared().metrics(name);
  std::filesystem::remove_all(shared().out(name) + "/checkpoints/step-000006");
  Flags other = flags;
  other.insert(other.end(), {"--mesh", GetParam().elsewhere});
  train(GetParam(), 2, name, other);
  const auto moved = shared().metrics(name);
  ASSERT_EQ(moved.size(), through.size());
  for (size_t i = 3; i < moved.size(); ++i)
    EXPECT_NEAR(moved[i]["loss"].get<double>() / through[i]["loss"].get<double>(), 1, i == 3 ? 2e-6 : kNear) << i;
  std::filesystem::remove_all(shared().out(name) + "/checkpoints/step-000006");
  train(GetParam(), 2, name, flags);
  const auto again = shared().metrics(name);
  for (size_t i = 3; i < again.size(); ++i) EXPECT_EQ(again[i]["loss"].dump(), through[i]["loss"].dump()) << i;
}

INSTANTIATE_TEST_SUITE_P(
    , Optimisers,
    ::testing::Values(
        Case{"lion", {"--train.optimizer", "lion", "--train.lr", "1e-5"}},
        Case{"adafactor", {"--train.optimizer", "adafactor"}},
        Case{"adafactor_first",
             {"--train.optimizer", "adafactor", "--train.factored_beta1", "0.9", "--train.relative_step", "true"}},
        Case{"came", {"--train.optimizer", "came"}},
        Case{"prodigy", {"--train.optimizer", "prodigy", "--train.lr", "1", "--train.d0", "1e-4"}},
        Case{"muon", {"--train.optimizer", "muon", "--train.lr", "1e-3"}},
        Case{"muon8bit_split",
             {"--train.optimizer", "muon", "--plan.masters", "split", "--plan.moments", "int8", "--train.lr", "1e-3"},
             "dp_replicate=2"},
        Case{"schedule_free", {"--train.optimizer", "adamw_schedule_free", "--train.warmup_steps", "3"}},
        Case{"came8bit_split", {"--train.optimizer", "came8bit", "--plan.masters", "split"}, "dp_replicate=2"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(QuantisedMoments, OfAnotherTpAreRefusedByNamingTheTpThatTheyWereSavedWith) {
  const Case int8 = {"int8", {"--plan.moments", "int8", "--run.steps", "2"}};
  train(int8, 2, "int8", {"--mesh", "dp_shard=2"});
  const Result r = shared().train(2, "int8",
                                  {"--plan.moments", "int8", "--run.steps", "3", "--mesh", "tp=2", "--model.config.dim",
                                   "128", "--model.config.ffn_dim", "512", "--model.config.num_heads", "4"});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("--mesh.tp 1"), std::string::npos) << r.output;
}

/// What is exported of a run, of a save and of a checkpoint is the mean, and no second model is.
TEST(ScheduleFree, ExportsAndSamplesAreOfItsAverage) {
  train({"schedule_free",
         {"--train.optimizer", "adamw_schedule_free", "--checkpoint.every", "5", "--checkpoint.export", "model"}},
        2, "free", {});
  const std::filesystem::path out = shared().out("free"), saved = out / "checkpoints/step-000005";
  EXPECT_FALSE(std::filesystem::exists(out / "model_ema"));
  EXPECT_NE(text_of(out / "recipe.toml").find("weights = \"ema\""), std::string::npos) << "of samples";
  const auto model = shared().model("free");
  checkpoint::TrainingCheckpoint from(saved);
  int apart = 0;
  for (const auto& tensor : from.manifest().tensors) {
    if (tensor.kind != "param") continue;
    std::vector<float> trained(model.at(tensor.name).size()), mean(trained.size());
    from.read_f32({tensor.name, "param", DType::f32, tensor.shape}, trained.data());
    from.read_f32({tensor.name, "ema", DType::f32, tensor.shape}, mean.data());
    EXPECT_TRUE(mean == model.at(tensor.name)) << tensor.name;
    apart += mean != trained;
  }
  EXPECT_GT(apart, 20);
  const auto same_as_model = [&](const std::filesystem::path& folder) {
    std::filesystem::remove_all(shared().folder() / "as-run");
    std::filesystem::create_directories(shared().folder() / "as-run");
    std::filesystem::create_directory_symlink(folder, shared().folder() / "as-run/model");
    return shared().model("as-run") == model;
  };
  EXPECT_TRUE(same_as_model(out / "exports/step-000005"));
  const std::string converted = (shared().folder() / "converted").string();
  const Result r = shared().tessera({"convert", saved.string(), converted});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(same_as_model(converted));
}

/// The states of AdamW with an average have the same kinds, and mean others.
TEST(ScheduleFree, DoesNotGoOnFromAdamWOrBack) {
  const Case adamw = {"adamw", {"--train.optimizer", "adamw", "--train.ema", "0.9"}};
  train(adamw, 1, "switched", {"--run.steps", "2"});
  const Result r =
      shared().train(1, "switched",
                     {"--train.optimizer", "adamw_schedule_free", "--run.steps", "3", "--model.config.dim", "128",
                      "--model.config.ffn_dim", "512", "--model.config.num_heads", "4", "--train.global_batch", "4"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("train.optimizer nothing -> adamw_schedule_free"), std::string::npos) << r.output;
}

TEST(ScheduleFree, RefusesWhatItCannotHave) {
  for (const Flags& more : {Flags{"--train.schedule", "cosine"}, Flags{"--train.ema", "0.9"},
                            Flags{"--plan.moments", "int8"}, Flags{"--plan.masters", "bf16"}}) {
    Flags flags = {"--train.optimizer", "adamw_schedule_free"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = shared().train(1, "refused", flags);
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find("schedule_free"), std::string::npos) << r.output;
  }
}

/// Matrices are those of the blocks, where nothing else is said.
TEST(Muon, SaysWhatItHasAndRefusesWhatIsNone) {
  const Case all = {"muon", {"--train.optimizer", "muon", "--train.muon_hidden_layers", "*", "--run.steps", "2"}};
  train(all, 2, "muon-all", {"--mesh", "dp_shard=2"});
  for (const auto& [key, value, said] :
       {std::tuple("--train.muon_hidden_layers", "no_such_part", "no part of the model"),
        {"--train.muon_hidden_layers", "bias", "nothing that is trained is a matrix"},
        {"--train.muon_adam_layers", "*", "nothing that is trained is a matrix"}}) {
    const Result r = shared().train(1, "muon-refused", {"--train.optimizer", "muon", key, value});
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(said), std::string::npos) << r.output;
  }
}

TEST(Muon, TrainsAdaptersAndExperts) {
  train({"muon", {"--train.optimizer", "muon", "--train.mode", "lora", "--model.init", "random", "--lora.rank", "4"}},
        2, "muon-lora", {});
  train({"muon", {"--train.optimizer", "muon", "--experts.train", "both", "--experts.turn", "1"}}, 2, "muon-experts",
        {"--plan.idle", "host"});
}

TEST(Came, TrainsAdapters) {
  train({"came", {"--train.optimizer", "came", "--train.mode", "lora", "--model.init", "random", "--lora.rank", "4"}},
        2, "lora", {});
}

TEST(Prodigy, FindsAStepSizeForAdaptersAndForEachExpert) {
  const Flags prodigy = {"--train.optimizer", "prodigy", "--train.lr", "1", "--train.d0", "1e-4", "--run.steps", "8"};
  Flags lora = prodigy, experts = prodigy;
  lora.insert(lora.end(), {"--train.mode", "lora", "--model.init", "random", "--lora.rank", "4"});
  experts.insert(experts.end(), {"--experts.train", "both", "--experts.turn", "1"});
  train({"prodigy", lora}, 2, "prodigy-lora", {});
  train({"prodigy", experts}, 2, "prodigy-experts", {"--plan.idle", "host"});
  const auto adapters = shared().metrics("prodigy-lora");
  EXPECT_EQ(adapters.front()["d"].get<double>(), 1e-4);
  for (size_t i = 1; i < adapters.size(); ++i)
    EXPECT_GE(adapters[i]["d"].get<double>(), adapters[i - 1]["d"].get<double>());
  std::map<std::string, double> last;
  for (const auto& step : shared().metrics("prodigy-experts")) last[step["expert"]] = step["d"];
  ASSERT_EQ(last.size(), 2u);
  EXPECT_NE(last.begin()->second, last.rbegin()->second);
  for (const auto& [expert, d] : last) EXPECT_GE(d, 1e-4) << expert;  // so one of them has grown
}

TEST(Prodigy, ABoundOfItsGrowthHoldsAndIsResumed) {
  const Case bound = {"prodigy",
                      {"--train.optimizer", "prodigy", "--train.lr", "1", "--train.d0", "1e-4", "--train.growth_rate",
                       "1.1", "--run.steps", "8", "--checkpoint.every", "4"}};
  train(bound, 2, "growth", {});
  const auto through = shared().metrics("growth");
  int grown = 0;
  for (size_t i = 1; i < through.size(); ++i) {
    const double before = through[i - 1]["d"], now = through[i]["d"];
    if (before > 1e-4) EXPECT_LE(now, before * 1.1 * (1 + 1e-12)) << i;
    grown += before > 1e-4 && now > before;
  }
  EXPECT_GT(grown, 0);
  std::filesystem::remove_all(shared().out("growth") + "/checkpoints/step-000008");
  train(bound, 2, "growth", {});
  const auto again = shared().metrics("growth");
  for (size_t i = 4; i < again.size(); ++i) EXPECT_EQ(again[i]["d"].dump(), through[i]["d"].dump()) << i;
}

TEST(Lion, ADecoupledDecayIsThatOfAStepAtTheRateWhateverTheRateIs) {
  const Flags lion = {"--train.optimizer", "lion", "--train.lr", "1e-4", "--run.steps", "2"};
  Flags coupled = lion, decoupled = lion;
  coupled.insert(coupled.end(), {"--train.weight_decay", "100"});
  decoupled.insert(decoupled.end(), {"--train.weight_decay", "0.01", "--train.decoupled_decay", "true"});
  train({"lion", coupled}, 1, "coupled", {});
  train({"lion", decoupled}, 1, "decoupled", {});
  double most = 0;
  const auto one = shared().model("coupled"), other = shared().model("decoupled");
  for (const auto& [tensor, values] : one)
    for (size_t i = 0; i < values.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(values[i]) - other.at(tensor)[i]));
  EXPECT_LT(most, 1e-6) << "0.01 / 1e-4 is 100";
}

TEST(Settings, OfOtherOptimisersAreNamedAndAStepSizeThatShrinksIsRefused) {
  const std::pair<const char*, const char*> others[] = {
      {"--train.growth_rate", "1.1"},  {"--train.decoupled_decay", "true"}, {"--train.factored_beta1", "0.9"},
      {"--train.warmup_init", "true"}, {"--train.ema_inv_gamma", "2"},      {"--train.ema_min_decay", "0.1"}};
  for (const auto& [flag, value] : others) {
    const Result r = shared().tessera({"plan", shared().recipe(), flag, value});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(std::string(flag + 2) + " = " + value + " has no effect"), std::string::npos)
        << flag << "\n"
        << r.output;
  }
  const Result r =
      shared().tessera({"plan", shared().recipe(), "--train.optimizer", "prodigy", "--train.growth_rate", "0.9"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("train.growth_rate"), std::string::npos) << r.output;
}

TEST(Average, IsExportedSampledFromAndResumedOnAnotherLayout) {
  const Case averaged = {"ema", {"--train.ema", "0.9", "--sample.every", "3", "--sample.steps", "1"}};
  const Case plain = {"plain", {}};
  train(plain, 2, "plain", {"--run.steps", "6"});
  train(averaged, 2, "ema", {"--run.steps", "6", "--checkpoint.every", "3"});
  EXPECT_TRUE(shared().model("plain") == shared().model("ema")) << "sampling gives the trained weights back";
  std::filesystem::create_directories(shared().out("average"));
  std::filesystem::copy(shared().out("ema") + "/model_ema", shared().out("average") + "/model");
  const auto average = shared().model("average");
  EXPECT_FALSE(average == shared().model("ema"));
  const Result sampled = shared().tessera({"sample", shared().out("ema") + "/recipe.toml", "--prompt", "a",
                                           "--sample.steps", "1", "--out", (shared().folder() / "a.mp4").string()});
  EXPECT_EQ(sampled.code, 0) << sampled.output;
  EXPECT_NE(sampled.output.find("average of the weights"), std::string::npos) << sampled.output;
  std::filesystem::remove_all(shared().out("ema") + "/checkpoints/step-000006");
  train(averaged, 2, "ema",
        {"--run.steps", "6", "--checkpoint.every", "3", "--mesh", "tp=2", "--plan.masters", "split",
         "--plan.param_dtype", "bf16"});
  std::filesystem::create_directories(shared().out("resumed"));
  std::filesystem::copy(shared().out("ema") + "/model_ema", shared().out("resumed") + "/model");
  double most = 0, moved = 0;
  const auto resumed = shared().model("resumed");
  for (const auto& [tensor, values] : average)
    for (size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(values[i]) - resumed.at(tensor)[i]));
      moved = std::max(moved, std::abs(static_cast<double>(values[i])));
    }
  EXPECT_LT(most, 1e-3 * moved);
}

TEST(Average, OfEachExpertIsItsOwnAndSamplingGivesAllOfThemTheirWeightsBack) {
  const Flags experts = {"--experts.train", "both", "--experts.turn", "1", "--train.optimizer", "came"};
  train({"experts", experts}, 2, "experts", {"--plan.idle", "host"});
  Flags averaged = experts;
  averaged.insert(averaged.end(), {"--train.ema", "0.9", "--sample.every", "3", "--sample.steps", "2"});
  train({"experts", averaged}, 2, "experts-ema", {"--plan.idle", "host"});
  int files = 0;
  for (const char* expert : {"high_noise_model", "low_noise_model"})
    for (const auto& file : std::filesystem::directory_iterator(shared().out("experts") + "/model/" + expert)) {
      const std::string name = std::string(expert) + "/" + file.path().filename().string();
      const std::string weights = text_of(file.path());
      EXPECT_TRUE(weights == text_of(shared().out("experts-ema") + "/model/" + name)) << name;
      if (file.path().extension() != ".safetensors") continue;
      EXPECT_FALSE(weights == text_of(shared().out("experts-ema") + "/model_ema/" + name)) << name;
      ++files;
    }
  EXPECT_EQ(files, 2);
}

/// With this seed the first two steps are of one expert.
TEST(Average, OfAnExpertThatHasNotBegunIsItsWeights) {
  const Flags flags = {"--experts.train", "both", "--experts.turn", "2", "--train.ema", "0.9", "--run.steps", "2"};
  train({"experts", flags}, 2, "unbegun", {});
  const std::string trained = shared().metrics("unbegun").back()["expert"];
  const std::string idle = trained == "high_noise" ? "low_noise" : "high_noise";
  const std::string run = shared().out("unbegun");
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(run + "/model/" + idle + "_model")) {
    if (file.path().extension() != ".safetensors") continue;
    const std::string name = "/" + idle + "_model/" + file.path().filename().string();
    EXPECT_TRUE(text_of(file.path()) == text_of(run + "/model_ema" + name)) << name;
    ++files;
  }
  EXPECT_EQ(files, 1);
  EXPECT_EQ(text_of(run + "/model_ema/experts.json"), text_of(run + "/model/experts.json"));
  EXPECT_FALSE(text_of(run + "/model_ema/experts.json").empty());
}

TEST(Average, OnDiskChangesPlacesWithTheWeightsUnderTheirChecksums) {
  const Flags flags = {"--train.ema", "0.9", "--sample.every", "2", "--sample.steps", "1", "--run.steps", "4"};
  train({"ema", flags}, 2, "in-memory", {});
  train({"ema", flags}, 2, "on-disk",
        {"--plan.parameters", "nvme", "--plan.states", "nvme", "--plan.gradients", "host", "--plan.nvme",
         (shared().folder() / "nvme").string(), "--plan.nvme_checksum", "true"});
  EXPECT_TRUE(shared().model("on-disk") == shared().model("in-memory"));
  EXPECT_EQ(shared().metrics("on-disk", "sample").size(), shared().metrics("in-memory", "sample").size());
  EXPECT_FALSE(shared().metrics("in-memory", "sample").empty());
}

TEST(Average, OfAnEarlierPartOfTheRunIsNamedWhereNoneIsKeptAnyMore) {
  const Result averaged = shared().train(1, "averaged-once", {"--train.ema", "0.9", "--run.steps", "2"});
  ASSERT_EQ(averaged.code, 0) << averaged.output;
  EXPECT_EQ(averaged.output.find("earlier part"), std::string::npos) << averaged.output;
  const std::string file = shared().out("averaged-once") + "/model_ema/diffusion_pytorch_model.safetensors";
  const std::string before = text_of(file);
  ASSERT_FALSE(before.empty());
  const Result r = shared().train(1, "averaged-once", {"--run.steps", "3"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("model_ema is of an earlier part of this run: train.ema is 0 now"), std::string::npos)
      << r.output;
  EXPECT_TRUE(text_of(file) == before) << "and stays as it was";
}

TEST(Average, IsRefusedWithMastersThatAreRounded) {
  const Result r = shared().tessera({"train", shared().recipe(), "--train.ema", "0.9", "--plan.masters", "bf16"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("plan.masters = \"split\""), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
