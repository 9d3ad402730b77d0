#include "tessera/data/clips.h"

#include <cstdlib>

#include "data/scene.h"
#include "need_goldens.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/aspect_ratios.h"

namespace tessera::data {

namespace {

BucketChoice choose(const std::vector<std::string>& texts, const ClipSize& clip, double max_crop = 1) {
  std::vector<Bucket> buckets;
  for (const std::string& text : texts) buckets.push_back(parse_bucket(text));
  return choose_bucket(buckets, clip, max_crop);
}

}  // namespace

TEST(Buckets, AClipGoesToTheNearestShapeNotTheNearestSize) {
  const std::vector<std::string> texts = {"33x480x832", "33x832x480", "33x624x624"};
  EXPECT_EQ(choose(texts, {.height = 1080, .width = 1920, .frames = 100}).bucket, 0);
  EXPECT_EQ(choose(texts, {.height = 1920, .width = 1080, .frames = 100}).bucket, 1);
  EXPECT_EQ(choose(texts, {.height = 500, .width = 520, .frames = 100}).bucket, 2);
}

TEST(Buckets, AmongEqualShapesTheLongestThatFitsThenTheLargestThatIsFilled) {
  const std::vector<std::string> texts = {"33x480x832", "81x480x832", "81x720x1280"};
  EXPECT_EQ(choose(texts, {.height = 1080, .width = 1920, .frames = 40}).bucket, 0);
  EXPECT_EQ(choose(texts, {.height = 1080, .width = 1920, .frames = 90}).bucket, 2);
  EXPECT_EQ(choose(texts, {.height = 540, .width = 960, .frames = 90}).bucket, 1) << "720p would enlarge it";
  EXPECT_EQ(choose(texts, {.height = 270, .width = 480, .frames = 90}).bucket, 1) << "both enlarge it: the smaller";
}

TEST(Buckets, ImagesAndVideosDoNotMix) {
  const std::vector<std::string> texts = {"1x480x832", "17x480x832"};
  EXPECT_EQ(choose(texts, {.height = 480, .width = 832, .frames = 1, .image = true}).bucket, 0);
  EXPECT_EQ(choose(texts, {.height = 480, .width = 832, .frames = 9}).bucket, -1) << "nor is a short video an image";
  EXPECT_EQ(choose({"1x480x832"}, {.height = 480, .width = 832, .frames = 9}).bucket, 0) << "training on stills";
}

TEST(Buckets, SayWhatTheyDoToThePicture) {
  const BucketChoice half = choose({"1x64x64"}, {.height = 32, .width = 64, .frames = 1, .image = true});
  EXPECT_DOUBLE_EQ(half.crop, 0.5);
  EXPECT_DOUBLE_EQ(half.enlarge, 2);
  EXPECT_EQ(choose({"1x64x64"}, {.height = 32, .width = 64, .frames = 1, .image = true}, 0.4).bucket, -1);
  EXPECT_EQ(choose({"1x64x64"}, {.height = 32, .width = 64, .frames = 1, .image = true}, 0.5).bucket, 0);
}

TEST(Buckets, AreWrittenAsFramesHeightWidth) {
  EXPECT_EQ(parse_bucket("33x480x832"), (Bucket{33, 480, 832}));
  for (const char* text : {"480x832", "33x480x832x1", "33x480x", "0x480x832", "33x-480x832", "axbxc", ""})
    expect_error(Exit::usage, {std::string("'") + text + "'", "frames x height x width"}, [&] { parse_bucket(text); });
}

TEST(ClipPlans, ALatentThatNobodyAskedForIsAFaultOfItsRow) {
  Problems problems(/*strict=*/false);
  const ClipRules rules{.buckets = {{1, 32, 32}}};
  EXPECT_TRUE(plan_clips({{"a.pt", {"a cat"}, "set.csv: row 2"}}, Probes(), rules, problems).clips.empty());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems.text().find("set.csv: row 2"), std::string::npos);
  EXPECT_NE(problems.text().find("data.latents"), std::string::npos) << problems.text();
}

