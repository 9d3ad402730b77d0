// Open-Sora 2.0 from captioned clips to clips again, through its own autoencoder and its two text encoders: a small
// denoiser learns four of them by heart, on any layout, and goes on from a picture that it is given.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "layout_table.h"
#include "learnt_clips.h"
#include "matrix.h"
#include "need_goldens.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

constexpr int kHeight = 48, kWidth = 64, kFrames = 9;
const std::vector<std::string> kCaptions = {"a red disc that goes right", "blue stripes that go left",
                                            "a green square that falls", "a slope that brightens"};

std::array<int, 3> colour(size_t clip, int frame, int x, int y) {
  const int across = x - 12 - 5 * frame, down = y - kHeight / 2;
  if (clip == 0) return across * across + down * down < 150 ? std::array{230, 30, 40} : std::array{20, 20, 30};
  if (clip == 1) return (x + 2 * frame) / 16 % 2 ? std::array{30, 60, 230} : std::array{240, 240, 220};
  if (clip == 2)
    return x >= 20 && x < 44 && y / 4 >= frame && y / 4 < frame + 5 ? std::array{30, 200, 60}
                                                                    : std::array{200, 180, 150};
  return {2 * y + 12 * frame, y + 12 * frame, 200 - 2 * x};
}

/// One frame of a clip, of its pixels alone.
data::Frames frame_of(const data::Frames& clip, int frame) {
  data::Frames one{1, clip.height, clip.width, clip.fps, {}};
  one.rgb.assign(clip.frame(frame), clip.frame(frame) + clip.frame_bytes());
  return one;
}

/// Encoders with random weights: the Hunyuan autoencoder of its golden case, a T5 of three layers and a CLIP of two. A
/// random decoder does not undo its encoder, so a sample is held against what it makes of the clip's own latent.
class OpenSoraClips : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    const fs::path clips = run_.folder() / "learnt";
    prompts_ = write_painted(clips, kCaptions, {kFrames, kHeight, kWidth, 8, {}}, colour);
    flags_ = {"--data.path",
              clips.string(),
              "--data.size",
              "48,64",
              "--data.frames",
              "9",
              "--data.fps",
              "8",
              "--data.vae",
              scaled_vae(run_.folder(), "hunyuan_vae", {{"scaling_factor", 1.3}}),
              "--data.text_encoder",
              "t5-demo",
              "--data.tokenizer",
              (fs::path(TESSERA_GOLDENS) / "tokenizers/t5").string(),
              "--data.pooled_encoder",
              "clip-text-demo",
              "--data.pooled_tokenizer",
              (fs::path(TESSERA_GOLDENS) / "tokenizers/clip").string(),
              "--diffusion.timesteps",
              "by_size",
              "--train.global_batch",
              "4",
              "--train.lr",
              "4e-3",
              "--train.eps",
              "1e-8",
              "--train.clip_norm",
              "1",
              "--train.schedule",
              "cosine",
              "--sample.sampler",
              "euler_by_size",
              "--sample.steps",
              "20",
              "--sample.guidance",
              "1",
              "--sample.prompts",
              prompts_};
  }

  /// With samples of all captions at the end.
  void learn(const std::string& name, int ranks, int steps, const Flags& more) const {
    Flags all = flags_;
    for (const char* key : {"--run.steps", "--sample.every"}) all.insert(all.end(), {key, std::to_string(steps)});
    all.insert(all.end(), more.begin(), more.end());
    const Result r = run_.train(ranks, name, all, 300);
    ASSERT_EQ(r.code, 0) << r.output;
    ASSERT_EQ(run_.metrics(name, "sample").size(), kCaptions.size());
  }

  TinyRun run_{"opensora-clips", TESSERA_BINARY, R"(preset = "opensora2-tiny"
config = { hidden_size = 64, depth = 2, axes_dim = [4, 6, 6], context_in_dim = 64, context_length = 24, vec_in_dim = 32 })"};
  Flags flags_;
  std::string prompts_;
};

TEST_F(OpenSoraClips, AreLearntByHeartOnEveryLayout) {
  constexpr int kSteps = 20;  // as roundings add up, curves of layouts part later on; their samples do not
  std::vector<const char*> lines = {"dp_shard=2"};  // the others are held against it
  const char* const others[] = {"tp=2", "pp=2 --train.micro_batch 2"};
  MatrixPart part("layouts on which Open-Sora learns by heart", 2);
  for (const int drawn : part) lines.push_back(others[drawn]);
  for (const char* line : lines) {
    SCOPED_TRACE(line);
    const Layout layout = layout_of(line);
    ASSERT_NO_FATAL_FAILURE(learn(line, layout.ranks, 500, layout.flags));
    ASSERT_NO_FATAL_FAILURE(expect_learnt(run_, line, kCaptions, 21, 3));
    const auto first = run_.metrics("dp_shard=2"), now = run_.metrics(line);
    expect_same_curve({first.begin(), first.begin() + kSteps}, {now.begin(), now.begin() + kSteps}, kSteps);
    const auto samples = run_.metrics("dp_shard=2", "sample"), same = run_.metrics(line, "sample");
    for (size_t i = 0; i < kCaptions.size(); ++i)
      EXPECT_NEAR(same[i].at("psnr").get<double>(), samples[i].at("psnr").get<double>(), 0.1) << kCaptions[i];
  }
}

/// Wan's autoencoder is causal in all of its operators, so a clip's first latent frame is that of the picture alone. (A
/// random one of Hunyuan's makes another latent of a picture than of a clip that begins with it: its norms are over all
/// frames.)
TEST_F(OpenSoraClips, GoOnFromAPictureWhichStaysTheirFirstFrame) {
  const nlohmann::json scales = {{"mean", std::vector<double>(16, 0)}, {"std", std::vector<double>(16, 0.5)}};
  ASSERT_NO_FATAL_FAILURE(
      learn("picture", 2, 400,
            {"--data.vae", scaled_vae(run_.folder(), "wan21_vae", scales), "--model.config.in_channels", "64",
             "--model.config.hidden_size", "128", "--model.config.axes_dim", "8,12,12", "--train.lr", "2e-3",
             "--diffusion.conditions", "t2v=1,i2v_head=5", "--sample.image", "clip"}));
  ASSERT_NO_FATAL_FAILURE(expect_learnt(run_, "picture", kCaptions, 35, 3));
  const auto samples = run_.metrics("picture", "sample");
  const std::vector<data::Frames> own = reconstructions(run_, "picture", kCaptions.size());
  for (size_t i = 0; i < kCaptions.size(); ++i) {
    const data::Frames first = frame_of(data::decode_clip(samples[i].at("file").get<std::string>(), {}), 0);
    const double kept = data::psnr(first, frame_of(own[i], 0));
    std::printf("its first frame: %.1f dB\n", kept);
    EXPECT_GE(kept, 40) << kCaptions[i];
  }
}

}  // namespace
}  // namespace tessera::testing
