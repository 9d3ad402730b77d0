// Models that follow a control video, a reference picture or a camera: what is cached of a row, runs on two ranks, and
// samples that heed what they are given.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "learnt_clips.h"
#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

/// At the size of TinyRun, whose latents have 12 channels.
Arguments model(const std::string& type, const std::string& in_dim, const Arguments& more) {
  Arguments flags = {"--model.config.model_type", type, "--model.config.in_dim", in_dim};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}
const Arguments kControl =
    model("i2v", "36",
          {"--model.config.image_dim", "24", "--model.config.image_len", "5", "--model.config.in_dim_ref_conv", "12"});
const Arguments kControl22 = model("i2v", "40", {"--model.config.in_dim_ref_conv", "12"});
const Arguments kFilled =
    model("i2v", "28", {"--model.config.image_dim", "24", "--model.config.image_len", "5"});  // VideoX-Fun's InP
const Arguments kCamera = model("i2v", "24", {"--model.config.in_dim_control_adapter", "24"});

Arguments with(Arguments flags, const Arguments& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

void write_table(const TinyRun& run) {
  const fs::path data = run.folder() / "data";
  const data::Frames one{1, 32, 32, 8, std::vector<uint8_t>(32 * 32 * 3, 200)};
  const std::vector<uint8_t> bytes = data::write_png(one, 0);
  std::ofstream(data / "grey.png", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::ofstream(data / "metadata.csv")
      << "video,prompt,control_video,reference_image,input_image,camera_control_direction,camera_control_speed\n"
         "clip0.mp4,one,clip1.mp4,grey.png,,LeftUp,0.1\n"
         "clip1.mp4,two,,,grey.png,,\n";
}

/// Shapes of the extras of each cached clip, those with a control first.
std::vector<std::map<std::string, std::vector<int64_t>>> cached(const TinyRun& run) {
  std::vector<std::map<std::string, std::vector<int64_t>>> all;
  for (const auto& item : fs::directory_iterator(run.folder() / "cache")) {
    if (item.path().extension() != ".safetensors") continue;
    auto& one = all.emplace_back();
    const auto file = checkpoint::SafetensorsFile::open(item.path());
    for (const auto& entry : file.entries()) one[entry.name] = entry.shape;
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.count("control") + a.count("camera") > b.count("control") + b.count("camera");
  });
  return all;
}

using Colour = std::array<int, 3>;
constexpr Colour kBright = {250, 240, 20}, kDark = {120, 10, 10}, kGround = {10, 10, 220};

/// A box in one of the four corners, which moves to another one in the second half.
data::Frames box(int corner, int then, Colour inside, Colour ground) {
  return painted({8, 32, 32, 8, {}}, [=](int frame, int x, int y) {
    const int at = frame < 4 ? corner : then;
    return y / 16 == at / 2 && x / 16 == at % 2 ? inside : ground;
  });
}
void write_picture(const fs::path& file, const data::Frames& frames) {
  const std::vector<uint8_t> png = data::write_png(frames, 0);
  std::ofstream(file, std::ios::binary) << std::string(png.begin(), png.end());
}

/// A clip of a table, further fields of its row, and what a sample is given that is to be it; all captions are the same.
struct Followed {
  data::Frames clip;
  std::string fields;
  Arguments given;
};

/// Trains on these clips, which nothing but what they follow tells apart, and samples each.
void expect_followed(const TinyRun& run, const Arguments& model, const std::string& columns,
                     const std::vector<Followed>& clips) {
  const fs::path data = run.folder() / "data";
  std::ofstream table(data / "metadata.csv");
  table << "video,prompt" << columns << "\n";
  const auto file = [&](size_t i) { return data / ("video" + std::to_string(i) + ".mp4"); };
  for (size_t i = 0; i < clips.size(); ++i) {
    data::write_mp4(file(i), clips[i].clip);
    table << file(i).filename().string() << ",a box" << clips[i].fields << "\n";
  }
  table.close();
  const Result r =
      run.train(1, "run", with(model, {"--run.steps", "500", "--train.lr", "3e-3", "--train.global_batch", "4"}), 500);
  ASSERT_EQ(r.code, 0) << r.output;
  for (size_t i = 0; i < clips.size(); ++i) {
    const std::string out = (run.folder() / "made.mp4").string();
    const Result s = run.tessera(with({"sample", run.out() + "/recipe.toml", "--prompt", "a box", "--sample.steps",
                                       "10", "--sample.guidance", "1", "--out", out},
                                      clips[i].given));
    ASSERT_EQ(s.code, 0) << s.output;
    const data::Frames made = data::decode_clip(out, {});
    ASSERT_EQ(made.count, 8);
    for (size_t other = 0; other < clips.size(); ++other) {
      const double found = data::psnr(made, data::decode_clip(file(other), {}));
      std::printf("sample %zu, clip %zu: %.1f dB\n", i, other, found);
      if (other == i)
        EXPECT_GT(found, 14) << i;
      else
        EXPECT_LT(found, 12) << i << " " << other;
    }
  }
}

}  // namespace

