#pragma once
// Text to token ids with a SentencePiece model, as the text encoders of the T5 family were trained.
//
//   Tokenizer tokenizer("umt5/spiece.model");
//   std::vector<int64_t> ids = tokenizer.encode("a cat &amp; a dog", 512);     // ends with eos, at most 512
//
// A program built without SentencePiece (no_text.cpp) has the same functions; each throws a UserError that says so.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

using Path = std::filesystem::path;

bool has_tokenizer();  ///< false in a build without SentencePiece

class Tokenizer {
 public:
  explicit Tokenizer(const Path& model);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Cleans (clean_text), splits, cuts to max_length - 1 and appends eos. Any number of threads may call it.
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const;
  /// The same for text that is clean already.
  std::vector<int64_t> encode_clean(std::string_view text, int64_t max_length) const;

  // As the model file says, never assumed: released umt5 and the small test model number them differently.
  int64_t pad_id() const { return pad_; }
  int64_t eos_id() const { return eos_; }
  int64_t unk_id() const { return unk_; }
  int64_t size() const { return size_; }

 private:
  struct Model;
  std::unique_ptr<const Model> model_;
  int64_t pad_ = 0, eos_ = 0, unk_ = 0, size_ = 0;
};

/// Makes a small unigram model from a few captions (one is enough) and writes it to `out`: at most `vocabulary` pieces,
/// pad 0, eos 1, unk 2, no bos, and a piece for each byte, so that any text can be encoded. The same captions give the
/// same file. `vocabulary` must leave room for the bytes and the captions' characters: 320 is little, 1000 plenty.
void train_tokenizer(const std::vector<std::string>& captions, int vocabulary, const Path& out);

}  // namespace tessera::data
