// The tokenizers of models with two text encoders: T5's of text as it was written, and CLIP's.
#include <algorithm>

#include "data/scene.h"
#include "need_goldens.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer.h"

namespace tessera::data {

namespace {

class PromptTokenizers : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    TESSERA_NEED_GOLDENS();
  }

  checkpoint::Json rows(const char* name) const {
    const Path path = goldens_ / name / "tokens.json";
    return checkpoint::parse_json(checkpoint::read_text(path), path.string());
  }

  const Path goldens_ = Path(TESSERA_GOLDENS) / "tokenizers";
};

bool composes() { return compose("e\u0301") == "\u00E9"; }  // built with ICU

}  // namespace

TEST_F(PromptTokenizers, OfT5GiveEveryIdOfTextAsItWasWritten) {
  if (!has_tokenizer()) GTEST_SKIP() << "built without SentencePiece";
  const Tokenizer tokenizer(goldens_ / "t5");
  int compared = 0;
  for (const auto& row : rows("t5")) {
    const auto text = row.at("text").get<std::string>();
    const auto length = row.value("max_length", int64_t{512});
    auto ids = tokenizer.encode_written(text, length);
    EXPECT_EQ(ids.size(), row.at("n").get<size_t>()) << text;
    ids.resize(static_cast<size_t>(length), tokenizer.pad_id());
    EXPECT_EQ(ids, row.at("ids").get<std::vector<int64_t>>()) << text;
    if (!row.contains("max_length"))
      EXPECT_EQ(PromptTokenizer(goldens_ / "t5", "", 512, true).encode(text).ids, ids) << "padded: " << text;
    ++compared;
  }
  EXPECT_EQ(compared, 127);
  expect_error(Exit::usage, {"data.instruction"}, [&] { PromptTokenizer(goldens_ / "t5", "Rewrite: ", 512, true); });
}

TEST_F(PromptTokenizers, OfClipGiveEveryId) {
  const Tokenizer tokenizer(goldens_ / "clip");
  EXPECT_EQ(tokenizer.bos_id(), 932);
  EXPECT_EQ(tokenizer.eos_id(), 933);
  EXPECT_EQ(tokenizer.size(), 934);
  int compared = 0;
  for (const auto& row : rows("clip")) {
    const auto text = row.at("text").get<std::string>();
    const bool ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if (!ascii && !composes()) continue;
    const auto length = row.value("max_length", int64_t{77});
    auto ids = tokenizer.encode(text, length);
    EXPECT_EQ(ids.size(), row.at("n").get<size_t>()) << text;
    ids.resize(static_cast<size_t>(length), tokenizer.pad_id());
    EXPECT_EQ(ids, row.at("ids").get<std::vector<int64_t>>()) << text;
    ++compared;
  }
  EXPECT_EQ(compared, composes() ? 127 : 82) << "without ICU the rows of ASCII alone";
}

TEST_F(PromptTokenizers, OfClipAreReadFromBothOfTheirFilesOrNotAtAll) {
  std::filesystem::copy(goldens_ / "clip/vocab.json", folder_ / "vocab.json");
  expect_error(Exit::input, {"merges.txt"}, [&] { Tokenizer(Path(folder_)); });
  expect_error(Exit::input, {"merges.txt"}, [&] { Tokenizer(folder_ / "vocab.json"); });
  checkpoint::write_text(folder_ / "merges.txt", "#version: 0.2\nt h\nnopair\n");
  expect_error(Exit::input, {"merges.txt", "nopair"}, [&] { Tokenizer(Path(folder_)); });
  checkpoint::write_text(folder_ / "merges.txt", "#version: 0.2\nt h\n");
  EXPECT_EQ(Tokenizer(Path(folder_)).encode("th", 77).size(), 4u) << "the piece at a word's end is another one";
  EXPECT_NE(tokenizer_text(folder_), tokenizer_text(goldens_ / "clip")) << "the merges are part of what it is";
  checkpoint::write_text(folder_ / "vocab.json", "{\"a\": 0}");
  checkpoint::write_text(folder_ / "merges.txt", "#version: 0.2\n");
  expect_error(Exit::input, {"vocab.json", "<|startoftext|>"}, [&] { Tokenizer(Path(folder_)); });
}

TEST(FixText, MendsWhatFtfyMends) {
  EXPECT_EQ(fix_text("\x1b[0;1mbold\x1b[0m \u01C6 \u0133"), "bold d\u017E ij");
  EXPECT_EQ(fix_text("a\u3000b \u0085 \u0093x\u0094"), "a b \u2026 \"x\"");
  if (composes()) EXPECT_EQ(fix_text("\uFF76\uFF9E"), "\u30AC") << "half-width letters and their marks";
}

}  // namespace tessera::data
