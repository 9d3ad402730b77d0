// A unigram model from transformers' tokenizer.json, which has the pieces and scores of a SentencePiece model and says in
// words of its own what that normalises: it is put back into SentencePiece's form, and read as such.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/text/tokenizer_model.h"

namespace tessera::data {

namespace {

using checkpoint::Json;

constexpr const char* kSpace = "\u2581";
constexpr std::string_view kExtra = "<extra_id_";

/// A protocol buffer's message in the making.
class Message {
 public:
  Message& number(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& real(int field, float value) {
    varint(static_cast<uint64_t>(field) << 3 | 5);
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof raw);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

/// Nothing where the text is no base64.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kSigns = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const size_t value = kSigns.find(c);
    if (value == kSigns.npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xFF);
  }
  return bytes;
}

// Field numbers and values of sentencepiece_model.proto.
enum PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

class UnigramJson {
 public:
  UnigramJson(const Json& json, const std::filesystem::path& path) : file_(path.string()), json_(json) {
    const Json& model = member(json_, "model");
    byte_fallback_ = model.contains("byte_fallback") && model["byte_fallback"] == true;
    read_pieces(model);
    read_steps(member(json_, "normalizer"), "normalizer");
    read_steps(member(json_, "pre_tokenizer"), "pre_tokenizer");
    expect(metaspace_, "pre_tokenizer does not put U+2581 in front of words");
  }

  /// As SentencePiece's own file.
  std::string model() const {
    Message model;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto& [text, score] = pieces_[i];
      Message piece;
      piece.text(1, text).real(2, score).number(3, type_of(static_cast<int64_t>(i), text));
      model.text(1, piece.bytes());
    }
    Message trainer;
    trainer.number(3, 1).number(4, pieces_.size()).number(35, byte_fallback_ ? 1 : 0);
    for (const auto& [field, name] : {std::pair(40, pieces_[static_cast<size_t>(unk_)].first),
                                      {41, std::string("<s>")},
                                      {42, last_token()},
                                      {43, std::string("<pad>")}}) {
      const auto found = std::ranges::find(pieces_, name, &std::pair<std::string, float>::first);
      const int64_t id = found == pieces_.end() ? -1 : found - pieces_.begin();
      trainer.number(field, static_cast<uint64_t>(id)).text(field + 5, name);
    }
    Message normalizer;
    normalizer.text(1, "identity").text(2, characters_).number(3, 1).number(4, joins_spaces_ ? 1 : 0).number(5, 1);
    return model.text(2, trainer.bytes()).text(3, normalizer.bytes()).bytes();
  }

 private:
  void expect(bool holds, const std::string& found) const {
    check_input(holds, "data.tokenizer", file_ + ": " + found + "; a unigram model as SentencePiece trains it is read",
                "give the spiece.model that came with the text encoder");
  }
  const Json& member(const Json& object, const char* key) const { return checkpoint::json_member(object, key, file_); }
  std::string text(const Json& object, const char* key) const {
    return checkpoint::json_string(member(object, key), file_ + ": " + key);
  }

  void read_pieces(const Json& model) {
    for (const Json& piece : checkpoint::json_array(member(model, "vocab"), file_ + ": model.vocab")) {
      const bool pair = piece.is_array() && piece.size() == 2 && piece[0].is_string() && piece[1].is_number();
      expect(pair && std::isfinite(piece[1].get<double>()), "model.vocab has an entry that is no piece with its score");
      pieces_.emplace_back(piece[0].get<std::string>(), piece[1].get<float>());
    }
    // T5's further tokens, which count down from the last id, are no pieces of the model
    while (!pieces_.empty() && pieces_.back().first == std::string(kExtra) + std::to_string(further_) + ">")
      pieces_.pop_back(), ++further_;
    unk_ = checkpoint::json_integer(member(model, "unk_id"), file_ + ": model.unk_id");
    expect(unk_ >= 0 && unk_ < static_cast<int64_t>(pieces_.size()), "model.unk_id is no piece");
    for (const Json& token : checkpoint::json_array(member(json_, "added_tokens"), file_ + ": added_tokens")) {
      const int64_t id = checkpoint::json_integer(member(token, "id"), file_ + ": added_tokens");
      added_[id] = token.contains("special") && token["special"] == true ? kControl : kUserDefined;
    }
  }

  uint64_t type_of(int64_t id, const std::string& text) const {
    if (id == unk_) return kUnknown;
    if (text.starts_with(kExtra)) return kUserDefined;
    if (const auto found = added_.find(id); found != added_.end()) return found->second;
    const bool byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
    return byte && byte_fallback_ ? kByte : kNormal;
  }

  /// What the normalizer, or the splitting into words, does one after another.
  void read_steps(const Json& step, const char* key) {
    if (step.is_null()) return;
    const std::string type = text(step, "type"), what = std::string(key) + " has a step " + type;
    if (type == "Sequence") {
      const Json& steps = member(step, key == std::string_view("normalizer") ? "normalizers" : "pretokenizers");
      for (const Json& inner : checkpoint::json_array(steps, file_ + ": " + key)) {
        expect(!inner.is_object() || inner.value("type", Json()) != "Sequence", what + " within another");
        read_steps(inner, key);
      }
    } else if (type == "Precompiled") {
      const auto characters = from_base64(text(step, "precompiled_charsmap"));
      expect(characters.has_value(), what + " that is no base64");
      characters_ = *characters;
    } else if (type == "Strip") {  // of what joining spaces leaves at the ends
      expect(step.value("strip_right", Json()) == true, what + " that does not strip the end");
    } else if (type == "Replace") {
      const Json pattern = {{"Regex", " {2,}"}};
      const Json content = member(step, "content");
      expect(member(step, "pattern") == pattern && (content == " " || content == kSpace),
             what + " that does something else than joining spaces");
      joins_spaces_ = true;
    } else if (type == "WhitespaceSplit") {
      joins_spaces_ = true;
    } else if (type == "Metaspace") {
      const Json scheme = step.value("prepend_scheme", Json("always"));
      expect(member(step, "replacement") == kSpace && step.value("add_prefix_space", Json(true)) == true &&
                 (scheme == "always" || scheme == "first"),
             what + " that does not put U+2581 in front of words");
      metaspace_ = true;
    } else {
      expect(false, what);
    }
  }

  /// What post_processor puts behind a text.
  std::string last_token() const {
    const Json& after = member(json_, "post_processor");
    if (!after.is_object() || !after.contains("single")) return "</s>";
    const Json& single = checkpoint::json_array(after["single"], file_ + ": post_processor.single");
    expect(!single.empty() && single.size() <= 2 && single[0].is_object() && single[0].contains("Sequence"),
           "post_processor adds other tokens than one at the end");
    if (single.size() == 1) return "</s>";
    expect(single[1].is_object() && single[1].contains("SpecialToken"), "post_processor ends in no token");
    return text(single[1]["SpecialToken"], "id");
  }

  const std::string file_;
  const Json& json_;
  std::vector<std::pair<std::string, float>> pieces_;
  std::map<int64_t, PieceType> added_;  ///< by id
  int64_t unk_ = -1;
  int further_ = 0;  ///< of T5
  std::string characters_;
  bool byte_fallback_ = false, joins_spaces_ = false, metaspace_ = false;
};

}  // namespace

OpenTokenizer open_unigram_json(const Json& json, const std::filesystem::path& path) {
  return open_sentencepiece(UnigramJson(json, path).model(), path);
}

}  // namespace tessera::data
