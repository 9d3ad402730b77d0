#pragma once
// Text to token ids, as text encoders were trained: unigram models of the T5 family (spiece.model of SentencePiece, or
// tokenizer.json), byte-pair encoding of Gemma (tokenizer.json, or tokenizer.model of SentencePiece), of CLIP (vocab.json
// beside merges.txt) and of Qwen2 (either), bytes of byT5 (tokenizer_config.json).
//
//   Tokenizer tokenizer("umt5/spiece.model");
//   std::vector<int64_t> ids = tokenizer.encode("a cat &amp; a dog", 512);     // ends with eos, at most 512
//   Tokenizer gemma("tokenizer");                                              // a folder with either file
//   gemma.encode("A cat", 300);                                                // begins with bos
//   Tokenizer clip("tokenizer_2");
//   clip.encode("A cat", 77);                                                  // begins with bos, ends with eos
//
// A program built without SentencePiece (no_text.cpp) has the same functions; what needs it throws a UserError that says
// so. Byte-pair encoding does not.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

using Path = std::filesystem::path;

struct TokenizerModel;  // tokenizer_model.h

bool has_tokenizer();  ///< false in a build without SentencePiece

class Tokenizer {
 public:
  /// A file, or a folder that holds vocab.json and merges.txt, spiece.model, tokenizer.json or tokenizer.model, or the
  /// tokenizer_config.json of a tokenizer that has no more, or a model with a tokenizer among its parts. Throws UserError (input).
  explicit Tokenizer(const Path& model);
  /// byT5's, which needs no file: a token for each byte.
  static Tokenizer of_bytes();
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Text as the encoder's pipelines clean it: clean_text for the T5 family, lower_and_strip for Gemma, clip_text for
  /// CLIP; as it was written for Qwen2 and byT5.
  std::string clean(std::string_view text) const;
  /// Cleans and splits. T5: cut to max_length - 1, then eos; Gemma: bos, then cut to max_length; CLIP: bos, cut, eos. Any
  /// number of threads may call it.
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const;
  /// The same for text that is clean already.
  std::vector<int64_t> encode_clean(std::string_view text, int64_t max_length) const;
  /// Of text as it was written, as the encoder's own tokenizer has it without a pipeline: T5's does not clean, and gives
  /// special tokens that are spelt in the text ("</s>", "<extra_id_0>") their ids.
  std::vector<int64_t> encode_written(std::string_view text, int64_t max_length) const;

  /// Whether the encoder was trained on conversations (prompt_ids.h), and the system message of those without one.
  bool chats() const;
  const std::optional<std::string>& default_system() const;

  // As the model file says, never assumed: released umt5 and the small test model number them differently. -1: it has
  // no such token.
  int64_t pad_id() const;
  int64_t bos_id() const;
  int64_t eos_id() const;
  int64_t unk_id() const;
  int64_t size() const;

 private:
  explicit Tokenizer(std::unique_ptr<const TokenizerModel> model);

  std::unique_ptr<const TokenizerModel> model_;
};

/// The file that Tokenizer reads at `path`: itself, or the one that a folder holds. Throws UserError (input).
Path tokenizer_in(const Path& path);
/// All that it reads, for hashes.
std::string tokenizer_text(const Path& path);

/// Makes a small unigram model from a few captions (one is enough) and writes it to `out`: at most `vocabulary` pieces,
/// pad 0, eos 1, unk 2, no bos, and a piece for each byte, so that any text can be encoded. The same captions give the
/// same file. `vocabulary` must leave room for the bytes and the captions' characters: 320 is little, 1000 plenty.
void train_tokenizer(const std::vector<std::string>& captions, int vocabulary, const Path& out);

}  // namespace tessera::data
