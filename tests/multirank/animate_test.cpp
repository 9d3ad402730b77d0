// Wan Animate end to end: columns of a table become poses, a face and a reference, runs on several layouts learn clips by
// them, and samples follow what they are given.
#include <gtest/gtest.h>

#include <fstream>

#include "learnt_clips.h"
#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/clip_format.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

constexpr const char* kAnimate = R"(preset = "wan-animate-tiny"
config = { dim = 48, ffn_dim = 96, num_heads = 4, in_dim = 28, out_dim = 12, text_dim = 64, text_len = 16, image_dim = 24, image_len = 5 })";

using Colour = std::array<int, 3>;

/// A box in one of the four corners.
data::Frames box(int corner, Colour inside, Colour ground) {
  return painted({8, 32, 32, 8, {}},
                 [=](int, int x, int y) { return y / 16 == corner / 2 && x / 16 == corner % 2 ? inside : ground; });
}

std::string clip_of(int corner, bool bright) {
  return "video" + std::to_string(corner) + (bright ? "bright" : "dark") + ".mp4";
}

constexpr Colour kBright = {250, 240, 20}, kDark = {120, 10, 10}, kGround = {10, 10, 220};

/// Clips of one caption and one reference, which only their poses and their faces tell apart: the pose has the place, the
/// face the colour. `more`: fields of each row.
void give_rows(const TinyRun& run, const std::string& more = R"(, "reference_image": "one.png")") {
  const fs::path folder = run.folder() / "data";
  for (const auto& item : fs::directory_iterator(folder)) fs::remove_all(item.path());
  const std::vector<uint8_t> png = data::write_png(box(1, {90, 90, 90}, {0, 0, 0}), 0);
  std::ofstream(folder / "one.png", std::ios::binary) << std::string(png.begin(), png.end());
  std::string rows;
  for (const bool bright : {false, true}) {
    const Colour face = bright ? Colour{255, 255, 255} : Colour{20, 20, 20};
    data::write_mp4(folder / (bright ? "face1.mp4" : "face0.mp4"), box(2, {128, 60, 128}, face));
    for (const int corner : {0, 3}) {
      data::write_mp4(folder / clip_of(corner, bright), box(corner, bright ? kBright : kDark, kGround));
      data::write_mp4(folder / ("pose" + std::to_string(corner) + ".mp4"), box(corner, {255, 255, 255}, {0, 0, 0}));
      rows += (rows.empty() ? "" : ",\n") + (R"({"video": ")" + clip_of(corner, bright)) +
              R"(", "prompt": "a box", "animate_pose_video": "pose)" + std::to_string(corner) +
              R"(.mp4", "animate_face_video": "face)" + (bright ? "1" : "0") + R"(.mp4")" + more + "}";
    }
  }
  std::ofstream(folder / "metadata.json") << "[" << rows << "]";
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

std::map<std::string, std::vector<int64_t>> cached(const TinyRun& run) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& item : fs::directory_iterator(run.folder() / "cache")) {
    if (item.path().extension() != ".safetensors") continue;
    const auto file = checkpoint::SafetensorsFile::open(item.path());
    for (const auto& entry : file.entries()) shapes[entry.name] = entry.shape;
  }
  return shapes;
}

Result prepare(const TinyRun& run, const Arguments& more = {}) {
  Arguments all = {"prepare", run.recipe()};
  const Arguments flags = with(run, more);
  all.insert(all.end(), flags.begin(), flags.end());
  return run.tessera(all);
}

}  // namespace

TEST(AnimateRuns, ColumnsOfATableNameWhatAClipFollows) {
  const TinyRun run("animate-columns", TESSERA_BINARY, kAnimate);
  for (const char* more :
       {R"(, "reference_image": "one.png")", "",
        R"(, "ref_file_path": "one.png", "background_file_path": "pose0.mp4", "mask_file_path": "pose3.mp4")"}) {
    give_rows(run, more);
    fs::remove_all(run.folder() / "cache");
    const Result r = prepare(run);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("not used"), std::string::npos) << r.output;
    const auto shapes = cached(run);
    EXPECT_EQ(shapes.at("y"), (std::vector<int64_t>{16, 3, 4, 4}));
    EXPECT_EQ(shapes.at("pose_latents"), (std::vector<int64_t>{12, 2, 4, 4}));
    EXPECT_EQ(shapes.at("face"), (std::vector<int64_t>{3, 5, 8, 8}));
    EXPECT_EQ(shapes.at("clip_fea"), (std::vector<int64_t>{5, 24}));
  }
}