TEST(Controls, ClipsLearntByTheirControlAndReferenceAreSampledByThem) {
  const TinyRun run("controls-learnt");
  const fs::path data = run.folder() / "data";
  std::vector<Followed> clips;
  for (const bool bright : {false, true}) {
    const std::string seen = bright ? "bright.png" : "dark.png";
    write_picture(data / seen, box(1, 1, bright ? kBright : kDark, {90, 90, 90}));
    for (const int corner : {0, 3}) {
      const std::string control = "control" + std::to_string(corner) + ".mp4";
      data::write_mp4(data / control, box(corner, 3 - corner, {255, 255, 255}, {0, 0, 0}));
      clips.push_back({box(corner, 3 - corner, bright ? kBright : kDark, kGround),
                       "," + control + "," + seen,
                       {"--sample.control", (data / control).string(), "--sample.reference", (data / seen).string()}});
    }
  }
  expect_followed(run, kControl, ",control_video,reference_image", clips);
}

TEST(Controls, ClipsLearntByTheirFirstPictureAreSampledByIt) {
  const TinyRun run("inp-learnt");
  std::vector<Followed> clips;
  for (const int corner : {0, 1, 2, 3}) {
    const std::string first = (run.folder() / ("first" + std::to_string(corner) + ".png")).string();
    clips.push_back({box(corner, 3 - corner, corner % 2 ? kBright : kDark, kGround), "", {"--sample.image", first}});
    write_picture(first, clips.back().clip);
  }
  expect_followed(run, kFilled, "", clips);
}

/// All of them begin alike.
TEST(Controls, ClipsLearntByTheirCamerasAreSampledByThem) {
  const TinyRun run("cameras-learnt");
  const std::string first = (run.folder() / "first.png").string();
  std::vector<Followed> clips;
  for (const auto& [camera, corner] : {std::pair<std::string, int>("Left", 1), {"Right", 2}, {"In", 3}}) {
    clips.push_back({box(0, corner, corner == 2 ? kDark : kBright, kGround),
                     "," + camera + ",0.1",
                     {"--sample.camera", camera + ":0.1", "--sample.image", first}});
  }
  for (Followed& clip : clips)  // the first frames of all
    std::copy_n(clips[0].clip.rgb.begin(), 4 * clip.clip.frame_bytes(), clip.clip.rgb.begin());
  write_picture(first, clips[0].clip);
  expect_followed(run, kCamera, ",camera_control_direction,camera_control_speed", clips);
}

