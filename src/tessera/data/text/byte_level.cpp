// Byte-pair encoding of words over their bytes: CLIP's tokenizer (Radford et al. 2021), where the last piece of a word says
// that it is the last, and Qwen2's, whose words have their white space with them.
#include <algorithm>
#include <array>
#include <optional>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/text/bpe.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer_model.h"

namespace tessera::data {

namespace {

constexpr std::string_view kStart = "<|startoftext|>", kEnd = "<|endoftext|>", kLast = "</w>";
constexpr size_t kMostMerges = 49152 - 256 - 2;  // of CLIP's: of a file that has more, the rest is left out

/// A printable character for each byte: itself where it is one, those from U+0100 on for the others.
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> characters;
  const auto utf8 = [](int point) {
    if (point < 0x80) return std::string(1, static_cast<char>(point));
    return std::string{static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
  };
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[static_cast<size_t>(byte)] = utf8(printable ? byte : next++);
  }
  return characters;
}

/// vocab.json, and merges.txt beside it, whose first line says its version in some files.
BpeTable read_table(const std::string& vocabulary, const std::filesystem::path& path, size_t most_merges) {
  BpeTable table;
  const checkpoint::Json json = checkpoint::parse_json(vocabulary, path.string());
  check_input(json.is_object(), "data.tokenizer", path.string() + ": expected pieces with their ids",
              "give the vocab.json that came with the text encoder");
  for (const auto& [piece, id] : json.items())
    table.pieces.emplace_back(piece, checkpoint::json_integer(id, path.string()));
  const std::filesystem::path file = path.parent_path() / "merges.txt";
  const std::string merges = checkpoint::read_text(file);
  size_t at = merges.starts_with("#version") ? merges.find('\n') : 0;
  for (; at < merges.size() && table.merges.size() < most_merges; ++at) {
    const size_t end = std::min(merges.find('\n', at), merges.size());
    const std::string line = merges.substr(at, end - at);
    const size_t space = line.find(' ');
    check_input(space != line.npos || line.empty(), "data.tokenizer",
                file.string() + ": '" + printable(line.substr(0, 40)) + "' is no pair of pieces",
                "give the merges.txt that came with vocab.json");
    if (!line.empty()) table.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    at = end;
  }
  return table;
}

void warn_without_icu(const std::string& file, const char* model) {
  if (compose("e\u0301") != "\u00E9")
    log::warn(file + ": this build has no ICU, so captions beyond ASCII get other ids than " + model +
              " was trained with");
}

class ClipModel final : public TokenizerModel {
 public:
  ClipModel(const BpeTable& table, const std::string& file) : bpe_(table, file) {
    warn_without_icu(file, "CLIP");
    const auto id_of = [&](std::string_view piece) {
      const auto found =
          std::ranges::find(table.pieces, piece, [](const auto& p) -> std::string_view { return p.first; });
      check_input(found != table.pieces.end(), "data.tokenizer", file + ": has no piece '" + std::string(piece) + "'",
                  "give the vocab.json of CLIP's tokenizer");
      return found->second;
    };
    bos = id_of(kStart);
    eos = pad = unk = id_of(kEnd);
    size = static_cast<int64_t>(table.pieces.size());
    const auto characters = byte_characters();
    for (size_t byte = 0; byte < characters.size(); ++byte) {
      inner_[byte] = static_cast<int32_t>(id_of(characters[byte]));
      last_[byte] = static_cast<int32_t>(id_of(characters[byte] + std::string(kLast)));
    }
  }

  std::string clean(std::string_view text) const override { return clip_text(text); }
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const override {
    std::vector<int64_t> ids = {bos};
    for (const std::string_view word : clip_words(text)) {
      if (word == kStart || word == kEnd) {
        ids.push_back(word == kStart ? bos : eos);
        continue;
      }
      std::vector<int32_t> bytes;
      for (const char byte : word) bytes.push_back(inner_[static_cast<uint8_t>(byte)]);
      bytes.back() = last_[static_cast<uint8_t>(word.back())];
      bpe_.append_merged(std::move(bytes), ids);
    }
    ids.resize(std::min(ids.size(), static_cast<size_t>(std::max<int64_t>(1, max_length - 1))));
    if (max_length > 1) ids.push_back(eos);
    return ids;
  }

 private:
  const Bpe bpe_;
  std::array<int32_t, 256> inner_ = {}, last_ = {};
};

}  // namespace

OpenTokenizer open_clip(const std::string& vocabulary, const std::filesystem::path& path) {
  return std::make_unique<ClipModel>(read_table(vocabulary, path, kMostMerges), path.string());
}

