#include "tessera/data/dataset.h"

#include "data/scene.h"
#include "tessera/data/clips.h"
#include "tessera/data/frame_folder.h"
#include "tessera/data/listing.h"
#include "tessera/data/text/text.h"

namespace tessera::data {

namespace fs = std::filesystem;

class Dataset : public FolderTest {
 protected:
  Items items(int repeats = 1) const { return read_dataset({.path = folder_, .metadata = {}, .repeats = repeats}); }
  void refused(const std::vector<std::string>& texts) const {
    expect_error(Exit::input, texts, [&] { items(); });
  }
};

TEST_F(Dataset, AFolderHasACaptionBesideEachClipAndIsReadByName) {
  write("b.mp4", ""), write("b.txt", "second\n");
  write("a.PNG", ""), write("a.txt",
                            "\xEF\xBB\xBF"
                            "first, with a mark in front\r\n");
  write("notes.md", "not a clip");
  const auto found = items();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].path, folder_ / "a.PNG");
  EXPECT_EQ(found[0].caption(), "first, with a mark in front");
  EXPECT_EQ(found[1].caption(), "second");
}

TEST_F(Dataset, FilesOfEveryFormThatFfmpegMayReadAreClipsAndOthersAreTold) {
  const std::vector<std::string> endings = {".flv",  ".ogv", ".y4m",  ".apng", ".avif", ".jfif", ".tiff", ".jp2",
                                            ".heic", ".mts", ".m2ts", ".3gp",  ".vob",  ".jxl",  ".ppm"};
  for (const std::string& ending : endings) write("a" + ending, ""), write("a.txt", "a");
  for (const char* name : {"a.psd", "b.psd", "c.docx", "notes.md", "LICENSE", "a.wav"}) write(name, "");
  Problems problems;
  EXPECT_EQ(read_dataset({.path = folder_}, problems).size(), endings.size());
  ASSERT_EQ(problems.notes().size(), 1u);
  EXPECT_NE(problems.notes()[0].find("3 files are not used, as their endings are no clips': .docx (1), .psd (2)"),
            std::string::npos)
      << problems.notes()[0];
}

TEST_F(Dataset, WhatClipsFollowIsFoundInItsFolderByTheirNames) {
  write("clips/a.mp4", ""), write("clips/a.txt", "a"), write("clips/b.mp4", ""), write("clips/b.txt", "b");
  write("clips/c.mp4", ""), write("clips/c.txt", "c");
  write("poses/a.mp4", ""), write("poses/b.png", ""), write("poses/notes.md", ""), write("poses/d.mp4", "");
  Problems problems;
  const DatasetSpec spec{.path = folder_ / "clips", .controls = folder_ / "poses"};
  const auto found = read_dataset(spec, problems);
  ASSERT_EQ(found.size(), 3u);
  for (const Path Item::*place : {&Item::control, &Item::guide, &Item::pose}) {
    EXPECT_EQ(found[0].*place, folder_ / "poses/a.mp4");
    EXPECT_EQ(found[1].*place, folder_ / "poses/b.png");
    EXPECT_EQ(found[2].*place, Path());
  }
  ASSERT_EQ(problems.notes().size(), 1u);
  EXPECT_NE(problems.notes()[0].find("1 of 3 clips have nothing to follow"), std::string::npos) << problems.notes()[0];

  write("clips/metadata.csv", "video,prompt,control_video\na.mp4,a,b.mp4\nb.mp4,b,\n");
  const auto rows = read_dataset(spec, problems);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].control, folder_ / "clips/b.mp4") << "a column of the table goes before the folder";
  EXPECT_EQ(rows[1].control, folder_ / "poses/b.png");
  fs::remove(folder_ / "clips/metadata.csv");

  write("poses/a.webm", "");
  expect_error(Exit::input, {"a control of the same name as"}, [&] { read_dataset(spec); });
  write("others/x.mp4", "");
  expect_error(Exit::input, {"data.control_path", "no file there has the name of a clip"},
               [&] { read_dataset({.path = folder_ / "clips", .controls = folder_ / "others"}); });
  expect_error(Exit::input, {"data.control_path", "there is no such folder"},
               [&] { read_dataset({.path = folder_ / "clips", .controls = folder_ / "none"}); });
}