/// The published tables and which of their sizes a picture goes to, recorded from diffusers.
TEST(AspectRatios, AreThoseOfTheReferenceAndSoIsWhatAPictureGoesTo) {
  TESSERA_NEED_GOLDENS();
  const Path golden = Path(TESSERA_GOLDENS) / "aspect_ratios";
  const auto json = [&](const char* name) {
    return checkpoint::parse_json(checkpoint::read_text(golden / name), name);
  };
  const checkpoint::Json tables = json("tables.json"), sizes = json("sizes.json");
  ASSERT_EQ(tables.size(), 7u);
  for (const auto& [name, table] : tables.items()) {
    const std::vector<Bucket> buckets = aspect_buckets("ASPECT_RATIO_" + name + "_BIN");
    ASSERT_EQ(buckets.size(), table.at("bins").size()) << name;
    EXPECT_EQ(buckets[0].height, buckets[0].width) << name << ": samples have the first shape";
    for (const auto& bin : table.at("bins")) {
      const Bucket wanted{1, bin.at(1).get<int64_t>(), bin.at(2).get<int64_t>(),
                          std::stod(bin.at(0).get<std::string>())};
      EXPECT_NE(std::find(buckets.begin(), buckets.end(), wanted), buckets.end()) << name << " " << wanted.text();
    }
    for (const auto& row : sizes.at(name)) {
      const ClipSize picture{.height = row.at("height"), .width = row.at("width"), .frames = 1, .image = true};
      const BucketChoice choice = choose_bucket(buckets, picture, 1);
      ASSERT_GE(choice.bucket, 0);
      const Bucket& bucket = buckets[static_cast<size_t>(choice.bucket)];
      EXPECT_EQ(bucket.height, row.at("bin").at(0).get<int64_t>()) << name << " " << row;
      EXPECT_EQ(bucket.width, row.at("bin").at(1).get<int64_t>()) << name << " " << row;
    }
  }
}

/// Open-Sora 2.0's sizes, recorded from its training.
TEST(AspectRatios, AreOpenSorasWhereTheyAreNamedByPixels) {
  const Path golden = Path(TESSERA_GOLDENS) / "opensora_buckets";
  if (!std::filesystem::exists(golden)) {
    ASSERT_STRNE(std::getenv("CI") ? std::getenv("CI") : "", "true") << "no golden cases at " << golden;
    GTEST_SKIP() << "no golden cases at " << golden;
  }
  const checkpoint::Json tables = checkpoint::parse_json(checkpoint::read_text(golden / "aspect.json"), "aspect.json");
  int64_t compared = 0;
  for (const auto& [name, sizes] : tables.at("v2").at("compression16_training").items()) {
    const std::vector<Bucket> buckets = aspect_buckets("33x" + name);
    EXPECT_EQ(buckets.size(), sizes.size()) << name;
    EXPECT_EQ(buckets[0].ratio, 1) << name << ": samples have the first shape";
    for (const auto& [ratio, size] : sizes.items()) {
      const double of = std::stod(ratio.substr(ratio.find(':') + 1)) / std::stod(ratio);  // named width:height
      const auto found = std::ranges::find_if(buckets, [&](const Bucket& b) { return std::abs(b.ratio - of) < 1e-9; });
      ASSERT_NE(found, buckets.end()) << name << " has no " << ratio;
      EXPECT_EQ(found->height, size.at(0).get<int64_t>()) << name << " " << ratio;
      EXPECT_EQ(found->width, size.at(1).get<int64_t>()) << name << " " << ratio;
      ++compared;
    }
  }
  EXPECT_GE(compared, 30);
  EXPECT_EQ(aspect_buckets("256px")[0].text(), "1x256x256");
  EXPECT_TRUE(names_aspect_ratios("129x480p"));
  for (const char* text : {"px", "33xpx", "0x256px", "33x256pt"})
    EXPECT_ANY_THROW(names_aspect_ratios(text) ? aspect_buckets(text) : std::vector{parse_bucket(text)}) << text;
}

