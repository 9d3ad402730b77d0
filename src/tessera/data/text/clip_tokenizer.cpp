// CLIP's tokenizer (Radford et al. 2021): byte-pair encoding of words, whose last piece says that it is the last.
#include <algorithm>
#include <array>

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
constexpr size_t kMostMerges = 49152 - 256 - 2;  // of a file that has more, the rest is left out

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

BpeTable read_table(const std::string& vocabulary, const std::filesystem::path& path) {
  BpeTable table;
  const checkpoint::Json json = checkpoint::parse_json(vocabulary, path.string());
  check_input(json.is_object(), "data.tokenizer", path.string() + ": expected pieces with their ids",
              "give the vocab.json of CLIP's tokenizer");
  for (const auto& [piece, id] : json.items())
    table.pieces.emplace_back(piece, checkpoint::json_integer(id, path.string()));
  const std::filesystem::path file = path.parent_path() / "merges.txt";
  const std::string merges = checkpoint::read_text(file);
  size_t at = merges.find('\n');  // behind the line of its version
  while (at != merges.npos && ++at < merges.size() && table.merges.size() < kMostMerges) {
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

class ClipModel final : public TokenizerModel {
 public:
  ClipModel(const BpeTable& table, const std::string& file) : bpe_(table, file) {
    if (compose("e\u0301") != "\u00E9")
      log::warn(file + ": this build has no ICU, so captions beyond ASCII get other ids than CLIP was trained with");
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
  return std::make_unique<ClipModel>(read_table(vocabulary, path), path.string());
}

}  // namespace tessera::data
