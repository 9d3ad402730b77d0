// What strangers write is read in bounded time and memory, or refused with its place.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bounded.h"
#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/text.h"
#include "tessera/base/toml_text.h"

namespace tessera {
namespace {

template <class Act>
void expect_refused(const Act& act, const std::string& why) {
  try {
    act();
    ADD_FAILURE() << "no error; expected one with: " << why;
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::input) << error.what();
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(Json, IsReadAsItStandsInTheOrderThatIsAskedFor) {
  const std::string text = R"({"b": [1, -2, 1.5, "x", null, true], "a": {"c": {}}})";
  EXPECT_EQ(parse_json(text, "t"), nlohmann::json::parse(text));
  EXPECT_EQ(parse_ordered_json(text, "t").dump(), R"({"b":[1,-2,1.5,"x",null,true],"a":{"c":{}}})");
  EXPECT_EQ(parse_ordered_json("{\"a\": 1 /* why */}", "t", {.comments = true})["a"], 1);
  EXPECT_TRUE(json_or_nothing("{\"a\":").is_discarded());
  EXPECT_EQ(json_or_nothing("[1]")[0], 1);
}

TEST(Json, DepthIsRefusedInEveryForm) {
  for (const char* open : {"[", "{\"a\":", "[{\"a\":"}) {
    const std::string deep = repeated(open, 200'000);
    expect_refused([&] { parse_json(deep, "a.json"); }, "a.json: nested deeper than 32");
    expect_refused([&] { parse_ordered_json(deep, "a.json"); }, "a.json: nested deeper than 32");
    EXPECT_TRUE(json_or_nothing(deep).is_discarded());
  }
}

TEST(Json, ManySmallValuesEndWithAnErrorBeforeTheyFillTheMemory) {
  expect_refused([] { parse_json("[" + repeated("[],", 30'000'000) + "1]", "a.json"); }, "a.json: more values than");
  const JsonLimits few{.bytes = 64 << 20};
  expect_refused([&] { parse_ordered_json("[" + repeated("{},", 3'000'000) + "1]", "a.json", few); },
                 "a.json: more values than 64 MiB of memory hold");
}

// nlohmann's callback takes a search through all members of the parent for each object that ends, its ordered objects
// one through all keys for each key: minutes for these.
TEST(Json, ManyObjectsAndManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += "\"" + std::to_string(i) + "\":{},";
  text += "\"last\":{}}";
  EXPECT_EQ(parse_json(text, "t").size(), 300'001u);
  EXPECT_EQ(parse_ordered_json(text, "t").size(), 300'001u);
  EXPECT_EQ(parse_json("[" + repeated("{},", 1'000'000) + "{}]", "t").size(), 1'000'001u);
}

TEST(Json, AKeyThatStandsTwiceIsRefused) {
  expect_refused([] { parse_json(R"({"a":1,"b":{"a":2},"a":3})", "a.json"); }, "duplicate key 'a'");
  expect_refused([] { parse_ordered_json(R"({"a":1,"b":{"a":2},"a":3})", "a.json"); }, "duplicate key 'a'");
}

TEST(Json, AFieldOfAnotherTypeIsNamedWithItsPlaceAndItsValue) {
  const nlohmann::json object = {{"step", "x"}, {"loss", 1e300}, {"ranks", {1}}, {"most", uint64_t{1} << 63}};
  const JsonFields in(object, "a.jsonl, line 7");
  expect_refused([&] { in.whole("step"); }, "a.jsonl, line 7: field 'step': expected a whole number, found '\"x\"'");
  expect_refused([&] { in.whole("loss"); }, "expected a whole number");
  expect_refused([&] { in.whole("most"); }, "expected a whole number");
  expect_refused([&] { in.text("loss"); }, "expected a text");
  expect_refused([&] { in.list("ranks"); }, "a.jsonl, line 7: ranks: expected an object");
  EXPECT_EQ(in.whole("absent", 5), 5);
  EXPECT_EQ(in.object("absent").real("loss", 2), 2);
}

std::string problem_of(std::string_view text) {
  const auto found = readable_toml(text);
  const auto* problem = std::get_if<TomlProblem>(&found);
  return problem ? std::to_string(problem->line) + ": " + problem->what : "";
}

TEST(Toml, WhatTheParserWouldNotSurviveIsRefusedWithItsLine) {
  EXPECT_EQ(problem_of("a = " + repeated("[", 200'000)), "1: nested deeper than 32");
  EXPECT_EQ(problem_of("a = " + repeated("{b=", 200'000)), "1: nested deeper than 32");
  EXPECT_EQ(problem_of("\n" + repeated("a.", 200'000) + "b = 1"), "2: nested deeper than 32");
  EXPECT_EQ(problem_of("[" + repeated("a . ", 200'000) + "b]"), "1: nested deeper than 32");
  EXPECT_EQ(problem_of("x = 1\n\n\xc3\xa9 = 1"), "3: a letter beyond ASCII outside of quotes");
  EXPECT_EQ(problem_of("x = '\xff'"), "1: not UTF-8");
  EXPECT_EQ(problem_of("# \xed\xa0\x80"), "1: not UTF-8") << "a surrogate";
  for (const char* text :
       {"a = 21474\"s\xc3\xa9\"", "a = [1, 2.'\xc3\xa9']", "a = 2024-01-01 \"\xc3\xa9\"", "a = {b = +1\"\xc3\xa9\"}",
        "a = 21474[\"s\xc3\xa9\"]", "a = 1=\"\xc3\xa9\"", "a = 2024-01-01 {b = '\xc3\xa9'}", "a = [\n1\"\xc3\xa9\"]",
        "a = [[1], 0\"\xc3\xa9\"]", "a = {b = {c = 1}, d = 1'\xc3\xa9'}"})
    EXPECT_NE(problem_of(text).find("within a value or key that began without one"), std::string::npos) << text;
  for (const char* text : {"a = \"\"\"\\\xc3\xa9\"\"\"", "a = \"\"\"\\ \xc3\xa9\"\"\"", "[\"\\\xc3\xa9\"]"})
    EXPECT_EQ(problem_of(text), "1: a backslash before a letter beyond ASCII") << text;
  EXPECT_NE(problem_of(std::string(9 << 20, ' ')), "");
  EXPECT_THROW(parse_toml("a = " + repeated("[", 200'000)), toml::parse_error);
  EXPECT_THROW(parse_toml("\xc3\xa9 = 1"), toml::parse_error);
}

TEST(Toml, WhatStandsInQuotesAndCommentsIsLeftAlone) {
  const std::string brackets = repeated("[.", 200);
  const std::string text = "# " + brackets + " \xc3\xa9\na = \"\\\"" + brackets + "\xc3\xa9\"\nb = '" + brackets +
                           "\\'\nc = \"\"\"\n" + brackets +
                           "\"\n\xe2\x82\xac\\\"\"\"\"\n\"\xc3\xa9\" = " + "[[1, 2.5], {d.e = '\xc3\xa9'}]\n";
  EXPECT_EQ(problem_of(text), "");
  const std::string quotes =
      "[a.'\xc3\xa9'.\"b\"] # 'c\n[[d . '\xc3\xa9']]\n1.'\xc3\xa9' = [1.5, '\xc3\xa9', [\n2, '\xc3\xa9']]\r\n" +
      std::string("e = {f.'\xc3\xa9' = 1, '\xc3\xa9' = [{g = 1}, '\xc3\xa9']}\nh = 1\n'\xc3\xa9' = true");
  EXPECT_EQ(problem_of(quotes), "");
  EXPECT_NO_THROW(parse_toml(quotes));
  EXPECT_EQ(parse_toml(text)["\xc3\xa9"][1]["d"]["e"].value_or(std::string()), "\xc3\xa9");
}

TEST(Toml, ALineBehindABackslashMayBeginWithAnyLetter) {
  const char* const letters[] = {"\xc3\xa9",     "\xd0\xb6",     "\xe3\x81\x82",
                                 "\xe5\x96\x84", "\xe2\x82\xac", "\xf0\x9f\x90\x88"};
  for (const std::string letter : letters) {
    const std::string text = "[\"\"\"\\\n" + letter + " = 1\n";
    EXPECT_THROW(parse_toml(text), toml::parse_error) << text;
    for (const std::string line_end : {"\n", " \n", "\t\r\n", "\n\n \n", "\n  \\\n"}) {
      const std::string prompt = "a = \"\"\"\nOne \\" + line_end + "  " + letter + letter + " \\\"\"\" two \\" +
                                 line_end + "b\"\"\" # \\\n\"" + letter + "\" = '''\\\n" + letter + "'''\n";
      const toml::table root = parse_toml(prompt);
      EXPECT_EQ(root["a"].value_or(std::string()), "One " + letter + letter + " \"\"\" two b") << prompt;
      EXPECT_EQ(root[letter].value_or(std::string()), "\\\n" + letter) << prompt;
    }
  }
  EXPECT_EQ(problem_of("a = \"\"\"\\\n\n\"\"\"\n\xc3\xa9 = 1"), "4: a letter beyond ASCII outside of quotes");
}

TEST(Printable, ControlCharactersAreShownNotObeyed) {
  EXPECT_EQ(printable("blocks.0\x1b[2J\x07"), "blocks.0\\x1b[2J\\x07");
  EXPECT_EQ(printable("caf\xc3\xa9 \xf0\x9f\x8e\xac"), "caf\xc3\xa9 \xf0\x9f\x8e\xac");
  EXPECT_EQ(printable("\xc2\x9b\x31m"), "\\u{9b}1m") << "the CSI of C1";
  EXPECT_EQ(printable("a\xe2\x80\xae\x62"), "a\\u{202e}b") << "writing from right to left";
  EXPECT_EQ(printable("a\xff\xc3"), "a\\xff\\xc3");
  EXPECT_EQ(printable("a\nb\tc\x7f"), "a\\x0ab\\x09c\\x7f");
  EXPECT_EQ(printable("a\nb\tc\r", Lines::kept), "a\nb\tc\\x0d");
  EXPECT_EQ(shown(std::string(119, 'a') + "\xc3\xa9"), "'" + std::string(119, 'a') + "...'") << "no half character";
}

class ForeignFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "foreign-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(ForeignFile, APipeADeviceALoopAndAFolderAreErrorsNotWaits) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("loop", folder_ / "loop");
  for (const std::filesystem::path& file : {folder_ / "pipe", std::filesystem::path("/dev/zero"), folder_,
                                            folder_ / "loop", folder_ / std::string(300, 'n')}) {
    expect_refused([&] { read_foreign(file, 100, "recipe"); }, file.string());
    expect_refused([&] { ForeignLines lines(file, "run"); }, file.string());
  }
}

TEST_F(ForeignFile, AFileBeyondTheBoundIsNotRead) {
  std::ofstream(folder_ / "large") << "a";
  std::filesystem::resize_file(folder_ / "large", int64_t{1} << 40);  // a hole: it takes no room
  expect_refused([&] { read_foreign(folder_ / "large", 1 << 20, "recipe"); }, "expected at most 1.00 MiB");
  ForeignLines lines(folder_ / "large", "run");
  std::string line;
  expect_refused([&] { lines.next(line); }, "line 1: longer than 64.00 MiB");
}

TEST_F(ForeignFile, LinesAreGivenOneAfterAnother) {
  const std::string middle = std::string(200'000, 'x') + std::string(1, '\0') + "y";
  std::ofstream(folder_ / "lines") << "a\n\n" << middle << "\nlast";
  ForeignLines lines(folder_ / "lines", "run");
  std::vector<std::string> all;
  for (std::string line; lines.next(line);) all.push_back(line);
  EXPECT_EQ(all, (std::vector<std::string>{"a", "", middle, "last"}));
  EXPECT_FALSE(lines.ended());
}

}  // namespace
}  // namespace tessera
