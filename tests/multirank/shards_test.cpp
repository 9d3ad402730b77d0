// Pictures in WebDataset shards, with several captions each, in the shapes of a table of aspect ratios: the same training
// on every layout, exact when resumed; and latents of another program in place of the pictures.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "data/archive_files.h"
#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kImages = R"(preset = "sana-tiny-norms"
config = { num_cross_attention_heads = 4, num_layers = 2, caption_channels = 64, caption_length = 5, in_channels = 12 })";

data::Frames picture(int height, int width, int kind) {
  data::Frames frames{.count = 1, .height = height, .width = width, .fps = 1, .rgb = {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c) frames.rgb.push_back(static_cast<uint8_t>((x * (kind + 1) + 2 * y + 70 * c) % 251));
  return frames;
}

class Shards : public ::testing::Test {
 protected:
  Shards() : run_("shards", TESSERA_BINARY, kImages) {}
  void SetUp() override {
    if (!data::has_python()) GTEST_SKIP() << "needs python3, whose archives these are";
  }

  fs::path folder() const { return run_.folder(); }
  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder() / name).parent_path());
    std::ofstream(folder() / name, std::ios::binary) << bytes;
  }
  void write_picture(const std::string& name, const data::Frames& frames) const {
    const auto png = data::write_png(frames, 0);
    write(name, std::string(png.begin(), png.end()));
  }

  const TinyRun run_;
};

TEST_F(Shards, TrainTheSameOnEveryLayoutAndWhenResumed) {
  const std::vector<std::pair<int, int>> sizes = {{256, 256}, {300, 300}, {512, 128}, {130, 500}, {250, 260}};
  std::string longer, scores;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string key = "p" + std::to_string(i);
    write_picture("raw/" + key + ".png", picture(sizes[i].first, sizes[i].second, static_cast<int>(i)));
    write("raw/" + key + ".json", R"({"prompt": "picture )" + key + R"(", "height": 1, "width": 1})");
    longer += (i ? ", \"" : "\"") + key + R"(": {"prompt": "a longer one of )" + key + "\"}";
    scores += (i ? ", \"" : "\"") + key + R"(": {"prompt": 26, "_long": 27.5})";
  }
  fs::create_directories(folder() / "shards");
  ASSERT_TRUE(data::make_tar(folder(), "raw", "shards/00000.tar"));
  write("shards/00000_long.json", "{" + longer + "}");
  write("shards/00000_score.json", "{" + scores + "}");
  write("shards/wids-meta.json", R"({"wids_version": 1, "shardlist": [{"url": "00000.tar", "nsamples": 5}]})");
  const auto flags = [&](const std::string& steps) {
    return std::vector<std::string>{"--data.path",          (folder() / "shards").string(),
                                    "--data.buckets",       "ASPECT_RATIO_256",
                                    "--data.max_crop",      "1",
                                    "--data.caption_files", "_long",
                                    "--data.score_files",   "_score",
                                    "--data.score_min",     "25",
                                    "--run.steps",          steps};
  };
  for (const int ranks : {1, 2}) {
    const Result r = run_.train(ranks, "ranks" + std::to_string(ranks), flags("9"), 300);
    ASSERT_EQ(r.code, 0) << r.output;
    for (const char* words : {"1x256x256: 2 clips", "1x240x256: 1 clip", "1x512x128: 1 clip", "1x128x512: 1 clip"})
      EXPECT_NE(r.output.find(words), std::string::npos) << words << "\n" << r.output;
    EXPECT_EQ(r.output.find(": 0 clips"), std::string::npos) << "shapes that no picture has are not used";
  }
  const auto one = run_.losses("ranks1"), two = run_.losses("ranks2");
  ASSERT_EQ(one.size(), 9u);
  ASSERT_EQ(two.size(), 9u) << "every rank takes every step";
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-5 * one[i]) << i;
  const auto entries = [](const fs::path& folder) {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder)) count += entry.path().extension() == ".safetensors";
    return count;
  };
  EXPECT_EQ(entries(folder() / "cache"), 5u);
  EXPECT_EQ(entries(folder() / "cache/texts"), 10u) << "two captions a picture";

  ASSERT_EQ(run_.train(1, "parts", flags("4"), 300).code, 0);
  ASSERT_EQ(run_.train(1, "parts", flags("9"), 300).code, 0);
  EXPECT_EQ(run_.losses("parts"), one);
}