TEST_F(Dataset, PackedArchivesAreToldWithTheLineThatUnpacksThem) {
  for (const char* name : {"00000.tar.gz", "00001.tgz", "00002.tar.zst"}) {
    write(name, "");
    for (const Path& path : {folder_, folder_ / name})
      expect_error(Exit::input, {name, "is packed", name == std::string("00002.tar.zst") ? "unzstd -k" : "gunzip -k"},
                   [&] { read_dataset({.path = path}); });
    fs::remove(folder_ / name);
  }
  write("a.gif.gz", ""), write("a.mp4", ""), write("a.txt", "a");
  EXPECT_EQ(items().size(), 1u) << "no archive";
}

TEST_F(Dataset, HiddenFilesAreNoSamples) {
  write("a.mp4", ""), write("a.txt", "a");
  for (const char* name : {".hidden.mp4", "._a.mp4", ".png", ".trash/b.mp4", "Thumbs.db", ".DS_Store"}) write(name, "");
  Problems problems;
  const auto found = read_dataset({.path = folder_}, problems);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path, folder_ / "a.mp4");
  EXPECT_TRUE(problems.notes().empty());
  write("frames/1.png", ""), write("frames/2.png", ""), write("frames/._2.png", ""), write("frames.txt", "f");
  EXPECT_EQ(frames_of(folder_ / "frames").size(), 2u);
  EXPECT_EQ(items().size(), 2u);
}

TEST_F(Dataset, CaptionsAreFoundByTheirNameInAnyForm) {
  const std::string composed = "caf\xC3\xA9", apart = "cafe\xCC\x81";  // one letter, and a letter with an accent
  write("a.mp4", ""), write("a.TXT", "of a");
  write("b.mp4", ""), write("b.caption", "of b");
  write("c.mp4", ""), write("c.Caption", "other"), write("c.txt", "of c");
  write("d.e.png", ""), write("d.e.caption", "of d.e");
  write("frames/1.png", ""), write("frames.caption", "of frames");
  std::map<std::string, std::string> captions;
  for (const Item& item : items()) captions[item.path.filename().string()] = item.caption();
  EXPECT_EQ(
      captions,
      (std::map<std::string, std::string>{
          {"a.mp4", "of a"}, {"b.mp4", "of b"}, {"c.mp4", "of c"}, {"d.e.png", "of d.e"}, {"frames", "of frames"}}));
  if (compose(apart) != composed) GTEST_SKIP() << "built without ICU";
  for (const auto& [clip, text] : {std::pair(composed, apart), {apart, composed}}) {
    const std::string folder = clip == composed ? "one" : "two";
    write(folder + "/" + clip + ".mp4", ""), write(folder + "/" + text + ".txt", "a cafe");
    const auto found = read_dataset({.path = folder_ / folder});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].caption(), "a cafe");
  }
  write("none/a.mp4", ""), write("none/b.txt", "x");
  expect_error(Exit::input, {"a.mp4: no caption, expected", "a.txt"},
               [&] { read_dataset({.path = folder_ / "none"}); });
}

TEST_F(Dataset, FoldersOfClipsAreToldAtAnyDepth) {
  write("set/a.mp4", ""), write("set/a.txt", "a");
  write("set/attic/b.mp4", ""), write("set/deep/er/c.mp4", ""), write("set/deep/er/d.MOV", ""),
      write("set/notes/n.md", "");
  write("set/.cache/e.mp4", ""), write("set/deep/.git/f.mp4", ""), write("set/packed/g.tar", "");
  Problems problems;
  EXPECT_EQ(read_dataset({.path = folder_ / "set"}, problems).size(), 1u);
  std::string told;
  for (const std::string& note : problems.notes()) told += note + "\n";
  for (const char* text : {"attic: a folder with 1 clip, not read", "deep: a folder with 2 clips, not read",
                           "packed: a folder with 1 clip, not read"})
    EXPECT_NE(told.find(text), std::string::npos) << told;
  EXPECT_EQ(problems.notes().size(), 3u) << told;
  // Beside a table those that no row names.
  write("set/metadata.csv", "video,text\na.mp4,x\ndeep/er/c.mp4,y\n");
  Problems listed;
  EXPECT_EQ(read_dataset({.path = folder_ / "set"}, listed).size(), 2u);
  ASSERT_EQ(listed.notes().size(), 2u);
  for (const std::string& note : listed.notes()) EXPECT_EQ(note.find("deep"), std::string::npos) << note;
}

