#pragma once
// What a file of a tokenizer becomes: the part of Tokenizer that differs between algorithms.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct Tokenizer::Model {
  int64_t pad = -1, bos = -1, eos = -1, unk = -1, size = 0;
  virtual ~Model() = default;
  virtual std::string clean(std::string_view text) const = 0;  ///< as the encoder's pipelines do
  /// The ids that an encoder gets for clean text: with bos or eos, at most `max_length`.
  virtual std::vector<int64_t> encode(std::string_view text, int64_t max_length) const = 0;
};

using TokenizerModel = std::unique_ptr<const Tokenizer::Model>;

/// A SentencePiece model. Throws UserError (input), also in a build without SentencePiece; `path` is for messages.
TokenizerModel open_sentencepiece(const std::string& bytes, const Path& path);
/// Byte-pair encoding: tokenizer.json of Gemma. Throws UserError (input).
TokenizerModel open_bpe_json(const std::string& text, const Path& path);
/// The same of a SentencePiece model; null for models of another algorithm. Needs no SentencePiece.
TokenizerModel open_bpe_model(const std::string& bytes);

}  // namespace tessera::data
