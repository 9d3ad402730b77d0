// HunyuanVideo-1.5 from captioned clips to clips again: through its own autoencoder, with what captions have in quotes read
// by a second text encoder, and the first frame of some samples given and seen by an image encoder.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "layout_table.h"
#include "learnt_clips.h"
#include "matrix.h"
#include "need_goldens.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

constexpr int kHeight = 48, kWidth = 64, kFrames = 9;
/// The model reads two words of each, which are the same: what tells them apart stands in quotes.
const std::vector<std::string> kCaptions = {"a sign that says “STOP”", "a sign that says “GO”",
                                            "a sign that says “1 2 3”"};

std::array<int, 3> colour(size_t clip, int frame, int x, int y) {
  if (clip == 0) return x < kWidth / 2 ? std::array{220, 30, 40} : std::array{20, 20, 30 + 20 * frame};
  if (clip == 1) return (x + 4 * frame) / 16 % 2 ? std::array{30, 60, 230} : std::array{240, 240, 220};
  return {5 * y + 12 * frame, 240 - 5 * y, 200 - 2 * x};
}

/// Tensors of the entries of a folder of the cache, each with its shape, sorted.
std::vector<std::string> stored(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& item : fs::directory_iterator(folder)) {
    if (item.path().extension() != ".safetensors") continue;
    std::string text;
    const auto file = checkpoint::SafetensorsFile::open(item.path());
    for (const auto& entry : file.entries()) text += entry.name + checkpoint::shape_text(entry.shape) + " ";
    found.push_back(text);
  }
  std::ranges::sort(found);
  return found;
}

/// Weights of the small encoder of quotes, under the names of transformers.
void write_glyph_weights(const fs::path& file) {
  std::vector<std::pair<std::string, checkpoint::Shape>> all = {
      {"shared.weight", {384, 32}},
      {"encoder.final_layer_norm.weight", {32}},
      {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", {32, 2}}};
  for (const std::string block : {"encoder.block.0.", "encoder.block.1."}) {
    for (const char* one : {"q", "k", "v"})
      all.push_back({block + "layer.0.SelfAttention." + one + ".weight", {16, 32}});
    all.push_back({block + "layer.0.SelfAttention.o.weight", {32, 16}});
    all.push_back({block + "layer.0.layer_norm.weight", {32}});
    for (const char* one : {"wi_0", "wi_1"})
      all.push_back({block + "layer.1.DenseReluDense." + one + ".weight", {48, 32}});
    all.push_back({block + "layer.1.DenseReluDense.wo.weight", {32, 48}});
    all.push_back({block + "layer.1.layer_norm.weight", {32}});
  }
  std::vector<std::vector<float>> values;
  for (const auto& [name, shape] : all) {
    auto& own = values.emplace_back(static_cast<size_t>(*checkpoint::element_count(shape)));
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 1) / 3);
  }
  std::vector<checkpoint::TensorData> tensors;
  for (size_t i = 0; i < all.size(); ++i)
    tensors.push_back({all[i].first, DType::f32, all[i].second, values[i].data()});
  checkpoint::write_safetensors(file, tensors, {{"format", "pt"}});
}

