// Open-Sora 1.x from captioned clips to clips again, through the autoencoders of its releases: latents of pieces, timesteps
// and samples whose shift follows from the area, on any layout; a small one learns four clips by heart.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "layout_table.h"
#include "learnt_clips.h"
#include "need_goldens.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

constexpr int kHeight = 32, kWidth = 48, kFrames = 17;
const std::vector<std::string> kCaptions = {"a red disc goes right", "blue stripes go down", "a green square grows",
                                            "a slope turns dark"};

std::array<int, 3> colour(size_t clip, int t, int x, int y) {
  const int from_disc = (x - 8 - 2 * t) * (x - 8 - 2 * t) + (y - 16) * (y - 16);
  if (clip == 0) return from_disc < 90 ? std::array{230, 30, 40} : std::array{20, 20, 30};
  if (clip == 1) return (y + t) / 8 % 2 ? std::array{30, 60, 230} : std::array{240, 240, 220};
  if (clip == 2) return x < 8 + 2 * t && y < 8 + t ? std::array{30, 200, 60} : std::array{200, 180, 150};
  return {5 * x - 6 * t, 7 * y - 6 * t, 255 - 15 * t};
}

void write_clips(const fs::path& folder) {
  for (size_t i = 0; i < kCaptions.size(); ++i) {
    const auto of_clip = [i](int frame, int x, int y) { return colour(i, frame, x, y); };
    write_captioned(folder, "clip" + std::to_string(i), painted({kFrames, kHeight, kWidth, 24, {}}, of_clip),
                    kCaptions[i]);
  }
}

/// 1.2's autoencoder of its golden case, with a shift and a scale of its latents that these clips have: a mean of 0 and a
/// spread of one, as the published ones are to clips of their training.
std::string scaled_vae(const fs::path& folder) {
  const fs::path golden = fs::path(TESSERA_GOLDENS) / "opensora_vae12", copy = folder / "vae";
  fs::create_directories(copy);
  fs::copy_file(golden / "config.json", copy / "config.json");
  const std::map<std::string, std::array<float, 4>> measured = {{"shift", {0.79f, 0.13f, -0.1f, -0.3f}},
                                                                {"scale", {1.1f, 0.37f, 0.47f, 0.6f}}};
  const auto file = checkpoint::SafetensorsFile::open(golden / "model.safetensors");
  std::vector<std::vector<std::byte>> bytes;
  std::vector<checkpoint::TensorData> tensors;
  for (const auto& entry : file.entries()) {
    bytes.push_back(file.bytes(entry.name));
    const auto own = measured.find(entry.name);
    tensors.push_back({entry.name, entry.dtype, entry.shape, own == measured.end() ? nullptr : own->second.data()});
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!tensors[i].data) tensors[i].data = bytes[i].data();
  checkpoint::write_safetensors(copy / "model.safetensors", tensors);
  return copy.string();
}

/// Autoencoders with random weights, those of their golden cases. A random decoder does not undo its encoder, so a sample
/// is held against what it makes of the clip's own latent.
class FirstOpenSora : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    write_clips(run_.folder() / "clips");
  }

  Flags flags(const Flags& more) const {
    Flags all = {"--data.path",
                 (run_.folder() / "clips").string(),
                 "--data.size",
                 std::to_string(kHeight) + "," + std::to_string(kWidth),
                 "--data.frames",
                 std::to_string(kFrames),
                 "--data.fps",
                 "24",
                 "--data.vae",
                 (fs::path(TESSERA_GOLDENS) / "opensora_vae12").string(),
                 "--data.text_encoder",
                 "t5-demo",
                 "--data.tokenizer",
                 (fs::path(TESSERA_GOLDENS) / "tokenizers/t5").string(),
                 "--diffusion.timesteps",
                 "by_area",
                 "--sample.sampler",
                 "euler_by_area",
                 "--train.global_batch",
                 "4",
                 "--train.clip_norm",
                 "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  void train(int ranks, const std::string& name, const Flags& more) const {
    const Result r = run_.train(ranks, name, flags(more), 400);
    ASSERT_EQ(r.code, 0) << r.output;
    for (const auto& step : run_.metrics(name))
      for (const auto& rank : step.at("ranks"))
        EXPECT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>())
            << "decoding samples is part of the plan";
  }

  TinyRun run_{"opensora-first", TESSERA_BINARY, R"(preset = "opensora1.2-tiny"
config = { hidden_size = 64, num_heads = 4, caption_channels = 64, model_max_length = 24 })"};
};