TEST(AnimateRuns, RowsThatDriveThemselvesOrNothingAreRefused) {
  const TinyRun run("animate-refused", TESSERA_BINARY, kAnimate);
  give_rows(run);
  const fs::path table = run.folder() / "data" / "metadata.json";
  const auto refused = [&](const std::string& row, const char* words, const Arguments& more = {}) {
    std::ofstream(table) << "[" << row << "]";
    const Result r = prepare(run, more);
    EXPECT_NE(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
  };
  const std::string clip = R"({"video": "video0dark.mp4", "prompt": "a box")";
  refused(clip + R"(, "animate_pose_video": "pose0.mp4", "animate_face_video": "video0dark.mp4"})",
          "the video of a face is the clip itself");
  refused(clip + R"(, "pose": "video0dark.mp4", "face_file_path": "face0.mp4"})",
          "the video of poses is the clip itself");
  refused(clip + R"(, "animate_pose_video": "pose0.mp4"})", "no video of a face");
  refused(clip + R"(, "animate_face_video": "face0.mp4"})", "no video of poses");
  refused(clip + "}", "one reference", {"--data.references", "0"});
}

TEST(AnimateRuns, LoseNothingOnOtherLayoutsWithoutACacheAndInAResume) {
  const TinyRun run("animate-layouts", TESSERA_BINARY, kAnimate);
  give_rows(run);
  const Arguments six = {"--run.steps",       "6", "--checkpoint.every",          "3",
                         "--checkpoint.keep", "0", "--diffusion.condition_draws", "2"};
  const auto and_then = [&](Arguments more) {
    more.insert(more.begin(), six.begin(), six.end());
    return with(run, more);
  };
  ASSERT_EQ(run.train(1, "one", and_then({})).code, 0);
  const std::vector<double> expected = run.losses("one");
  const auto compare = [&](const std::string& name) {
    const std::vector<double> losses = run.losses(name);
    ASSERT_EQ(losses.size(), expected.size()) << name;
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-6 * expected[i]) << name << i;
  };
  ASSERT_EQ(run.train(1, "online", and_then({"--data.cache", "online"})).code, 0);
  compare("online");
  for (const char* axis : {"dp_shard", "tp", "cp", "sp", "pp"}) {
    const Result r = run.train(2, axis, and_then({"--mesh." + std::string(axis), "2", "--run.steps", "3"}));
    ASSERT_EQ(r.code, 0) << r.output;
    const Result on = run.train(1, axis, and_then({"--run.resume_changes", "allow"}));
    ASSERT_EQ(on.code, 0) << on.output;
    compare(axis);
  }
}

TEST(AnimateRuns, SamplesFollowThePoseAndTheFace) {
  const TinyRun run("animate-follows", TESSERA_BINARY, kAnimate);
  give_rows(run);
  const Result r = run.train(1, "run", with(run, {"--run.steps", "700", "--train.lr", "3e-3"}), 500);
  ASSERT_EQ(r.code, 0) << r.output;
  const fs::path data = run.folder() / "data";
  for (const bool bright : {false, true})
    for (const int corner : {0, 3}) {
      const std::string out = (run.folder() / "made.mp4").string();
      const Result s = run.tessera(
          {"sample", run.out() + "/recipe.toml", "--prompt", "a box", "--sample.steps", "10", "--sample.guidance", "1",
           "--sample.pose", (data / ("pose" + std::to_string(corner) + ".mp4")), "--sample.face",
           (data / (bright ? "face1.mp4" : "face0.mp4")), "--sample.reference", (data / "one.png"), "--out", out});
      ASSERT_EQ(s.code, 0) << s.output;
      const data::Frames made = data::decode_clip(out, {});
      EXPECT_EQ(made.count, 8) << "without the reference's frame";
      for (const bool other_colour : {false, true})
        for (const bool other_place : {false, true}) {
          const double found = data::psnr(
              made, data::decode_clip(data / clip_of(other_place ? 3 - corner : corner, bright != other_colour), {}));
          if (!other_colour && !other_place)
            EXPECT_GT(found, 19) << corner << bright;
          else
            EXPECT_LT(found, 16) << corner << bright << other_place << other_colour;
        }
    }
  const Result refused = run.tessera({"sample", run.recipe(), "--prompt", "a box", "--sample.control", "clip"});
  EXPECT_EQ(refused.code, 2) << refused.output;
}

