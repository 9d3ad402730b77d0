// What a recipe leaves open: the dtype of the arithmetic, and weights that are not here yet.
#include "tessera/job/assumed.h"

#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/families/releases.h"
#include "tessera/job/catalogue.h"
#include "tessera/job/job.h"
#include "tessera/models/registry.h"
#include "tessera/plan/simulate/profile.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::job {
namespace {

namespace fs = std::filesystem;
using Keys = recipe::Overrides;

class ComputeDtype : public FolderTest {
 protected:
  /// Of a run in this test's folder.
  recipe::Recipe recipe(Keys keys) const {
    keys.insert(keys.begin(), {"run.out", (folder_ / "run").string()});
    return recipe::load_recipe("", keys);
  }
  /// A checkpoint of it, with what its recipe said.
  fs::path save(const std::string& name, const Values& values) const {
    checkpoint::Manifest manifest;
    manifest.step = 5;
    manifest.extra["recipe"] = values;
    const fs::path folder = folder_ / name / "checkpoints/step-000005";
    fs::create_directories(folder);
    std::ofstream(folder / "manifest.json") << checkpoint::to_json(manifest).dump();
    return folder;
  }
};

TEST_F(ComputeDtype, FollowsTheProfileThatIsPlannedForAndElseTheDevice) {
  for (const auto& [profile, dtype] : {std::pair("cpu", "fp32"),
                                       {"h200", "bf16"},
                                       {"RTX 3060", "bf16"},
                                       {"8x4090", "bf16"},
                                       {"a100-40", "bf16"},
                                       {"b200", "bf16"},
                                       {"16GiB,90TFLOPs,600GB/s", "bf16"}}) {
    recipe::Recipe r = recipe({{"plan.profile", profile}, {"train.mode", "lora"}});
    EXPECT_EQ(r.values.at("plan.compute_dtype"), "auto");
    EXPECT_EQ(r.values.at("plan.param_dtype"), "auto") << "it waits too";
    const std::string line = settle_compute(r);
    EXPECT_TRUE(line.starts_with("plan.compute_dtype = " + std::string(dtype) + ": ")) << line;
    for (const char* key : {"plan.compute_dtype", "plan.param_dtype", "lora.base_dtype"})
      EXPECT_EQ(r.values.at(key), dtype) << profile << ": " << key;
    EXPECT_EQ(name(r.plan.compute), dtype);
    EXPECT_EQ(settle_compute(r), "") << "once";
  }
}

TEST_F(ComputeDtype, ThatIsNamedStays) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    recipe::Recipe r = recipe({{"plan.profile", "h200"}, {"plan.compute_dtype", dtype}, {"plan.attention", "flash"}});
    EXPECT_EQ(settle_compute(r), "");
    EXPECT_EQ(r.values.at("plan.compute_dtype"), dtype);
  }
}

TEST_F(ComputeDtype, OfARunThatGoesOnIsThatOfItsCheckpointOnAnyDevice) {
  const fs::path own = save("run", {{"plan.compute_dtype", "bf16"}});
  recipe::Recipe r = recipe({});
  const std::string line = settle_compute(r);
  EXPECT_NE(line.find("bf16: the run computed so"), std::string::npos) << line;
  EXPECT_EQ(r.values.at("plan.compute_dtype"), "bf16");
  // begun on a CPU, goes on where there is a GPU
  save("run", {{"plan.compute_dtype", "fp32"}});
  r = recipe({{"plan.profile", "h200"}});
  settle_compute(r);
  EXPECT_EQ(r.values.at("plan.compute_dtype"), "fp32");
  // a run that begins anew does not care, one from another's checkpoint does
  r = recipe({{"run.resume", "no"}, {"plan.profile", "h200"}});
  settle_compute(r);
  EXPECT_EQ(r.values.at("plan.compute_dtype"), "bf16");
  const fs::path other = save("other", {{"plan.compute_dtype", "fp16"}});
  r = recipe({{"run.resume", other.string()}, {"run.out", (folder_ / "new").string()}});
  settle_compute(r);
  EXPECT_EQ(r.values.at("plan.compute_dtype"), "fp16");
  // manifests without a recipe, with an open one, or that cannot be read, say nothing
  save("run", {});
  r = recipe({});
  settle_compute(r);
  EXPECT_EQ(r.values.at("plan.compute_dtype"), "fp32");
  write("run/checkpoints/step-000005/manifest.json", "{");
  r = recipe({});
  settle_compute(r);
  EXPECT_EQ(r.values.at("plan.compute_dtype"), "fp32");
}

