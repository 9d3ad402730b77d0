// Models that make videos from pictures: their conditions are made by themselves, training on two ranks learns, samples
// begin with the picture that was given.
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

/// A kind of model at the size of TinyRun, whose latents have 12 channels.
struct Kind {
  const char* name;
  Arguments flags;
  std::map<std::string, std::vector<int64_t>> extras;  ///< what its cached samples have besides
};

Arguments type(const std::string& model_type, const std::string& in_dim, bool clip) {
  Arguments flags = {"--model.config.model_type", model_type, "--model.config.in_dim", in_dim};
  if (clip) flags.insert(flags.end(), {"--model.config.image_dim", "24", "--model.config.image_len", "5"});
  return flags;
}

const std::vector<int64_t> kY = {16, 2, 4, 4};  // 4 of mask and 12 of latent
const std::vector<Kind> kKinds = {{"i2v", type("i2v", "28", true), {{"y", kY}, {"clip_fea", {5, 24}}}},
                                  {"flf2v", type("flf2v", "28", true), {{"y", kY}, {"clip_fea", {10, 24}}}},
                                  {"i2v of 2.2", type("i2v", "28", false), {{"y", kY}}},
                                  {"ti2v", type("ti2v", "12", false), {}}};

Arguments with(Arguments flags, const Arguments& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::vector<fs::path> cached(const TinyRun& run) {
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(run.folder() / "cache"))
    if (item.path().extension() == ".safetensors") files.push_back(item.path());
  std::sort(files.begin(), files.end());
  return files;
}

double mean_loss(const std::vector<nlohmann::json>& steps, size_t first, size_t count) {
  double sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += steps.at(i).at("loss").get<double>();
  return sum / static_cast<double>(count);
}

data::Frames picture(uint8_t red, uint8_t green, uint8_t blue) {
  data::Frames frames{1, 32, 32, 8, std::vector<uint8_t>(32 * 32 * 3)};
  for (size_t i = 0; i < frames.rgb.size(); i += 3)
    frames.rgb[i] = red, frames.rgb[i + 1] = green, frames.rgb[i + 2] = blue;
  return frames;
}

void write_picture(const fs::path& path, const data::Frames& frames) {
  const std::vector<uint8_t> bytes = data::write_png(frames, 0);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST(Pictures, EveryKindLearnsOnTwoRanksWithinItsPlanAndSamples) {
  for (const Kind& kind : kKinds) {
    TinyRun run("pictures");
    const Result r = run.train(2, "run",
                               with(kind.flags, {"--run.steps", "40", "--train.lr", "3e-3", "--sample.every", "40",
                                                 "--sample.steps", "2", "--sample.guidance", "2"}));
    ASSERT_EQ(r.code, 0) << kind.name << "\n" << r.output;
    const auto steps = run.metrics("run");
    ASSERT_EQ(steps.size(), 40u);
    EXPECT_LT(mean_loss(steps, 32, 8), 0.9 * mean_loss(steps, 0, 8)) << kind.name;
    for (const auto& step : steps)
      for (const auto& rank : step.at("ranks"))
        ASSERT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>()) << kind.name;
    EXPECT_TRUE(fs::exists(fs::path(run.out()) / "samples")) << r.output;
    for (const fs::path& file : cached(run)) {
      const auto entry = checkpoint::SafetensorsFile::open(file);
      EXPECT_EQ(entry.entries().size(), 1 + kind.extras.size()) << kind.name;
      for (const auto& [name, shape] : kind.extras) EXPECT_EQ(entry.at(name).shape, shape) << kind.name << " " << name;
    }
  }
}

TEST(Pictures, OneRankAndTwoGiveTheSameCurveAlsoWithoutACache) {
  for (const Kind& kind : {kKinds[1], kKinds[3]}) {
    TinyRun run("pictures");
    std::vector<std::vector<nlohmann::json>> curves;
    for (const auto& [name, ranks, more] : {std::tuple{"one", 1, Arguments{}},
                                            {"two", 2, Arguments{}},
                                            {"online", 2, Arguments{"--data.cache", "online"}}}) {
      const Result r = run.train(ranks, name, with(kind.flags, with(more, {"--run.steps", "4"})));
      ASSERT_EQ(r.code, 0) << kind.name << " " << name << "\n" << r.output;
      curves.push_back(run.metrics(name));
    }
    for (size_t i = 0; i < curves[0].size(); ++i)
      for (size_t other : {1u, 2u})
        EXPECT_NEAR(curves[0][i].at("loss").get<double>(), curves[other][i].at("loss").get<double>(), 1e-6)
            << kind.name << " step " << i << " of curve " << other;
  }
}

