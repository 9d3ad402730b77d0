// Wan VACE end to end: columns of a table become the context of a sample, runs on several layouts learn clips by what they
// are made from, and samples follow what they are given.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

constexpr const char* kVace = R"(preset = "wan-vace-tiny"
config = { dim = 96, ffn_dim = 192, num_heads = 4, in_dim = 12, out_dim = 12, vace_in_dim = 88, text_dim = 64, text_len = 16 })";

struct Colour {
  uint8_t r, g, b;
};

/// A box in one of the four corners.
data::Frames painted(int corner, Colour box, Colour ground) {
  data::Frames frames{.count = 8, .height = 32, .width = 32, .fps = 8, .rgb = {}};
  for (int i = 0; i < frames.count * 32 * 32; ++i) {
    const int y = i / 32 % 32, x = i % 32;
    const Colour& c = (y / 16 == corner / 2 && x / 16 == corner % 2) ? box : ground;
    frames.rgb.insert(frames.rgb.end(), {c.r, c.g, c.b});
  }
  return frames;
}

void write_picture(const fs::path& file, const data::Frames& frames) {
  const std::vector<uint8_t> bytes = data::write_png(frames, 0);
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Two clips of one caption, which only the clips that they are made from tell apart; the second has a reference.
void give_guides(const TinyRun& run) {
  const fs::path folder = run.folder() / "data";
  for (const auto& item : fs::directory_iterator(folder)) fs::remove_all(item.path());
  for (const int corner : {0, 3}) {
    data::write_mp4(folder / ("video" + std::to_string(corner) + ".mp4"),
                    painted(corner, {250, 20, 20}, {10, 10, 220}));
    data::write_mp4(folder / ("guide" + std::to_string(corner) + ".mp4"), painted(corner, {255, 255, 255}, {0, 0, 0}));
  }
  write_picture(folder / "one.png", painted(1, {250, 20, 20}, {0, 0, 0}));
  write_picture(folder / "two.png", painted(2, {20, 250, 20}, {0, 0, 0}));
  std::ofstream(folder / "metadata.json") << R"([
    {"video": "video0.mp4", "prompt": "a box", "vace_video": "guide0.mp4"},
    {"video": "video3.mp4", "prompt": "a box", "vace_video": "guide3.mp4", "vace_video_mask": "guide0.mp4",
     "vace_reference_image": ["one.png", "two.png"]}])";
}

Arguments with(const TinyRun& run, const Arguments& more) {
  Arguments all = {"--data.path",          (run.folder() / "data").string(),
                   "--data.size",          "32,32",
                   "--data.frames",        "8",
                   "--data.fps",           "8",
                   "--train.global_batch", "4"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::vector<int64_t>> contexts(const TinyRun& run) {
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& item : fs::recursive_directory_iterator(run.folder() / "cache")) {
    if (item.path().extension() != ".safetensors") continue;
    const auto file = checkpoint::SafetensorsFile::open(item.path());
    for (const auto& entry : file.entries())
      if (entry.name == "vace_context") shapes.push_back(entry.shape);
  }
  std::sort(shapes.begin(), shapes.end());
  return shapes;
}

}  // namespace

TEST(VaceRuns, ColumnsOfATableNameWhatAClipIsMadeFrom) {
  const TinyRun run("vace-columns", TESSERA_BINARY, kVace);
  give_guides(run);
  for (const int64_t references : {0, 1, 2}) {
    fs::remove_all(run.folder() / "cache");
    Arguments prepare = {"prepare", run.recipe()};
    const Arguments more = with(run, {"--data.references", std::to_string(references)});
    prepare.insert(prepare.end(), more.begin(), more.end());
    const Result r = run.tessera(prepare);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("not used"), std::string::npos) << r.output;
    EXPECT_EQ(contexts(run), (std::vector<std::vector<int64_t>>{{88, 2, 4, 4}, {88, 2 + references, 4, 4}}));
  }
  EXPECT_EQ(run.tessera({"train", run.recipe(), "--data.references", "5"}).code, 2);
  const TinyRun other("vace-none");  // a model without references
  const Result refused = other.train(1, "run", {"--data.references", "2"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.output.find("data.references"), std::string::npos) << refused.output;
  EXPECT_EQ(other.train(1, "run", {"--sample.every", "1", "--sample.guide", "a.mp4"}).code, 2);
}