TEST_F(ComputeDtype, OfAPlanByHandIsThatOfThePlan) {
  for (const auto& [text, dtype] : {std::pair("compute_dtype = \"bf16\"\n", "bf16"), {"micro_batch = 1\n", "fp32"}}) {
    recipe::Recipe r = recipe({{"plan.file", write("plan.toml", text).string()}, {"plan.profile", "h200"}});
    settle_compute(r);
    EXPECT_EQ(r.values.at("plan.compute_dtype"), dtype) << text;
  }
}

TEST_F(ComputeDtype, OfStagesIsThatOfTheRun) {
  const fs::path file =
      write("recipe.toml", "[plan]\nprofile = \"h200\"\n[[stage]]\nfrom = 2\n[stage.train]\nlr = 1\n");
  recipe::Recipe r = recipe::load_recipe(file.string(), {{"run.out", (folder_ / "run").string()}});
  settle_compute(r);
  EXPECT_EQ(name(r.at_stage(1).plan.compute), "bf16");
  EXPECT_NE(r.to_toml().find("compute_dtype = \"bf16\""), std::string::npos);
}

/// By the chip, never with run.deterministic, and that of a plan by hand.
TEST_F(ComputeDtype, AttentionIsByCudnnOnHopperAloneAndByFlashWhereBitsAreToBeTheSame) {
  const char* const kAttention = "plan.attention = ";
  const auto settled = [&](std::map<std::string, std::string> keys, std::string& line) {
    recipe::Recipe r = recipe({keys.begin(), keys.end()});
    const std::string all = settle_compute(r);
    line = all.find(kAttention) == all.npos ? "" : all.substr(all.find(kAttention));
    if (line.find("no effect") == line.npos) EXPECT_EQ(settle_compute(r), "") << "once";
    return std::string(name(r.plan.attention));
  };
  std::string line;
  for (const char* hopper : {"h100", "1xh200", "h20", "h100-pcie"}) {
    EXPECT_EQ(settled({{"plan.profile", hopper}}, line), "cudnn") << hopper;
    EXPECT_NE(line.find("plan.attention = cudnn: plan.profile"), std::string::npos) << line;
  }
  for (const char* other : {"a100-80", "rtx4090", "b200", "rtx5090", "cpu"}) {
    EXPECT_EQ(settled({{"plan.profile", other}}, line), "flash") << other;
    EXPECT_EQ(line, "") << other;
  }
  EXPECT_EQ(settled({{"plan.profile", "h200"}, {"run.deterministic", "true"}}, line), "flash");
  EXPECT_NE(line.find("plan.attention = flash: run.deterministic"), std::string::npos) << line;
  EXPECT_EQ(settled({{"plan.profile", "h200"}, {"plan.compute_dtype", "fp32"}}, line), "flash");
  EXPECT_EQ(line, "") << "there is no choice";
  EXPECT_EQ(settled({{"plan.profile", "h200"}, {"plan.attention", "flash"}}, line), "flash");
  EXPECT_EQ(settled({{"plan.profile", "a100-80"}, {"plan.attention", "cudnn"}}, line), "cudnn") << "as asked";
  settled({{"plan.profile", "h200"}, {"plan.attention", "cudnn"}, {"plan.compute_dtype", "fp32"}}, line);
  EXPECT_EQ(line, "plan.attention = cudnn has no effect: blocks compute in fp32");
  settled({{"plan.profile", "cpu"}, {"plan.attention", "cudnn"}}, line);
  EXPECT_EQ(line, "plan.attention = cudnn has no effect: a CPU computes");
  const std::string file = write("plan.toml", "compute_dtype = \"bf16\"\nattention = \"cudnn\"\n").string();
  EXPECT_EQ(settled({{"plan.profile", "a100-80"}, {"plan.file", file}}, line), "cudnn");
  EXPECT_EQ(line, "plan.attention = cudnn: plan.file has it");
}

/// A profile that was measured may say otherwise.
TEST_F(ComputeDtype, AttentionIsByFlashWhereItWasMeasuredToBeFaster) {
  plan::Profile measured = plan::find_profile("1xh200");
  measured.device.attention_backward.at("bf16").top = 900e12;
  const fs::path file = write("measured.toml", measured.to_toml());
  recipe::Recipe r = recipe({{"plan.profile", file.string()}});
  EXPECT_NE(settle_compute(r).find("was measured to be faster"), std::string::npos);
  EXPECT_EQ(name(r.plan.attention), "flash");
}