TEST_F(Dataset, RepeatsGiveTheListSeveralTimes) {
  for (const char* stem : {"a", "b"}) write(std::string(stem) + ".mp4", ""), write(std::string(stem) + ".txt", stem);
  const auto found = items(3);
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[4].caption(), "a");
}

TEST_F(Dataset, ALinkToItselfALongNameAndAHugeCaptionAreFaultsOfTheirRows) {
  write("a.mp4", ""), write("a.txt", "a");
  fs::create_symlink("b.mp4", folder_ / "b.mp4");
  refused({"b.mp4", "a link to nowhere or to itself"});
  fs::remove(folder_ / "b.mp4");
  write("a.txt", std::string(10 << 20, 'w'));
  refused({"a.txt", "the caption has 10485760 bytes"});
  write("a.txt", "a");
  write("metadata.csv", "video,prompt\n" + std::string(260, 'n') + ".mp4,x\n");
  refused({"metadata.csv: row 2", "no such file"});
}

TEST_F(Dataset, AnEpochOfMoreItemsThanMemoryHoldsIsRefused) {
  write("a.mp4", ""), write("a.txt", "a");
  expect_error(Exit::input, {"data.repeats", "lower"}, [&] { items(2147483647); });
}

TEST_F(Dataset, OneClipIsADatasetToo) {
  write("clip.mp4", ""), write("clip.txt", "a road");
  EXPECT_EQ(read_dataset({.path = folder_ / "clip.mp4"}).at(0).caption(), "a road");
}

TEST_F(Dataset, AnEmptyCaptionFileIsACaptionOfNoWords) {
  write("a.mp4", ""), write("a.txt", "");
  EXPECT_EQ(items().at(0).caption(), "");
}

TEST_F(Dataset, AMissingCaptionNamesTheClip) {
  write("a.mp4", ""), write("a.txt", "fine"), write("b.mp4", "");
  refused({"b.mp4: no caption", "b.txt", "metadata.csv"});
}

TEST_F(Dataset, AnEmptyFolderOrMissingOneIsNamed) {
  refused({folder_.string() + ": no clips", ".mp4"});
  expect_error(Exit::input, {"nowhere", "data.path"}, [&] { read_dataset({.path = folder_ / "nowhere"}); });
}

TEST_F(Dataset, ATableIsReadInItsOwnOrderWithAnyOfTheKnownColumns) {
  write("clips/b.mp4", ""), write("clips/a.mp4", "");
  for (const char* path : {"video", "image", "file_name", "file_path", "path"})
    for (const char* caption : {"prompt", "text", "caption", "cap"}) {
      write("metadata.csv", std::string(path) + ",width," + caption +
                                "\r\nclips/b.mp4,1,\"A cat, \"\"Tom\"\"\nasleep\"\r\n\r\n" +
                                (folder_ / "clips/a.mp4").string() + ",2,two\n");
      const auto found = items();
      ASSERT_EQ(found.size(), 2u);
      EXPECT_EQ(found[0].path, folder_ / "clips/b.mp4");
      EXPECT_EQ(found[0].caption(), "A cat, \"Tom\"\nasleep");
      EXPECT_EQ(found[1].caption(), "two");
    }
}

TEST_F(Dataset, AMetadataFileElsewhereIsRelativeToThePath) {
  write("media/a.mp4", ""), write("lists/train.csv", "video,prompt\na.mp4,one\n");
  EXPECT_EQ(read_dataset({.path = folder_ / "media", .metadata = folder_ / "lists/train.csv"}).at(0).path,
            folder_ / "media/a.mp4");
}

