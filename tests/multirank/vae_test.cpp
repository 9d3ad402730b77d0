// A run whose latents come from Wan 2.1's autoencoder instead of the wavelet: prepare, train, sample, and what is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "need_goldens.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

class Vae : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    take_channels(12, 16);
  }
  static std::vector<std::string> options(const fs::path& vae, std::vector<std::string> more = {}) {
    std::vector<std::string> all = {"--data.vae", vae.string(), "--data.frames", "5"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// The model of the recipe, for latents of an autoencoder of the golden cases: 16 channels, of Wan 2.2's 48.
  void take_channels(int before, int after) const {
    std::string text = text_of(run_.recipe());
    const auto sizes = [](int n) { return "in_dim = " + std::to_string(n) + ", out_dim = " + std::to_string(n); };
    text.replace(text.find(sizes(before)), sizes(before).size(), sizes(after));
    std::ofstream(run_.recipe()) << text;
  }
  const fs::path vae_ = fs::path(TESSERA_GOLDENS) / "wan21_vae";
  TinyRun run_{"vae"};
};

TEST_F(Vae, TwoRanksPrepareTrainAndSample) {
  const Result r = run_.train(2, "run", options(vae_, {"--sample.every", "3", "--sample.steps", "2"}));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(run_.metrics("run").size(), 6u);
  EXPECT_TRUE(fs::exists(fs::path(run_.out()) / "samples")) << r.output;
  for (const auto& step : run_.metrics("run"))
    for (const auto& rank : step.at("ranks"))
      EXPECT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>())
          << "decoding samples is part of the plan";
}

TEST_F(Vae, AFileAloneAndADiffusersFolderGiveTheSameCurve) {
  const fs::path pipeline = run_.folder() / "pipeline" / "vae";
  fs::create_directories(pipeline);
  fs::copy_file(vae_ / "diffusers.safetensors", pipeline / "diffusion_pytorch_model.safetensors");
  fs::copy_file(vae_ / "diffusers_config.json", pipeline / "config.json");
  const Result alone = run_.train(1, "alone", options(vae_ / "model.safetensors"));
  ASSERT_EQ(alone.code, 0) << alone.output;
  const Result folder = run_.train(1, "folder", options(pipeline.parent_path()));
  ASSERT_EQ(folder.code, 0) << folder.output;
  const auto a = run_.metrics("alone"), b = run_.metrics("folder");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].at("loss"), b[i].at("loss")) << i;
}

TEST_F(Vae, TheFinerLatentsOfWan22TrainAndSampleToo) {
  take_channels(16, 48);
  const Result r = run_.train(2, "run",
                              options(fs::path(TESSERA_GOLDENS) / "wan22_vae",
                                      {"--run.steps", "2", "--sample.every", "2", "--sample.steps", "1"}));
  ASSERT_EQ(r.code, 0) << r.output;
  const auto steps = run_.metrics("run");
  ASSERT_EQ(steps.size(), 2u);
  for (const auto& rank : steps[1].at("ranks"))
    EXPECT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>());
  EXPECT_FALSE(fs::is_empty(fs::path(run_.out()) / "samples"));
}

TEST_F(Vae, LatentsThatAreNormalisedOverAllFramesTrainAndSampleToo) {
  take_channels(16, 4);
  const fs::path golden = fs::path(TESSERA_GOLDENS) / "hunyuan_vae", folder = run_.folder() / "converted";
  const Result converted = run_.tessera({"convert", golden.string(), folder.string(), "--to", "diffusers"});
  ASSERT_EQ(converted.code, 0) << converted.output;
  const Result inspected = run_.tessera({"inspect", folder.string(), "--json"});
  EXPECT_NE(inspected.output.find("hunyuan-vae"), std::string::npos) << inspected.output;
  const std::vector<std::string> more = {"--run.steps", "2", "--sample.every", "2", "--sample.steps", "1"};
  const Result two = run_.train(2, "run", options(golden, more)), one = run_.train(1, "one", options(folder, more));
  ASSERT_EQ(two.code, 0) << two.output;
  ASSERT_EQ(one.code, 0) << one.output;
  const auto a = run_.metrics("run"), b = run_.metrics("one");
  ASSERT_EQ(a.size(), 2u);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i].at("loss").get<double>(), b.at(i).at("loss").get<double>(), 1e-4) << "step " << i;
    for (const auto& rank : a[i].at("ranks"))
      EXPECT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>());
  }
  EXPECT_FALSE(fs::is_empty(run_.folder() / "run/samples"));
}