TEST_F(Shards, TheLargestBatchIsFoundForEachShape) {
  const std::vector<std::string> flags = {"plan",          run_.recipe(), "--data.buckets", "1x32x32,1x64x96,1x96x64",
                                          "--plan.budget", "12MiB",       "--largest",      "batch"};
  const Result text = run_.tessera(flags);
  ASSERT_EQ(text.code, 0) << text.output;
  for (const char* words : {"\n  1x64x96, 1x96x64: a micro-batch of ", "\n  1x32x32: a micro-batch of ",
                            "plan: a micro-batch of 1 sample fits\n", " samples does not fit\n"})
    EXPECT_NE(text.output.find(words), std::string::npos) << words << "\n" << text.output;
  std::vector<std::string> with_json = flags;
  with_json.push_back("--json");
  const Result r = run_.tessera(with_json);
  const auto json = nlohmann::json::parse(r.output.substr(r.output.find('{')), nullptr, false);
  ASSERT_TRUE(json.is_object() && json.contains("buckets")) << r.output;
  ASSERT_EQ(json["buckets"].size(), 2u);
  const int64_t large = json["buckets"][0]["largest"]["micro_batch"],
                small = json["buckets"][1]["largest"]["micro_batch"];
  EXPECT_EQ(json["largest"]["micro_batch"], large) << "of the shape with most tokens";
  EXPECT_GT(small, large);
}

TEST_F(Shards, TheLargestBatchesAreWrittenIntoARecipeThatTrainsWithThem) {
  const std::string file = (folder() / "filled.toml").string();
  Result r = run_.tessera({"plan", run_.recipe(), "--data.buckets", "1x32x32,1x64x96=4:0.5", "--plan.budget", "12MiB",
                           "--mesh", "dp_shard=2", "--largest", "batch", "--json", "--write", file});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto json = nlohmann::json::parse(r.output.substr(r.output.find('{')), nullptr, false);
  ASSERT_TRUE(json.is_object() && json.contains("buckets")) << r.output;
  const auto batch = [&](size_t row) {
    return std::to_string(2 * json["buckets"][row]["largest"]["micro_batch"].get<int64_t>());
  };
  const std::string text = text_of(file);
  const std::string small = "\"1x32x32=" + batch(1) + "\"", large = "\"1x64x96=" + batch(0) + ":0.5\"";
  EXPECT_NE(text.find("buckets = [" + small + ", " + large + "]"), std::string::npos) << text;
  r = run_.tessera({"plan", file, "--plan.budget", "12MiB"});
  EXPECT_EQ(r.code, 0) << "a plan for both fits: " << r.output;
  r = run_.tessera({"plan", run_.recipe(), "--largest", "frames", "--write", file});
  EXPECT_EQ(r.code, 2) << r.output;
}

TEST_F(Shards, BucketsHaveBatchesOfTheirOwnOnEveryLayoutAndWhenResumed) {
  for (int i = 0; i < 6; ++i) {
    write_picture("raw/w" + std::to_string(i) + ".png", picture(i < 4 ? 32 : 64, i < 4 ? 48 : 64, i));
    write("raw/w" + std::to_string(i) + ".txt", "picture " + std::to_string(i));
  }
  const auto flags = [&](const std::string& steps, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--data.path", (folder() / "raw").string(), "--data.buckets", "1x32x48=5,1x64x64=2",
                             "--run.steps", steps});
    return more;
  };
  Result r = run_.train(1, "one", flags("9"), 300);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto one = run_.metrics("one");
  std::map<int64_t, int64_t> steps;  // by samples
  for (const auto& step : one) {
    ++steps[step.at("samples").get<int64_t>()];
    EXPECT_LE(step.at("ranks")[0].at("peak_bytes").get<int64_t>(),
              step.at("ranks")[0].at("predicted_peak_bytes").get<int64_t>());
  }
  ASSERT_EQ(steps.size(), 2u) << "a step has one bucket, and its batch";
  // 4 clips in batches of 5 and 2 in batches of 2: 4 of the first for 5 of the second use each clip equally often
  EXPECT_EQ(steps[5], 4);
  EXPECT_EQ(steps[2], 5);
  for (const char* line : {"dp_shard=2", "dp_replicate=2", "cp=2", "pp=2"}) {
    r = run_.train(2, line, flags("9", {"--mesh", line}), 300);
    ASSERT_EQ(r.code, 0) << r.output;
    const auto other = run_.metrics(line);
    ASSERT_EQ(other.size(), one.size()) << "every rank takes every step";
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(one[i].at("loss").get<double>(), other[i].at("loss").get<double>(),
                  1e-5 * one[i].at("loss").get<double>())
          << line << " step " << i << ": the mean over all samples, 5 of which two ranks share as 3 and 2";
      for (const auto& rank : other[i].at("ranks"))
        EXPECT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>()) << line;
    }
  }
  ASSERT_EQ(run_.train(1, "parts", flags("4"), 300).code, 0);
  r = run_.train(2, "parts", flags("9"), 300);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto parts = run_.losses("parts"), whole = run_.losses("one");
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-5 * whole[i]) << i;
  r = run_.tessera({"plan", run_.recipe(), "--mesh", "dp_shard=4", "--data.buckets", "1x32x48=8,1x64x64=3"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("1x64x64=3: a step of its shape has fewer samples than the 4 ranks"), std::string::npos)
      << r.output;
}

