#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/text.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_model.h"

namespace tessera::data {

using sentencepiece::SentencePieceTrainer;

bool has_tokenizer() { return true; }

namespace {

struct SentencePieceModel final : TokenizerModel {
  sentencepiece::SentencePieceProcessor processor;

  std::string clean(std::string_view text) const override { return clean_text(text); }
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const override {
    std::vector<int> pieces;
    const auto status = processor.Encode({text.data(), text.size()}, &pieces);
    check_internal(status.ok(), "data.tokenizer", status.ToString());
    const auto kept = std::min(pieces.size(), static_cast<size_t>(max_length - 1));
    std::vector<int64_t> ids(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(kept));
    ids.push_back(eos);
    return ids;
  }
};

}  // namespace

OpenTokenizer open_sentencepiece(const std::string& bytes, const Path& path) {
  auto model = std::make_unique<SentencePieceModel>();
  const auto status = model->processor.LoadFromSerializedProto(bytes);
  check_input(status.ok(), "data.tokenizer", path.string() + ": not a SentencePiece model (" + status.ToString() + ")",
              "give the spiece.model, tokenizer.model or tokenizer.json of the text encoder");
  model->pad = model->processor.pad_id();
  model->bos = model->processor.bos_id();
  model->eos = model->processor.eos_id();
  model->unk = model->processor.unk_id();
  model->size = model->processor.GetPieceSize();
  check_input(model->eos >= 0 && model->pad >= 0, "data.tokenizer",
              path.string() + ": the model has no " + (model->eos < 0 ? "eos" : "pad") + " piece",
              "text encoders of the T5 family need both; give the file that came with the encoder");
  return model;
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
