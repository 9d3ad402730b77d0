// Byte-pair encoding from its files: tokenizer.json of transformers (Gemma's, Qwen2's), and SentencePiece's tokenizer.model
// of Gemma, a protocol buffer of which only pieces, scores and a few settings are read.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/text/bpe.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer_model.h"

namespace tessera::data {

namespace {

using checkpoint::Json;

struct BpeModel final : TokenizerModel {
  BpeModel(const BpeTable& table, const std::string& file) : bpe(table, file) {}
  const Bpe bpe;

  std::string clean(std::string_view text) const override { return lower_and_strip(text); }
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const override {
    std::vector<int64_t> ids = bpe.encode(text);
    if (bos >= 0) ids.insert(ids.begin(), bos);
    ids.resize(std::min(ids.size(), static_cast<size_t>(max_length)));
    return ids;
  }
};

// --- tokenizer.json

class JsonFile {
 public:
  JsonFile(const Json& json, const std::filesystem::path& path) : file_(path.string()), json_(json) {}

  OpenTokenizer open() const {
    const Json& model = member(json_, "model");
    if (const Json& split = member(json_, "pre_tokenizer"); split.is_object() && split.contains("pretokenizers"))
      return open_byte_level(model, split["pretokenizers"]);
    expect(text(model, "type") == "BPE" && flag(model, "byte_fallback"),
           "model is not byte-pair encoding with byte fallback");
    const Json space = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
    expect(member(json_, "normalizer") == space, "normalizer does something else than spaces to U+2581");
    const Json& split = member(json_, "pre_tokenizer");  // there are no spaces left to split at
    expect(split.is_null() || (split.is_object() && split.value("pattern", Json()) == space["pattern"]),
           "pre_tokenizer splits the text");

    BpeTable table = read_table(model);
    table.unk = id_of(table, model.contains("unk_token") ? text(model, "unk_token") : "<unk>");
    auto result = std::make_unique<BpeModel>(table, file_);
    result->unk = table.unk;
    result->pad = id_of(table, "<pad>");
    result->eos = id_of(table, "<eos>");
    result->bos = first_token(table);
    result->size = static_cast<int64_t>(table.pieces.size());
    return result;
  }

 private:
  /// As Qwen2's: words by its regular expression (qwen_words), of the characters that stand for their bytes.
  OpenTokenizer open_byte_level(const Json& model, const Json& steps) const {
    constexpr const char* kWords =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    const Json none = Json::object();
    const auto step = [&](size_t i) -> const Json& {
      return steps.is_array() && steps.size() == 2 && steps[i].is_object() ? steps[i] : none;
    };
    const bool words = text(step(0), "type") == "Split" && text(step(0), "behavior") == "Isolated" &&
                       !flag(step(0), "invert") && step(0).value("pattern", none) == Json{{"Regex", kWords}};
    expect(words, "pre_tokenizer does not split texts into words as Qwen2's does");
    const Json& bytes = step(1);
    expect(text(bytes, "type") == "ByteLevel" && !flag(bytes, "add_prefix_space") &&
               bytes.value("use_regex", Json(true)) == false,
           "pre_tokenizer does not make characters of bytes alone");
    expect(member(json_, "normalizer") == Json{{"type", "NFC"}}, "normalizer is another one than NFC");
    const Json& after = member(json_, "post_processor");
    expect(after.is_null() || text(after, "type") == "ByteLevel", "post_processor adds tokens");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix", "unk_token"})
      expect(text(model, affix).empty(), std::string("model has a ") + affix);
    expect(model.is_object() && !flag(model, "byte_fallback") && !flag(model, "ignore_merges") &&
               !flag(model, "fuse_unk") && model.value("dropout", Json()).is_null(),
           "model is not plain byte-pair encoding");
    return open_qwen(read_table(model), file_);
  }

  BpeTable read_table(const Json& model) const {
    BpeTable table;
    for (const auto& [piece, id] : member(model, "vocab").items())
      table.pieces.emplace_back(piece, checkpoint::json_integer(id, file_ + ": model.vocab"));
    read_merges(model, table);
    read_own(table);
    return table;
  }

  void expect(bool holds, const std::string& found) const {
    check_input(
        holds, "data.tokenizer",
        file_ + ": " + found + "; byte-pair encoding of whole texts with byte fallback and that of Qwen2 are supported",
        "give the tokenizer that came with the text encoder");
  }
  const Json& member(const Json& object, const char* key) const { return checkpoint::json_member(object, key, file_); }