TEST_F(Shards, LatentsInTheirPlaceTrainAsThePicturesDo) {
  for (int i = 0; i < 3; ++i) {
    write_picture("raw/q" + std::to_string(i) + ".png", picture(32, 48, i));
    write("raw/q" + std::to_string(i) + ".txt", "picture " + std::to_string(i));
  }
  const std::vector<std::string> flags = {"--data.frames", "1", "--data.size", "32,48", "--run.steps", "5"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  const std::string raw = (folder() / "raw").string(), cache = (folder() / "cache").string();
  const Result pictures = run_.train(1, "pictures", with({"--data.path", raw}));
  ASSERT_EQ(pictures.code, 0) << pictures.output;

  // what was cached, as another program would have stored it
  int found = 0;
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = checkpoint::SafetensorsFile::open(entry.path());
    const auto& latent = file.at("latent");
    ASSERT_EQ(latent.shape.size(), 4u);
    std::vector<float> values(static_cast<size_t>(latent.count()));
    file.read_f32("latent", 0, latent.count(), values.data());
    const auto& s = latent.shape;
    const std::string shape =
        "(" + std::to_string(s[0]) + ", " + std::to_string(s[2]) + ", " + std::to_string(s[3]) + ")";
    const std::string key = fs::path(file.metadata().at("source")).stem().string();
    write("latents/" + key + ".npy", data::npy_bytes("<f4", shape, values));
    write("latents/" + key + ".json", R"({"prompt": "picture )" + key.substr(1) + "\"}");
    ++found;
  }
  ASSERT_EQ(found, 3);
  fs::create_directories(folder() / "tars");
  ASSERT_TRUE(data::make_tar(folder(), "latents", "tars/0.tar", "GNU"));
  const std::string tars = (folder() / "tars").string();
  for (const std::string place : {cache, std::string("online")}) {
    const Result r =
        run_.train(1, "latents",
                   with({"--data.path", tars, "--data.latents", "npy", "--data.cache", place, "--run.resume", "no"}));
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(run_.losses("latents"), run_.losses("pictures")) << place;
  }
  const Result refused = run_.train(
      1, "refused", {"--data.path", tars, "--data.latents", "npy", "--data.frames", "1", "--data.size", "32,32"});
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_NE(refused.output.find("are of no bucket, expected"), std::string::npos) << refused.output;
  const Result unasked = run_.train(1, "refused", with({"--data.path", tars}));
  EXPECT_EQ(unasked.code, 3) << unasked.output;
  EXPECT_NE(unasked.output.find("data.latents = \"npy\""), std::string::npos) << unasked.output;
}

/// As Hugging Face has them: the same five pictures in the Parquet of the hub and in the Arrow of save_to_disk.
TEST(Tables, WithPicturesTrainAlikeFromParquetAndFromArrow) {
  if (!fs::exists(fs::path(TESSERA_BINARY).parent_path() / "libtessera_parquet.so"))
    GTEST_SKIP() << "this build has no Arrow, which reads Parquet";
  const TinyRun run("tables");
  const auto train = [&](int ranks, const std::string& name, const std::string& data) {
    const Result r =
        run.train(ranks, name,
                  {"--run.steps", "4", "--data.frames", "1", "--data.size", "32,32", "--data.cache",
                   run.out(name + "-cache"), "--data.path", TESSERA_SOURCE_DIR "/tests/data/parquet/" + data});
    ASSERT_EQ(r.code, 0) << r.output;
  };
  train(2, "hub", "hub");
  train(1, "saved", "saved");
  const std::vector<double> hub = run.losses("hub"), saved = run.losses("saved");
  ASSERT_EQ(hub.size(), 4u);
  for (size_t i = 0; i < hub.size(); ++i) EXPECT_NEAR(hub[i] / saved[i], 1, 2e-6) << "step " << i + 1;
}

}  // namespace
}  // namespace tessera::testing
