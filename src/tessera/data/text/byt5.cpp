// byT5's tokenizer (Xue et al. 2022): a token for each byte, behind three of its own; and the tokens for colours and fonts
// that an encoder of glyphs has beside them.
#include <algorithm>
#include <array>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/text/bpe.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer_model.h"

namespace tessera::data {

namespace {

using checkpoint::Json;
namespace fs = std::filesystem;

constexpr const char* kByt5Class = "ByT5Tokenizer";
constexpr int64_t kPadId = 0, kEndId = 1, kUnkId = 2, kFirstByte = 3;
constexpr int64_t kExtraIds = 125;  ///< "<extra_id_0>" and so on, behind the bytes
constexpr int64_t kFirstAdded = kFirstByte + 256 + kExtraIds;
/// Tokens with which the white space around them goes.
constexpr std::array<std::pair<std::string_view, int64_t>, 3> kGreedy = {
    {{"<pad>", kPadId}, {"</s>", kEndId}, {"<unk>", kUnkId}}};

struct ByteModel final : TokenizerModel {
  ByteModel(const BpeTable& table, const std::string& file) : own(table, file) {
    pad = kPadId, eos = kEndId, unk = kUnkId;
    for (const auto& [token, id] : table.own) size = std::max(size, id + 1);
  }
  const Bpe own;

  std::string clean(std::string_view text) const override { return std::string(text); }
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const override {
    std::vector<int64_t> ids;
    own.cut(text, ids, [&](std::string_view part) {
      // the token before a part is the last one; that behind it begins where the part ends in the text
      const bool behind_greedy = !ids.empty() && ids.back() < kFirstByte;
      const std::string_view rest = text.substr(static_cast<size_t>(part.data() + part.size() - text.data()));
      const bool before_greedy =
          std::ranges::any_of(kGreedy, [&](const auto& token) { return rest.starts_with(token.first); });
      for (const char byte : without_space(part, behind_greedy, before_greedy))
        ids.push_back(kFirstByte + static_cast<uint8_t>(byte));
    });
    ids.resize(std::min(ids.size(), static_cast<size_t>(max_length - 1)));
    if (ids.empty() || ids.back() != kEndId) ids.push_back(kEndId);  // a text may end by itself
    return ids;
  }
};

/// Tokens by their number in a file of the release of glyphs: {"Montserrat": 0, ...}.
std::vector<std::string> by_number(const fs::path& file) {
  const Json json = checkpoint::parse_json(checkpoint::read_text(file), file.string());
  check_input(json.is_object(), "data.tokenizer", file.string() + ": expected names with their numbers",
              "the file is damaged: fetch it again");
  std::vector<std::pair<int64_t, std::string>> all;
  for (const auto& [name, number] : json.items())
    all.emplace_back(checkpoint::json_integer(number, file.string()), name);
  std::ranges::sort(all);
  std::vector<std::string> names;
  for (const auto& [number, name] : all) names.push_back(name);
  return names;
}

/// What Glyph-SDXL-v2 adds: <color-0> and so on, and <xx-font-0> and so on, xx the language that a font's name begins with.
std::vector<std::string> glyph_tokens(const fs::path& assets) {
  std::vector<std::string> tokens;
  const size_t colours = by_number(assets / "color_idx.json").size();
  for (size_t i = 0; i < colours; ++i) tokens.push_back("<color-" + std::to_string(i) + ">");
  const std::vector<std::string> fonts = by_number(assets / "multilingual_10-lang_idx.json");
  for (size_t i = 0; i < fonts.size(); ++i)
    tokens.push_back("<" + fonts[i].substr(0, 2) + "-font-" + std::to_string(i) + ">");
  return tokens;
}

BpeTable usual_tokens() {
  BpeTable table;
  for (const auto& [token, id] : kGreedy) table.own.emplace_back(token, id);
  for (int64_t i = 0; i < kExtraIds; ++i)
    table.own.emplace_back("<extra_id_" + std::to_string(i) + ">", kFirstAdded - kExtraIds + i);
  return table;
}

}  // namespace

OpenTokenizer open_byt5() { return std::make_unique<ByteModel>(usual_tokens(), "byT5"); }

OpenTokenizer open_byt5(const std::string& config, const fs::path& path) {
  BpeTable table = usual_tokens();
  const Json json = checkpoint::parse_json(config, path.string());
  check_input(json.is_object() && json.value("tokenizer_class", Json(kByt5Class)) == kByt5Class, "data.tokenizer",
              path.string() + ": not the settings of byT5's tokenizer",
              "give the folder of the text encoder's tokenizer");
  const Json listed = json.value("added_tokens_decoder", Json::object());
  check_input(listed.is_object(), "data.tokenizer", path.string() + ": added_tokens_decoder is no object",
              "the file is damaged: fetch it again");
  bool added = false;
  for (const auto& [number, token] : listed.items()) {
    const int64_t id = checkpoint::json_integer(Json::parse(number, nullptr, false), path.string());
    if (id < kFirstAdded) continue;  // those that every byT5 has
    table.own.emplace_back(
        checkpoint::json_string(checkpoint::json_member(token, "content", path.string()), path.string()), id);
    added = true;
  }
  // the release has its further tokens beside byT5's own folder
  const fs::path assets = path.parent_path().parent_path() / "Glyph-SDXL-v2" / "assets";
  if (!added && fs::exists(assets / "color_idx.json")) {
    int64_t next = kFirstAdded;
    for (const std::string& token : glyph_tokens(assets)) table.own.emplace_back(token, next++);
  }
  return std::make_unique<ByteModel>(table, path.string());
}

}  // namespace tessera::data
