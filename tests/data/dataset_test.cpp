#include "tessera/data/dataset.h"

#include "data/scene.h"
#include "tessera/data/csv.h"

namespace tessera::data {

class Dataset : public FolderTest {
 protected:
  std::vector<Item> items(int repeats = 1) const {
    return read_dataset({.path = folder_, .metadata = {}, .repeats = repeats});
  }
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

TEST_F(Dataset, RepeatsGiveTheListSeveralTimes) {
  for (const char* stem : {"a", "b"}) write(std::string(stem) + ".mp4", ""), write(std::string(stem) + ".txt", stem);
  const auto found = items(3);
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[4].caption(), "a");
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
  write("metadata.csv", "video,prompt,fps,control_video\na.mp4,one,8,b.mp4\n");
  Problems problems;
  read_dataset({.path = folder_}, problems);
  ASSERT_EQ(problems.notes().size(), 1u);
  EXPECT_NE(problems.notes()[0].find("not used by this version: columns control_video"), std::string::npos);
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

TEST(Csv, KeepsEmptyFieldsAndALastLineWithoutItsEnd) {
  const CsvTable table = parse_csv("a,b,c\n,\"\",x", "t.csv");
  EXPECT_EQ(table.rows, (std::vector<std::vector<std::string>>{{"", "", "x"}}));
  EXPECT_EQ(table.numbers, std::vector<int>{2});
}

}  // namespace tessera::data
