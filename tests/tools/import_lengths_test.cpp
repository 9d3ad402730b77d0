// musubi-tuner's target_frames: it trains each length cut to 4 n + 1 frames, once.
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

Translation translated(const std::string& lengths, const std::string& more = "") {
  const Folder folder;
  return import_file(folder.file("set.toml",
                                 "[general]\nresolution = [832, 480]\nbatch_size = 1\n[[datasets]]\n"
                                 "video_directory = \"videos\"\ntarget_frames = " +
                                     lengths + "\n" + more),
                     {.ranks = 1});
}

TEST(ImportLengths, AreCutAsMusubiCutsThemAndEachIsTrainedOnce) {
  struct Lengths {
    const char* lengths;
    const char* buckets;  ///< nothing: one length
    const char* frames;
    bool cut;
  };
  const Lengths cases[] = {{"[45, 25, 45]", "25x480x832,45x480x832", "", false},
                           {"[48, 3, 26, 25, 45, 1]", "1x480x832,25x480x832,45x480x832", "", true},
                           {"[100, 20]", "17x480x832,97x480x832", "", true},
                           {"[77]", "", "77", false},
                           {"[80, 77]", "", "77", true},
                           {"[2]", "", "1", true}};
  for (const Lengths& c : cases) {
    SCOPED_TRACE(c.lengths);
    const Translation t = translated(c.lengths);
    EXPECT_EQ(found(t, "data.buckets"), c.buckets);
    EXPECT_EQ(found(t, "data.frames"), c.frames);
    EXPECT_EQ(found(t, "data.clip_lengths"), *c.buckets ? "every" : "");
    EXPECT_EQ(t.to_toml().find("cut to 4 n + 1 frames") != std::string::npos, c.cut) << t.to_toml();
  }
  const Translation full = translated("[26]", "frame_extraction = \"full\"\nmax_frames = 80\n");
  EXPECT_EQ(found(full, "data.frames"), "80") << "the clip mode cuts each video";
}

TEST(ImportLengths, ThatAreNoNumbersOfFramesAreNamed) {
  for (const auto& [lengths, word] :
       {std::pair{"[0, 25]", "'0'"}, {"[-4]", "'-4'"}, {"[25.5]", "'25.5'"}, {R"(["25 frames"])", "'25 frames'"}})
    expect_words(message([&, &lengths = lengths] { translated(lengths); }),
                 {"target_frames", word, "whole numbers of frames from 1 on", "[1, 25, 45]"});
}

TEST(ImportLengths, OfBucketsHaveTheShapesOfTheArea) {
  EXPECT_EQ(found(translated("[26, 1]", "enable_bucket = true\n"), "data.buckets"), "1xAREA_832x480,25xAREA_832x480");
  EXPECT_EQ(found(translated("[25]", "enable_bucket = true\n"), "data.buckets"), "25xAREA_832x480");
  EXPECT_EQ(found(translated("[25]", "enable_bucket = false\n"), "data.size"), "480,832");
}

/// diffusion-pipe's own example of a data set.
TEST(ImportLengths, OfDiffusionPipeHaveTheShapesOfItsRatios) {
  const Folder folder;
  const std::string ratios = "enable_ar_bucket = true\nmin_ar = 0.5\nmax_ar = 2.0\nnum_ar_buckets = 7\n",
                    directory = "[[directory]]\npath = 'pictures'\n";
  const auto translated_set = [&](const std::string& text) {
    return import_file(folder.file("dataset.toml", text + directory), {});
  };
  const Translation t = translated_set("resolutions = [512]\nframe_buckets = [1, 33]\n" + ratios);
  EXPECT_EQ(found(t, "data.buckets"), "1xRATIOS_512_0.5_2_7,33xRATIOS_512_0.5_2_7");
  EXPECT_TRUE(t.refused.empty()) << t.to_toml();
  EXPECT_EQ(found(translated_set("resolutions = [512]\nframe_buckets = [33]\n" + ratios), "data.buckets"),
            "1xRATIOS_512_0.5_2_7,33xRATIOS_512_0.5_2_7")
      << "there is always a shape for pictures";
  EXPECT_EQ(found(translated_set("resolutions = [512, 1024]\n" + ratios), "resolutions"), "refused")
      << "a picture is trained at both there";
  EXPECT_EQ(found(translated_set("resolutions = [512]\nenable_ar_bucket = true\nar_buckets = [1.0]\n"), "resolutions"),
            "refused");
}

}  // namespace
}  // namespace tessera::tools