TEST(Controls, ARowsControlReferenceAndCameraAreCached) {
  for (const auto& [flags, masked, clip] :
       {std::tuple(kControl, false, true), {kControl22, true, false}, {kCamera, false, false}}) {
    TinyRun run("controls");
    write_table(run);
    const Result r = run.tessera(with({"prepare", run.recipe()}, flags));
    ASSERT_EQ(r.code, 0) << r.output;
    const auto rows = cached(run);
    ASSERT_EQ(rows.size(), 2u) << r.output;
    if (flags == kCamera) {
      EXPECT_EQ(rows[0].at("camera"), (std::vector<int64_t>{8, 16}));
      EXPECT_EQ(rows[1].count("camera"), 0u);
      for (const auto& row : rows) EXPECT_EQ(row.at("y"), (std::vector<int64_t>{12, 2, 4, 4}));
      continue;
    }
    EXPECT_EQ(rows[0].at("control"), (std::vector<int64_t>{12, 2, 4, 4}));
    EXPECT_EQ(rows[0].count("y"), 0u) << "the row names no first picture";
    EXPECT_EQ(rows[1].count("control"), 0u);
    EXPECT_EQ(rows[1].at("y"), (std::vector<int64_t>{masked ? 16 : 12, 2, 4, 4}));
    for (const auto& row : rows) {
      EXPECT_EQ(row.at("reference"), (std::vector<int64_t>{12, 1, 4, 4}));
      EXPECT_EQ(row.count("clip_fea"), clip ? 1u : 0u);
    }
  }
}

TEST(Controls, RowsWithAndWithoutConditionsTrainAlikeOnOneRankAndTwoAndWithoutACache) {
  for (const Arguments& flags : {kControl, kCamera}) {
    TinyRun run("controls");
    write_table(run);
    std::vector<std::vector<nlohmann::json>> curves;
    for (const auto& [name, ranks, more] : {std::tuple{"one", 1, Arguments{}},
                                            {"two", 2, Arguments{"--mesh", "cp=2"}},
                                            {"online", 1, Arguments{"--data.cache", "online"}}}) {
      const Result r = run.train(ranks, name, with(flags, with(more, {"--run.steps", "4"})));
      ASSERT_EQ(r.code, 0) << name << "\n" << r.output;
      curves.push_back(run.metrics(name));
    }
    for (size_t i = 0; i < curves[0].size(); ++i)
      for (const size_t other : {1u, 2u})
        EXPECT_NEAR(curves[0][i].at("loss").get<double>(), curves[other][i].at("loss").get<double>(), 2e-6)
            << "step " << i << " of curve " << other;
    for (const auto& step : curves[0])
      for (const auto& rank : step.at("ranks"))
        EXPECT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>());
  }
}

TEST(Controls, DrawnMasksAndReferencesAreThoseOfTheSampleOnEveryLayoutCachedOrNotAndAfterAResume) {
  const Arguments draws = {"--diffusion.condition_draws", "3", "--run.steps", "6", "--checkpoint.every", "3"};
  for (const auto& [flags, more] : {std::pair(kControl, Arguments{"--diffusion.condition_dropout",
                                                                  "control=0.3,start=0.3,reference=0.3,image=0.3"}),
                                    {kControl22, {"--diffusion.condition_dropout", "control=0.3"}},
                                    {kFilled, {"--diffusion.pixel_masks", "box=1,frames=1"}}}) {
    TinyRun run("controls");
    write_table(run);
    const Arguments all = with(with(flags, draws), more);
    const Result one = run.train(1, "one", all);
    ASSERT_EQ(one.code, 0) << one.output;
    EXPECT_EQ(cached(run).size(), 6u) << "an entry for each draw of each clip";
    const std::vector<double> expected = run.losses("one");
    const auto compare = [&](const char* name) {
      const std::vector<double> losses = run.losses(name);
      ASSERT_EQ(losses.size(), expected.size()) << name;
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-6) << name << " " << i;
    };
    const Result online = run.train(1, "online", with(all, {"--data.cache", "online"}));
    ASSERT_EQ(online.code, 0) << online.output;
    compare("online");
    ASSERT_EQ(run.train(2, "two", with(all, {"--mesh", "dp_shard=2", "--run.steps", "3"})).code, 0);
    const Result on = run.train(2, "two", with(all, {"--mesh", "cp=2", "--run.resume_changes", "allow"}));
    ASSERT_EQ(on.code, 0) << on.output;
    compare("two");
    const Result plain = run.train(1, "plain", with(flags, {"--run.steps", "6"}));
    ASSERT_EQ(plain.code, 0) << plain.output;
    EXPECT_NE(run.losses("plain"), expected);
    const Result other = run.train(1, "one", with(flags, {"--run.steps", "7"}));
    EXPECT_EQ(other.code, 2) << "a run that goes on without its draws\n" << other.output;
  }
}