class QuotedClips : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    const fs::path clips = run_.folder() / "learnt";
    const std::string prompts = write_painted(clips, kCaptions, {kFrames, kHeight, kWidth, 8, {}}, colour);
    flags_ = {"--data.path",
              clips.string(),
              "--data.size",
              "48,64",
              "--data.frames",
              "9",
              "--data.fps",
              "8",
              "--data.vae",
              scaled_vae(run_.folder(), "hunyuan15_vae", {{"scaling_factor", 1.0}}),
              "--train.global_batch",
              "6",
              "--train.lr",
              "4e-3",
              "--train.eps",
              "1e-8",
              "--train.clip_norm",
              "1",
              "--train.schedule",
              "cosine",
              "--diffusion.timesteps",
              "logit_normal",
              "--diffusion.image_share",
              "0.3",
              "--sample.sampler",
              "euler",
              "--sample.steps",
              "20",
              "--sample.guidance",
              "1",
              "--sample.prompts",
              prompts};
  }

  Result prepare(const Flags& more) const {
    Flags all = {"prepare", run_.recipe()};
    all.insert(all.end(), flags_.begin(), flags_.end());
    all.insert(all.end(), {"--data.buckets", "9x48x64,1x48x64"});
    all.insert(all.end(), more.begin(), more.end());
    return run_.tessera(all);
  }
  void write_plain(const std::string& stem, int frames) const {
    write_captioned(run_.folder() / "learnt", stem,
                    painted({frames, kHeight, kWidth, 8, {}},
                            [](int, int x, int) {
                              return std::array{x, x, x};
                            }),
                    "a sign");
  }
  std::vector<std::string> texts() const { return stored(run_.folder() / "cache/texts"); }
  std::vector<std::string> clips() const { return stored(run_.folder() / "cache"); }

  void learn(const std::string& name, int ranks, int steps, const Flags& more) const {
    Flags all = flags_;
    for (const char* key : {"--run.steps", "--sample.every"}) all.insert(all.end(), {key, std::to_string(steps)});
    all.insert(all.end(), more.begin(), more.end());
    const Result r = run_.train(ranks, name, all, 300);
    ASSERT_EQ(r.code, 0) << r.output;
    ASSERT_EQ(run_.metrics(name, "sample").size(), kCaptions.size());
  }

  TinyRun run_{"quoted-clips", TESSERA_BINARY, R"(preset = "hunyuan-tiny"
config = { hidden_size = 64, rope_dim_list = [4, 6, 6], in_channels = 2, out_channels = 2, text_len = 2, glyph_len = 24 })"};
  Flags flags_;
};

TEST_F(QuotedClips, TheCacheHasWhatIsQuotedAndWhatIsSeenOfTheFirstFrame) {
  write_plain("picture", 1);
  const Result r = prepare({});
  ASSERT_EQ(r.code, 0) << r.output;
  // `Text "GO". ` and an end: 12 bytes; a picture is given no frame, and so nothing is seen of it
  EXPECT_EQ(texts(), (std::vector<std::string>{"context[2, 64] ", "context[2, 64] glyphs[12, 32] ",
                                               "context[2, 64] glyphs[14, 32] ", "context[2, 64] glyphs[15, 32] "}));
  const std::string seen = "latent[2, 3, 3, 4] image[4, 20] ";
  EXPECT_EQ(clips(), (std::vector<std::string>{"latent[2, 1, 3, 4] ", seen, seen, seen}));
  // of text to video nothing is seen, and such entries are others
  const Result unseen = prepare({"--diffusion.image_share", "0"});
  ASSERT_EQ(unseen.code, 0) << unseen.output;
  EXPECT_EQ(clips().size(), 8U);
  EXPECT_EQ(texts().size(), 4U);
  // so are texts of an encoder of quotes with weights, and of a model that reads fewer rows of them
  write_glyph_weights(run_.folder() / "byt5.safetensors");
  const Result trained = prepare({"--data.glyph_encoder_path", (run_.folder() / "byt5.safetensors").string()});
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(texts().size(), 8U);
  const Result cut = prepare({"--model.config.glyph_len", "10"});
  ASSERT_EQ(cut.code, 0) << cut.output;
  EXPECT_EQ(texts().size(), 12U);
  EXPECT_EQ(std::ranges::count(texts(), "context[2, 64] glyphs[10, 32] "), 3);
  const Result none = prepare({"--model.config.glyph_len", "0"});
  ASSERT_EQ(none.code, 0) << none.output;
  EXPECT_EQ(std::ranges::count(texts(), "context[2, 64] "), 3 + 4);
}

