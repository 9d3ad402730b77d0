#include "tessera/data/files/parquet.h"

#include <gtest/gtest.h>

#include "data/scene.h"
#include "tessera/base/random.h"
#include "tessera/data/cache.h"
#include "tessera/data/dataset.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/listing.h"
#include "tessera/data/video.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

const Path kFolder = Path(TESSERA_SOURCE_DIR) / "tests/data/parquet";  // made by make.py there

RowTable rows_of(const Path& file) {
  Problems problems(/*strict=*/true);
  return read_rows(file, problems);
}

std::string bytes_of(const Path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

using Texts = std::vector<std::string>;

/// A field of each row; a row without it has no texts.
std::vector<Texts> column_of(const RowTable& table, const std::string& name) {
  std::vector<Texts> all;
  for (const Row& row : table.rows) all.push_back(row.fields.contains(name) ? row.fields.at(name) : Texts());
  return all;
}

class Parquet : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!parquet_absence().empty()) GTEST_SKIP() << parquet_absence();
  }
};

}  // namespace

TEST_F(Parquet, RowsHaveTheTextsOfTheirColumnsWhateverTypeTheseHave) {
  const RowTable table = rows_of(kFolder / "groups.parquet");
  EXPECT_EQ(table.columns, (Texts{"path", "text", "num_frames", "height", "width", "fps", "aspect_ratio",
                                  "motion score", "kept", "captions"}))
      << "what has no text form is left out";
  const std::map<std::string, std::vector<Texts>> expected = {
      {"path", {{"a.mp4"}, {"b.mp4"}, {"c.mp4"}, {"d.png"}, {"e.mp4"}}},
      {"text", {{"a cat"}, {"a dog"}, {"a cat"}, {}, {"one \"cat\", two\nlines"}}},
      {"num_frames", {{"51"}, {"102"}, {"204"}, {"1"}, {}}},
      {"height", {{"240"}, {"360"}, {"480"}, {"720"}, {"144"}}},
      {"width", {{"426"}, {"640"}, {"854"}, {"1280"}, {"256"}}},
      {"fps", {{"24"}, {"29.97"}, {"16"}, {}, {}}},
      {"aspect_ratio", {{"0.5625"}, {"0.5633802816901409"}, {"0.562"}, {"0.5625"}, {"0.5625"}}},
      {"motion score", {{"5.1"}, {}, {"0"}, {}, {"1e-07"}}},
      {"kept", {{"true"}, {"false"}, {}, {"true"}, {"true"}}},
      {"captions", {{"one", "two"}, {}, {}, {"three"}, {"four"}}}};
  for (const auto& [name, texts] : expected) EXPECT_EQ(column_of(table, name), texts) << name;
  EXPECT_EQ(table.rows[3].where, (kFolder / "groups.parquet").string() + ": row 4") << "in the second of three groups";
  const RowTable other = rows_of(kFolder / "zstd.parquet");
  EXPECT_EQ(other.columns, (Texts{"path", "text", "fps"}));
  for (const char* name : {"path", "text", "fps"}) EXPECT_EQ(column_of(other, name), expected.at(name)) << name;
}

/// A picture's colour is its number's (make.py).
int number_of(const Path& picture) {
  const Frames frames = decode_clip(picture, {});
  EXPECT_EQ(frames.count, 1);
  EXPECT_EQ(frames.width, 8);
  EXPECT_EQ(frames.height, 6);
  return frames.rgb.at(0) / 50;
}

void expect_five_pictures(const Items& items) {
  ASSERT_EQ(items.size(), 5u);
  for (const int i : {0, 4, 2, 3, 1}) {  // in any order: other groups of rows come between
    EXPECT_EQ(items[i].captions, Texts{"picture number " + std::to_string(i)});
    EXPECT_TRUE(is_image(items[i].path)) << items[i].path;
    EXPECT_EQ(number_of(items[i].path), i) << items[i].path;
  }
  EXPECT_NE(file_content(items[0].path), file_content(items[1].path));
  EXPECT_EQ(file_content(items[1].path), file_content(items[1].path));
}

TEST_F(Parquet, PicturesOfAHubDataSetAreReadWithTheirCaptions) {
  Problems problems(/*strict=*/true);
  const Items items = read_dataset({.path = kFolder / "hub"}, problems);
  ASSERT_NO_FATAL_FAILURE(expect_five_pictures(items));
  EXPECT_EQ(items[4].where, (kFolder / "hub/data/train-00001-of-00002.parquet").string() + ": row 2");
  bool told = false;
  for (const std::string& note : problems.notes()) told = told || note.find("test-00000-of-00001") != std::string::npos;
  EXPECT_TRUE(told) << "other splits are not read, and it says so";
  expect_five_pictures(read_dataset({.path = kFolder / "hub/data"}));
  EXPECT_EQ(read_dataset({.path = kFolder / "hub/data/test-00000-of-00001.parquet"}).size(), 1u);
}