/// A folder of frames, as they are, that show the box in one corner after the other, for so many frames each.
std::string wandering(const fs::path& file, const std::vector<std::pair<int, int>>& corners, Colour inside,
                      Colour ground) {
  data::Frames all{0, 32, 32, 8, {}};
  for (const auto& [corner, frames] : corners) {
    const data::Frames part = box(corner, inside, ground);
    for (int f = 0; f < frames; ++f, ++all.count)
      all.rgb.insert(all.rgb.end(), part.frame(0), part.frame(0) + part.frame_bytes());
  }
  data::write_clip(file, all, data::ClipFormat::frames);
  return file.string();
}

bool begins_with(const data::Frames& all, const data::Frames& first, int frames) {
  const auto bytes = static_cast<ptrdiff_t>(static_cast<size_t>(frames) * first.frame_bytes());
  return all.count >= frames && first.count >= frames &&
         std::equal(first.rgb.begin(), first.rgb.begin() + bytes, all.rgb.begin());
}

TEST(AnimateRuns, ALongSampleIsMadeInWindowsThatBeginAsTheLastOneEnded) {
  const TinyRun run("animate-windows", TESSERA_BINARY, kAnimate);
  give_rows(run);
  const fs::path data = run.folder() / "data";
  // 19 frames; the first and the second differ at the begin alone
  const std::string poses = wandering(run.folder() / "poses", {{0, 6}, {3, 13}}, {255, 255, 255}, {0, 0, 0}),
                    others = wandering(run.folder() / "others", {{1, 3}, {0, 3}, {3, 13}}, {255, 255, 255}, {0, 0, 0}),
                    later = wandering(run.folder() / "later", {{0, 6}, {3, 4}, {2, 9}}, {255, 255, 255}, {0, 0, 0}),
                    ground = wandering(run.folder() / "ground", {{2, 9}}, {0, 200, 0}, {90, 0, 90});
  const Arguments trained = with(run, {"--run.steps",        "8",
                                       "--train.lr",         "3e-3",
                                       "--checkpoint.every", "4",
                                       "--sample.every",     "4",
                                       "--sample.prompts",   "a box",
                                       "--sample.steps",     "2",
                                       "--sample.pose",      poses,
                                       "--sample.face",      (data / "face1.mp4"),
                                       "--sample.reference", (data / "one.png"),
                                       "--sample.clips",     "2"});
  const Result r = run.train(1, "run", trained, 200);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto sample = [&](const std::string& name, const std::string& pose, const Arguments& more, int ranks = 1) {
    const fs::path out = run.folder() / name;
    Arguments line = {"sample", run.out("run") + "/recipe.toml", "--sample.pose", pose, "--format", "frames", "--out",
                      out};
    if (ranks > 1) line.insert(line.begin(), {"launch", "-n", std::to_string(ranks)});
    line.insert(line.end(), more.begin(), more.end());
    const Result made = run.tessera(line);
    EXPECT_EQ(made.code, 0) << made.output;
    return made.code == 0 ? data::decode_clip(out, {}) : data::Frames();
  };
  const data::Frames one = sample("one", poses, {"--sample.clips", "1"});
  ASSERT_EQ(one.count, 8);
  for (const std::string overlap : {"1", "5"}) {
    SCOPED_TRACE(overlap);
    const Arguments whole = {"--sample.clips", "auto", "--sample.overlap", overlap};
    const data::Frames all = sample("all" + overlap, poses, whole);
    ASSERT_EQ(all.count, 19) << "as the poses last";
    EXPECT_TRUE(begins_with(all, one, 8)) << "the first window is the sample of one";
    const data::Frames two = sample("two" + overlap, poses, {"--sample.clips", "2", "--sample.overlap", overlap});
    EXPECT_EQ(two.count, 8 + 8 - std::stoi(overlap));
    EXPECT_TRUE(begins_with(all, two, two.count));
    EXPECT_TRUE(begins_with(sample("ranks" + overlap, poses, whole, 2), all, 19));
    const data::Frames changed = sample("later" + overlap, later, whole);
    EXPECT_TRUE(begins_with(changed, all, 8)) << "what comes later changes nothing before";
    EXPECT_FALSE(begins_with(changed, all, 19));
    // The poses behind the third frame are the same: what differs there comes from the frames before.
    const data::Frames other = sample("other" + overlap, others, whole);
    ASSERT_EQ(other.count, 19);
    EXPECT_FALSE(std::equal(other.frame(8), other.rgb.data() + other.rgb.size(), all.frame(8)))
        << "the second window is made from the first";
  }
  const data::Frames plain = sample("plain", poses, {"--sample.clips", "auto"});
  EXPECT_FALSE(begins_with(plain, sample("five", poses, {"--sample.clips", "auto", "--sample.overlap", "5"}), 19));
  EXPECT_FALSE(begins_with(plain, sample("ground", poses, {"--sample.clips", "auto", "--sample.guide", ground}), 19))
      << "a background that is shorter goes to and fro";

  // the same bytes as a sample during training, and nothing of the training changes
  const fs::path during = fs::path(run.out("run")) / "samples/step-000008-0.mp4";
  ASSERT_TRUE(fs::exists(during));
  const data::Frames seen = data::decode_clip(during, {});
  EXPECT_EQ(seen.count, 15);
  const std::string after = (run.folder() / "after.mp4").string();
  ASSERT_EQ(run.tessera({"sample", run.out("run") + "/recipe.toml", "--out", after}).code, 0);
  EXPECT_TRUE(begins_with(data::decode_clip(after, {}), seen, 15));
  for (const auto& step : run.metrics("run"))
    for (const auto& rank : step.at("ranks"))
      EXPECT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>()) << step;
  Arguments halves = trained;
  halves.insert(halves.end(), {"--sample.clips", "1", "--run.steps", "4"});
  ASSERT_EQ(run.train(1, "halves", halves).code, 0);
  halves = trained;
  halves.insert(halves.end(), {"--mesh.dp_shard", "2", "--run.resume_changes", "allow", "--sample.every", "3"});
  const Result resumed = run.train(2, "halves", halves, 200);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  const std::vector<double> losses = run.losses("halves"), expected = run.losses("run");
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-6 * expected[i]) << i;
  EXPECT_EQ(data::decode_clip(fs::path(run.out("halves")) / "samples/step-000006-0.mp4", {}).count, 15);

  const auto refused = [&](const Arguments& more, const std::string& why) {
    Arguments line = {"sample", run.out("run") + "/recipe.toml"};
    line.insert(line.end(), more.begin(), more.end());
    const Result made = run.tessera(line);
    EXPECT_EQ(made.code, 2) << made.output;
    EXPECT_NE(made.output.find(why), std::string::npos) << made.output;
  };
  refused({"--sample.clips", "4"}, "it is long enough for 3");
  refused({"--sample.overlap", "8"}, "8 frames of a clip of 8");
}

TEST(AnimateRuns, AdaptersAreWrittenUnderTheirModulesNames) {
  const TinyRun run("animate-lora", TESSERA_BINARY, kAnimate);
  give_rows(run);
  const Result r = run.train(1, "lora",
                             with(run, {"--run.steps", "1", "--train.mode", "lora", "--model.init", "random",
                                        "--lora.targets", "q,k,v,o,ffn.0,ffn.2", "--checkpoint.every", "1"}));
  ASSERT_EQ(r.code, 0) << r.output;
  const auto file =
      checkpoint::SafetensorsFile::open(fs::path(run.out("lora")) / "model" / "pytorch_lora_weights.safetensors");
  int pairs = 0;
  for (const auto& entry : file.entries()) {
    EXPECT_TRUE(entry.name.starts_with("transformer.blocks.")) << entry.name;
    pairs += entry.name.ends_with("lora_A.weight");
  }
  EXPECT_EQ(pairs, 5 * 10) << "of each block the two attentions and the feed-forward";
}

}  // namespace tessera::testing