TEST_F(QuotedClips, CaptionsOfPicturesHaveASystemMessageOfTheirOwn) {
  write_plain("picture", 1), write_plain("clip", kFrames);
  Flags flags = {"--data.text_encoder", "qwen2.5-vl-demo",
                 "--data.tokenizer",    (fs::path(TESSERA_GOLDENS) / "qwen25_vl_text/tokenizer.json").string(),
                 "--data.instruction",  "Look at the clip."};
  const Result same = prepare(flags);
  ASSERT_EQ(same.code, 0) << same.output;
  EXPECT_EQ(texts().size(), 4U) << "the picture's caption is that of a clip";
  flags.insert(flags.end(), {"--data.instruction_image", "Look at the picture, which does not move."});
  const Result apart = prepare(flags);
  ASSERT_EQ(apart.code, 0) << apart.output;
  EXPECT_EQ(texts().size(), 5U) << "clips have what they had";
  for (const char* place : {"online", "cache"}) {  // cached texts are those that are encoded when they come
    Flags all = flags_;
    all.insert(all.end(), flags.begin(), flags.end());
    all.insert(all.end(), {"--data.cache", place == std::string("cache") ? (run_.folder() / "cache").string() : place,
                           "--data.buckets", "9x48x64,1x48x64", "--train.global_batch", "5", "--run.steps", "2",
                           "--sample.every", "0"});
    const Result r = run_.train(2, place, all);
    ASSERT_EQ(r.code, 0) << r.output;
  }
  EXPECT_EQ(run_.losses("online"), run_.losses("cache"));
  EXPECT_EQ(texts().size(), 5U);
}

TEST_F(QuotedClips, AreLearntByHeartFromTheirQuotesAndFromTheirFirstFrames) {
  std::vector<const char*> lines = {"dp_shard=2"};  // the others are held against it
  const char* const others[] = {"tp=2", "sp=2", "cp=2", "pp=2 --train.micro_batch 2"};
  MatrixPart part("layouts on which quotes are learnt by heart", 4, 1);
  for (const int drawn : part) lines.push_back(others[drawn]);
  constexpr int kSteps = 12;  // at this rate a rounding grows a thousandfold in eighteen: tp=2 from 6e-9 to 7e-6
  for (const char* line : lines) {
    SCOPED_TRACE(line);
    const Layout layout = layout_of(line);
    ASSERT_NO_FATAL_FAILURE(learn(line, layout.ranks, 300, layout.flags));
    ASSERT_NO_FATAL_FAILURE(expect_learnt(run_, line, kCaptions, 21, 3));
    const auto first = run_.metrics("dp_shard=2"), now = run_.metrics(line);
    expect_same_curve({first.begin(), first.begin() + kSteps}, {now.begin(), now.begin() + kSteps}, kSteps);
  }
  // the same model begins with pictures: files that its image encoder sees as its autoencoder does
  Flags sample = {"sample", run_.recipe()};
  std::string pictures;
  for (size_t i = 0; i < kCaptions.size(); ++i) {
    const auto of_clip = [i](int frame, int x, int y) { return colour(i, frame, x, y); };
    write_captioned(run_.folder() / "first", std::to_string(i), painted({1, kHeight, kWidth, 8, {}}, of_clip), "");
    pictures += (i > 0 ? "," : "") + (run_.folder() / "first" / (std::to_string(i) + ".png")).string();
  }
  sample.insert(sample.end(), flags_.begin(), flags_.end());
  sample.insert(sample.end(), {"--run.out", run_.out("dp_shard=2"), "--sample.image", pictures, "--out",
                               (run_.folder() / "given").string() + "/"});
  const Result r = run_.tessera(sample);
  ASSERT_EQ(r.code, 0) << r.output;
  const std::vector<data::Frames> own = reconstructions(run_, "dp_shard=2", kCaptions.size());
  for (size_t i = 0; i < kCaptions.size(); ++i) {
    const fs::path file = run_.folder() / "given" / ("sample-" + std::to_string(i) + ".mp4");
    const double reached = data::psnr(data::decode_clip(file, {}), own[i]);
    std::printf("from its first frame, %s: %.1f dB\n", kCaptions[i].c_str(), reached);
    EXPECT_GE(reached, 21) << kCaptions[i];
  }
}

}  // namespace
}  // namespace tessera::testing