/// Open-Sora 1.2's and 1.3's, recorded.
TEST(AspectRatios, AreThoseOfOpenSora12ByTheNamesOfItsTables) {
  const Path golden = Path(TESSERA_GOLDENS) / "opensora_buckets";
  if (!std::filesystem::exists(golden)) {
    ASSERT_STRNE(std::getenv("CI") ? std::getenv("CI") : "", "true") << "no golden cases at " << golden;
    GTEST_SKIP() << "no golden cases at " << golden;
  }
  const checkpoint::Json all = checkpoint::parse_json(checkpoint::read_text(golden / "aspect.json"), "aspect.json");
  int64_t compared = 0;
  for (const auto& [version, rounded] : {std::pair("v12", ""), {"v13", "_16D"}})
    for (const auto& [name, table] : all.at(version).at("tables").items()) {
      std::string ours = name.substr(0, name.find('_'));
      if (const char last = ours.back(); last == 'p' || last == 'k') ours.back() = last == 'p' ? 'P' : 'K';
      if (ours == "256" || ours == "512" || ours == "1024") ours += "_40";
      const std::vector<Bucket> buckets = aspect_buckets("51xASPECT_RATIO_" + ours + rounded);
      ASSERT_EQ(buckets.size(), table.at("sizes").size()) << name;
      EXPECT_EQ(buckets[0].height, buckets[0].width) << name << ": samples have the first shape";
      const int64_t area = buckets[0].area > 0 ? buckets[0].area : buckets[0].height * buckets[0].width;
      EXPECT_EQ(area, table.at("area").get<int64_t>()) << name;
      for (const auto& [ratio, size] : table.at("sizes").items()) {
        const auto found = std::ranges::find(buckets, std::stod(ratio), &Bucket::ratio);
        ASSERT_NE(found, buckets.end()) << name << " has no " << ratio;
        EXPECT_EQ(found->height, size.at(0).get<int64_t>()) << name << " " << ratio;
        EXPECT_EQ(found->width, size.at(1).get<int64_t>()) << name << " " << ratio;
        ++compared;
      }
    }
  EXPECT_EQ(compared, 2 * (8 * 17 + 5 * 40));
}

/// Computed by the two programs' own code for 832 x 480 and for their example of a data set.
TEST(AspectRatios, OfAnAreaAreThoseOfMusubiAndOfDiffusionPipe) {
  std::vector<std::string> sizes;
  for (const Bucket& bucket : aspect_buckets("33xAREA_832x480")) sizes.push_back(bucket.text());
  EXPECT_EQ(sizes[0], "33x480x832") << "samples have the first shape";
  EXPECT_EQ(sizes.size(), 42u);
  for (const char* size : {"33x832x480", "33x304x1312", "33x624x640", "33x640x624", "33x496x800", "33x1312x304"})
    EXPECT_EQ(std::ranges::count(sizes, size), 1) << size;
  sizes.clear();
  for (const Bucket& bucket : aspect_buckets("RATIOS_512_0.5_2_7")) sizes.push_back(bucket.text());
  EXPECT_EQ(sizes, (std::vector<std::string>{"1x512x512", "1x720x368", "1x640x400", "1x576x464", "1x464x576",
                                             "1x400x640", "1x368x720"}));
  const auto goes_to = [](const std::string& table, int64_t height, int64_t width) {
    const std::vector<Bucket> buckets = aspect_buckets(table);
    const ClipSize picture{.height = height, .width = width, .frames = 1, .image = true};
    return buckets.at(static_cast<size_t>(choose_bucket(buckets, picture, 1).bucket)).text();
  };
  EXPECT_EQ(goes_to("AREA_832x480", 1080, 1920), "1x480x832");
  EXPECT_EQ(goes_to("RATIOS_512_0.5_2_7", 1000, 1500), "1x400x640");
  for (const char* text :
       {"CELLS_", "CELLS_16", "CELLS_640x2", "AREA_", "AREA_832", "AREA_8x8", "AREA_832x480x2", "AREA_99999x99999",
        "RATIOS_512", "RATIOS_512_2_0.5_7", "RATIOS_512_0.5_2_0", "RATIOS_512_0.5_2_9999", "RATIOS_512_nan_2_7"})
    expect_error(Exit::usage, {text, "AREA_WIDTHxHEIGHT"}, [&] { aspect_buckets(text); });
}