TEST_F(FirstOpenSora, TrainsAndSamplesAlongOneCurveOnEveryLayout) {
  constexpr int kSteps = 6;
  const auto from_nothing = [&](int ranks, const std::string& name, const Flags& more) {
    Flags all = {"--data.cache",      (run_.folder() / ("cache-" + name)).string(),
                 "--run.steps",       std::to_string(kSteps),
                 "--sample.every",    std::to_string(kSteps / 2),
                 "--sample.steps",    "2",
                 "--sample.prompts",  kCaptions[0],
                 "--sample.guidance", "7"};
    all.insert(all.end(), more.begin(), more.end());
    train(ranks, name, all);
    EXPECT_EQ(run_.metrics(name, "sample").size(), 2u);
    return run_.metrics(name);
  };
  const auto one = from_nothing(1, "one", {});
  for (const char* line : {"dp_shard=2", "cp=2", "tp=2", "pp=2"}) {
    SCOPED_TRACE(line);
    const Layout layout = layout_of(line);
    expect_same_curve(one, from_nothing(layout.ranks, line, layout.flags), kSteps);
  }
  // half of it on one rank, and from its checkpoint on over two
  train(1, "parts", {"--run.steps", std::to_string(kSteps / 2)});
  train(2, "parts", {"--run.steps", std::to_string(kSteps), "--mesh", "tp=2"});
  expect_same_curve(one, run_.metrics("parts"), kSteps);
}

/// As most of its tables' sizes: a latent cell is of 8 x 8 pixels, and what is left over is seen by the last one.
TEST_F(FirstOpenSora, SizesThatAreNoMultiplesOf8TrainAndSampleInWholeCells) {
  train(1, "odd",
        {"--data.size", "37,53", "--run.steps", "2", "--sample.every", "2", "--sample.steps", "2", "--sample.prompts",
         kCaptions[0]});
  EXPECT_EQ(run_.metrics("odd", "sample").size(), 1u);
  const Result r = run_.train(
      2, "table", flags({"--data.buckets", "17xASPECT_RATIO_144P", "--mesh", "tp=2", "--run.steps", "1"}), 400);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("17x156x234: 4 clips, 4 enlarged"), std::string::npos) << r.output;
}

/// A folder as releases of 1.x lie on the hub: bf16 weights, and a config.json with what transformers writes into it.
TEST_F(FirstOpenSora, AFolderAsItIsPublishedIsInspectedImportedAndTrained) {
  train(1, "made", {"--run.steps", "1"});
  const fs::path release = run_.folder() / "OpenSora-STDiT";
  const Result made = run_.tessera({"convert", run_.out("made") + "/model", release.string(), "--dtype", "bf16"});
  ASSERT_EQ(made.code, 0) << made.output;
  nlohmann::json config = json_of(release / "config.json");
  config.erase("_class_name");
  config.update({{"architectures", {"STDiT3"}},
                 {"auto_map", {{"AutoConfig", "a.b"}, {"AutoModel", "a.c"}}},
                 {"freeze_y_embedder", true},
                 {"enable_flash_attn", true},
                 {"torch_dtype", "bfloat16"},
                 {"transformers_version", "4.36.2"}});
  std::ofstream(release / "config.json") << config.dump(2);
  const Result seen = run_.tessera({"inspect", release.string()});
  EXPECT_EQ(seen.code, 0) << seen.output;
  EXPECT_NE(seen.output.find("stdit3"), std::string::npos) << seen.output;
  const std::string python = (run_.folder() / "stage.py").string(), recipe = (run_.folder() / "stage.toml").string();
  std::ofstream(python) << "model = dict(type='STDiT3-XL/2', from_pretrained='" << release.string() << "')\n"
                        << "scheduler = dict(type='rflow', use_timestep_transform=True, sample_method='logit-normal')\n"
                        << "bucket_config = {'144p': {17: (1.0, 4)}}\nlr = 1e-4\nload = None\n";
  const Result imported = run_.tessera({"import", python, "--ranks", "1", "-o", recipe});
  ASSERT_EQ(imported.code, 0) << imported.output;
  Flags line = {"launch", "-n", "1", "train", recipe, "--run.out", run_.out("release"), "--run.steps", "1"};
  const Flags more = flags({"--diffusion.caption_dropout", "0", "--data.cache", (run_.folder() / "cache").string()});
  for (size_t i = 0; i < more.size(); i += 2)
    if (more[i] != "--data.size" && more[i] != "--data.frames") line.insert(line.end(), {more[i], more[i + 1]});
  const Result trained = run_.tessera(line, 400);
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(run_.metrics("release").size(), 1u);
}