TEST_F(Parquet, PicturesThatSaveToDiskWroteAreReadLikewise) {
  expect_five_pictures(read_dataset({.path = kFolder / "saved"}));
  // a folder of splits, of which the one for training is read
  fs::create_directories(folder_ / "splits/test");
  fs::copy(kFolder / "saved", folder_ / "splits/train", fs::copy_options::recursive);
  fs::copy(kFolder / "saved/data-00000-of-00001.arrow", folder_ / "splits/train/cache-1234.arrow");
  expect_five_pictures(read_dataset({.path = folder_ / "splits"}));
}

TEST_F(Parquet, PicturesThatATableOnlyNamesLieBesideIt) {
  fs::copy(kFolder / "paths.parquet", folder_ / "paths.parquet");
  const Items inside = read_dataset({.path = kFolder / "hub"});
  for (int i = 0; i < 5; ++i)
    std::ofstream(folder_ / (std::to_string(i) + ".png"), std::ios::binary) << read_bytes(inside[i].path);
  expect_five_pictures(read_dataset({.path = folder_ / "paths.parquet"}));
}

TEST_F(Parquet, APictureThatIsNotThereIsRefusedByTableAndRow) {
  const Path table = kFolder / "hub/data/train-00000-of-00002.parquet";
  expect_error(Exit::input, {table.string() + ": row 4", "it has no such row"}, [&] {
    read_bytes(path_in_table({table, "image", 3}, "a.png"));
  });
  expect_error(Exit::input, {"no column of files is called text"}, [&] {
    read_bytes(path_in_table({table, "text", 0}, "a.png"));
  });
  expect_error(Exit::input, {"has no bytes"}, [&] {
    read_bytes(path_in_table({kFolder / "paths.parquet", "image", 1}, "a.png"));
  });
  // damage in the pictures themselves ends nothing but the reading
  const std::string whole = bytes_of(kFolder / "saved/data-00000-of-00001.arrow");
  const RandomKey key(8, Purpose::order, 0, 0);
  const Path damaged = folder_ / "b.arrow";
  int read = 0, refusals = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    std::string changed = whole;
    changed[key.below(2 * i, changed.size())] ^= static_cast<char>(1 + key.below(2 * i + 1, 255));
    std::ofstream(damaged, std::ios::binary) << changed;
    try {
      for (const Row& row : rows_of(damaged).rows)
        if (row.fields.contains("image")) read_bytes(row.fields.at("image").front());
      ++read;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input) << error.what();
      ++refusals;
    }
  }
  EXPECT_GT(read, 20);
  EXPECT_GT(refusals, 20);
}

TEST_F(Parquet, WhatIsDamagedIsRefusedByItsNameAndEndsNothing) {
  const auto refused = [&](const std::string& bytes, const std::vector<std::string>& words) {
    const Path file = folder_ / "a.parquet";
    std::ofstream(file, std::ios::binary) << bytes;
    expect_error(Exit::input, words, [&] { rows_of(file); });
  };
  const std::string whole = bytes_of(kFolder / "groups.parquet");
  refused("", {"a.parquet: damaged, or no Parquet", "to_csv"});
  refused("PAR1", {"a.parquet: damaged, or no Parquet"});
  refused(whole.substr(0, whole.size() / 2), {"a.parquet: damaged, or no Parquet"});
  refused(bytes_of(kFolder / "numbers.parquet"), {"a.parquet: has no column of texts or numbers"});
  refused(bytes_of(kFolder / "nothing.parquet"), {"thousands of times as large as the file"});
  int read = 0, refusals = 0;
  const RandomKey key(7, Purpose::order, 0, 0);
  for (uint64_t i = 0; i < 1000; ++i) {
    std::string changed = whole;
    changed[key.below(2 * i, changed.size())] ^= static_cast<char>(1 + key.below(2 * i + 1, 255));
    const Path file = folder_ / "b.parquet";
    std::ofstream(file, std::ios::binary) << changed;
    try {
      rows_of(file);
      ++read;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input) << error.what();
      ++refusals;
    }
  }
  EXPECT_GT(read, 50) << "of the texts themselves";
  EXPECT_GT(refusals, 50);
}

}  // namespace tessera::data