  /// A member of that type, else what an absent one means.
  static std::string text(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  }
  static bool flag(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_boolean() && found->get<bool>();
  }

  static int64_t id_of(const BpeTable& table, const std::string& name) {
    for (const auto* list : {&table.own, &table.pieces})
      for (const auto& [piece, id] : *list)
        if (piece == name) return id;
    return -1;
  }

  void read_merges(const Json& model, BpeTable& table) const {
    for (const Json& merge : checkpoint::json_array(member(model, "merges"), file_ + ": model.merges")) {
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        table.merges.emplace_back(merge[0], merge[1]);
        continue;
      }
      const std::string both = merge.is_string() ? merge.get<std::string>() : "";  // the older form, "a b"
      const size_t space = both.find(' ');
      expect(space != both.npos, "model.merges has an entry that is no pair");
      table.merges.emplace_back(both.substr(0, space), both.substr(space + 1));
    }
  }

  void read_own(BpeTable& table) const {
    for (const Json& token : checkpoint::json_array(member(json_, "added_tokens"), file_ + ": added_tokens")) {
      for (const char* name : {"single_word", "lstrip", "rstrip", "normalized"})
        expect(!flag(token, name), std::string("an added token has the flag ") + name);
      table.own.emplace_back(checkpoint::json_string(member(token, "content"), file_),
                             checkpoint::json_integer(member(token, "id"), file_));
    }
  }

  /// What post_processor puts in front of a text; -1: nothing.
  int64_t first_token(const BpeTable& table) const {
    const Json& after = member(json_, "post_processor");
    if (after.is_null()) return -1;
    expect(text(after, "type") == "TemplateProcessing", "post_processor is no template");
    const Json& single = checkpoint::json_array(member(after, "single"), file_ + ": post_processor.single");
    const bool begins = !single.empty() && single[0].contains("SpecialToken");
    expect(single.size() == (begins ? 2U : 1U) && single.back().contains("Sequence"),
           "post_processor adds other tokens than one at the beginning");
    return begins ? id_of(table, text(single[0].at("SpecialToken"), "id")) : -1;
  }

  const std::string file_;
  const Json& json_;
};

// --- tokenizer.model

/// The fields of a protocol buffer's message, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  /// The next field; false at the end, or where the bytes are no message.
  bool next() {
    uint64_t tag = 0;
    if (rest_.empty() || !varint(tag)) return false;
    number = static_cast<int>(tag >> 3);
    value = 0;
    bytes = {};
    switch (tag & 7) {
      case 0:
        return varint(value);
      case 1:
        return take(8);
      case 2: {
        uint64_t length = 0;
        return varint(length) && take(length);
      }
      case 5:
        return take(4);
      default:
        return false;
    }
  }

  float real() const {
    float result = 0;
    if (bytes.size() == sizeof result) std::memcpy(&result, bytes.data(), sizeof result);
    return result;
  }

  int number = 0;
  uint64_t value = 0;      ///< of a number
  std::string_view bytes;  ///< of a text, a message or a float

 private:
  bool varint(uint64_t& to) {
    to = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      to |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool take(uint64_t count) {
    if (count > rest_.size()) return false;
    bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }
  std::string_view rest_;
};

// Field numbers and values of sentencepiece_model.proto.
constexpr int kPieces = 1, kTrainer = 2, kNormalizer = 3;
constexpr size_t kLongestPiece = 1024;                                         // bytes
constexpr uint64_t kBpe = 2;                                                   // TrainerSpec.model_type
constexpr uint64_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4;  // SentencePiece.type

struct Piece {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct ModelFile {
  std::vector<Piece> pieces;
  uint64_t algorithm = 1;  // unigram
  bool byte_fallback = false, dummy_prefix = true, removes_spaces = true, changes_characters = false;
  int64_t unk = 0, bos = 1, eos = 2, pad = -1;
  bool whole = true;  ///< pieces are what pieces can be

