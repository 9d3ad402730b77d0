// Ranges of numbers, and keys that are set and change nothing: each is told, nothing else is.
#include "tessera/recipe/recipe_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/check.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/job/encoders.h"
#include "tessera/job/experts.h"
#include "tessera/job/given_checks.h"
#include "tessera/job/job.h"
#include "tessera/models/registry.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::job {
namespace {

const std::string kDemo = TESSERA_SOURCE_DIR "/recipes/wan-tiny_demo_cpu.toml";

std::string refusal(const recipe::Overrides& overrides) {
  try {
    recipe::load_recipe(kDemo, overrides);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "none";
}

/// All that is said of the demo with these changes, a line each.
std::string said(const recipe::Overrides& overrides, const std::string& mesh = "dp_shard=2") {
  std::string all;
  for (const std::string& words : without_effect(recipe::load_recipe(kDemo, overrides), Mesh::parse(mesh)))
    all += words + "\n";
  return all;
}

TEST(EncodersUsed, AreThoseThatFilesDoNotReplace) {
  const auto texts = [](const recipe::Overrides& given) { return encodes_texts(recipe::load_recipe("", given)); };
  const auto clips = [](const recipe::Overrides& given) { return encodes_clips(recipe::load_recipe("", given)); };
  using Keys = recipe::Overrides;
  EXPECT_TRUE(texts({}) && clips({}));
  const Keys::value_type files = {"data.texts", "column"}, latents = {"data.latents", "column"};
  EXPECT_FALSE(texts({files}));
  EXPECT_TRUE(clips({files}));
  EXPECT_FALSE(clips({latents}));
  EXPECT_TRUE(texts({files, {"sample.every", "5"}}) && clips({latents, {"sample.every", "5"}})) << "samples do";
  EXPECT_TRUE(texts({files, {"diffusion.caption_dropout", "0.1"}})) << "the caption of no words";
  EXPECT_FALSE(texts({files, {"diffusion.caption_dropout", "0.1"}, {"data.null_text", "a.pt,b.pt"}}));
}

TEST(Experts, AreTheFamilysAndAFamilyWithoutRefusesThem) {
  const auto names = [](const recipe::Overrides& overrides) {
    std::string text;
    for (const Expert& expert : find_experts(recipe::load_recipe(kDemo, overrides)).list)
      text += expert.name + ":" + expert.folder + " ";
    return text;
  };
  EXPECT_EQ(names({}), ": ");
  EXPECT_EQ(names({{"experts.train", "both"}}), "high_noise:high_noise_model low_noise:low_noise_model ");
  EXPECT_EQ(names({{"experts.train", "low_noise"}}), "low_noise:low_noise_model ");
  EXPECT_EQ(names({{"experts.router", "gate"}}), "expert_0:expert_0 expert_1:expert_1 ");
  try {
    names({{"experts.train", "both"}, {"model.family", "other"}});
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("the family other have no experts"), std::string::npos) << error.what();
  }
}

TEST(Ranges, AreToldWithKeyAndValue) {
  EXPECT_NE(refusal({{"train.lr", "-1e-4"}}).find("train.lr = -1e-4: expected at least 0"), std::string::npos);
  EXPECT_NE(refusal({{"train.betas", "0.9,1.5"}}).find("train.betas = 1.5: expected from 0 to below 1"),
            std::string::npos);
  EXPECT_NE(refusal({{"train.betas", "0.9,1"}}).find("train.betas = 1: expected from 0 to below 1"), std::string::npos)
      << "it would divide by 0";
  EXPECT_NE(refusal({{"lora.dropout", "1"}}).find("lora.dropout = 1"), std::string::npos);
  EXPECT_NE(refusal({{"train.eps", "0"}}).find("train.eps = 0: expected above 0"), std::string::npos);
  EXPECT_NE(refusal({{"train.clip_norm", "-1"}}).find("train.clip_norm"), std::string::npos);
  EXPECT_NE(refusal({{"diffusion.shift", "0"}}).find("diffusion.shift"), std::string::npos);
  EXPECT_NE(refusal({{"fault.timeout", "0"}}).find("fault.timeout"), std::string::npos);
  EXPECT_NE(refusal({{"data.fps", "-8"}}).find("data.fps"), std::string::npos);
  EXPECT_EQ(refusal({{"train.lr", "0"}, {"train.clip_norm", "0"}, {"data.fps", "0"}}), "none");
}

TEST(Ranges, OfWhatIsCountedFromOneRefuseZeroAndWhatIsTooLarge) {
  for (const char* key : {"train.micro_batch", "plan.update_threads", "plan.chunks"}) {
    EXPECT_NE(refusal({{key, "0"}}).find(std::string(key) + " = 0"), std::string::npos) << key;
    EXPECT_NE(refusal({{key, "4294967296"}}).find(key), std::string::npos) << key << ": not taken for 0";
  }
}

TEST(Budget, OfNothingIsRefusedAndDoesNotMeanAutomatic) {
  for (const char* none : {"0", "0GiB", "0.1B"})
    EXPECT_NE(refusal({{"plan.budget", none}}).find("plan.budget"), std::string::npos) << none;
  EXPECT_EQ(refusal({{"plan.host_budget", "0"}}), "none");
}

TEST(Budget, IsTakenInTheUnitsThatPeopleWrite) {
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, int64_t>>{{"24GiB", int64_t{24} << 30},
                                                                                {"24 gib", int64_t{24} << 30},
                                                                                {"24G", int64_t{24} << 30},
                                                                                {"24GB", 24'000'000'000},
                                                                                {"1.5gb", 1'500'000'000},
                                                                                {"512KB", 512'000},
                                                                                {"800b", 800}})
    EXPECT_EQ(recipe::load_recipe(kDemo, {{"plan.budget", text}}).plan.budget, bytes) << text;
  for (const char* wrong : {"24X", "24Gi", "24bib", "GiB", "-1GiB", "nan"})
    EXPECT_NE(refusal({{"plan.budget", wrong}}).find("is not a size"), std::string::npos) << wrong;
}

TEST(Nvme, ByHandWithoutAFolderIsRefusedByTheKeyThatWantsIt) {
  for (const char* key : {"plan.parameters", "plan.gradients", "plan.states", "plan.offload_to", "plan.idle"}) {
    const std::string words = refusal({{key, "nvme"}});
    EXPECT_NE(words.find(std::string(key) + " = \"nvme\", and plan.nvme names no folder"), std::string::npos) << words;
    EXPECT_EQ(refusal({{key, "nvme"}, {"plan.nvme", "/tmp/disk"}}), "none");
  }
  EXPECT_EQ(refusal({{"plan.file", "nvme"}}), "none") << "a file of that name is no place on a disk";
}

TEST(Run, WithoutAFolderIsRefused) {
  EXPECT_NE(refusal({{"run.out", ""}}).find("run.out is empty"), std::string::npos);
}

TEST(Optimisers, FillInTheirOwnNumbersAndNameWhatDoesNotGoTogether) {
  const auto values = [](const recipe::Overrides& overrides) {
    const recipe::Recipe r = recipe::load_recipe(kDemo, overrides);
    return r.values.at("train.betas") + " " + r.values.at("train.factored_eps") + " " + r.values.at("plan.moments");
  };
  EXPECT_EQ(values({}), "0.9,0.999  fp32");
  EXPECT_EQ(values({{"train.optimizer", "adam8bit"}}), "0.9,0.999  int8");
  EXPECT_EQ(values({{"train.optimizer", "lion"}}), "0.9,0.99  fp32");
  EXPECT_EQ(values({{"train.optimizer", "adafactor"}}), " 1e-30,1e-3 fp32");
  EXPECT_EQ(values({{"train.optimizer", "came8bit"}}), "0.9,0.999,0.9999 1e-30,1e-16 int8");
  EXPECT_NE(refusal({{"train.optimizer", "came"}, {"train.betas", "0.9,0.999"}}).find("expected 3 numbers"),
            std::string::npos);
  EXPECT_NE(refusal({{"train.optimizer", "adam8bit"}, {"plan.moments", "bf16"}}).find("moments in 8 bits"),
            std::string::npos);
  EXPECT_NE(refusal({{"train.optimizer", "came"}, {"sample.weights", "ema"}}).find("no average is kept"),
            std::string::npos);
  EXPECT_EQ(recipe::load_recipe(kDemo, {{"train.ema", "0.99"}}).sample.weights, "ema");
  EXPECT_EQ(recipe::load_recipe(kDemo, {}).sample.weights, "trained");
}

TEST(Recompute, OfOneBlockInSoManyIsANumberAfterEvery) {
  EXPECT_EQ(recipe::load_recipe(kDemo, {{"plan.recompute", "every 4"}}).plan.recompute_every, 4);
  EXPECT_EQ(recipe::load_recipe(kDemo, {{"plan.recompute", "3"}}).plan.recompute_every, 0);
  for (const char* wrong : {"every 0", "every", "every x", "each 4", "evry 2"}) {
    const std::string words = refusal({{"plan.recompute", wrong}});
    EXPECT_NE(words.find("plan.recompute = '" + std::string(wrong)), std::string::npos) << words;
  }
  EXPECT_NE(refusal({{"plan.recompute", "evry 2"}}).find("expected auto, none, all, a number or \"every N\""),
            std::string::npos);
}

TEST(Path, OfAFolderNamesTheRecipeInIt) {
  try {
    recipe::load_recipe(TESSERA_SOURCE_DIR "/recipes", {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("is a folder"), std::string::npos) << error.what();
  }
}

TEST(Path, MayBeTheNameOfARecipeThatCameWithTheProgram) {
  namespace fs = std::filesystem;
  const fs::path before = fs::current_path();
  std::string folder = (fs::temp_directory_path() / "tessera-names-XXXXXX").string();
  fs::current_path(mkdtemp(folder.data()));
  for (const char* name : {"wan-tiny_demo_cpu", "wan-tiny_demo_cpu.toml", "recipes/wan-tiny_demo_cpu.toml"}) {
    EXPECT_TRUE(fs::equivalent(recipe::recipe_at(name), kDemo)) << name;
    EXPECT_EQ(recipe::load_recipe(name, {}).values, recipe::load_recipe(kDemo, {}).values) << name;
  }
  for (const char* other :
       {"none", "elsewhere/wan-tiny_demo_cpu.toml", "../wan-tiny_demo_cpu.toml", "", "..", "recipes/"})
    EXPECT_EQ(recipe::recipe_at(other), other);
  fs::create_directory("recipes");
  std::ofstream("recipes/wan-tiny_demo_cpu.toml") << "[run]\nseed = 7\n";
  EXPECT_EQ(recipe::load_recipe("recipes/wan-tiny_demo_cpu.toml", {}).values.at("run.seed"), "7")
      << "a file of one's own";
  fs::current_path(before);
  fs::remove_all(folder);
}

TEST(FrozenBase, IsBf16WhereBlocksComputeInItUnlessTheRecipeSaysOtherwise) {
  const auto base = [](recipe::Overrides overrides) {
    overrides.emplace_back("train.mode", "lora");
    const recipe::Recipe recipe = recipe::load_recipe(kDemo, overrides);
    EXPECT_EQ(recipe.values.at("lora.base_dtype"), name(recipe.lora.base)) << "the run folder has what it came to";
    return std::string(name(recipe.lora.base));
  };
  EXPECT_EQ(base({}), "fp32");
  EXPECT_EQ(base({{"plan.compute_dtype", "bf16"}}), "bf16");
  EXPECT_EQ(base({{"plan.compute_dtype", "fp16"}}), "fp32");
  EXPECT_EQ(base({{"plan.compute_dtype", "bf16"}, {"lora.base_dtype", "fp8"}}), "fp8");
  EXPECT_EQ(recipe::load_recipe(kDemo, {}).values.at("lora.base_dtype"), "auto") << "of full training it says nothing";
}

TEST(WithoutEffect, SaysNothingOfADemoAsItIs) { EXPECT_EQ(said({}), ""); }

TEST(WithoutEffect, NamesEachKeyAndWhatItBelongsTo) {
  const std::vector<std::pair<recipe::Overrides, std::string>> cases = {
      {{{"data.clip_stride", "4"}}, "data.clip_stride = 4 has no effect: it belongs to data.clip_mode = \"slide\""},
      {{{"data.clip_samples", "3"}}, "data.clip_samples = 3"},
      {{{"data.buckets", "8x64x64"}, {"data.size", "32,32"}}, "data.size = 32,32 has no effect: data.buckets"},
      {{{"data.allow_bad", "3"}, {"data.strict", "true"}}, "data.allow_bad = 3"},
      {{{"train.eta_min", "1e-6"}}, "train.eta_min"},
      {{{"train.num_cycles", "3"}}, "cosine_with_restarts"},
      {{{"train.power", "2"}}, "polynomial"},
      {{{"train.stable_steps", "3"}}, "wsd"},
      {{{"train.schedule", "constant"}}, "train.warmup_steps = 20 has no effect"},
      {{{"model.path", "weights"}, {"model.init", "random"}}, "model.path = weights has no effect"},
      {{{"train.lr_base_batch", "8"}}, "train.lr_base_batch = 8 has no effect: train.lr_scale is neither linear"},
      {{{"sample.negative_prompt", "blur"}}, "sample.negative_prompt = blur"},
      {{{"plan.file", "plan.toml"}, {"plan.recompute", "all"}},
       "plan.recompute = all has no effect: plan.file decides"},
      {{{"plan.file", "plan.toml"}, {"plan.states", "host"}}, "plan.states = host has no effect: plan.file decides"},
      {{{"plan.file", "plan.toml"}, {"plan.parameters", "host"}}, "plan.parameters = host"},
      {{{"plan.file", "plan.toml"}, {"plan.gradients", "host"}}, "plan.gradients = host"},
      {{{"plan.file", "plan.toml"}, {"plan.activations", "keep"}}, "plan.activations = keep"},
      {{{"plan.pipeline", "gpipe"}}, "plan.pipeline = gpipe has no effect: mesh.pp = 1"},
      {{{"plan.chunks", "2"}}, "plan.chunks = 2 has no effect"},
      {{{"plan.file", "plan.toml"}, {"plan.reduce", "once"}}, "plan.reduce = once has no effect: plan.file decides"},
      {{{"plan.idle", "host"}}, "plan.idle = host has no effect: the run has one denoiser"},
      {{{"experts.turn", "4"}}, "experts.turn = 4 has no effect: the run has one denoiser"},
      {{{"experts.boundary", "0.5"}}, "experts.boundary = 0.5 has no effect"},
      {{{"train.micro_batch", "5"}}, "train.micro_batch = 5 is more than the samples of a rank: micro-batches have 4"},
      {{{"run.steps", "10"}}, "train.warmup_steps = 20 never ends: run.steps = 10"},
      {{{"diffusion.chunk_same_share", "0.2"}}, "diffusion.chunk_same_share = 0.2 has no effect: it belongs to"},
      {{{"diffusion.chunk_draws", "incremental"}}, "diffusion.chunk_draws = incremental has no effect"},
      {{{"sample.chunk_reach", "2"}}, "sample.chunk_reach = 2 has no effect: sample.chunk = 0 makes clips whole"},
      {{{"lora.base_dtype", "int8"}}, "lora.base_dtype = int8 has no effect: train.mode = \"lora\""},
      {{{"model.preset", "wan2.1-t2v-1.3b"}},
       "model.preset = wan2.1-t2v-1.3b is changed by model.config, which gives dim"},
  };
  for (const auto& [overrides, words] : cases) {
    EXPECT_NE(said(overrides).find(words), std::string::npos) << "expected '" << words << "' in: " << said(overrides);
  }
  EXPECT_EQ(said({{"data.clip_stride", "4"}, {"data.clip_mode", "slide"}}), "");
  EXPECT_EQ(said({{"train.num_cycles", "3"}, {"train.schedule", "cosine_with_restarts"}}), "");
  EXPECT_EQ(said({{"plan.pipeline", "interleaved"}, {"plan.chunks", "2"}}, "pp=2"), "");
  EXPECT_EQ(said({{"experts.turn", "4"}, {"experts.train", "both"}, {"plan.idle", "host"}}), "");
  EXPECT_EQ(said({{"experts.boundary", "0.5"}, {"experts.train", "low_noise"}}), "");
}

TEST(WithoutEffect, TellsOfSharingAmongOneRank) {
  EXPECT_NE(said({{"plan.strategy", "full_shard"}}, "").find("plan.strategy = full_shard has no effect on one rank"),
            std::string::npos);
  EXPECT_EQ(said({{"plan.strategy", "no_shard"}}, ""), "");
  EXPECT_NE(said({{"plan.reduce", "once"}}, "").find("plan.reduce = once has no effect: one rank"), std::string::npos);
  EXPECT_EQ(said({{"plan.reduce", "once"}}), "");
}

TEST(WithoutEffect, SaysNothingOfARecipeThatHasEveryDefaultWrittenOut) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("tessera-resolved-" + std::to_string(getpid()) + ".toml");
  std::ofstream(file) << recipe::load_recipe(kDemo, {}).to_toml();
  std::string all;
  for (const std::string& words : without_effect(recipe::load_recipe(file.string(), {}), Mesh::parse("dp_shard=2")))
    all += words + "\n";
  EXPECT_EQ(all, "");
  std::filesystem::remove(file);
}

TEST(WithoutEffect, OfDataSetsIsWhatDoesNothingInEach) {
  recipe::Overrides sets = {{"data.path", ""}, {"data.set.0.path", "a"}, {"data.set.1.path", "b"}};
  const auto told = [&](recipe::Overrides more) {
    more.insert(more.begin(), sets.begin(), sets.end());
    return said(more);
  };
  EXPECT_EQ(told({}), "");
  EXPECT_EQ(told({{"data.set.0.keep_tokens", "1"}}),
            "data.set.0.keep_tokens = 1 has no effect: it belongs to data.caption_shuffle\n");
  EXPECT_EQ(told({{"data.keep_tokens", "1"}}),
            "data.keep_tokens = 1 has no effect: it belongs to data.caption_shuffle\n");
  EXPECT_EQ(told({{"data.keep_tokens", "1"}, {"data.set.1.caption_shuffle", "4"}}), "");
}

TEST(WithoutEffect, TellsOfAMeshThatShardsNothing) {
  EXPECT_NE(said({}, "dp_replicate=8").find("mesh.dp_replicate = 8 shards nothing"), std::string::npos);
  EXPECT_EQ(said({}, "dp_replicate=2,dp_shard=4"), "");
}

TEST(WithoutEffect, TellsOfRanksWithoutASample) {
  EXPECT_NE(said({}, "dp_shard=12").find("leaves 4 of 12 ranks without a sample"), std::string::npos);
}

TEST(CheckTextEncoders, RefusesReleasedWeightsWhoseSecondEncoderIsRandom) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("encoders" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::vector<float> value = {1};
  const std::vector<checkpoint::TensorData> tensors = {{"img_in.bias", DType::f32, {1}, value.data()}};
  checkpoint::write_safetensors(folder / "released.safetensors", tensors, {{"format", "pt"}});
  checkpoint::write_safetensors(folder / "own.safetensors", tensors, checkpoint::own_metadata());
  Job job;
  const auto refused = [&](const char* weights, const recipe::Overrides& overrides) -> std::string {
    try {
      check_text_encoders(recipe::load_recipe(kDemo, overrides).data, job, (folder / weights).string());
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused("released.safetensors", {}), "") << "a model with one text encoder";
  job.second = models::make_text_encoder({.preset = "clip-text-demo"});
  EXPECT_NE(refused("released.safetensors", {}).find("data.text_encoder_path is empty"), std::string::npos);
  EXPECT_NE(
      refused("released.safetensors", {{"data.text_encoder_path", "t5"}}).find("data.pooled_encoder_path is empty"),
      std::string::npos);
  EXPECT_EQ(refused("released.safetensors", {{"data.text_encoder_path", "t5"}, {"data.pooled_encoder_path", "clip"}}),
            "");
  job.second = models::make_text_encoder({.preset = "byt5-demo"});
  const std::string quotes = refused("released.safetensors", {{"data.text_encoder_path", "qwen"}});
  EXPECT_NE(quotes.find("data.glyph_encoder_path is empty"), std::string::npos) << quotes;
  EXPECT_NE(quotes.find("model.config.glyph_len = 0"), std::string::npos) << quotes;
  EXPECT_EQ(refused("released.safetensors", {{"data.text_encoder_path", "qwen"}, {"data.glyph_encoder_path", "byt5"}}),
            "");
  EXPECT_EQ(refused("own.safetensors", {}), "") << "a run of ours had the same random encoders";
  std::filesystem::remove_all(folder);
}

TEST(PooledEncoder, IsThatOfTheModelsWidth) {
  const recipe::Recipe plain = recipe::load_recipe(kDemo, {});
  EXPECT_EQ(open_second_encoder(plain.data, {}), nullptr);
  EXPECT_EQ(open_second_encoder(plain.data, {.pooled_dim = 768})->fingerprint(),
            models::make_text_encoder({.preset = "clip-l"})->fingerprint());
  const auto refused = [](const char* name, int64_t width) -> std::string {
    try {
      open_second_encoder(recipe::load_recipe(kDemo, {{"data.pooled_encoder", name}}).data, {.pooled_dim = width});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused("auto", 20).find("no preset makes"), std::string::npos);
  EXPECT_NE(refused("clip-l", 32).find("makes one of 768"), std::string::npos);
  EXPECT_NE(refused("umt5-demo", 64).find("makes none"), std::string::npos);
  EXPECT_EQ(refused("clip-text-demo", 32), "");
}

TEST(GlyphEncoder, IsThatOfTheModelsWidthAndReadsRows) {
  const auto opened = [](const recipe::Overrides& overrides, const net::Conditions& takes) -> std::string {
    try {
      const auto encoder = open_second_encoder(recipe::load_recipe(kDemo, overrides).data, takes);
      return encoder ? encoder->fingerprint() : "none";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  const auto of = [](const char* preset) { return models::make_text_encoder({.preset = preset})->fingerprint(); };
  EXPECT_EQ(opened({}, {.glyph_dim = 1472, .glyph_rows = 256}), of("byt5-glyph"));
  EXPECT_EQ(opened({}, {.glyph_dim = 32, .glyph_rows = 8}), of("byt5-demo")) << "by the width";
  EXPECT_EQ(opened({{"data.glyph_encoder", "umt5-demo"}}, {.glyph_dim = 64, .glyph_rows = 8}), of("umt5-demo"));
  EXPECT_NE(opened({}, {.glyph_dim = 20, .glyph_rows = 8}).find("no preset makes"), std::string::npos);
  EXPECT_NE(opened({{"data.glyph_encoder", "byt5-glyph"}}, {.glyph_dim = 32, .glyph_rows = 8}).find("rows of 1472"),
            std::string::npos);
  EXPECT_NE(opened({{"data.glyph_encoder", "clip-text-demo"}}, {.glyph_dim = 32, .glyph_rows = 8}).find("makes none"),
            std::string::npos);
  EXPECT_NE(opened({{"data.glyph_encoder_path", "byt5"}}, {}).find("reads no quoted text"), std::string::npos);
}

TEST(ImageEncoder, IsOpenedOnlyWhereASampleBeginsWithAPicture) {
  const net::Conditions takes{
      .image_extra = "image", .clip_dim = 20, .clip_rows = 4, .image_with_first = true, .clean_first = true};
  const auto opens = [&](recipe::Overrides overrides, const char* share = "0") {
    overrides.push_back({"diffusion.image_share", share});
    return open_image_encoder(recipe::load_recipe(kDemo, overrides), takes) != nullptr;
  };
  EXPECT_FALSE(opens({}));
  EXPECT_TRUE(opens({}, "0.3"));
  EXPECT_TRUE(opens({{"sample.image", "first.png"}}));
  EXPECT_TRUE(opens({{"sample.condition", "i2v_head"}}));
  EXPECT_FALSE(opens({{"sample.condition", "i2v_tail"}}));
  EXPECT_TRUE(opens({{"diffusion.conditions", "t2v=1,i2v_loop=2"}}));
  EXPECT_FALSE(opens({{"diffusion.conditions", "t2v=1,v2v_head=2,i2v_head=0"}}, "0.5")) << "the kinds say it";
}

TEST(WithoutEffect, TellsOfRandomTextEmbeddingsUnderTrainedWeights) {
  const std::string words = said({{"model.path", "Wan2.1-T2V-1.3B"}});
  EXPECT_NE(words.find("data.text_encoder_path is empty"), std::string::npos) << words;
  EXPECT_NE(words.find("data.vae = haar is a plain wavelet"), std::string::npos) << words;
  const std::string named = said({{"model.path", "Wan2.1-T2V-1.3B"}, {"data.vae", "wan2.1-vae"}});
  EXPECT_NE(named.find("data.vae = wan2.1-vae is a name without a file: it gets random weights"), std::string::npos)
      << named;
}

TEST(Chunks, AreWholeNumbersThatGrowFromNothing) {
  for (const char* wrong : {"0", "1,2", "0,2,2", "0,1.5", "0,-1", "0,a"})
    EXPECT_NE(refusal({{"diffusion.chunks", wrong}}).find("diffusion.chunks"), std::string::npos) << wrong;
  const recipe::Recipe recipe =
      recipe::load_recipe(kDemo, {{"diffusion.chunks", "0,11"}, {"diffusion.chunk_draws", "incremental"}});
  EXPECT_EQ(recipe.diffusion.chunks, (std::vector<int64_t>{0, 11}));
  EXPECT_TRUE(chunk_draws(recipe.diffusion).incremental);
}

TEST(Chunks, AreOfModelsThatTakeATimestepForEachFrameAndOfOneDistribution) {
  const auto refused = [](recipe::Overrides overrides, bool video = true) -> std::string {
    const recipe::Overrides model = {{"model.preset", "sana-tiny-video"},
                                     {"model.config.num_cross_attention_heads", "4"},
                                     {"model.config.caption_channels", "64"},
                                     {"model.config.caption_length", "5"},
                                     {"model.config.in_channels", "12"},
                                     {"data.size", "48,80"},
                                     {"data.frames", "8"},
                                     {"data.path", "clips"}};
    if (video) overrides.insert(overrides.end(), model.begin(), model.end());
    try {
      make_job(recipe::load_recipe(video ? "" : kDemo, overrides));
    } catch (const UserError& error) {
      return error.what();
    }
    return "none";
  };
  const recipe::Overrides::value_type chunks = {"diffusion.chunks", "0,1"};
  EXPECT_EQ(refused({chunks}), "none");
  EXPECT_EQ(refused({chunks, {"diffusion.timesteps", "sana"}, {"diffusion.weighting", "sigma"}}), "none");
  EXPECT_NE(refused({chunks}, false).find("diffusion.chunks"), std::string::npos);
  EXPECT_NE(refused({{"diffusion.first_frame_noise", "0.1"}}, false).find("one timestep for a clip"),
            std::string::npos);
  const std::vector<std::pair<recipe::Overrides, std::string>> cases = {
      {{{"diffusion.timesteps", "diffusers"}}, "diffusers"},
      {{{"diffusion.strata", "4"}}, "diffusion.strata"},
      {{{"diffusion.bands", "0:0.5=1,0.5:1=3"}}, "diffusion.bands"},
      {{{"diffusion.min_t", "0.2"}}, "diffusion.min_t"},
      {{{"diffusion.loss", "huber"}, {"diffusion.huber_schedule", "snr"}}, "diffusion.huber_schedule"}};
  for (auto [overrides, words] : cases) {
    overrides.push_back(chunks);
    EXPECT_NE(refused(overrides).find(words), std::string::npos) << refused(overrides);
  }
}

/// Every sample of such a run has a timestep for each frame, and memory is planned for it.
TEST(Chunks, AreInTheBlankSampleAndItsBytes) {
  const auto model = models::make_denoiser({.preset = "sana-tiny-video"});
  const recipe::Recipe plain = recipe::load_recipe("", {}),
                       chunks = recipe::load_recipe("", {{"diffusion.chunks", "0,3"}});
  const std::array<int64_t, 4> clip = {4, 5, 4, 4}, picture = {4, 1, 4, 4};
  EXPECT_FALSE(blank_sample(plain, *model, clip).extra.contains("t"));
  EXPECT_FALSE(blank_sample(chunks, *model, picture).extra.contains("t"));
  EXPECT_EQ(blank_sample(chunks, *model, clip).extra.at("t").numel(), 5);
  EXPECT_EQ(given_bytes(chunks.diffusion, *model, clip) - given_bytes(plain.diffusion, *model, clip), 5 * 8);
}

}  // namespace
}  // namespace tessera::job