/// Shapes and choices that HunyuanVideo-1.5's program has for a side of 640.
TEST(AspectRatios, OfCellsAreAsWideAsFitsInTheArea) {
  const std::vector<Bucket> all = aspect_buckets("33xCELLS_640");
  EXPECT_EQ(all.size(), 121U);
  EXPECT_EQ(all[0].text(), "33x640x640") << "samples have the first shape";
  for (const char* size : {"33x1280x320", "33x320x1280", "33x1216x336", "33x480x848"})
    EXPECT_EQ(std::ranges::count(all, size, &Bucket::text), 1) << size;
  for (const Bucket& bucket : all) {
    EXPECT_LE(bucket.height * bucket.width, 640 * 640) << bucket.text();
    EXPECT_TRUE(bucket.height <= 4 * bucket.width && bucket.width <= 4 * bucket.height) << bucket.text();
  }
  const auto goes_to = [&](int64_t height, int64_t width) {
    return all.at(static_cast<size_t>(choose_bucket(all, {.height = height, .width = width, .frames = 33}, 1).bucket));
  };
  EXPECT_EQ(goes_to(1080, 1920).text(), "33x480x848");
  EXPECT_EQ(goes_to(600, 800).text(), "33x544x720");
  EXPECT_EQ(goes_to(2000, 100).text(), "33x1280x320");
  EXPECT_EQ(aspect_buckets("CELLS_40").size(), 7U) << "six cells: 4 x 1, 3 x 1, 3 x 2, 2 x 2 and so on";
}

TEST(AspectRatios, HaveFramesForVideosAndTellTheNearestName) {
  EXPECT_EQ(aspect_buckets("81xASPECT_RATIO_VIDEO_480_MS")[0].text(), "81x624x624");
  EXPECT_EQ(aspect_buckets("ASPECT_RATIO_1024")[0].text(), "1x1024x1024");
  EXPECT_FALSE(names_aspect_ratios("1x64x64"));
  expect_error(Exit::usage, {"'ASPECT_RATIO_1025' is no table", "ASPECT_RATIO_1024"},
               [] { aspect_buckets("ASPECT_RATIO_1025"); });
  for (const char* text : {"xASPECT_RATIO_1024", "0xASPECT_RATIO_1024", "81ASPECT_RATIO_1024", "a8xASPECT_RATIO_512"})
    expect_error(Exit::usage, {text, "FRAMESxTABLE"}, [&] { aspect_buckets(text); });
}

TEST(AspectRatios, AListedShapeWithoutClipsIsAnErrorWithCountsAndATablesIsNot) {
  ClipPlan plan{.rules = {.buckets = {{1, 64, 64}, {1, 32, 96}}}, .uses = {{.clips = 3}, {.clips = 0}}};
  expect_error(Exit::input, {"no clip is of the shape 1x32x96", "1x64x64: 3 clips", "1x32x96: 0 clips", "data.buckets"},
               [&] { check_no_bucket_is_empty(plan); });
  plan.uses[1].clips = 1;
  check_no_bucket_is_empty(plan);
  plan = {.rules = {.buckets = aspect_buckets("ASPECT_RATIO_512")}, .uses = std::vector<ClipPlan::Use>(33)};
  plan.uses[4].clips = 2;
  check_no_bucket_is_empty(plan);
  EXPECT_EQ(plan.summary(), "  1x288x864: 2 clips") << "shapes of a table without clips are left out";
}

TEST(Clips, StartsFollowTheMode) {
  using Starts = std::vector<int64_t>;
  const auto starts = [](ClipMode mode, int64_t available, int64_t frames, int64_t stride = 0, int64_t samples = 3) {
    return clip_starts({.buckets = {}, .mode = mode, .stride = stride, .samples = samples}, available, frames);
  };
  EXPECT_EQ(starts(ClipMode::head, 50, 8), Starts({0}));
  EXPECT_EQ(starts(ClipMode::chunks, 50, 16), Starts({0, 16, 32}));
  EXPECT_EQ(starts(ClipMode::chunks, 48, 16), Starts({0, 16, 32}));
  EXPECT_EQ(starts(ClipMode::slide, 24, 16), Starts({0, 8}));
  EXPECT_EQ(starts(ClipMode::slide, 24, 16, 3), Starts({0, 3, 6}));
  EXPECT_EQ(starts(ClipMode::uniform, 50, 16), Starts({0, 17, 34}));
  EXPECT_EQ(starts(ClipMode::uniform, 50, 16, 0, 1), Starts({0}));
  EXPECT_EQ(starts(ClipMode::uniform, 17, 16), Starts({0, 1})) << "no start comes twice";
  for (const ClipMode mode : {ClipMode::chunks, ClipMode::slide, ClipMode::uniform})
    EXPECT_EQ(starts(mode, 16, 16), Starts({0}));
  EXPECT_EQ(clip_mode_of("slide"), ClipMode::slide);
  expect_error(Exit::usage, {"'tail'", "head, uniform, chunks, slide or full"}, [] { clip_mode_of("tail"); });
}

