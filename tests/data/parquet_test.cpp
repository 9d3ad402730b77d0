#include "tessera/data/files/parquet.h"

#include <gtest/gtest.h>

#include "data/scene.h"
#include "tessera/base/random.h"
#include "tessera/data/rows.h"

namespace tessera::data {
namespace {

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