TEST(VaceRuns, SamplesFollowWhatTheyAreGiven) {
  const TinyRun run("vace-follows", TESSERA_BINARY, kVace);
  give_guides(run);
  const Result r = run.train(1, "run", with(run, {"--run.steps", "700", "--train.lr", "3e-3"}), 300);
  ASSERT_EQ(r.code, 0) << r.output;
  const fs::path data = run.folder() / "data";
  std::map<int, data::Frames> made;
  for (const int corner : {0, 3}) {
    Arguments sample = {"sample",
                        run.out() + "/recipe.toml",
                        "--prompt",
                        "a box",
                        "--sample.steps",
                        "10",
                        "--sample.guidance",
                        "1",
                        "--sample.guide",
                        (data / ("guide" + std::to_string(corner) + ".mp4")).string(),
                        "--out",
                        (run.folder() / ("made" + std::to_string(corner) + ".mp4")).string()};
    if (corner == 3)
      sample.insert(sample.end(), {"--sample.guide_mask", (data / "guide0.mp4").string(), "--sample.reference",
                                   (data / "one.png").string()});
    const Result s = run.tessera(sample);
    ASSERT_EQ(s.code, 0) << s.output;
    made[corner] = data::decode_clip(
        sample.back() == (data / "one.png").string() ? (run.folder() / "made3.mp4").string() : sample.back(), {});
    EXPECT_EQ(made[corner].count, 8) << "without the reference's frame";
  }
  for (const int corner : {0, 3}) {
    const data::Frames own = data::decode_clip(data / ("video" + std::to_string(corner) + ".mp4"), {}),
                       other = data::decode_clip(data / ("video" + std::to_string(3 - corner) + ".mp4"), {});
    EXPECT_GT(data::psnr(made[corner], own), 18) << corner;
    EXPECT_LT(data::psnr(made[corner], other), 15) << corner;
  }
}

TEST(VaceRuns, LosesNothingOnOtherLayoutsAndInAResume) {
  const TinyRun run("vace-layouts", TESSERA_BINARY, kVace);
  give_guides(run);
  const Arguments six = {"--run.steps", "6", "--checkpoint.every", "3", "--checkpoint.keep", "0"};
  // masks and pictures of each sample are drawn, of which some begin with one more frame than others
  const Arguments draws = {"--diffusion.condition_draws", "4", "--diffusion.draw_shares", "photo=0.5,inpaint=0.5"};
  const auto with = [&](const TinyRun& of, Arguments more) {
    more.insert(more.begin(), draws.begin(), draws.end());
    return tessera::testing::with(of, more);
  };
  ASSERT_EQ(run.train(1, "one", with(run, six)).code, 0);
  const std::vector<double> expected = run.losses("one");
  std::set<int64_t> frames;
  for (const auto& shape : contexts(run)) frames.insert(shape[1]);
  EXPECT_EQ(frames, (std::set<int64_t>{2, 3}));
  ASSERT_EQ(run.train(1, "online", with(run, {"--run.steps", "6", "--data.cache", "online"})).code, 0);
  const std::vector<double> online = run.losses("online");
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(online[i], expected[i], 2e-6 * expected[i]) << i;
  for (const char* axis : {"cp", "pp"}) {
    const Result r = run.train(
        2, axis, with(run, {"--mesh." + std::string(axis), "2", "--run.steps", "3", "--checkpoint.every", "3"}));
    ASSERT_EQ(r.code, 0) << r.output;
    const Result on =
        run.train(2, axis, with(run, {"--mesh.tp", "2", "--run.steps", "6", "--run.resume_changes", "allow"}));
    ASSERT_EQ(on.code, 0) << on.output;
    const std::vector<double> losses = run.losses(axis);
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-6 * expected[i]) << axis << i;
  }
}

TEST(VaceRuns, AdaptersOfEitherStreamAlone) {
  const TinyRun run("vace-lora", TESSERA_BINARY, kVace);
  give_guides(run);
  for (const auto& [targets, stream, modules] :
       {std::tuple("vace_blocks.*.q", "transformer.vace_blocks.", 4), {"blocks.*.q", "transformer.blocks.", 8}}) {
    const Result r = run.train(1, stream,
                               with(run, {"--run.steps", "1", "--train.mode", "lora", "--model.init", "random",
                                          "--lora.targets", targets, "--checkpoint.every", "1"}));
    ASSERT_EQ(r.code, 0) << r.output;
    const auto file =
        checkpoint::SafetensorsFile::open(fs::path(run.out(stream)) / "model" / "pytorch_lora_weights.safetensors");
    int pairs = 0;
    for (const auto& entry : file.entries()) {
      EXPECT_TRUE(entry.name.starts_with(stream)) << entry.name;
      pairs += entry.name.ends_with("lora_A.weight");
    }
    EXPECT_EQ(pairs, modules);
  }
}

}  // namespace tessera::testing