TEST(Reading, ColoursAreNamesOrHexDigits) {
  using Colour = std::array<uint8_t, 3>;
  EXPECT_EQ(parse_colour("white"), (Colour{255, 255, 255}));
  EXPECT_EQ(parse_colour("black"), (Colour{0, 0, 0}));
  EXPECT_EQ(parse_colour("grey"), parse_colour("gray"));
  EXPECT_EQ(parse_colour("#0A64ff"), (Colour{10, 100, 255}));
  for (const char* text : {"", "#", "red", "#fff", "#12345g", "#1234567", "123456", " #ffffff", "#-1ffff"})
    expect_error(Exit::usage, {"data.background", std::string("'") + text + "'", "#00ff00"},
                 [&] { parse_colour(text); });
}

TEST(Reading, TheKeySaysHowAFileIsShownAndNothingOfAPlainOne) {
  EXPECT_EQ(reading_text({}, {}), "");
  Traits traits;
  for (const Trait trait : {Trait::interlaced, Trait::transparent, Trait::turned, Trait::unconverted})
    traits.add(trait);
  EXPECT_EQ(reading_text(traits, {}), " upright on=#ffffff deinterlaced");
  EXPECT_EQ(reading_text(traits, {.background = {0, 128, 0}, .deinterlace = false}), " upright on=#008000");
  EXPECT_EQ(Traits::of(traits.names()).names(), traits.names());
  EXPECT_EQ(traits.names().size(), 4u);
  expect_error(Exit::input, {"'sideways'"}, [] { Traits::of({"turned", "sideways"}); });
  Traits hdr;
  hdr.add(Trait::hlg);
  EXPECT_EQ(reading_text(hdr, {}), " sdr");
  EXPECT_EQ(reading_reason("sdr"), "HDR");
  EXPECT_EQ(reading_reason("srgb"), "of another colour profile than sRGB");
  EXPECT_EQ(reading_reason("bars=0.1,0,0,0"), "");
}

class CutClips : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
  }
};

TEST_F(CutClips, FramesAtARateAreWhatTheDecoderFinds) {
  for (const int count : {1, 5, 16, 25})
    for (const double source : {8.0, 24.0, 30.0}) {
      const Path file = folder_ / "a.mp4";
      write_mp4(file, scene(count, 16, 16, source));
      for (const double fps : {8.0, 16.0, 24.0}) {
        if (count == 1) continue;  // one frame counts as one, however often it is shown
        const int64_t frames = frames_at(probe(file), fps);
        EXPECT_EQ(decode_clip(file, {.frames = 0, .fps = fps}).count, frames) << count << " at " << source;
      }
    }
}

TEST_F(CutClips, ChunksTogetherAreTheWholeClip) {
  const Frames source = scene(18, 16, 16, 8, 9);
  write_mp4(folder_ / "a.mp4", source), write("a.txt", "x");
  Problems problems;
  const auto items = read_dataset({.path = folder_}, problems);
  for (const double fps : {8.0, 0.0, 16.0}) {
    const ClipRules rules{.buckets = {{4, 16, 16}}, .fps = fps, .mode = ClipMode::chunks};
    const ClipPlan plan = plan_clips(items, Probes(), rules, problems);
    ASSERT_EQ(plan.clips.size(), fps == 16 ? 9u : 4u);
    const Frames whole = decode_clip(items[0].path, {.frames = 0, .fps = fps});
    for (const Clip& clip : plan.clips) {
      const Frames part = decode_clip(items[0].path, plan.spec(clip));
      for (int f = 0; f < 4; ++f)
        EXPECT_NEAR(mean(part, f), mean(whole, static_cast<int>(clip.start) + f), 1e-9) << clip.start << " " << fps;
    }
    EXPECT_EQ(plan.preprocessing(plan.clips[0]).find("start"), std::string::npos);
    EXPECT_NE(plan.preprocessing(plan.clips[1]).find("start=4"), std::string::npos);
  }
}