TEST_F(ComputeDtype, ADeterministicRunRefusesCudnn) {
  EXPECT_THROW(recipe({{"run.deterministic", "true"}, {"plan.attention", "cudnn"}}), UserError);
  EXPECT_NO_THROW(recipe({{"run.deterministic", "true"}, {"plan.attention", "flash"}}));
}

/// The recipe as it is planned, and the line that says what was assumed.
std::pair<recipe::Recipe, std::string> assumed(const Keys& keys) {
  recipe::Recipe r = recipe::load_recipe("", keys);
  std::string line = assume_released(r);
  return {std::move(r), std::move(line)};
}

class Unfetched : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    before_ = fs::current_path();
    fs::current_path(folder_);
    ::setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
  }
  void TearDown() override {
    fs::current_path(before_);
    ::unsetenv("HF_HUB_CACHE");
    FolderTest::TearDown();
  }
  fs::path before_;
};

TEST_F(Unfetched, AFolderOfAReleaseStandsForItsPresetAndEncoders) {
  for (const families::Release& release : families::releases())
    for (const std::string& name : {release.repository, release.repository.substr(release.repository.find('/') + 1)}) {
      const auto [r, line] = assumed(
          {{"model.path", name}, {"data.vae", name}, {"data.text_encoder_path", name}, {"data.tokenizer", name}});
      const Partners partners = partners_of(release.preset);
      EXPECT_EQ(r.model.path, "") << name;
      EXPECT_EQ(r.model.preset, release.preset) << name;
      EXPECT_EQ(r.data.vae, partners.autoencoder) << name;
      EXPECT_EQ(r.data.text_encoder, partners.text_encoder) << name;
      EXPECT_EQ(r.data.tokenizer, "") << name;
      EXPECT_EQ(r.experts.train, release.two_experts ? "both" : "auto") << name;
      EXPECT_TRUE(line.starts_with("not here yet: model.path = " + name)) << line;
      EXPECT_NE(line.find("hf download " + release.repository), std::string::npos) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
}

TEST_F(Unfetched, EachPartIsAssumedByItself) {
  const std::string t2v = "Wan2.1-T2V-14B";
  EXPECT_EQ(assumed({{"model.path", t2v}}).first.data.vae, "wan2.1-vae") << "auto is the release's";
  EXPECT_EQ(assumed({{"model.path", t2v}, {"data.vae", "haar"}}).first.data.vae, "haar") << "as it was asked for";
  EXPECT_EQ(assumed({{"model.preset", "wan2.1-t2v-14b"}, {"data.vae", "some/where/Wan2.2_VAE.pth"}}).first.data.vae,
            "wan2.2-vae");
  EXPECT_EQ(assumed({{"model.preset", "opensora2-11b"}, {"data.vae", "ckpts/hunyuan_vae.safetensors"}}).first.data.vae,
            "hunyuan-vae");
  EXPECT_EQ(assumed({{"model.preset", "sana-1.6b"}, {"data.vae", "own/autoencoder"}}).first.data.vae, "dc-ae-f32c32")
      << "the preset's";
  const auto diffsynth =
      assumed({{"model.path", "models/Wan-AI/Wan2.2-TI2V-5B"},
               {"data.vae", "models/DiffSynth-Studio/Wan-Series-Converted-Safetensors/Wan2.2_VAE.safetensors"}});
  EXPECT_EQ(diffsynth.first.data.vae, "wan2.2-vae");
  EXPECT_EQ(diffsynth.first.model.preset, "wan2.2-ti2v-5b");
  const auto low = assumed({{"model.path", "Wan2.2-T2V-A14B/low_noise_model"}});
  EXPECT_EQ(low.first.model.preset, "wan2.2-t2v-a14b");
  EXPECT_EQ(low.first.experts.train, "auto") << "one of the two";
  EXPECT_EQ(assumed({{"model.path", "Wan2.2-T2V-A14B"}, {"experts.train", "low_noise"}}).first.experts.train,
            "low_noise");
  const auto speech = assumed({{"model.path", "Wan2.2-S2V-14B"}, {"data.audio_encoder", "Wan2.2-S2V-14B"}});
  EXPECT_EQ(speech.first.data.audio_encoder, "auto");
  const auto image =
      assumed({{"model.path", "hf:Wan-AI/Wan2.1-I2V-14B-480P"}, {"data.image_encoder_path", "x/models_clip.pth"}});
  EXPECT_EQ(image.first.model.preset, "wan2.1-i2v-14b-480p");
  EXPECT_EQ(image.first.data.image_encoder_path, "");
  const auto preset = assumed({{"model.path", "weights/mine.safetensors"}, {"model.preset", "wan2.1-t2v-1.3b"}});
  EXPECT_EQ(preset.first.model.path, "") << "model.preset says what it will be";
  EXPECT_EQ(preset.first.model.preset, "wan2.1-t2v-1.3b");
}

TEST_F(Unfetched, LorasThatAreNotHereAreNamedAndPlannedWithout) {
  const Keys keys = {{"model.preset", "wan-tiny"}, {"model.init", "random"}, {"train.mode", "lora"}};
  Keys with = keys;
  with.insert(with.end(), {{"lora.init", "gone/style.safetensors"}, {"sample.lora", "fast.safetensors:0.5"}});
  const auto [r, line] = assumed(with);
  EXPECT_EQ(r.lora.init, "");
  EXPECT_NE(line.find("not here yet: lora.init = gone/style.safetensors, sample.lora = fast.safetensors"), line.npos)
      << line;
  EXPECT_EQ(r.assumed, (std::vector<std::string>{"lora.init", "sample.lora"}));
  EXPECT_EQ(assumed(keys).second, "");
}

TEST_F(Unfetched, NothingIsAssumedWhereNothingIsMissing) {
  write("Wan2.1-T2V-14B/config.json", "{}");
  for (const Keys& keys : {Keys{}, Keys{{"model.preset", "wan-tiny"}}, Keys{{"model.path", "Wan2.1-T2V-14B"}},
                           Keys{{"model.preset", "sana-1.6b"}, {"data.vae", "dc-ae-f32c32"}},
                           Keys{{"data.vae", "haar:12"}, {"data.audio_encoder", "wav2vec-demo"}}}) {
    const recipe::Recipe before = recipe::load_recipe("", keys);
    const auto [r, line] = assumed(keys);
    EXPECT_EQ(line, "");
    EXPECT_EQ(r.values, before.values);
  }
}

TEST_F(Unfetched, APathThatTellsNothingEndsAsBefore) {
  for (const Keys& keys : {Keys{{"model.path", "somewhere"}, {"model.config.dim", "96"}},
                           Keys{{"data.vae", "a/file.pth"}}, Keys{{"model.path", "Wan2.1-T2V-140B"}}}) {
    try {
      assumed(keys);
      FAIL() << "accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input);
      EXPECT_NE(std::string(error.what()).find(": no such file or folder"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("to plan without"), std::string::npos) << error.what();
    }
  }
}

TEST_F(Unfetched, AModelInTheHubsCacheIsRead) {
  const fs::path snapshot = folder_ / "hub/models--Wan-AI--Wan2.1-T2V-1.3B/snapshots/abc";
  write("hub/models--Wan-AI--Wan2.1-T2V-1.3B/refs/main", "abc");
  fs::create_directories(snapshot);
  std::ofstream(snapshot / "config.json") << models::make_denoiser({.preset = "wan-tiny"})->config_json();
  for (const char* name : {"Wan-AI/Wan2.1-T2V-1.3B", "hf:Wan-AI/Wan2.1-T2V-1.3B"}) {
    const auto [r, line] = assumed({{"model.path", name}, {"data.vae", "haar"}, {"data.text_encoder", "umt5-demo"}});
    EXPECT_EQ(line, "");
    EXPECT_EQ(r.model.path, snapshot.string());
    EXPECT_EQ(r.values.at("model.path"), name) << "the recipe keeps what was written";
  }
}

/// The tokens of a sample are the release's: 21 latent frames of 30 x 52 patches where 81 frames of 480 x 832 are named.
TEST_F(Unfetched, ShippedRecipesHaveTheShapesOfTheReleases) {
  const std::map<std::string, int64_t> tokens = {
      {"wan2.1-t2v-14b_full_h200", 32760}, {"wan2.2-t2v-a14b_full_h200", 32760},
      {"wan2.2-s2v-14b_full_a100", 32760}, {"wan2.1-t2v-1.3b_full_anywhere", 32760},
      {"wan2.1-t2v-1.3b_lora", 14040},     {"sana-1.6b_lora_24gb", 1024}};
  for (const auto& [name, expected] : tokens) {
    recipe::Recipe r = recipe::load_recipe(TESSERA_SOURCE_DIR "/recipes/" + name + ".toml", {});
    const std::string line = assume_released(r);
    EXPECT_FALSE(line.empty()) << name;
    const Job job = make_job(r);
    EXPECT_EQ(job.tokens, expected) << name;
    EXPECT_EQ(job.experts.several(), name.find("a14b") != name.npos) << name;
  }
}

}  // namespace
}  // namespace tessera::job
