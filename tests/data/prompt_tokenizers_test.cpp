// The tokenizers of models with several text encoders: T5's of text as it was written, CLIP's, Qwen2's with its
// conversations, and byT5's.
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

namespace {

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> all;
  for (const std::string_view word : qwen_words(text)) all.emplace_back(word);
  return all;
}

using Words = std::vector<std::string>;

}  // namespace

TEST(QwenWords, AreWhatTheRegularExpressionFinds) {
  EXPECT_EQ(words("I'll can'T 'sup"), (Words{"I", "'ll", " can", "'T", " '", "sup"}));
  EXPECT_EQ(words("it'\u017F x'tra"), (Words{"it", "'\u017F", " x", "'t", "ra"}));
  EXPECT_EQ(words("a  b\t\tc"), (Words{"a", " ", " b", "\t", "\tc"}));
  EXPECT_EQ(words("42 3"), (Words{"4", "2", " ", "3"}));
  EXPECT_EQ(words("x \n \n  y"), (Words{"x", " \n \n", " ", " y"}));
  EXPECT_EQ(words("x!\n\ny \n"), (Words{"x", "!\n\n", "y", " \n"}));
  EXPECT_EQ(words("\n\ncat  "), (Words{"\n\n", "cat", "  "}));
  EXPECT_EQ(words("(cat) ...dog"), (Words{"(cat", ")", " ...", "dog"}));
  EXPECT_EQ(words("us\x1f."), (Words{"us", "\x1f."})) << "a separator of information is no white space";
  EXPECT_EQ(words(""), Words());
}

TEST_F(PromptTokenizers, OfQwenGiveEveryIdFromEachOfTheirFiles) {
  const Path folder = Path(TESSERA_GOLDENS) / "qwen2_tokenizer";
  const auto json = [&](const char* name) {
    return checkpoint::parse_json(checkpoint::read_text(folder / name), name);
  };
  const auto rows = json("tokens.json");
  const auto length = json("config.json").at("max_length").get<int64_t>();
  for (const Path& file : {folder / "tokenizer.json", folder}) {
    const Tokenizer tokenizer(file);
    EXPECT_EQ(tokenizer.pad_id(), 816);
    EXPECT_EQ(tokenizer.eos_id(), 818);
    EXPECT_EQ(tokenizer.bos_id(), -1);
    EXPECT_EQ(tokenizer.size(), 824);
    EXPECT_TRUE(tokenizer.chats());
    EXPECT_EQ(tokenizer.default_system(), "You are a helpful assistant.") << "as its template says";
    for (const auto& row : rows) {
      const auto text = row.at("text").get<std::string>();
      if (row.contains("nfc") && !composes()) continue;
      EXPECT_EQ(tokenizer.encode(text, row.value("max_length", length)), row.at("ids").get<std::vector<int64_t>>())
          << text;
    }
  }
  for (const auto& chat : json("chats.json")) {
    const auto system = chat.at("system").is_null() ? "" : chat.at("system").get<std::string>();
    const auto crop = chat.at("crop_start").get<int64_t>();
    const PromptTokenizer prompts(folder, system, length - crop);
    EXPECT_EQ(prompts.longest(), length);
    const auto user = chat.at("user").get<std::string>();
    for (const PromptIds& prompt : {prompts.encode(user), prompts.encode_plain(user), prompts.encode_behind(user)}) {
      EXPECT_EQ(prompt.ids, chat.at("ids").get<std::vector<int64_t>>()) << user;
      EXPECT_EQ(prompt.kept_from, crop);
      EXPECT_EQ(prompt.kept(), static_cast<int64_t>(prompt.ids.size()) - crop) << "no row of the system message";
    }
  }
}

