#include "tessera/data/text/bpe.h"

#include "bounded.h"
#include "data/scene.h"
#include "need_goldens.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/data/text/tokenizer_model.h"

namespace tessera::data {

using checkpoint::Json;

namespace {

Json json_of(const Path& path) { return checkpoint::parse_json(checkpoint::read_text(path), path.string()); }

BpeTable small_table() {
  BpeTable table{.merges = {{"a", "b"}, {"ab", "ab"}, {"b", "a"}, {"\u2581", "a"}},
                 .own = {{"<x>", 900}, {"<x>>", 901}},
                 .unk = 3};
  int64_t id = 10;
  for (const char* piece : {"a", "b", "ab", "abab", "ba", "\u2581",
                            "\u2581"
                            "a",
                            "<0xC3>", "<0xA4>"})
    table.pieces.emplace_back(piece, id++);
  return table;
}

}  // namespace

TEST(Bpe, TheFirstMergeOfTheTableGoesFirstThenTheLeftmost) {
  const Bpe bpe(small_table(), "small");
  EXPECT_EQ(bpe.encode("abab"), (std::vector<int64_t>{13}));
  EXPECT_EQ(bpe.encode("ababab"), (std::vector<int64_t>{13, 12})) << "the left two join, not the right two";
  EXPECT_EQ(bpe.encode("bab"), (std::vector<int64_t>{11, 12})) << "ab is before ba in the table";
  EXPECT_EQ(bpe.encode("a ab"), (std::vector<int64_t>{10, 15, 12})) << "over the whole text, spaces are characters";
  EXPECT_EQ(bpe.encode(""), std::vector<int64_t>{});
}

TEST(Bpe, OtherCharactersBecomeBytesAndTokensOfTheirOwnAreCutOutFirst) {
  const Bpe bpe(small_table(), "small");
  EXPECT_EQ(bpe.encode("\u00E4"), (std::vector<int64_t>{17, 18}));
  EXPECT_EQ(bpe.encode("\xC3"), (std::vector<int64_t>{17})) << "text that is not UTF-8 byte by byte";
  EXPECT_EQ(bpe.encode("z"), (std::vector<int64_t>{3})) << "a byte without a piece";
  EXPECT_EQ(bpe.encode("a<x>>b"), (std::vector<int64_t>{10, 901, 11})) << "the longest of them";
  EXPECT_EQ(bpe.encode("a<x>b"), (std::vector<int64_t>{10, 900, 11})) << "nothing merges over them";
  BpeTable table = small_table();
  table.merges.push_back({"a", "\u2581"});
  expect_error(Exit::input, {"small", "merge 4"}, [&] { Bpe(table, "small"); });
}

TEST(Bpe, IdsThatAreNoIdsAndTooManyTokensOfTheirOwnAreRefused) {
  for (const int64_t id : {int64_t{-1}, int64_t{1} << 24, int64_t{1} << 62}) {
    BpeTable table = small_table();
    table.pieces.emplace_back("c", id);
    expect_error(Exit::input, {"small", "the id of 'c' is " + std::to_string(id)}, [&] { Bpe(table, "small"); });
  }
  BpeTable table = small_table();
  for (int i = 0; i < 5000; ++i) table.own.emplace_back("<" + std::to_string(i), 0);
  expect_error(Exit::input, {"small", "special tokens, expected at most 4096"}, [&] { Bpe(table, "small"); });
}

/// Every way to cut a piece in two is looked for, and a text of that size fills no memory either.
TEST(Bpe, AModelWithOnePieceOfMegabytesIsRefused) {
  const auto field = [](int number, const std::string& bytes) {
    std::string length;
    for (size_t rest = bytes.size();; rest >>= 7) {
      length += static_cast<char>((rest & 0x7F) | (rest > 0x7F ? 0x80 : 0));
      if (rest <= 0x7F) break;
    }
    return std::string(1, static_cast<char>(number << 3 | 2)) + length + bytes;
  };
  // byte-pair encoding with byte fallback, no prefix, spaces stay
  const std::string settings =
      field(2, std::string("\x18\x02\x98\x02\x01", 5)) + field(3, std::string("\x18\x00\x20\x00", 4));
  EXPECT_NE(open_bpe_model(field(1, field(1, "a")) + settings), nullptr);
  expect_refused_cheaply([&] { open_bpe_model(field(1, field(1, std::string(8 << 20, 'a'))) + settings); },
                         {"a piece of more than 1024 bytes"});
  const std::string no_number("\x15\x00\x00\xc0\x7f", 5);
  expect_refused_cheaply([&] { open_bpe_model(field(1, field(1, "a") + no_number) + settings); }, {"no number"});
}

class GemmaTokenizer : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    TESSERA_NEED_GOLDENS();
  }
  const Path golden_ = Path(TESSERA_GOLDENS) / "tokenizers/gemma";
};