TEST_F(Dataset, AClipMayHaveSeveralCaptions) {
  write("a.mp4", "");
  write("metadata.jsonl", R"({"video":"a.mp4","cap":["one","two"]})");
  EXPECT_EQ(items().at(0).captions, (std::vector<std::string>{"one", "two"}));
}

TEST_F(Dataset, ColumnsThatAreNotUsedAreTold) {
  write("a.mp4", "");
  write("metadata.csv", "video,prompt,fps,depth_video\na.mp4,one,8,b.mp4\n");
  Problems problems;
  read_dataset({.path = folder_}, problems);
  ASSERT_EQ(problems.notes().size(), 1u);
  EXPECT_NE(problems.notes()[0].find("columns that are not used: depth_video"), std::string::npos);
}

TEST_F(Dataset, CaptionsEndInTheColumnsThatAreNamedWhereARowHasThem) {
  for (const char* name : {"a.mp4", "b.mp4", "c.png"}) write(name, "");
  write("metadata.csv",
        "path,text,num_frames,height,width,aspect_ratio,resolution,fps,motion_score\n"
        "a.mp4,a cat,50,480,832,0.58,399360,29.97,4.6\n"
        "b.mp4,a dog,50,480,832,0.58,399360,nan,\n"
        "c.png,a house,1,480,832,0.58,399360,120,7\n");
  const auto texts = [&](double fps) {
    Problems problems(/*strict=*/false);
    DatasetSpec spec{.path = folder_};
    spec.captions.columns = {"fps", "motion_score"};
    spec.captions.fps = fps;
    std::vector<std::string> all;
    for (const Item& item : read_dataset(spec, problems)) all.push_back(item.caption());
    EXPECT_TRUE(problems.notes().empty()) << "every column of that trainer is known";
    return all;
  };
  EXPECT_EQ(texts(0), (std::vector<std::string>{"a cat 30 FPS, 5 motion score.", "a dog", "a house 7 motion score."}));
  EXPECT_EQ(texts(24)[0], "a cat 24 FPS, 5 motion score.") << "the rate that it is resampled to";
  EXPECT_EQ(items()[0].caption(), "a cat") << "only where it is asked for";
  write("metadata.csv", "path,text,fps\na.mp4,a cat,fast\nb.mp4,a dog,24\n");
  Problems problems(/*strict=*/false);
  DatasetSpec spec{.path = folder_};
  spec.captions.columns = {"fps", "motion_score"};
  EXPECT_EQ(read_dataset(spec, problems).size(), 1u);
  EXPECT_NE(problems.text().find("row 2: column fps has 'fast'"), std::string::npos) << problems.text();
  ASSERT_EQ(problems.notes().size(), 1u);
  EXPECT_NE(problems.notes()[0].find("no column motion_score"), std::string::npos);
}

TEST_F(Dataset, FaultsOfATableNameItsRow) {
  write("a.mp4", "");
  write("metadata.csv", "video,prompt\na.mp4,one\nb.mp4,two\n");
  refused({"metadata.csv: row 3", "b.mp4: no such file"});
  write("metadata.csv", "video,prompt\na.mp4,one\na.mp4,\n");
  refused({"metadata.csv: row 3", "a.mp4: no caption in column prompt"});
  write("metadata.csv", "video,prompt\n,one\n");
  refused({"row 2", "no path in column video"});
  write("metadata.csv", "video,prompt\na.mp4,one,more\n");
  refused({"row 2", "expected 2 fields, found 3"});
  write("metadata.csv", "video,prompt\na.mp4,\"one\n");
  refused({"row 2", "does not end"});
  write("metadata.csv", "video,prompt\na.mp4,\"one\" two\n");
  refused({"row 2", "beside a quoted field"});
  write("metadata.csv", "video,prompt\na.mp4,\xFF\n");
  refused({"row 2", "not UTF-8"});
  write("metadata.csv", "clip,prompt\na.mp4,one\n");
  refused({"expected a column video, image", "found clip, prompt"});
  write("metadata.csv", "video,prompt\n");
  refused({"no clips"});
  write("metadata.csv", "");
  refused({"metadata.csv: empty", "header"});
}

