// Adapters as a user trains them: on a base of one's own, on any layout, resumed, exported, merged, sampled.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "matrix.h"
#include "planned_memory.h"
#include "program.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
constexpr int kSteps = 12;

/// A base trained in full for some steps: the head of a model without weights is zero, and adapters under it learn
/// nothing.
const TinyRun& shared() {
  static const TinyRun run("lora");
  static const bool once = [] {
    const Result r = run.train(1, "base", {"--run.steps", "30", "--train.lr", "2e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
    return true;
  }();
  (void)once;
  return run;
}

std::vector<std::string> lora(std::vector<std::string> more = {}) {
  std::vector<std::string> flags = {
      "--train.mode", "lora", "--model.path", shared().out("base") + "/model", "--lora.rank", "4",
      "--train.lr",   "2e-2", "--run.steps",  std::to_string(kSteps)};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

void train(int ranks, const std::string& name, std::vector<std::string> more = {}) {
  const Result r = shared().train(ranks, name, lora(std::move(more)), 300);
  ASSERT_EQ(r.code, 0) << r.output;
}

void expect_same_losses(const std::string& a, const std::string& b, size_t steps = kSteps) {
  const auto one = shared().losses(a), other = shared().losses(b);
  ASSERT_EQ(one.size(), steps);
  ASSERT_EQ(other.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i] / one[i], 1, 2e-6) << "step " << i + 1;
}

double mean(const std::vector<double>& values, size_t from, size_t to) {
  double sum = 0;
  for (size_t i = from; i < to; ++i) sum += values[i];
  return sum / static_cast<double>(to - from);
}

TEST(Lora, LearnsAndIsTheSameOnTwoRanks) {
  train(1, "one");
  train(2, "two");
  expect_same_losses("one", "two");
  const auto curve = shared().losses("one");
  EXPECT_NE(curve.front(), curve.back());
  // the same draws without training: what the adapters gained on each step's own samples
  train(1, "still", {"--train.lr", "0"});
  EXPECT_LT(mean(curve, kSteps / 2, kSteps), mean(shared().losses("still"), kSteps / 2, kSteps));
}

TEST(Lora, TrainsAndKeepsAdaptersAlone) {
  train(1, "alone");
  const auto adapters = shared().model("alone");
  EXPECT_FALSE(adapters.empty());
  for (const auto& [name, values] : adapters) EXPECT_NE(name.find(".lora_"), name.npos) << name;
  const auto ranks = shared().metrics("alone")[1]["ranks"][0]["bytes"],
             full = shared().metrics("base")[1]["ranks"][0]["bytes"];
  EXPECT_LT(ranks["states"].get<int64_t>() * 4, full["states"].get<int64_t>());
  EXPECT_LT(ranks["gradients"].get<int64_t>() * 4, full["gradients"].get<int64_t>());
  const auto manifest = json_of(fs::path(shared().out("alone")) / "checkpoints" / "step-000012" / "manifest.json");
  for (const auto& tensor : manifest["tensors"])
    EXPECT_NE(tensor["name"].get<std::string>().find(".lora_"), std::string::npos);
}

/// As ComfyUI, A1111 and Civitai show them.
TEST(Lora, FilesSayWhatTheyAreAndConversionsKeepIt) {
  train(1, "told",
        {"--lora.export", "diffusers,comfyui,kohya,peft,diffsynth", "--lora.rank", "4", "--lora.alpha", "8",
         "--data.caption", "a photo of sks", "--checkpoint.every", "4"});
  const fs::path out = shared().out("told");
  const auto header = [](const fs::path& file) { return checkpoint::open_weights(file).metadata(); };
  int files = 0;
  for (const fs::path& folder : {out / "model", out / "checkpoints/step-000004/lora"})
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      const checkpoint::Metadata said = header(entry.path());
      const std::string step = folder == out / "model" ? "12" : "4";
      for (const auto& [key, value] :
           std::map<std::string, std::string>{{"ss_network_dim", "4"},
                                              {"ss_network_alpha", "8"},
                                              {"ss_steps", step},
                                              {"ss_max_train_steps", "12"},
                                              {"ss_num_train_images", "3"},
                                              {"ss_output_name", "told"},
                                              {"modelspec.sai_model_spec", "1.0.0"},
                                              {"modelspec.trigger_phrase", "a photo of sks"}}) {
        ASSERT_TRUE(said.contains(key)) << entry.path() << " " << key;
        EXPECT_EQ(said.at(key), value) << entry.path() << " " << key;
      }
      EXPECT_FALSE(said.at("ss_base_model_version").empty());
      EXPECT_NE(said.at("ss_training_comment").find("Tessera 0."), std::string::npos);
      EXPECT_TRUE(said.at("modelspec.architecture").ends_with("/lora"));
      for (const auto& [key, value] : said)
        EXPECT_EQ(value.find(shared().folder().string()), std::string::npos) << "a path of this machine: " << key;
    }
  EXPECT_EQ(files, 10);
  // a file of another program keeps what it says of itself, but for what is of the file
  const fs::path other = shared().folder() / "other.safetensors", made = shared().folder() / "made.safetensors";
  const std::vector<float> zeros(16);
  checkpoint::write_safetensors(
      other,
      {{"diffusion_model.blocks.0.self_attn.q.lora_down.weight", DType::f32, {2, 8}, zeros.data()},
       {"diffusion_model.blocks.0.self_attn.q.lora_up.weight", DType::f32, {8, 2}, zeros.data()}},
      {{"ss_tag_frequency", "{}"},
       {"modelspec.author", "somebody"},
       {"modelspec.hash_sha256", "0x1"},
       {"ss_network_dim", "7"}});
  const Result r = shared().tessera({"convert", other.string(), made.string(), "--to", "kohya"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(header(made).at("ss_tag_frequency"), "{}");
  EXPECT_EQ(header(made).at("modelspec.author"), "somebody");
  EXPECT_EQ(header(made).at("ss_network_dim"), "2");
  EXPECT_FALSE(header(made).contains("modelspec.hash_sha256"));
}

TEST(Lora, ResumesOnAnotherLayoutWithItsStates) {
  train(1, "whole", {"--lora.plus_ratio", "3"});
  train(2, "cut", {"--lora.plus_ratio", "3", "--run.steps", "5"});
  train(1, "cut", {"--lora.plus_ratio", "3"});
  expect_same_losses("whole", "cut");
}

TEST(Lora, VariantsTrainAlikeOnAnyLayout) {
  const std::vector<std::vector<std::string>> kVariants = {
      {"--lora.dropout", "0.2"},
      {"--lora.dora", "true"},
      {"--lora.rslora", "true", "--lora.alpha", "8", "--lora.targets", "blocks.*.self_attn.*,ffn.0"},
      {"--lora.targets", "blocks.1.ffn.2", "--plan.recompute", "all"},
      {"--lora.plus_ratio", "8", "--train.lr", "2e-3"},
      {"--lora.rank_dropout", "0.3", "--lora.module_dropout", "0.2", "--plan.recompute", "all"},
  };
  for (size_t i = 0; i < kVariants.size(); ++i) {
    const std::string one = "one-" + std::to_string(i), two = "two-" + std::to_string(i);
    train(1, one, kVariants[i]);
    train(2, two, kVariants[i]);
    expect_same_losses(one, two);
  }
  train(2, "dora-tp", {"--lora.dora", "true", "--mesh", "tp=2"});  // ranks have rows of some weights, columns of others
  expect_same_losses("one-1", "dora-tp");
  train(2, "dora-on", {"--lora.dora", "true", "--mesh", "tp=2", "--run.steps", "5"});
  train(1, "dora-on", {"--lora.dora", "true"});
  expect_same_losses("one-1", "dora-on");
  for (const int variant : {1, 2}) {  // what other programs scale and shorten by
    const auto said = nlohmann::json::parse(checkpoint::open_weights(shared().out("one-" + std::to_string(variant)) +
                                                                     "/model/pytorch_lora_weights.safetensors")
                                                .metadata()
                                                .at("lora_adapter_metadata"));
    EXPECT_EQ(said.at("transformer.use_rslora"), variant == 2);
    EXPECT_EQ(said.at("transformer.use_dora"), variant == 1);
    if (variant == 2) EXPECT_EQ(said.at("transformer.lora_alpha"), 8);
  }
}

/// Ranks that share the tokens cut a sample, and those of tp a row: each has its part of the mask of one rank.
TEST(Lora, DropoutIsThatOfOneRankWhereverASampleIsCut) {
  const std::vector<std::string> drops = {"--lora.dropout",      "0.2", "--train.global_batch", "3",
                                          "--train.micro_batch", "3"};
  train(1, "drops-one", drops);
  for (const char* mesh : {"cp=2", "sp=2", "tp=2"}) {
    SCOPED_TRACE(mesh);
    std::vector<std::string> flags = drops;
    flags.insert(flags.end(), {"--mesh", mesh});
    train(2, std::string("drops-") + mesh, flags);
    expect_same_losses("drops-one", std::string("drops-") + mesh);
  }
  // Ranks and adapters that a sample does without, of each kind; a run that went on has the same.
  for (const std::vector<std::string>& kind :
       {std::vector<std::string>{"--lora.rank_dropout", "0.4", "--lora.module_dropout", "0.3"},
        {"--lora.kind", "lokr", "--lora.module_dropout", "0.4"},
        {"--lora.kind", "loha", "--lora.module_dropout", "0.4", "--lora.dropout", "0.2"}}) {
    SCOPED_TRACE(kind[1]);
    std::vector<std::string> flags = {"--train.global_batch", "3", "--train.micro_batch", "3", "--run.steps", "4"};
    flags.insert(flags.end(), kind.begin(), kind.end());
    const std::string name = "left-out-" + kind[1];
    train(1, name, flags);
    for (const char* mesh : {"cp=2", "tp=2"}) {
      std::vector<std::string> cut = flags;
      cut.insert(cut.end(), {"--mesh", mesh});
      train(2, name + mesh, cut);
      expect_same_losses(name, name + mesh, 4);
    }
    std::vector<std::string> first = flags;
    first.insert(first.end(), {"--run.steps", "2"});
    train(1, name + "-parts", first);
    train(1, name + "-parts", flags);
    EXPECT_EQ(shared().losses(name + "-parts"), shared().losses(name));
    std::vector<std::string> without = flags;
    for (size_t i = 0; i + 1 < without.size(); ++i)
      if (without[i].ends_with("_dropout")) without[i + 1] = "0";
    train(1, name + "-without", without);
    EXPECT_NE(shared().losses(name + "-without").back(), shared().losses(name).back());
  }
}

TEST(Lora, MergedItIsAModelThatGoesOnWhereTheAdaptersWere) {
  train(1, "merge", {"--lora.export", "diffusers,kohya"});
  const std::string model = shared().out("merge") + "/model", merged = (shared().folder() / "merged").string();
  const Result r = shared().tessera(
      {"convert", shared().out("base") + "/model", merged, "--merge", model + "/lora_kohya.safetensors"});
  ASSERT_EQ(r.code, 0) << r.output;
  // one step without a rate: the loss of base + adapters, and of the merged model
  train(1, "with-adapters", {"--run.steps", "1", "--train.lr", "0", "--lora.init", model + "/lora_kohya.safetensors"});
  const Result full = shared().train(1, "of-merged", {"--run.steps", "1", "--train.lr", "0", "--model.path", merged});
  ASSERT_EQ(full.code, 0) << full.output;
  EXPECT_NEAR(shared().losses("with-adapters")[0] / shared().losses("of-merged")[0], 1, 1e-5);
  train(1, "of-base", {"--run.steps", "1", "--train.lr", "0"});
  EXPECT_GT(std::abs(shared().losses("of-base")[0] / shared().losses("of-merged")[0] - 1), 1e-4)
      << "the adapters do something";
}

/// How far one curve is from another, at most, relatively.
double worst(const std::string& a, const std::string& b) {
  const auto one = shared().losses(a), other = shared().losses(b);
  EXPECT_EQ(one.size(), other.size());
  double most = 0;
  for (size_t i = 0; i < std::min(one.size(), other.size()); ++i)
    most = std::max(most, std::abs(other[i] / one[i] - 1));
  return most;
}

/// Peaks are those that were planned, on every rank.
void expect_predicted_memory(const std::string& run) {
  const auto steps = shared().metrics(run);
  ASSERT_FALSE(steps.empty());
  expect_planned_peaks(steps.back(), run);
}

// A result is rounded to 8 bits in bf16, at random over thousands of them: what is left in the loss is a tenth of a
// percent. That fp32 runs are the same to 2e-6 says that the bound is needed, and that bf16 is really computed in.
TEST(LoraIn16Bits, FollowsTheCurveOfFp32InLessMemory) {
  const std::vector<std::string> wide = {"--data.size", "96,160"};  // activations are most of what it takes
  const auto with = [&](std::vector<std::string> more) {
    return more.insert(more.end(), wide.begin(), wide.end()), more;
  };
  train(1, "in-fp32", with({}));
  const double whole = shared().metrics("in-fp32").back()["ranks"][0]["peak_bytes"];
  for (const char* type : {"bf16", "fp16"}) {
    const std::string run = std::string("in-") + type;
    train(1, run, with({"--plan.compute_dtype", type}));
    EXPECT_LT(worst("in-fp32", run), 1e-3) << type;
    EXPECT_GT(worst("in-fp32", run), 2e-6) << type;
    EXPECT_LT(shared().metrics(run).back()["ranks"][0]["peak_bytes"].get<double>(), 0.75 * whole) << type;
    expect_predicted_memory(run);
  }
}

struct Base {
  const char* form;
  double bytes;  ///< an element of a linear of a block
  double error;  ///< |stored - w| / |w|, at most
  double curve;  ///< of the loss, relatively, at most
};

class LoraBase : public ::testing::TestWithParam<Base> {};

TEST_P(LoraBase, TakesAndSendsItsBytesIsTheSameOnTwoRanksAndTellsItsError) {
  const Base& base = GetParam();
  const std::string one = std::string("base-") + base.form, two = one + "-2";
  const std::vector<std::string> flags = {"--lora.base_dtype", base.form, "--plan.strategy", "full_shard"};
  train(1, one, flags);
  train(2, two, flags);
  expect_same_losses(one, two);
  expect_predicted_memory(one);
  expect_predicted_memory(two);

  train(1, "base-fp32", {"--plan.strategy", "full_shard"});
  train(2, "base-fp32-2", {"--plan.strategy", "full_shard"});
  EXPECT_LT(worst("base-fp32", one), base.curve);
  EXPECT_GT(worst("base-fp32", one), 2e-6) << "it is really in fewer bits";
  EXPECT_TRUE(shared().metrics("base-fp32", "base").empty());

  const auto told = shared().metrics(one, "base"), of_two = shared().metrics(two, "base");
  ASSERT_EQ(told.size(), 1u);
  ASSERT_EQ(of_two.size(), 1u);
  EXPECT_EQ(told[0]["form"], base.form);
  const double error = told[0]["error"], most = told[0]["worst"];
  EXPECT_GT(error, base.error / 10);
  EXPECT_LE(error, most);
  EXPECT_LT(most, base.error);
  EXPECT_NEAR(of_two[0]["error"].get<double>() / error, 1, 1e-9) << "ranks count each element once";

  // What rests, and what a step gathers: three blocks of ten linears with their pairs beside the rest in fp32.
  constexpr double kElements = 3 * (8 * 64 * 64 + 2 * 64 * 128);
  const auto of_ranks = [](const std::string& run, const char* what, const char* part) {
    double sum = 0;
    const auto steps = shared().metrics(run);
    for (const auto& rank : steps.back()["ranks"])
      if (rank[what].contains(part)) sum += rank[what][part].get<double>();
    return sum;
  };
  const double saved = kElements * (4 - base.bytes);
  EXPECT_NEAR(of_ranks("base-fp32", "bytes", "parameters") - of_ranks(one, "bytes", "parameters"), saved, 1);
  EXPECT_NEAR(of_ranks("base-fp32-2", "bytes", "parameters") - of_ranks(two, "bytes", "parameters"), saved, 1);
  const double less = of_ranks("base-fp32-2", "sent_bytes", "dp_shard") - of_ranks(two, "sent_bytes", "dp_shard");
  EXPECT_GT(less, 0);
  EXPECT_NEAR(std::fmod(less, saved / 3), 0, 1) << "the ranks' halves of each block's gathers, together";
}

INSTANTIATE_TEST_SUITE_P(, LoraBase,
                         ::testing::Values(Base{"bf16", 2, 0.003, 2e-3}, Base{"int8", 260.0 / 256, 0.012, 5e-3},
                                           Base{"fp8", 260.0 / 256, 0.04, 2e-2}),
                         [](const auto& info) { return std::string(info.param.form); });

TEST(LoraBaseIn8Bits, ResumesRestsOnTheHostAndIsMergedIntoTheOriginal) {
  train(1, "q-whole", {"--lora.base_dtype", "int8"});
  train(2, "q-cut", {"--lora.base_dtype", "int8", "--run.steps", "5", "--plan.parameters", "host"});
  train(1, "q-cut", {"--lora.base_dtype", "int8"});
  expect_same_losses("q-whole", "q-cut");
  const std::string model = shared().out("q-whole") + "/model", merged = (shared().folder() / "q-merged").string();
  const Result r = shared().tessera(
      {"convert", shared().out("base") + "/model", merged, "--merge", model + "/pytorch_lora_weights.safetensors"});
  ASSERT_EQ(r.code, 0) << r.output;
  // The adapters beside the base as it was: the merged model to fp32's bits, the one in int8 to its own.
  const std::vector<std::string> still = {"--run.steps", "1",           "--train.lr",
                                          "0",           "--lora.init", model + "/pytorch_lora_weights.safetensors"};
  const auto with = [&](std::vector<std::string> more) {
    return more.insert(more.end(), still.begin(), still.end()), more;
  };
  train(1, "q-on-fp32", with({}));
  train(1, "q-on-int8", with({"--lora.base_dtype", "int8"}));
  const Result full = shared().train(1, "q-of-merged", {"--run.steps", "1", "--train.lr", "0", "--model.path", merged});
  ASSERT_EQ(full.code, 0) << full.output;
  EXPECT_NEAR(shared().losses("q-on-fp32")[0] / shared().losses("q-of-merged")[0], 1, 1e-5);
  EXPECT_NE(shared().losses("q-on-int8")[0], shared().losses("q-on-fp32")[0]);
  EXPECT_NEAR(shared().losses("q-on-int8")[0] / shared().losses("q-of-merged")[0], 1, 5e-3);
}

TEST(LoraBaseIn8Bits, DoraStartsAsTheBaseThatComputesAndTrainsAlikeOnTwoRanks) {
  const std::vector<std::string> flags = {"--lora.base_dtype", "int8", "--lora.dora", "true"};
  train(1, "q-dora", flags);
  train(2, "q-dora-2", flags);
  expect_same_losses("q-dora", "q-dora-2");
  train(1, "q-pair", {"--lora.base_dtype", "int8"});
  EXPECT_NEAR(shared().losses("q-dora")[0] / shared().losses("q-pair")[0], 1, 1e-5)
      << "before the first step both are the base";
}

/// Every tensor of a file, with its bytes.
std::map<std::string, std::vector<float>> tensors_of(const fs::path& path) {
  std::map<std::string, std::vector<float>> all;
  const checkpoint::WeightSet weights = checkpoint::open_weights(path);
  for (const std::string& name : weights.names()) {
    std::vector<float>& values = all[name];
    values.resize(static_cast<size_t>(weights.at(name).count()));
    weights.read_f32(name, 0, weights.at(name).count(), values.data());
  }
  return all;
}

TEST(Lora, EveryCheckpointHasTheFilesThatTheRunExports) {
  for (const std::string masters : {"fp32", "split"}) {
    const std::string name = "beside-" + masters;
    train(2, name,
          {"--lora.export", "diffusers,comfyui,peft", "--lora.alpha", "6", "--checkpoint.every", "6", "--mesh", "tp=2",
           "--plan.masters", masters});
    const fs::path out = shared().out(name), lora = out / "checkpoints/step-000012/lora";
    EXPECT_TRUE(fs::exists(out / "checkpoints/step-000006/lora/lora_comfyui.safetensors"));
    for (const char* file :
         {"pytorch_lora_weights.safetensors", "lora_comfyui.safetensors", "peft/adapter_model.safetensors"}) {
      EXPECT_EQ(tensors_of(lora / file), tensors_of(out / "model" / file)) << file;
      EXPECT_EQ(checkpoint::open_weights(lora / file).metadata(),
                checkpoint::open_weights(out / "model" / file).metadata())
          << file;
    }
  }
}

TEST(Lora, ACheckpointSaysItsScaleToWhoeverReadsIt) {
  train(1, "scaled", {"--lora.alpha", "6", "--lora.targets", "q,k"});
  const fs::path out = shared().out("scaled"), saved = out / "checkpoints/step-000012";
  const auto manifest = json_of(saved / "manifest.json");
  const auto& lora_of = manifest.at("lora");
  EXPECT_EQ(lora_of.at("rank"), 4);
  EXPECT_EQ(lora_of.at("alpha"), 6);
  EXPECT_EQ(lora_of.at("rslora"), false);
  EXPECT_EQ(lora_of.at("dora"), false);
  EXPECT_EQ(lora_of.at("targets").size(), 3u * 4) << "q and k of both attentions of three blocks";
  const std::string exported = out / "model/pytorch_lora_weights.safetensors";
  const auto converted = [&](const std::string& name, const std::vector<std::string>& line) {
    const std::string to = (shared().folder() / name).string();
    std::vector<std::string> words = {"convert", line.at(0), to};
    words.insert(words.end(), line.begin() + 1, line.end());
    const Result r = shared().tessera(words);
    EXPECT_EQ(r.code, 0) << r.output;
    return tensors_of(to);
  };
  const std::string base = shared().out("base") + "/model";
  EXPECT_EQ(converted("by-checkpoint", {base, "--merge", saved.string()}),
            converted("by-export", {base, "--merge", exported}));
  EXPECT_EQ(converted("checkpoint.safetensors", {saved.string(), "--to", "comfyui"}),
            converted("export.safetensors", {exported, "--to", "comfyui"}));
  train(1, "on-checkpoint", {"--run.steps", "1", "--train.lr", "0", "--lora.targets", "q,k", "--lora.init", saved});
  train(1, "on-export", {"--run.steps", "1", "--train.lr", "0", "--lora.targets", "q,k", "--lora.init", exported});
  EXPECT_EQ(shared().losses("on-checkpoint"), shared().losses("on-export"));
}

TEST(Lora, ASampleTakesAnyFileAtAStrength) {
  train(1, "strong", {});
  const fs::path model = shared().out("strong") + "/model";
  const auto sample = [&](const std::string& name, std::vector<std::string> more, int ranks = 1) {
    const fs::path out = shared().folder() / (name + ".gif");
    std::vector<std::string> line = {
        "sample",    shared().out("strong") + "/recipe.toml", "--prompt", "a", "--sample.steps", "2", "--out",
        out.string()};
    if (ranks > 1) line.insert(line.begin(), {"launch", "-n", std::to_string(ranks)});
    line.insert(line.end(), more.begin(), more.end());
    const Result r = shared().tessera(line);
    EXPECT_EQ(r.code, 0) << r.output;
    return text_of(out);
  };
  const std::string file = model / "pytorch_lora_weights.safetensors";
  const std::string base = sample("base", {"--weights", shared().out("base") + "/model", "--train.mode", "full"});
  EXPECT_TRUE(sample("none", {"--lora", file + ":0"}) == base);
  EXPECT_TRUE(sample("whole", {"--lora", file}) != base);
  EXPECT_TRUE(sample("once", {"--lora", file + ":1"}) == sample("whole", {"--lora", file}));
  EXPECT_TRUE(sample("half", {"--lora", file + ":0.5"}) != sample("two", {"--lora", file + ":0.5," + file + ":0.5"}));
  EXPECT_TRUE(sample("cut", {"--lora", file, "--mesh", "tp=2"}, 2) != base);
  const Result wrong = shared().tessera({"sample", shared().recipe(), "--lora", file + ":strong", "--prompt", "a"});
  EXPECT_EQ(wrong.code, 2) << wrong.output;
}

/// A LoRA that changes much, in a file.
const std::string& fast() {
  static const std::string file = [] {
    train(1, "fast", {"--train.lr", "2e-1", "--lora.targets", "q,o,ffn.0"});
    return shared().out("fast") + "/model/pytorch_lora_weights.safetensors";
  }();
  return file;
}

/// The last sample of a run, and one that `tessera sample` writes.
std::string last_sample(const std::string& run, int steps) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06d-0.mp4", steps);
  return text_of(fs::path(shared().out(run)) / "samples" / name);
}
std::string sampled(const std::string& run, const std::string& name, std::vector<std::string> more) {
  const fs::path out = shared().folder() / (name + ".mp4");
  more.insert(more.begin(), {"sample", shared().out(run) + "/recipe.toml", "--out", out.string()});
  const Result r = shared().tessera(more);
  EXPECT_EQ(r.code, 0) << r.output;
  return text_of(out);
}

std::string merged(const std::string& base, const std::string& name, const std::string& lora, double strength) {
  const std::string out = (shared().folder() / name).string();
  const Result r = shared().tessera({"convert", base, out, "--merge", lora, "--scale", std::to_string(strength)});
  EXPECT_EQ(r.code, 0) << r.output;
  return out;
}

class SampledWith : public ::testing::TestWithParam<std::pair<int, std::vector<std::string>>> {};

/// Samples are those of the merged weights; what is trained does not see it, to the last bit.
TEST_P(SampledWith, ALoraThatIsInSamplesAloneAndSamplesAreThoseOfTheMergedWeights) {
  const auto& [ranks, flags] = GetParam();
  constexpr int kEach = 4, kAll = 6;
  const auto is = [&](const char* text) { return std::ranges::count(flags, text) > 0; };
  const bool adapters = is("lora"), average = is("--train.ema");
  const std::string base = shared().out("base") + "/model";
  std::vector<std::string> line = {"--model.path",   base,   "--run.steps",      std::to_string(kAll),
                                   "--train.lr",     "1e-2", "--sample.every",   std::to_string(kEach),
                                   "--sample.steps", "2",    "--sample.prompts", "a"};
  line.insert(line.end(), flags.begin(), flags.end());
  const std::string name = "sl-" + std::to_string(std::hash<std::string>{}(::testing::PrintToString(flags)) % 100000);
  const Result plain = shared().train(ranks, name + "-plain", line, 300);
  ASSERT_EQ(plain.code, 0) << plain.output;
  line.insert(line.end(), {"--sample.lora", fast() + ":0.5"});
  const Result with = shared().train(ranks, name, line, 300);
  ASSERT_EQ(with.code, 0) << with.output;

  EXPECT_EQ(shared().losses(name), shared().losses(name + "-plain"));
  EXPECT_TRUE(shared().model(name) == shared().model(name + "-plain")) << "bits of what is trained";
  EXPECT_NE(last_sample(name, kEach), last_sample(name + "-plain", kEach));
  EXPECT_NE(last_sample(name, kAll), last_sample(name + "-plain", kAll));
  const std::string model = shared().out(name) + (average ? "/model_ema" : "/model");
  const std::string all = merged(adapters ? base : model, name + "-merged", fast(), 0.5);
  std::vector<std::string> merged_line = {"--sample.lora", "", "--weights", all};
  if (adapters) merged_line = {"--sample.lora", "", "--model.path", all, "--weights", model};
  // what is computed in another layout rounds otherwise, so it is compared with itself
  if (ranks == 1) {
    EXPECT_TRUE(last_sample(name, kAll) == sampled(name, name + "-of-merged", merged_line));
    EXPECT_TRUE(last_sample(name, kAll) == sampled(name, name + "-again", {})) << "tessera sample adds it, too";
    EXPECT_TRUE(last_sample(name + "-plain", kAll) == sampled(name, name + "-without", {"--sample.lora", ""}));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , SampledWith,
    ::testing::Values(
        std::pair<int, std::vector<std::string>>{1, {}},
        std::pair<int, std::vector<std::string>>{1, {"--train.ema", "0.5"}},
        std::pair<int, std::vector<std::string>>{1, {"--train.mode", "lora", "--lora.rank", "4"}},
        std::pair<int, std::vector<std::string>>{2, {"--plan.masters", "split", "--plan.strategy", "full_shard"}},
        std::pair<int, std::vector<std::string>>{2, {"--mesh", "tp=2", "--plan.masters", "bf16"}},
        std::pair<int, std::vector<std::string>>{2,
                                                 {"--train.mode", "lora", "--lora.rank", "4", "--lora.base_dtype",
                                                  "int8", "--plan.parameters", "host", "--plan.host_budget", "1GiB"}}));

TEST(SampleLora, OfTwoExpertsEachHasItsOwnFile) {
  std::vector<std::string> line = {"--experts.train",  "both", "--experts.turn", "1",   "--run.seed",     "3",
                                   "--run.steps",      "8",    "--sample.every", "8",   "--sample.steps", "4",
                                   "--sample.prompts", "a",    "--train.lr",     "1e-2"};
  const auto run = [&](const std::string& name, const std::string& loras) {
    std::vector<std::string> flags = line;
    if (!loras.empty()) flags.insert(flags.end(), {"--sample.lora", loras});
    const Result r = shared().train(1, name, flags, 300);
    EXPECT_EQ(r.code, 0) << r.output;
    std::set<std::string> trained;
    for (const auto& step : shared().metrics(name)) trained.insert(step["expert"]);
    EXPECT_EQ(trained.size(), 2u) << "the head of one that is not trained is zero";
    return last_sample(name, 8);
  };
  const std::string none = run("both-none", ""), first = run("both-first", fast() + ":1," + fast() + ":0"),
                    second = run("both-second", fast() + ":0," + fast() + ":1"), one = run("both-one", fast());
  EXPECT_EQ((std::set<std::string>{none, first, second, one}).size(), 4u);
  EXPECT_EQ(run("both-off", fast() + ":0," + fast() + ":0"), none);
  EXPECT_EQ(run("both-each", fast() + "," + fast()), one) << "one file is both experts'";
}

TEST(SampleLora, IsCountedAndMistakesAreNamedBeforeTheFirstStep) {
  const auto host = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", shared().recipe(), "--json", "--sample.every", "2"});
    const Result r = shared().tessera(more);
    EXPECT_EQ(r.code, 0) << r.output;
    return nlohmann::json::parse(r.output.substr(r.output.find("\n{") + 1))["host"]["sample_lora_bytes"].get<int64_t>();
  };
  const int64_t whole = host({"--sample.lora", fast()});
  EXPECT_EQ(host({}), 0);
  EXPECT_GT(whole, 0);
  EXPECT_EQ(host({"--sample.lora", fast(), "--mesh", "dp_shard=2"}), (whole + 1) / 2);
  EXPECT_EQ(host({"--sample.lora", "gone.safetensors"}), whole) << "a plan needs no weights";
  const auto refused = [](const std::string& loras, int code, const std::string& text) {
    const Result r = shared().train(1, "wrong-fast", {"--sample.every", "2", "--sample.lora", loras});
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(text), std::string::npos) << text << "\n" << r.output;
    EXPECT_EQ(r.output.find("step 1/"), std::string::npos) << r.output;
  };
  refused("gone.safetensors:1", 3, "[sample.lora] gone.safetensors: no such file or folder");
  refused(fast() + ":much", 2, "'much' is no strength");
  refused(shared().out("base") + "/model:1", 3, "LoRA");
}

struct Factors {
  const char* name;
  std::vector<std::string> flags;
};
class LoraOfFactors : public ::testing::TestWithParam<Factors> {
 protected:
  std::vector<std::string> with(std::vector<std::string> more = {}) const {
    std::vector<std::string> flags = GetParam().flags;
    flags.insert(flags.end(), {"--train.lr", "5e-3", "--train.global_batch", "2", "--train.micro_batch", "2"});
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  std::string run(const std::string& what) const { return std::string(GetParam().name) + "-" + what; }
  bool dora() const { return std::ranges::find(GetParam().flags, "--lora.dora") != GetParam().flags.end(); }
};

TEST_P(LoraOfFactors, TrainsAlikeOnAnyLayoutInThePlannedMemory) {
  train(1, run("one"), with());
  train(1, run("still"), with({"--train.lr", "0"}));
  EXPECT_LT(mean(shared().losses(run("one")), kSteps / 2, kSteps),
            mean(shared().losses(run("still")), kSteps / 2, kSteps));
  expect_predicted_memory(run("one"));
  constexpr const char* kMeshes[] = {"tp=2", "dp_shard=2", "dp_replicate=2", "cp=2", "sp=2", "pp=2"};
  std::vector<const char*> meshes = {kMeshes[0]};
  MatrixPart others(std::string("factors ") + GetParam().name, static_cast<int>(std::size(kMeshes)) - 1);
  for (const int i : others) meshes.push_back(kMeshes[i + 1]);
  for (const char* mesh : meshes) {
    SCOPED_TRACE(mesh);
    train(2, run(mesh), with({"--mesh", mesh}));
    expect_same_losses(run("one"), run(mesh));
    expect_predicted_memory(run(mesh));
  }
}

TEST_P(LoraOfFactors, ResumesOnAnotherLayoutAndStandsOnAQuantisedBase) {
  train(1, run("whole"), with({"--lora.base_dtype", "int8"}));
  train(2, run("cut"), with({"--lora.base_dtype", "int8", "--run.steps", "5"}));
  train(1, run("cut"), with({"--lora.base_dtype", "int8"}));
  expect_same_losses(run("whole"), run("cut"));
  for (const auto& [name, values] : shared().model(run("whole")))
    EXPECT_TRUE(name.find(".lokr_w") != name.npos || name.find(".hada_w") != name.npos || name.ends_with(".alpha") ||
                (dora() && name.ends_with(".lora_magnitude_vector")));
}

TEST_P(LoraOfFactors, ItsFilesAreMergedAndTrainedFurtherAsTheyWereTrained) {
  train(1, run("merge"), with({"--lora.export", "diffusers,kohya,comfyui", "--lora.alpha", "3"}));
  const std::string model = shared().out(run("merge")) + "/model";
  const auto still = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--run.steps", "1", "--train.lr", "0", "--train.global_batch", "2"});
    return more;
  };
  train(1, run("of-base"), still({}));
  for (const char* file : {"lora_kohya", "lora_comfyui", "pytorch_lora_weights"}) {
    SCOPED_TRACE(file);
    const std::string path = model + "/" + file + ".safetensors", merged = (shared().folder() / run(file)).string();
    const Result r = shared().tessera({"convert", shared().out("base") + "/model", merged, "--merge", path});
    ASSERT_EQ(r.code, 0) << r.output;
    const Result full = shared().train(1, run(std::string("of-") + file), still({"--model.path", merged}));
    ASSERT_EQ(full.code, 0) << full.output;
    const bool of_base = dora() && file[0] == 'l';  // its magnitudes are ComfyUI's, which a run does not begin with
    const std::string begun = of_base ? model + "/pytorch_lora_weights.safetensors" : path;
    if (of_base) {
      const char* name = file[5] == 'k' ? "lora_unet_blocks_0_self_attn_q.dora_scale"
                                        : "diffusion_model.blocks.0.self_attn.q.dora_scale";
      EXPECT_EQ(checkpoint::open_weights(path).at(name).shape.size(), 2u);
    }
    // with another alpha than the file's: its scale goes into a factor
    std::vector<std::string> flags = GetParam().flags;
    flags.insert(flags.end(), {"--lora.init", begun, "--lora.alpha", "1"});
    train(1, run(std::string("on-") + file), still(flags));
    const double of_merged = shared().losses(run(std::string("of-") + file))[0];
    EXPECT_NEAR(shared().losses(run(std::string("on-") + file))[0] / of_merged, 1, 1e-5);
    EXPECT_GT(std::abs(shared().losses(run("of-base"))[0] / of_merged - 1), 1e-5) << "the adapters do something";
  }
  // a checkpoint says its scale too
  const std::string checkpoint = shared().out(run("merge")) + "/checkpoints/step-000012",
                    again = (shared().folder() / run("again.safetensors")).string();
  std::vector<std::string> convert = {"convert", checkpoint, again, "--to", "kohya"};
  if (dora()) convert.insert(convert.end(), {"--base", shared().out("base") + "/model"});
  const Result r = shared().tessera(convert);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(tensors_of(again), tensors_of(model + "/lora_kohya.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    , LoraOfFactors,
    ::testing::Values(Factors{"loha", {"--lora.kind", "loha", "--lora.rank", "4"}},
                      Factors{"lokr", {"--lora.kind", "lokr", "--lora.rank", "4", "--lora.factor", "4"}},
                      Factors{"lokr_dora", {"--lora.kind", "lokr", "--lora.factor", "4", "--lora.dora", "true"}},
                      Factors{"lokr_whole", {"--lora.kind", "lokr", "--lora.rank", "1000000", "--lora.factor", "-1"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Lora, PatternsGiveModulesTheirRankAndAlpha) {
  const std::vector<std::string> flags = {"--lora.rank_pattern", "blocks.*.ffn.*=8,blocks.1.*=2",
                                          "--lora.alpha_pattern", "blocks.0.*=16"};
  train(1, "patterns", flags);
  train(2, "patterns-two", flags);
  expect_same_losses("patterns", "patterns-two");
  expect_predicted_memory("patterns");
  const std::string file = shared().out("patterns") + "/model/pytorch_lora_weights.safetensors",
                    merged = (shared().folder() / "of-patterns").string();
  const auto weights = checkpoint::open_weights(file);
  EXPECT_EQ(weights.at("transformer.blocks.1.ffn.net.0.proj.lora_A.weight").shape[0], 8);
  EXPECT_EQ(weights.at("transformer.blocks.1.attn1.to_q.lora_A.weight").shape[0], 2);
  EXPECT_EQ(weights.at("transformer.blocks.0.attn1.to_q.lora_A.weight").shape[0], 4);
  // each module's own scale stands in the file
  const Result r = shared().tessera({"convert", shared().out("base") + "/model", merged, "--merge", file});
  ASSERT_EQ(r.code, 0) << r.output;
  std::vector<std::string> on = flags;
  on.insert(on.end(), {"--run.steps", "1", "--train.lr", "0", "--lora.init", file});
  train(1, "on-patterns", on);
  const Result full =
      shared().train(1, "merged-patterns", {"--run.steps", "1", "--train.lr", "0", "--model.path", merged});
  ASSERT_EQ(full.code, 0) << full.output;
  EXPECT_NEAR(shared().losses("on-patterns")[0] / shared().losses("merged-patterns")[0], 1, 1e-5);
}

TEST(Lora, MistakesOfFactorsAreNamed) {
  const auto fails = [](std::vector<std::string> flags, int ranks, const std::string& text) {
    const Result r = shared().train(ranks, "wrong-factors", lora(std::move(flags)));
    EXPECT_NE(r.code, 0) << text;
    EXPECT_NE(r.output.find(text), std::string::npos) << r.output;
  };
  fails({"--lora.kind", "lokr", "--lora.factor", "1", "--mesh", "tp=2"}, 2, "lokr_w1 into parts of its 1");
  fails({"--lora.kind", "lokr", "--lora.dora", "true", "--lora.dropout", "0.1"}, 1, "exclude each other");
  fails({"--lora.kind", "lokr", "--lora.factor", "0"}, 1, "lora.factor = 0");
  fails({"--lora.kind", "loha", "--lora.export", "peft"}, 1, "peft names have no place");
  fails({"--lora.rank_pattern", "nothing.*=4"}, 1, "'nothing.*' is no module with an adapter");
  fails({"--lora.rank_pattern", "q=1.5"}, 1, "ranks from 1 on");
  train(1, "a-lora");
  fails({"--lora.kind", "loha", "--lora.init", shared().out("a-lora") + "/model/pytorch_lora_weights.safetensors"}, 1,
        "set lora.kind = lora");
}

TEST(Lora, MistakesAreNamed) {
  const auto refused = [](const std::vector<std::string>& more, int code, const std::vector<std::string>& texts) {
    const Result r = shared().train(1, "wrong", lora(more));
    EXPECT_EQ(r.code, code) << r.output;
    for (const auto& text : texts) EXPECT_NE(r.output.find(text), std::string::npos) << text << "\n" << r.output;
  };
  refused({"--lora.targets", "self_atn"}, 2, {"lora.targets", "self_atn"});
  refused({"--lora.targets", "blocks.(q"}, 2, {"regular expression"});
  refused({"--lora.rank", "100000"}, 2, {"lora.rank", "rank of 1 to"});
  refused({"--lora.alpha", "much"}, 2, {"lora.alpha", "auto or a number"});
  refused({"--lora.dora", "true", "--lora.dropout", "0.1"}, 2, {"exclude each other"});
  refused({"--lora.base_dtype", "int4"}, 2, {"lora.base_dtype", "int8"});
  refused({"--lora.export", "comfy"}, 2, {"did you mean comfyui?"});
  refused({"--lora.dora", "true", "--lora.export", "diffusers,diffsynth"}, 2, {"lora.export", "diffsynth names"});
  refused({"--lora.init", shared().out("base") + "/model"}, 3, {"is not a LoRA"});
}

}  // namespace
}  // namespace tessera::testing
