#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/text.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

using sentencepiece::SentencePieceTrainer;

struct Tokenizer::Model {
  sentencepiece::SentencePieceProcessor processor;
};

bool has_tokenizer() { return true; }

Tokenizer::Tokenizer(const Path& path) {
  auto model = std::make_unique<Model>();
  const std::string bytes = checkpoint::read_text(path);  // names a file that cannot be read
  const auto status = model->processor.LoadFromSerializedProto(bytes);
  check_input(status.ok(), "data.tokenizer", path.string() + ": not a SentencePiece model (" + status.ToString() + ")",
              "give the spiece.model or tokenizer.model of the text encoder");
  pad_ = model->processor.pad_id();
  eos_ = model->processor.eos_id();
  unk_ = model->processor.unk_id();
  size_ = model->processor.GetPieceSize();
  check_input(eos_ >= 0 && pad_ >= 0, "data.tokenizer",
              path.string() + ": the model has no " + (eos_ < 0 ? "eos" : "pad") + " piece",
              "text encoders of the T5 family need both; give the file that came with the encoder");
  model_ = std::move(model);
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int64_t> Tokenizer::encode(std::string_view text, int64_t max_length) const {
  return encode_clean(clean_text(text), max_length);
}

std::vector<int64_t> Tokenizer::encode_clean(std::string_view text, int64_t max_length) const {
  check_internal(max_length > 0, "data.tokenizer",
                 "max_length " + std::to_string(max_length) + " leaves no room for eos");
  std::vector<int> pieces;
  const auto status = model_->processor.Encode({text.data(), text.size()}, &pieces);
  check_internal(status.ok(), "data.tokenizer", status.ToString());
  const auto kept = std::min(pieces.size(), static_cast<size_t>(max_length - 1));
  std::vector<int64_t> ids(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(kept));
  ids.push_back(eos_);
  return ids;
}

namespace {
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  size_t at_ = 0;
};
}  // namespace

void train_tokenizer(const std::vector<std::string>& captions, int vocabulary, const Path& out) {
  std::vector<std::string> lines;
  for (const std::string& caption : captions)
    if (std::string clean = clean_text(caption); !clean.empty()) lines.push_back(std::move(clean));
  check_input(!lines.empty(), "data.train_tokenizer", "no caption has any text", "write captions, or give a tokenizer");
  Lines iterator(std::move(lines));
  std::string model;
  const auto status = SentencePieceTrainer::Train({{"model_type", "unigram"},
                                                   {"vocab_size", std::to_string(vocabulary)},
                                                   {"hard_vocab_limit", "false"},  // few captions have few pieces
                                                   {"byte_fallback", "true"},
                                                   {"character_coverage", "1.0"},
                                                   {"pad_id", "0"},
                                                   {"eos_id", "1"},
                                                   {"unk_id", "2"},
                                                   {"bos_id", "-1"},
                                                   {"num_threads", "1"},
                                                   {"minloglevel", "2"}},
                                                  &iterator, &model);
  check_input(status.ok(), "data.train_tokenizer", status.ToString(),
              "raise the vocabulary size: the bytes take 256 pieces, the captions' characters come on top");
  checkpoint::write_text(out, model);
}

}  // namespace tessera::data