/// musubi-tuner's items of videos of 23, 9 and 6 frames, as "FRAMES@START": each length of target_frames by itself, and of
/// full the first 4 n + 1, at most max_frames.
TEST_F(CutClips, EveryLengthAndFullGiveTheItemsOfMusubi) {
  const std::pair<const char*, int> videos[] = {{"a", 23}, {"b", 9}, {"c", 6}};
  for (const auto& [name, frames] : videos)
    write_mp4(folder_ / (std::string(name) + ".mp4"), scene(frames, 16, 16, 8)), write(std::string(name) + ".txt", "x");
  Problems problems;
  const auto items = read_dataset({.path = folder_}, problems);
  const auto made = [&](ClipMode mode, const std::vector<Bucket>& buckets) {
    const ClipRules rules{.buckets = buckets, .mode = mode, .stride = 6, .samples = 3, .every_length = true};
    const ClipPlan plan = plan_clips(items, Probes(), rules, problems);
    std::vector<std::string> texts(3);
    for (const Clip& clip : plan.clips) {
      const int64_t frames = buckets[static_cast<size_t>(clip.bucket)].frames;
      texts[static_cast<size_t>(clip.item)] += std::to_string(frames) + "@" + std::to_string(clip.start) + " ";
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  const std::vector<Bucket> lengths = {{1, 16, 16}, {5, 16, 16}, {9, 16, 16}};
  EXPECT_EQ(made(ClipMode::head, lengths), Texts({"9@0 5@0 1@0 ", "9@0 5@0 1@0 ", "5@0 1@0 "}));
  EXPECT_EQ(made(ClipMode::chunks, {{5, 16, 16}, {9, 16, 16}}),
            Texts({"9@0 9@9 5@0 5@5 5@10 5@15 ", "9@0 5@0 ", "5@0 "}));
  EXPECT_EQ(made(ClipMode::slide, {{5, 16, 16}, {9, 16, 16}}),
            Texts({"9@0 9@6 9@12 5@0 5@6 5@12 5@18 ", "9@0 5@0 ", "5@0 "}));
  EXPECT_EQ(made(ClipMode::uniform, {{5, 16, 16}, {9, 16, 16}}),
            Texts({"9@0 9@7 9@14 5@0 5@9 5@18 ", "9@0 5@0 5@2 5@4 ", "5@0 5@1 "}));
  EXPECT_EQ(made(ClipMode::full, buckets_of_full({19, 16, 16})), Texts({"17@0 ", "9@0 ", "5@0 "}));
  EXPECT_TRUE(problems.empty());
}

TEST_F(CutClips, SharesOfAMovedDataSetAreDrawnAlike) {
  const auto drawn = [&](const std::string& folder) {
    std::string table = "path,text\n";
    for (int i = 0; i < 24; ++i) {
      const std::string name = (i % 2 ? "odd/" : "even/") + std::to_string(i) + ".mp4";
      write(folder + "/" + name, "");  // makes the folders
      write_mp4(folder_ / folder / name, scene(4, 32, 32, 8));
      table += name + ",x\n";
    }
    write(folder + "/metadata.csv", table);
    Problems problems;
    const ClipRules rules{.buckets = {{4, 32, 32, 0, 8, 0.5, 1, 0}, {4, 16, 16, 0, 8, 1, 1, 1}}};
    const auto items = read_dataset({.path = folder_ / folder}, problems);
    std::vector<int> buckets;
    for (const Clip& clip : plan_clips(items, Probes(), rules, problems).clips) buckets.push_back(clip.bucket);
    EXPECT_EQ(buckets.size(), 24u) << problems.text();
    return buckets;
  };
  const std::vector<int> here = drawn("here");
  EXPECT_EQ(drawn("there/of/another/name"), here);
  EXPECT_GT(std::ranges::count(here, 0), 4);
  EXPECT_GT(std::ranges::count(here, 1), 4);
}

TEST_F(CutClips, TheSummarySaysWhatIsEnlargedAndCutOff) {
  write_mp4(folder_ / "a.mp4", scene(4, 16, 32, 8)), write("a.txt", "x");
  write_mp4(folder_ / "b.mp4", scene(4, 64, 64, 8)), write("b.txt", "x");
  Problems problems;
  const ClipPlan plan = plan_clips(read_dataset({.path = folder_}), Probes(), {.buckets = {{4, 32, 32}}}, problems);
  EXPECT_EQ(plan.summary(), "  4x32x32: 2 clips, 1 enlarged, by 2.00 at most, up to 50 % of a frame cropped");
}

}  // namespace tessera::data