  explicit ModelFile(std::string_view bytes) {
    for (Fields field(bytes); field.next();) {
      if (field.number == kPieces) add_piece(field.bytes);
      if (field.number == kTrainer) read_trainer(field.bytes);
      if (field.number == kNormalizer) read_normalizer(field.bytes);
    }
  }
  /// As Gemma's: anything else is SentencePiece's to read.
  bool plain_bpe() const {
    return algorithm == kBpe && byte_fallback && !dummy_prefix && !removes_spaces && !changes_characters;
  }

 private:
  void add_piece(std::string_view bytes) {
    Piece piece;
    for (Fields field(bytes); field.next();) {
      if (field.number == 1) piece.text = field.bytes;
      if (field.number == 2) piece.score = field.real();
      if (field.number == 3) piece.type = field.value;
    }
    // of a longer piece every way to cut it in two would take for ever; of no number there is no order
    whole = whole && piece.text.size() <= kLongestPiece && !std::isnan(piece.score);
    pieces.push_back(std::move(piece));
  }
  void read_trainer(std::string_view bytes) {
    for (Fields field(bytes); field.next();) {
      const auto id = static_cast<int64_t>(static_cast<int32_t>(field.value));
      if (field.number == 3) algorithm = field.value;
      if (field.number == 35) byte_fallback = field.value != 0;
      if (field.number == 40) unk = id;
      if (field.number == 41) bos = id;
      if (field.number == 42) eos = id;
      if (field.number == 43) pad = id;
    }
  }
  void read_normalizer(std::string_view bytes) {
    for (Fields field(bytes); field.next();) {
      if (field.number == 2) changes_characters = !field.bytes.empty();
      if (field.number == 3) dummy_prefix = field.value != 0;
      if (field.number == 4) removes_spaces = field.value != 0;
    }
  }
};

/// SentencePiece merges to the piece with the best score. As a table: every way to cut a piece in two, the best scores
/// first, of one score the longest left and then right halves, as transformers orders them for tokenizer.json.
std::vector<std::pair<std::string, std::string>> merges_of(const std::vector<Piece>& pieces) {
  struct Candidate {
    float score;
    size_t left_length, right_length;  // in characters
    std::string left, right;
  };
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < pieces.size(); ++i) ids.emplace(pieces[i].text, i);
  const auto characters = [](std::string_view text) {
    return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  std::vector<Candidate> all;
  for (const Piece& piece : pieces) {
    std::vector<std::tuple<size_t, size_t, size_t>> cuts;  // ids of both halves, place
    for (size_t at = 1; at < piece.text.size(); ++at) {
      const std::string_view text = piece.text;
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left != ids.end() && right != ids.end()) cuts.emplace_back(left->second, right->second, at);
    }
    std::ranges::sort(cuts);
    for (const auto& [left, right, at] : cuts)
      all.push_back({piece.score, characters(pieces[left].text), characters(pieces[right].text), pieces[left].text,
                     pieces[right].text});
  }
  std::ranges::stable_sort(all, [](const Candidate& a, const Candidate& b) {
    return std::tie(a.score, a.left_length, a.right_length) > std::tie(b.score, b.left_length, b.right_length);
  });
  std::vector<std::pair<std::string, std::string>> merges;
  for (Candidate& c : all) merges.emplace_back(std::move(c.left), std::move(c.right));
  return merges;
}

}  // namespace

OpenTokenizer open_bpe_json(const Json& json, const std::filesystem::path& path) { return JsonFile(json, path).open(); }

OpenTokenizer open_bpe_model(const std::string& bytes) {
  const ModelFile file(bytes);
  if (!file.plain_bpe()) return nullptr;
  check_input(file.whole, "data.tokenizer",
              "the tokenizer's model has a piece of more than " + std::to_string(kLongestPiece) +
                  " bytes, or one whose score is no number",
              "the file is damaged: fetch it again");
  BpeTable table;
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const auto& [text, score, type] = file.pieces[i];
    table.pieces.emplace_back(text, static_cast<int64_t>(i));
    if (type == kUnknown || type == kControl || type == kUserDefined)
      table.own.emplace_back(text, static_cast<int64_t>(i));
  }
  table.merges = merges_of(file.pieces);
  table.unk = file.unk;
  auto model = std::make_unique<BpeModel>(table, "tokenizer.model");
  model->unk = file.unk;
  model->bos = file.bos;
  model->eos = file.eos;
  model->pad = file.pad;
  model->size = static_cast<int64_t>(file.pieces.size());
  return model;
}

}  // namespace tessera::data