TEST_F(PromptTokenizers, OfQwenNeedAWholeFolder) {
  const Path from = Path(TESSERA_GOLDENS) / "qwen2_tokenizer";
  std::filesystem::copy(from / "vocab.json", folder_ / "vocab.json");
  checkpoint::write_text(folder_ / "merges.txt", "#version: 0.2\n" + checkpoint::read_text(from / "merges.txt"));
  expect_error(Exit::input, {"vocab.json", "<|im_start|>", "tokenizer_config.json"}, [&] { Tokenizer(Path(folder_)); });
  checkpoint::write_text(folder_ / "added_tokens.json",
                         R"({"<|endoftext|>": 816, "<|im_start|>": 817, "<|im_end|>": 818})");
  const Tokenizer older(folder_);
  EXPECT_EQ(older.encode("A cat.<|im_end|>", 96), (std::vector<int64_t>{32, 347, 13, 818}));
  EXPECT_EQ(older.default_system(), std::nullopt);
  expect_error(Exit::usage, {"data.instruction"}, [&] { PromptTokenizer(folder_, "", 10); });
  EXPECT_NO_THROW(PromptTokenizer(folder_, "Look.", 10));
  checkpoint::write_text(folder_ / "chat_template.jinja", "x<|im_start|>system\nBe kind.<|im_end|>\n");
  EXPECT_EQ(Tokenizer(Path(folder_)).default_system(), "Be kind.");

  auto other = checkpoint::parse_json(checkpoint::read_text(from / "tokenizer.json"), "tokenizer.json");
  const auto refused = [&](const char* at, const checkpoint::Json& value, const char* word) {
    auto changed = other;
    changed[checkpoint::Json::json_pointer(at)] = value;
    checkpoint::write_text(folder_ / "tokenizer.json", changed.dump());
    expect_error(Exit::input, {"tokenizer.json", word}, [&] { Tokenizer(folder_ / "tokenizer.json"); });
  };
  refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{N}{1,3}", "pre_tokenizer");
  refused("/pre_tokenizer/pretokenizers/1/use_regex", true, "pre_tokenizer");
  refused("/normalizer/type", "NFKC", "normalizer");
  refused("/model/ignore_merges", true, "model");
  refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  refused("/added_tokens/1/lstrip", true, "lstrip");
}

TEST_F(PromptTokenizers, OfByt5AreBytesWithTheFurtherTokensOfEitherRelease) {
  const Path folder = Path(TESSERA_GOLDENS) / "byt5";
  const auto json = [&](const char* name) {
    return checkpoint::parse_json(checkpoint::read_text(folder / name), name);
  };
  std::filesystem::create_directories(folder_ / "byt5-small");
  std::filesystem::create_directories(folder_ / "Glyph-SDXL-v2/assets");
  checkpoint::write_text(folder_ / "byt5-small/tokenizer_config.json", R"({"extra_ids": 125})");
  expect_error(Exit::input, {"holds no"}, [&] { Tokenizer(folder_ / "byt5-small"); });
  checkpoint::write_text(folder_ / "byt5-small/config.json", R"({"tokenizer_class": "ByT5Tokenizer"})");
  EXPECT_EQ(Tokenizer(folder_ / "byt5-small").size(), 384);
  checkpoint::write_text(folder_ / "Glyph-SDXL-v2/assets/color_idx.json", R"({"white": 0, "red": 1})");
  checkpoint::write_text(folder_ / "Glyph-SDXL-v2/assets/multilingual_10-lang_idx.json",
                         R"({"en-Bold": 1, "cn-Thin": 0})");
  auto diffusers = checkpoint::Json{{"tokenizer_class", "ByT5Tokenizer"}};
  int64_t id = 384;
  const auto config = json("config.json");
  for (const auto& token : config.at("_added_tokens"))
    diffusers["added_tokens_decoder"][std::to_string(id++)] = {{"content", token}};
  std::filesystem::create_directories(folder_ / "tokenizer_2");
  checkpoint::write_text(folder_ / "tokenizer_2/tokenizer_config.json", diffusers.dump());
  for (const char* name : {"byt5-small", "tokenizer_2"}) {
    const Tokenizer tokenizer(folder_ / name);
    EXPECT_EQ(tokenizer.size(), 388);
    for (const auto& row : json("tokens.json"))
      EXPECT_EQ(tokenizer.encode(row.at("text").get<std::string>(), 256), row.at("ids").get<std::vector<int64_t>>())
          << name << ": " << row.at("text");
  }
  const Tokenizer tokenizer(folder_ / "byt5-small");
  EXPECT_EQ(tokenizer.encode("a\u3000</s>", 9), (std::vector<int64_t>{100, 1})) << "white space of any kind";
  EXPECT_EQ(tokenizer.encode("ab</s>c", 4), (std::vector<int64_t>{100, 101, 1})) << "cut where it ends by itself";
  for (const auto& row : json("glyphs.json"))
    EXPECT_EQ(glyph_text(row.at("prompt").get<std::string>()),
              row.at("formatted").is_null() ? "" : row.at("formatted").get<std::string>());
}

TEST(FixText, MendsWhatFtfyMends) {
  EXPECT_EQ(fix_text("\x1b[0;1mbold\x1b[0m \u01C6 \u0133"), "bold d\u017E ij");
  EXPECT_EQ(fix_text("a\u3000b \u0085 \u0093x\u0094"), "a b \u2026 \"x\"");
  if (composes()) EXPECT_EQ(fix_text("\uFF76\uFF9E"), "\u30AC") << "half-width letters and their marks";
}

}  // namespace tessera::data
