// One data set of 200 generated clips and images, written down in every format that is read, is always the same
// samples.
#include <algorithm>

#include "data/scene.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/clips.h"

namespace tessera::data {

namespace fs = std::filesystem;
using checkpoint::Json;

constexpr int kClips = 160, kImages = 40;

class Formats : public FolderTest {
 protected:
  struct Truth {
    std::string file, caption;
    bool image;
  };

  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
    fs::create_directories(folder_ / "media");
    for (int i = 0; i < kClips + kImages; ++i) {
      const bool image = i % 5 == 4;  // so that sorting by name mixes them
      char stem[32];
      std::snprintf(stem, sizeof stem, "%03d", i);
      const std::string file = std::string(stem) + (image ? ".png" : ".mp4");
      const Frames frames = scene(image ? 1 : 4 + i % 3, 16, i % 2 ? 24 : 16, 8, 1 + i % 7);
      if (image) {
        const auto png = write_png(frames, 0);
        write("media/" + file, std::string(png.begin(), png.end()));
      } else {
        write_mp4(folder_ / "media" / file, frames);
      }
      truth_.push_back({file, "scene, \"number\" " + std::to_string(i) + " \xC3\xA9t\xC3\xA9", image});
    }
  }

  /// Samples as they are trained on: where they come from, what they say, their bucket.
  struct Loaded {
    std::string file, caption, bucket;
    bool operator==(const Loaded&) const = default;
  };
  std::vector<Loaded> load(const DatasetSpec& spec) const {
    Problems problems(/*strict=*/true);
    const Items items = read_dataset(spec, problems);
    const ClipRules rules{.buckets = {{4, 16, 16}, {4, 16, 24}, {1, 16, 16}, {1, 16, 24}}, .fps = 8};
    const ClipPlan plan = plan_clips(items, Probes(), rules, problems);
    std::vector<Loaded> loaded;
    for (const Clip& clip : plan.clips) {
      const Item& item = items[static_cast<size_t>(clip.item)];
      EXPECT_EQ(item.captions.size(), 1u);
      loaded.push_back({fs::canonical(item.path).filename().string(), item.caption(),
                        rules.buckets[static_cast<size_t>(clip.bucket)].text()});
    }
    return loaded;
  }

  void expect_the_same(const DatasetSpec& spec) const {
    const auto loaded = load(spec);
    ASSERT_EQ(loaded.size(), truth_.size()) << spec.metadata;
    for (size_t i = 0; i < loaded.size(); ++i) {
      EXPECT_EQ(loaded[i].file, truth_[i].file) << spec.metadata;
      EXPECT_EQ(loaded[i].caption, truth_[i].caption) << spec.metadata;
      EXPECT_EQ(loaded[i].bucket, std::string(truth_[i].image ? "1" : "4") + (i % 2 ? "x16x24" : "x16x16"));
    }
  }

  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
    return out + "\"";
  }

  std::vector<Truth> truth_;
};

TEST_F(Formats, TwoHundredClipsAndImagesAreTheSameSamplesInEveryFormat) {
  const Path media = folder_ / "media";
  std::string diffsynth = "video,image,prompt,input_audio\r\n", old_diffsynth = "file_name,text\n",
              opensora = "path,text,num_frames,height,width,aspect_ratio,resolution,fps\n", jsonl, musubi, videos,
              prompts;
  Json videox = Json::array(), fastvideo = Json::array(), plain = Json::array(), by_name = Json::object();
  for (const auto& [file, caption, image] : truth_) {
    diffsynth += (image ? "," : "") + file + (image ? "," : ",,") + quoted(caption) + ",\r\n";
    old_diffsynth += file + "," + quoted(caption) + "\n";
    opensora += file + "," + quoted(caption) + ",4,16,24,0.66,384,8\n";
    jsonl += checkpoint::dump_json({{"video", file}, {"prompt", caption}}) + "\n";
    musubi += checkpoint::dump_json({{image ? "image_path" : "video_path", file}, {"caption", caption}}) + "\n\n";
    videos += file + "\n", prompts += caption + "\n";
    videox.push_back({{"file_path", (media / file).string()}, {"text", caption}, {"type", image ? "image" : "video"}});
    fastvideo.push_back({{"path", file}, {"cap", Json::array({caption})}});
    plain.push_back({{"file_name", file}, {"caption", caption}});
    by_name[file] = caption;
    write("media/" + Path(file).replace_extension(".txt").string(), caption + "\n");
  }
  const auto list = [&](const std::string& name, const std::string& text) {
    return DatasetSpec{.path = media, .metadata = write("lists/" + name, text)};
  };
  expect_the_same(list("diffsynth.csv", diffsynth));
  expect_the_same(list("opensora.csv", opensora));
  expect_the_same(list("plain.json", checkpoint::dump_json(plain)));
  expect_the_same(list("metadata.jsonl", jsonl));
  expect_the_same(list("musubi.jsonl", musubi));
  expect_the_same(list("captions.json", checkpoint::dump_json(by_name)));
  expect_the_same({.path = "", .metadata = write("lists/videox.json", checkpoint::dump_json(videox))});
  expect_the_same({.path = media});

  // Formats that a folder is known by, with the media where their makers put them.
  for (const auto& [folder, inner, name, text] : std::vector<std::array<std::string, 4>>{
           {"old", "train", "metadata.csv", old_diffsynth},
           {"fastvideo", "videos", "videos2caption.json", checkpoint::dump_json(fastvideo)},
           {"lists2", "videos", "videos.txt", videos}}) {
    write(folder + "/" + name, text);
    fs::create_directory_symlink(media, folder_ / folder / inner);
    if (name == "videos.txt") write(folder + "/prompt.txt", prompts);
    expect_the_same({.path = folder_ / folder});
  }
}

TEST_F(Formats, RememberedHeadersGiveTheSamePlan) {
  const Path media = folder_ / "media";
  for (const auto& sample : truth_) write("media/" + Path(sample.file).replace_extension(".txt").string(), "x");
  Problems problems;
  const auto items = read_dataset({.path = media}, problems);
  std::vector<Path> paths;
  for (const Item& item : items) paths.push_back(item.path);
  const Path file = folder_ / "cache/probes.jsonl";
  int64_t looked = 0;
  update_probes(file, paths, [&](int64_t done) { looked = done; });
  EXPECT_EQ(looked, kClips + kImages);
  looked = 0;
  update_probes(file, paths, [&](int64_t done) { looked = done; });
  EXPECT_EQ(looked, 0) << "all are known";

  const ClipRules rules{.buckets = {{4, 16, 16}, {1, 16, 16}}, .fps = 8};
  const Probes remembered(file);
  EXPECT_TRUE(remembered.knows(paths[0]));
  EXPECT_EQ(plan_clips(items, remembered, rules, problems).summary(),
            plan_clips(items, Probes(), rules, problems).summary());
  write_mp4(paths[0], scene(9, 32, 32, 8));
  EXPECT_FALSE(remembered.knows(paths[0])) << "it is another file now";
  EXPECT_EQ(remembered.info(paths[0]).frames, 9);
}

}  // namespace tessera::data