class FrameFolders : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
    clip_ = scene(6, 32, 48, 8, 10);
    for (int f = 0; f < 6; ++f) picture("a/frame_" + std::to_string(f + 8) + ".png", f);  // 8, 9, 10: not by name
    write("a.txt", "frames");
  }
  void picture(const std::string& name, int frame) const {
    const std::vector<uint8_t> bytes = write_png(clip_, frame);
    write(name, {bytes.begin(), bytes.end()});
  }
  Frames clip_;
};

TEST_F(FrameFolders, AreClipsInTheOrderOfTheirNumbers) {
  picture("masks/0001.png", 0);  // has no caption
  picture("b.png", 1), write("b.txt", "one picture");
  Problems problems(/*strict=*/true);
  const auto items = read_dataset({.path = folder_}, problems);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].path, folder_ / "a");
  EXPECT_EQ(items[0].caption(), "frames");
  ASSERT_EQ(problems.notes().size(), 1u);
  EXPECT_NE(problems.notes()[0].find("masks: numbered frames, not used without a caption"), std::string::npos);
  EXPECT_EQ(decode_clip(folder_ / "a", {}).rgb, clip_.rgb);
  const Frames part = decode_clip(folder_ / "a", {.frames = 2, .fps = 16, .start = 3.0 / 16});
  ASSERT_EQ(part.count, 2);
  EXPECT_TRUE(std::equal(part.rgb.begin(), part.rgb.end(), clip_.frame(3))) << "a frame is a frame at any rate";
  EXPECT_EQ(decode_clip(folder_ / "a", {.frames = 1, .height = 32, .width = 32}).width, 32);
}

TEST_F(FrameFolders, AreFoundByATableAndCutLikeVideos) {
  const auto items = read_dataset({.path = folder_, .metadata = write("m.csv", "video,prompt\na,x\n")});
  ASSERT_EQ(items.size(), 1u);
  Problems problems(/*strict=*/true);
  const ClipPlan plan =
      plan_clips(items, Probes(), {.buckets = {{2, 32, 48}}, .fps = 16, .mode = ClipMode::chunks}, problems);
  ASSERT_EQ(plan.clips.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.clips[i].rate, 16);
    const Frames clip = decode_clip(items[0].path, plan.spec(plan.clips[i]));
    EXPECT_TRUE(std::equal(clip.rgb.begin(), clip.rgb.end(), clip_.frame(2 * i))) << i;
  }
  const std::string stamp = file_stamp(folder_ / "a");
  EXPECT_NE(stamp.find("6 frames"), std::string::npos) << stamp;
  picture("a/frame_14.png", 0);
  EXPECT_NE(file_stamp(folder_ / "a"), stamp) << "or the cache would not notice";
}

TEST_F(FrameFolders, WhatIsWrongWithThemIsSaid) {
  expect_error(Exit::input, {"found 6 frames", "needed 7"}, [&] { decode_clip(folder_ / "a", {.frames = 7}); });
  std::filesystem::remove(folder_ / "a/frame_10.png");
  expect_error(Exit::input, {"frame 10 is missing before frame_11.png"}, [&] { decode_clip(folder_ / "a", {}); });
  picture("a/frame_10.png", 2), picture("a/f10.png", 2);
  expect_error(Exit::input, {"frame 10 is there twice"}, [&] { probe(folder_ / "a"); });
  std::filesystem::remove(folder_ / "a/f10.png");
  clip_ = scene(1, 16, 16, 8), picture("a/frame_13.png", 0);
  expect_error(Exit::input, {"frame_13.png has 16 x 16 pixels"}, [&] { decode_clip(folder_ / "a", {}); });
}

TEST(Csv, KeepsEmptyFieldsAndALastLineWithoutItsEnd) {
  const CsvTable table = parse_csv("a,b,c\n,\"\",x", "t.csv");
  EXPECT_EQ(table.rows, (std::vector<std::vector<std::string>>{{"", "", "x"}}));
  EXPECT_EQ(table.numbers, std::vector<int>{2});
}

}  // namespace tessera::data