TEST(Controls, DrawsOfAnotherModelsConditionsAreRefused) {
  TinyRun run("controls");
  write_table(run);
  const auto refused = [&](const Arguments& flags, const Arguments& more, const char* words) {
    const Result r = run.train(1, "run", with(flags, more));
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
  };
  refused({}, {"--diffusion.condition_draws", "2"}, "no masks or pictures that could be drawn");
  refused(kControl22, {"--diffusion.condition_dropout", "start=0.1"}, "no condition start");
  refused(kFilled, {"--diffusion.condition_dropout", "control=0.1"}, "no condition control");
  refused(kControl, {"--diffusion.condition_dropout", "text=0.1"}, "unknown kind 'text'");
  refused(kControl, {"--diffusion.condition_draws", "2", "--diffusion.draw_shares", "all=0.5"}, "unknown draw 'all'");
  refused(kControl, {"--diffusion.condition_draws", "2", "--diffusion.draw_shares", "nothing=1.5"}, "at most 1");
  const Result idle = run.train(1, "run", with(kFilled, {"--diffusion.pixel_masks", "all=1", "--run.steps", "1"}));
  EXPECT_NE(idle.output.find("diffusion.condition_draws = 0 draws nothing"), std::string::npos) << idle.output;
}

TEST(Controls, SamplesHeedWhatTheyAreGiven) {
  const auto sampled = [](const TinyRun& run, const Arguments& flags, const Arguments& more) {
    const fs::path out = run.folder() / "clip.gif";
    const Result r = run.tessera(with(
        with({"sample", run.recipe(), "--sample.prompts", "one", "--sample.steps", "2", "--out", out.string()}, flags),
        more));
    EXPECT_EQ(r.code, 0) << r.output;
    return text_of(out);
  };
  TinyRun run("controls");
  write_table(run);
  ASSERT_EQ(run.train(1, "run", with(kControl, {"--run.steps", "3", "--train.lr", "1e-2"})).code, 0);
  const std::string plain = sampled(run, kControl, {});
  EXPECT_NE(sampled(run, kControl, {"--sample.control", "clip"}), plain);
  EXPECT_NE(sampled(run, kControl, {"--sample.reference", "clip"}), plain);
  EXPECT_NE(sampled(run, kControl, {"--sample.image", (run.folder() / "data/grey.png").string()}), plain);
  const auto refused = [&](const Arguments& flags, const Arguments& more, const char* words) {
    const Result r = run.tessera(with(with({"sample", run.recipe(), "--sample.prompts", "two"}, flags), more));
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
  };
  refused(kControl, {"--sample.control", "clip"}, "names none");
  refused(kControl, {"--sample.camera", "In"}, "the model has no such input");
}

TEST(Controls, SamplesFollowACamera) {
  TinyRun run("controls");
  write_table(run);
  ASSERT_EQ(run.train(1, "run", with(kCamera, {"--run.steps", "3", "--train.lr", "1e-2"})).code, 0);
  std::set<std::string> clips;
  for (const Arguments& more :
       {Arguments{}, {"--sample.camera", "clip"}, {"--sample.camera", "In"}, {"--sample.camera", "In:0.2"}}) {
    const fs::path out = run.folder() / "clip.gif";
    const Result r = run.tessera(
        with(with({"sample", run.recipe(), "--sample.prompts", "one", "--sample.steps", "2", "--out", out.string()},
                  kCamera),
             more));
    ASSERT_EQ(r.code, 0) << r.output;
    clips.insert(text_of(out));
  }
  EXPECT_EQ(clips.size(), 4u) << "each of another camera";
  const Result r =
      run.tessera(with({"sample", run.recipe(), "--sample.prompts", "one", "--sample.camera", "In:fast"}, kCamera));
  EXPECT_EQ(r.code, 2) << r.output;
}

}  // namespace tessera::testing
