// Kinds of damage to a data set: each is reported with file and row, the good rows around it stay, and strict reading
// stops at it.
#include "data/scene.h"
#include "tessera/data/clips.h"
#include "tessera/data/files/parquet.h"

namespace tessera::data {

class Damage : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
    write_mp4(folder_ / "good.mp4", scene(8, 32, 32, 8));
    write_mp4(folder_ / "also.mp4", scene(8, 32, 32, 8, 6));
  }

  /// What reading and planning says of the table; `left`: clips that stay.
  void expect_problem(const std::string& name, const std::string& text, const std::vector<std::string>& words,
                      size_t left = 2) {
    const DatasetSpec spec{.path = folder_, .metadata = write(name, text)};
    Problems problems(/*strict=*/false);
    EXPECT_EQ(plan(spec, problems), left) << name << "\n" << problems.text();
    ASSERT_EQ(problems.size(), 1u) << name << "\n" << problems.text();
    const std::string said = problems.text();
    for (const std::string& word : words) EXPECT_NE(said.find(word), std::string::npos) << said << "\nlacks: " << word;
    EXPECT_NE(said.find(name + ": " + words[0]), std::string::npos) << said;
    // Strict reading ends at the same place with the same words.
    std::vector<std::string> strict_words = words;
    strict_words.push_back(name);
    expect_error(Exit::input, strict_words, [&] {
      Problems strict(/*strict=*/true);
      plan(spec, strict);
    });
  }

  size_t plan(const DatasetSpec& spec, Problems& problems) const {
    const Items items = read_dataset(spec, problems);
    return plan_clips(items, Probes(), {.buckets = {{8, 32, 32}}, .fps = 8, .max_crop = 0.5}, problems).clips.size();
  }

  static std::string csv(const std::string& row) { return "video,prompt\ngood.mp4,one\n" + row + "\nalso.mp4,two\n"; }
  static std::string jsonl(const std::string& row) {
    return R"({"video":"good.mp4","prompt":"one"})"
           "\n" +
           row +
           "\n"
           R"({"video":"also.mp4","prompt":"two"})"
           "\n";
  }
};

TEST_F(Damage, OfACsvRow) {
  expect_problem("a.csv", csv("gone.mp4,x"), {"row 3", "gone.mp4: no such file"});
  expect_problem("a.csv", csv(",x"), {"row 3", "no path in column video"});
  expect_problem("a.csv", csv("good.mp4,"), {"row 3", "good.mp4: no caption in column prompt"});
  expect_problem("a.csv", csv("good.mp4"), {"row 3", "expected 2 fields, found 1"});
  expect_problem("a.csv", csv("good.mp4,x,y"), {"row 3", "expected 2 fields, found 3"});
  expect_problem("a.csv", csv("good.mp4,\"x"), {"row 3", "a quoted field does not end"});
  expect_problem("a.csv", csv("good.mp4,\"x\" y"), {"row 3", "beside a quoted field"});
  expect_problem("a.csv", csv("good.mp4,caf\xE9"), {"row 3", "not UTF-8 at byte 3"});
  expect_problem("a.csv", csv(".,x"), {"row 3", "is a folder, expected a clip"});
}

TEST_F(Damage, OfAJsonRow) {
  expect_problem("a.jsonl", jsonl("{\"video\":\"good.mp4\""), {"row 2", "not JSON"});
  expect_problem("a.jsonl", jsonl("[1, 2]"), {"row 2", "expected an object", "[1,2]"});
  expect_problem("a.jsonl", jsonl(R"({"video":"good.mp4","video":"also.mp4","prompt":"x"})"),
                 {"row 2", "duplicate key", "video"});
  expect_problem("a.jsonl", jsonl(R"({"clip":"good.mp4","prompt":"x"})"), {"row 2", "no path, expected one of video"});
  expect_problem("a.jsonl", jsonl(R"({"video":["good.mp4","also.mp4"],"prompt":"x"})"), {"row 2", "2 paths"});
  expect_problem("a.jsonl", jsonl(R"({"video":"good.mp4","prompt":["x",""]})"), {"row 2", "captions", "is empty"});
  expect_problem("a.jsonl", jsonl(R"({"video":"good.mp4","prompt":{"en":"x"}})"), {"row 2", "no caption"});
  expect_problem("a.jsonl", jsonl(R"({"video":"good.mp4","text":"x","type":"image"})"), {"row 2", "type says image"});
  expect_problem("a.jsonl", jsonl(R"({"video":"good.mp4","text":"x","type":"gif"})"),
                 {"row 2", "type is 'gif', expected video or image"});
  expect_problem("a.json", R"([{"path":"good.mp4","cap":"x"}, 5, {"path":"also.mp4","cap":"y"}])",
                 {"row 2", "expected an object"});
}