TEST_F(GemmaTokenizer, BothOfItsFilesGiveEveryIdOfTheReference) {
  const Json rows = json_of(golden_ / "tokens.json");
  for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
    const Tokenizer tokenizer(golden_ / file);
    EXPECT_EQ(tokenizer.pad_id(), 0);
    EXPECT_EQ(tokenizer.eos_id(), 1);
    EXPECT_EQ(tokenizer.bos_id(), 2);
    EXPECT_EQ(tokenizer.unk_id(), 3);
    EXPECT_EQ(tokenizer.size(), 1100);
    for (const Json& row : rows) {
      const auto length = row.value("max_length", int64_t{300});
      auto ids = tokenizer.encode_clean(row.at("text").get<std::string>(), length);
      EXPECT_EQ(ids.size(), row.at("n").get<size_t>()) << file << ": " << row.at("text");
      ids.resize(static_cast<size_t>(length), tokenizer.pad_id());
      EXPECT_EQ(ids, row.at("ids").get<std::vector<int64_t>>()) << file << ": " << row.at("text");
    }
  }
  EXPECT_EQ(rows.size(), 127u);
  EXPECT_EQ(tokenizer_in(golden_), golden_ / "tokenizer.json");
}

TEST_F(GemmaTokenizer, CaptionsAreLowerCasedAndStripped) {
  const Tokenizer tokenizer(golden_);
  EXPECT_EQ(tokenizer.encode(" \n A CAT. ", 300), tokenizer.encode_clean("a cat.", 300));
  EXPECT_EQ(lower_and_strip("\t Two DOGS\u00A0"), "two dogs");
  EXPECT_EQ(lower_and_strip(" \u3000\n"), "");
  if (compose("e\u0301") == "\u00E9")  // built with ICU
    EXPECT_EQ(lower_and_strip("\u00DCN\u00CFC\u00D6D\u00C9 \u039F\u03A3"), "\u00FCn\u00EFc\u00F6d\u00E9 \u03BF\u03C2");
}

TEST_F(GemmaTokenizer, OtherFormsAreRefusedByName) {
  const auto with = [&](const char* key, const Json& value) {
    Json json = json_of(golden_ / "tokenizer.json");
    json[key] = value;
    checkpoint::write_text(folder_ / "tokenizer.json", json.dump());
    return Tokenizer(folder_);
  };
  expect_error(Exit::input, {"tokenizer.json", "normalizer"}, [&] { with("normalizer", {{"type", "NFC"}}); });
  expect_error(Exit::input, {"tokenizer.json", "byte fallback"}, [&] {
    with("model", {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}});
  });
  Json merges = json_of(golden_ / "tokenizer.json").at("model");
  merges["merges"][0] = {"\u2581", "nothing there"};
  expect_error(Exit::input, {"merge 0"}, [&] { with("model", merges); });
  checkpoint::write_text(folder_ / "broken.json", "{");
  expect_error(Exit::input, {"broken.json"}, [&] { Tokenizer(folder_ / "broken.json"); });
  std::filesystem::remove(folder_ / "tokenizer.json");
  expect_error(Exit::input, {"holds no tokenizer.json"}, [&] { Tokenizer(Path(folder_)); });
}

}  // namespace tessera::data