/// The later autoencoder has 16 channels, and pieces that share a frame.
TEST_F(FirstOpenSora, TheSecondAutoencoderMakesLatentsAsWell) {
  const fs::path vae = fs::path(TESSERA_GOLDENS) / "opensora_vae13";
  train(2, "run",
        {"--model.preset", "opensora1.3-tiny", "--model.config.in_channels", "16", "--model.config.hidden_size", "48",
         "--data.vae", vae.string(), "--run.steps", "2", "--sample.every", "2", "--sample.steps", "2",
         "--sample.prompts", kCaptions[1]});
  EXPECT_EQ(run_.metrics("run", "sample").size(), 1u);
  // clips with noise on their pixels are encoded by it too, cached or not
  for (const char* cache : {"cached", "online"}) {
    Flags noisy = {"--model.preset",
                   "opensora1.3-tiny",
                   "--model.config.in_channels",
                   "16",
                   "--model.config.hidden_size",
                   "48",
                   "--data.vae",
                   vae.string(),
                   "--run.steps",
                   "2",
                   "--diffusion.mask_types",
                   "v2v_head_noisy=1"};
    if (cache == std::string("online")) noisy.insert(noisy.end(), {"--data.cache", "online"});
    train(2, cache, noisy);
  }
  for (size_t step = 0; step < 2; ++step)
    EXPECT_EQ(run_.metrics("cached")[step].at("loss"), run_.metrics("online")[step].at("loss"));
  const Result refused = run_.tessera({"plan", run_.recipe(), "--model.config.in_channels", "16", "--data.vae",
                                       vae.string(), "--data.frames", "16", "--data.size", "32,48"});
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("13 x 32 x 48"), std::string::npos) << refused.output;
}

/// Timesteps of no size: by_area's are for areas of 512 x 512 pixels, and hardly reach the noise of so small a clip.
TEST_F(FirstOpenSora, ClipsAreLearntByHeart) {
  std::string prompts;
  for (const std::string& caption : kCaptions) prompts += (prompts.empty() ? "" : ",") + caption;
  const Flags plainly = {"--data.vae",
                         scaled_vae(run_.folder()),
                         "--model.config.hidden_size",
                         "96",
                         "--model.config.mlp_ratio",
                         "4",
                         "--diffusion.timesteps",
                         "logit_normal",
                         "--diffusion.shift",
                         "1",
                         "--sample.sampler",
                         "euler",
                         "--sample.steps",
                         "20"};
  Flags learning = {"--train.global_batch", "8",      "--run.steps", "1000", "--sample.every", "1000",
                    "--train.schedule",     "cosine", "--train.lr",  "3e-3", "--train.eps",    "1e-8",
                    "--sample.prompts",     prompts};
  learning.insert(learning.end(), plainly.begin(), plainly.end());
  train(2, "run", learning);
  ASSERT_EQ(run_.metrics("run", "sample").size(), kCaptions.size());
  ASSERT_NO_FATAL_FAILURE(expect_learnt(run_, "run", kCaptions, 22, 3));
  // the exported model, sampled by a command of its own
  Flags line = {"sample",   run_.recipe(), "--weights", run_.out() + "/model",
                "--prompt", kCaptions[0],  "--out",     run_.out("alone") + ".mp4"};
  for (const std::string& flag : flags(plainly)) line.push_back(flag);
  const Result made = run_.tessera(line);
  ASSERT_EQ(made.code, 0) << made.output;
  EXPECT_GE(data::psnr(data::decode_clip(run_.out("alone") + ".mp4", {}), reconstructions(run_, "run", 1)[0]), 22);
}

}  // namespace
}  // namespace tessera::testing