TEST_F(Damage, OfAClip) {
  const std::string whole = read(folder_ / "good.mp4");
  write("empty.mp4", "");
  expect_problem("a.csv", csv("empty.mp4,x"), {"row 3", "empty.mp4", "cut short, or not a video"});
  write("text.mp4", "this is a text that somebody has given another name, long enough to look into");
  expect_problem("a.csv", csv("text.mp4,x"), {"row 3", "text.mp4", "not a video"});
  write("head.mp4", whole.substr(0, 200));
  expect_problem("a.csv", csv("head.mp4,x"), {"row 3", "head.mp4"});
  write_mp4(folder_ / "wide.mp4", scene(8, 16, 96, 8));
  expect_problem("a.csv", csv("wide.mp4,x"), {"row 3", "wide.mp4", "96x16", "crop 83 %", "data.max_crop"});
  const auto png = write_png(scene(1, 32, 32, 8), 0);
  write("still.png", std::string(png.begin(), png.end()));
  expect_problem("a.csv", csv("still.png,x"), {"row 3", "still.png", "an image is one frame", "1x32x32"});
}

TEST_F(Damage, OfAWholeTableStopsEither) {
  const auto refused = [&](const std::string& name, const std::string& text, const std::vector<std::string>& words) {
    expect_error(Exit::input, words, [&] {
      Problems problems(/*strict=*/false);
      plan({.path = folder_, .metadata = write(name, text)}, problems);
    });
  };
  refused("a.json", "[{\"path\":", {"a.json", "not JSON", "line 1"});
  refused("a.json", "7", {"a.json", "expected a list of objects, found", "7"});
  refused("a.csv", "", {"a.csv: empty"});
  refused("a.csv", "video,video,prompt\n", {"a.csv: row 1", "twice"});
  refused("a.csv", "clip,prompt\ngood.mp4,x\n", {"a.csv: expected a column video", "found clip, prompt"});
  refused("a.parquet", "PAR1",
          {parquet_absence().empty() ? "a.parquet: damaged, or no Parquet" : "a.parquet: this build reads no Parquet",
           "a.csv"});
  refused("a.csv", "video,prompt\ngone.mp4,x\nlost.mp4,y\n", {"2 rows have problems", "row 2", "row 3", "lost.mp4"});
  write("prompt.txt", "one line\n");
  refused("videos.txt", "good.mp4\nalso.mp4\n", {"videos.txt has 2 lines", "prompt.txt has 1"});
  std::filesystem::remove(folder_ / "prompt.txt");
  refused("videos.txt", "good.mp4\nalso.mp4\n", {"videos.txt: no captions", "prompt.txt"});
}

TEST_F(Damage, OfAFolderNamesTheClip) {
  write("good.txt", "one");
  Problems problems(/*strict=*/false);
  EXPECT_EQ(plan({.path = folder_}, problems), 1u);
  EXPECT_NE(problems.text().find("also.mp4: no caption, expected"), std::string::npos) << problems.text();
  write("also.txt", "caf\xE9");
  Problems again(/*strict=*/false);
  EXPECT_EQ(plan({.path = folder_}, again), 1u);
  EXPECT_NE(again.text().find("also.txt: the caption is not UTF-8"), std::string::npos) << again.text();
}

TEST_F(Damage, TwoTablesInAFolderAreNotGuessedBetween) {
  write("metadata.csv", "video,prompt\ngood.mp4,one\n");
  write("metadata.jsonl", "{}");
  expect_error(Exit::input, {"both metadata.csv and metadata.jsonl", "data.metadata"},
               [&] { read_dataset({.path = folder_}); });
}

TEST_F(Damage, ARowThatIsRepeatedIsToldOnce) {
  Problems problems(/*strict=*/false);
  write_mp4(folder_ / "wide.mp4", scene(8, 16, 96, 8));
  EXPECT_EQ(plan({.path = folder_, .metadata = write("a.csv", csv("wide.mp4,x")), .repeats = 3}, problems), 6u);
  EXPECT_EQ(problems.size(), 1u);
}

TEST_F(Damage, AClipThatIsTooShortIsNoFaultAndLeftOut) {
  Problems problems(/*strict=*/true);
  write_mp4(folder_ / "short.mp4", scene(5, 32, 32, 8));
  EXPECT_EQ(plan({.path = folder_, .metadata = write("a.csv", csv("short.mp4,x")), .repeats = 3}, problems), 6u);
  EXPECT_EQ(problems.left_out().size(), 1u);
  const std::string text = problems.left_out_text();
  for (const char* word : {"1 clip is too short", "row 3", "short.mp4", "5 frames", "the shortest bucket needs 8"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
}

}  // namespace tessera::data