TEST_F(Vae, WeightsOfAnotherSizeAreToldBeforeAnythingIsEncoded) {
  for (const char* command : {"train", "prepare"}) {
    std::vector<std::string> arguments = {command, run_.recipe(), "--model.path",
                                          std::string(TESSERA_GOLDENS) + "/wan21_t2v/model.safetensors"};
    for (const std::string& option : options(vae_)) arguments.push_back(option);
    const Result r = run_.tessera(arguments);
    EXPECT_EQ(r.code, 3) << r.output;
    for (const char* text : {"model.safetensors: ", "expected [", "file has ["})
      EXPECT_NE(r.output.find(text), std::string::npos) << r.output;
  }
  EXPECT_FALSE(fs::exists(run_.folder() / "cache" / "probes.jsonl"));
}

TEST_F(Vae, WhatDoesNotFitIsRefusedBeforeAnythingIsEncoded) {
  struct Mistake {
    std::vector<std::string> arguments;
    int code;
    std::string says;
  };
  const std::vector<Mistake> mistakes = {
      {options(vae_, {"--data.frames", "8"}), 2, "5 x 32 x 32"},
      {options(run_.folder() / "nowhere.pth"), 3, "no such file"},
      {options("har"), 2, "did you mean haar?"},
      {options("hunyuan-va"), 2, "did you mean hunyuan-vae?"},
      {options("hunyuan-vae", {"--data.frames", "8"}), 2, "5 x 32 x 32"},
      {options("haar", {"--data.vae_tile", "64"}), 2, "no use for tiles"},
      {options(vae_, {"--data.vae_tile", "60"}), 2, "multiples of 8"},
      {options(fs::path(TESSERA_GOLDENS) / "wan22_vae"), 2, "wan22_vae' makes 48"},
      {options("haar:12", {"--data.frames", "4"}), 2, "autoencoder 'haar:12' makes 12"},
  };
  for (const Mistake& m : mistakes) {
    std::vector<std::string> arguments = {"train", run_.recipe()};
    arguments.insert(arguments.end(), m.arguments.begin(), m.arguments.end());
    const Result r = run_.tessera(arguments);
    EXPECT_EQ(r.code, m.code) << r.output;
    EXPECT_NE(r.output.find(m.says), std::string::npos) << m.says << "\n" << r.output;
  }
  EXPECT_FALSE(fs::exists(run_.folder() / "cache" / "probes.jsonl"));
}

// The encoders of Sana in front of another denoiser: pictures, prompts behind an instruction, captions that are dropped,
// timesteps from a table, samples by fresh noise.
TEST_F(Vae, PicturesAndInstructedPromptsTrainOnTwoRanksAndSample) {
  const fs::path goldens = TESSERA_GOLDENS;
  take_channels(16, 4);
  const std::vector<std::string> flags = {"--data.vae",
                                          (goldens / "dc_ae/original.safetensors").string(),
                                          "--data.size",
                                          "128,128",
                                          "--data.frames",
                                          "1",
                                          "--data.text_encoder",
                                          "gemma-2-demo",
                                          "--data.tokenizer",
                                          (goldens / "tokenizers/gemma").string(),
                                          "--data.instruction",
                                          "Rewrite the prompt below. User Prompt: ",
                                          "--diffusion.timesteps",
                                          "sana",
                                          "--diffusion.caption_dropout",
                                          "0.3",
                                          "--sample.sampler",
                                          "scm",
                                          "--sample.steps",
                                          "2",
                                          "--sample.guidance",
                                          "2",
                                          "--sample.every",
                                          "6"};
  const Result two = run_.train(2, "run", flags);
  ASSERT_EQ(two.code, 0) << two.output;
  EXPECT_TRUE(fs::exists(run_.folder() / "run/samples/step-000006-0.mp4")) << two.output;
  const Result one = run_.train(1, "one", flags);
  ASSERT_EQ(one.code, 0) << one.output;
  const auto a = run_.metrics("run"), b = run_.metrics("one");
  ASSERT_EQ(a.size(), 6u);
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i].at("loss").get<double>(), b.at(i).at("loss").get<double>(), 1e-4) << "step " << i;

  const auto entries = [&] {
    int count = 0;
    for (const auto& item : fs::directory_iterator(run_.folder() / "cache/texts"))
      count += item.path().extension() == ".safetensors";
    return count;
  };
  EXPECT_EQ(entries(), 3);
  std::vector<std::string> other = flags;
  *(std::find(other.begin(), other.end(), "--data.instruction") + 1) = "Another one: ";
  const Result changed = run_.train(1, "changed", other);
  ASSERT_EQ(changed.code, 0) << changed.output;
  EXPECT_EQ(entries(), 6) << "another instruction makes other embeddings";
}

}  // namespace
}  // namespace tessera::testing