namespace {

class QwenModel final : public TokenizerModel {
 public:
  QwenModel(const BpeTable& table, const std::string& file) : bpe_(table, file) {
    warn_without_icu(file, "Qwen2");
    const auto id_of = [&](const auto& list, std::string_view piece) {
      const auto found = std::ranges::find(list, piece, [](const auto& p) -> std::string_view { return p.first; });
      return found == list.end() ? int64_t{-1} : found->second;
    };
    pad = unk = id_of(table.own, kEnd);
    eos = id_of(table.own, "<|im_end|>");
    check_input(pad >= 0 && eos >= 0 && id_of(table.own, "<|im_start|>") >= 0, "data.tokenizer",
                file + ": Qwen2's tokens <|endoftext|>, <|im_start|> and <|im_end|> are not among the added ones",
                "give its tokenizer.json, or the tokenizer_config.json that came with its vocab.json");
    for (const auto& list : {table.pieces, table.own})
      for (const auto& [piece, id] : list) size = std::max(size, id + 1);
    const auto characters = byte_characters();
    for (size_t byte = 0; byte < characters.size(); ++byte) {
      bytes_[byte] = static_cast<int32_t>(id_of(table.pieces, characters[byte]));
      check_input(bytes_[byte] >= 0, "data.tokenizer", file + ": has no piece for the byte " + std::to_string(byte),
                  "the file is damaged: fetch it again");
    }
  }

  std::string clean(std::string_view text) const override { return std::string(text); }
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const override {
    std::vector<int64_t> ids;
    bpe_.cut(text, ids, [&](std::string_view part) {
      const std::string composed = compose(std::string(part));
      for (const std::string_view word : qwen_words(composed)) {
        std::vector<int32_t> pieces;
        for (const char byte : word) pieces.push_back(bytes_[static_cast<uint8_t>(byte)]);
        bpe_.append_merged(std::move(pieces), ids);
      }
    });
    ids.resize(std::min(ids.size(), static_cast<size_t>(max_length)));
    return ids;
  }

 private:
  const Bpe bpe_;
  std::array<int32_t, 256> bytes_ = {};
};

using checkpoint::Json;

/// A JSON file beside a tokenizer's; null where there is none.
Json json_beside(const std::filesystem::path& path, const char* name) {
  const std::filesystem::path file = path.parent_path() / name;
  return std::filesystem::exists(file) ? checkpoint::parse_json(checkpoint::read_text(file), file.string()) : Json();
}

/// The system message that the template of a folder puts before a conversation without one: what stands between the
/// words that a template of this form has around it.
std::optional<std::string> default_system(const std::filesystem::path& path) {
  std::string words;
  for (const char* name : {"tokenizer_config.json", "chat_template.json"})
    if (const Json json = json_beside(path, name); json.is_object() && json.contains("chat_template"))
      words += json["chat_template"].is_string() ? json["chat_template"].get<std::string>() : "";
  if (const auto file = path.parent_path() / "chat_template.jinja"; std::filesystem::exists(file))
    words += checkpoint::read_text(file);
  constexpr std::string_view kRole = "<|im_start|>system";
  for (const std::string_view line : {"\n", "\\n"}) {  // a template's text has the line end, or its escape
    const std::string begin = std::string(kRole) + std::string(line);
    const size_t at = words.find(begin), end = at == words.npos ? at : words.find("<|im_end|>", at);
    if (end != words.npos) return words.substr(at + begin.size(), end - at - begin.size());
  }
  return std::nullopt;
}

}  // namespace

OpenTokenizer open_qwen(const BpeTable& table, const std::filesystem::path& path) {
  auto model = std::make_unique<QwenModel>(table, path.string());
  model->chats = true;
  model->default_system = default_system(path);
  return model;
}

OpenTokenizer open_qwen(const std::string& vocabulary, const std::filesystem::path& path) {
  BpeTable table = read_table(vocabulary, path, std::string::npos);
  const Json config = json_beside(path, "tokenizer_config.json"), older = json_beside(path, "added_tokens.json");
  if (config.is_object() && config.contains("added_tokens_decoder"))
    for (const auto& [id, token] : config["added_tokens_decoder"].items())
      table.own.emplace_back(
          checkpoint::json_string(checkpoint::json_member(token, "content", path.string()), path.string()),
          checkpoint::json_integer(Json::parse(id, nullptr, false), path.string()));
  else if (older.is_object())
    for (const auto& [token, id] : older.items())
      table.own.emplace_back(token, checkpoint::json_integer(id, path.string()));
  return open_qwen(table, path);
}

}  // namespace tessera::data
