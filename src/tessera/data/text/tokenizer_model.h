#pragma once
// What a file of a tokenizer becomes: the part of Tokenizer that differs between algorithms.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

struct TokenizerModel {
  int64_t pad = -1, bos = -1, eos = -1, unk = -1, size = 0;
  bool chats = false;                         ///< of a model of conversations (data::Conversation)
  std::optional<std::string> default_system;  ///< of a conversation without a system message
  virtual ~TokenizerModel() = default;
  virtual std::string clean(std::string_view text) const = 0;  ///< as the encoder's pipelines do
  /// The ids that an encoder gets for clean text: with bos or eos, at most `max_length`.
  virtual std::vector<int64_t> encode(std::string_view text, int64_t max_length) const = 0;
  /// The same for text as it was written (Tokenizer::encode_written).
  virtual std::vector<int64_t> encode_written(std::string_view text, int64_t max_length) const {
    return encode(clean(text), max_length);
  }
};

using OpenTokenizer = std::unique_ptr<const TokenizerModel>;

/// A SentencePiece model. Throws UserError (input), also in a build without SentencePiece; `path` is for messages.
OpenTokenizer open_sentencepiece(const std::string& bytes, const std::filesystem::path& path);
/// tokenizer.json of transformers: byte-pair encoding as Gemma's or Qwen2's, or a unigram model as T5's. Throws UserError
/// (input).
OpenTokenizer open_bpe_json(const nlohmann::json& json, const std::filesystem::path& path);
OpenTokenizer open_unigram_json(const nlohmann::json& json, const std::filesystem::path& path);
/// The same of a SentencePiece model; null for models of another algorithm. Needs no SentencePiece.
OpenTokenizer open_bpe_model(const std::string& bytes);
/// Byte-pair encoding word by word: CLIP's vocab.json, and the merges.txt beside it. Throws UserError (input).
OpenTokenizer open_clip(const std::string& vocabulary, const std::filesystem::path& path);
/// The same of Qwen2, whose added tokens stand in tokenizer_config.json; or of a table with them.
OpenTokenizer open_qwen(const std::string& vocabulary, const std::filesystem::path& path);
struct BpeTable;
OpenTokenizer open_qwen(const BpeTable& table, const std::filesystem::path& path);
/// Bytes as ids: as every byT5 has them, or with what its tokenizer_config.json adds. Throws UserError (input).
OpenTokenizer open_byt5();
OpenTokenizer open_byt5(const std::string& config, const std::filesystem::path& path);

}  // namespace tessera::data