TEST(Pictures, ARowsOwnPictureReplacesTheClipsFirstFrame) {
  TinyRun run("pictures");
  const fs::path data = run.folder() / "data";
  write_picture(data / "red.png", picture(255, 0, 0));
  std::ofstream(data / "metadata.csv") << "video,prompt,input_image\nclip0.mp4,one,red.png\nclip0.mp4,two,\n";
  const Result r = run.tessera(with({"prepare", run.recipe()}, kKinds[2].flags));
  ASSERT_EQ(r.code, 0) << r.output;
  const auto files = cached(run);
  ASSERT_EQ(files.size(), 2u);
  std::vector<std::vector<float>> y(2, std::vector<float>(16 * 2 * 4 * 4)), latent(2, std::vector<float>(12 * 2 * 16));
  for (size_t i = 0; i < 2; ++i) {
    const auto entry = checkpoint::SafetensorsFile::open(files[i]);
    entry.read_f32("y", 0, static_cast<int64_t>(y[i].size()), y[i].data());
    entry.read_f32("latent", 0, static_cast<int64_t>(latent[i].size()), latent[i].data());
  }
  EXPECT_EQ(latent[0], latent[1]);
  EXPECT_NE(y[0], y[1]);
  EXPECT_TRUE(std::equal(y[0].begin(), y[0].begin() + 4 * 2 * 16, y[1].begin())) << "the mask is the same";
  EXPECT_EQ(y[0][0], 1) << "the wavelet's first latent frame is four frames, of which the first is given";
  EXPECT_EQ(y[0][2 * 16], 0);
}

TEST(Pictures, ASampleOfFlf2vHeedsItsLastPicture) {
  TinyRun run("pictures");
  const Arguments& flags = kKinds[1].flags;
  ASSERT_EQ(run.train(2, "run", with(flags, {"--run.steps", "3", "--train.lr", "1e-2"})).code, 0);
  write_picture(run.folder() / "green.png", picture(20, 200, 40));
  write_picture(run.folder() / "red.png", picture(220, 20, 30));
  const auto sample = [&](const std::string& last) {
    const fs::path out = run.folder() / "clip.gif";
    const Result r = run.tessera(with({"sample", run.recipe(), "--sample.image", (run.folder() / "green.png").string(),
                                       "--sample.last_image", last == "clip" ? last : (run.folder() / last).string(),
                                       "--sample.prompts", "a", "--sample.steps", "2", "--out", out.string()},
                                      flags));
    EXPECT_EQ(r.code, 0) << r.output;
    return text_of(out);
  };
  const std::string green = sample("green.png");
  EXPECT_TRUE(sample("green.png") == green);
  EXPECT_TRUE(sample("red.png") != green);
  EXPECT_TRUE(sample("clip") != green) << "the last frame of the data set's first clip";
  const Result none = run.tessera(
      with({"sample", run.recipe(), "--sample.last_image", "red.png", "--sample.prompts", "a"}, kKinds[0].flags));
  EXPECT_EQ(none.code, 2) << none.output;
  EXPECT_NE(none.output.find("first-last-frame model"), std::string::npos) << none.output;
}

TEST(Pictures, ASampleOfTi2vBeginsWithThePictureThatWasGiven) {
  TinyRun run("pictures");
  const Arguments& flags = kKinds[3].flags;
  ASSERT_EQ(run.train(2, "run", with(flags, {"--run.steps", "2"})).code, 0);
  write_picture(run.folder() / "green.png", picture(20, 200, 40));
  const fs::path out = run.folder() / "frames";
  const Result r =
      run.tessera(with({"sample", run.recipe(), "--sample.image", (run.folder() / "green.png").string(),
                        "--sample.prompts", "a", "--sample.steps", "2", "--format", "frames", "--out", out.string()},
                       flags));
  ASSERT_EQ(r.code, 0) << r.output;
  std::vector<fs::path> frames;
  for (const auto& item : fs::recursive_directory_iterator(out))
    if (item.path().extension() == ".png") frames.push_back(item.path());
  std::sort(frames.begin(), frames.end());
  ASSERT_EQ(frames.size(), 8u) << r.output;
  const data::Frames first = data::decode_clip(frames.front(), {}), last = data::decode_clip(frames.back(), {});
  EXPECT_NEAR(first.rgb[3 * 500 + 1], 200, 4);
  EXPECT_NEAR(first.rgb[3 * 500], 20, 4);
  EXPECT_NE(first.rgb, last.rgb) << "what follows is made, not given";
}

TEST(Pictures, WhatDoesNotFitIsToldBeforeTheWorkBegins) {
  TinyRun run("pictures");
  struct Mistake {
    Arguments flags;
    int code;
    std::string says;
  };
  const std::vector<Mistake> mistakes = {
      {type("i2v", "12", false), 2, "with out_dim 12 that is 28"},
      {with(kKinds[0].flags, {"--model.config.image_len", "9"}), 2, "data.image_encoder_path"},
      {with(kKinds[0].flags, {"--data.image_encoder", "clip-dema"}), 2, "did you mean clip-demo?"},
      {{"--sample.image", "a.png", "--sample.every", "1"}, 2, "takes no image"},
      {with(kKinds[3].flags, {"--diffusion.image_share", "2"}), 2, "expected a share from 0 to 1"},
  };
  for (const Mistake& mistake : mistakes) {
    const Result r = run.train(1, "run", with(mistake.flags, {"--run.steps", "1"}));
    EXPECT_EQ(r.code, mistake.code) << r.output;
    EXPECT_NE(r.output.find(mistake.says), std::string::npos) << mistake.says << "\n" << r.output;
  }
  const Result typed = run.train(1, "typed", {"--model.family", "wan-ti2v", "--run.steps", "1"});
  EXPECT_EQ(typed.code, 0) << typed.output;
  EXPECT_NE(typed.output.find("conditioned on text, or a first image and text"), std::string::npos) << typed.output;
}

}  // namespace tessera::testing
