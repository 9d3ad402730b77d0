#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <charconv>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/data/text/tokenizer_model.h"

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
    return ended({pieces.begin(), pieces.end()}, max_length);
  }

  /// T5's own tokenizer cuts special tokens out of the text, and encodes each part between them by itself.
  std::vector<int64_t> encode_written(std::string_view text, int64_t max_length) const override {
    std::vector<int64_t> ids;
    const auto add = [&](std::string_view part) {
      std::vector<int> pieces;
      const auto status = processor.Encode({part.data(), part.size()}, &pieces);
      check_internal(status.ok(), "data.tokenizer", status.ToString());
      ids.insert(ids.end(), pieces.begin(), pieces.end());
    };
    size_t begin = 0;
    for (size_t at = text.find('<'); at != text.npos; at = text.find('<', std::max(at + 1, begin))) {
      const auto [id, length] = special_at(text.substr(at));
      if (length == 0) continue;
      std::string_view before = text.substr(begin, at - begin);
      begin = at + length;
      if (id >= size) {  // they take the white space around them
        while (!before.empty() && is_blank(before.back())) before.remove_suffix(1);
        while (begin < text.size() && is_blank(text[begin])) ++begin;
      }
      add(before);
      ids.push_back(id);
    }
    add(text.substr(begin));
    if (!ids.empty() && ids.back() == eos) ids.pop_back();  // it ends by itself
    return ended(std::move(ids), max_length);
  }

 private:
  static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

  std::vector<int64_t> ended(std::vector<int64_t> ids, int64_t max_length) const {
    ids.resize(std::min(ids.size(), static_cast<size_t>(max_length - 1)));
    ids.push_back(eos);
    return ids;
  }

  /// The special token that `text` begins with, and its bytes; 0: none. The further ones count down from the last id.
  std::pair<int64_t, size_t> special_at(std::string_view text) const {
    constexpr int64_t kFurther = 100;
    for (const auto& [name, id] : {std::pair<std::string_view, int64_t>{"<pad>", pad}, {"</s>", eos}, {"<unk>", unk}})
      if (text.starts_with(name)) return {id, name.size()};
    constexpr std::string_view kName = "<extra_id_";
    if (!text.starts_with(kName)) return {-1, 0};
    int64_t number = 0;
    const char* first = text.data() + kName.size();
    const auto [end, error] = std::from_chars(first, text.data() + text.size(), number);
    const bool plain = error == std::errc() && *first != '-' && (*first != '0' || end == first + 1);
    if (!plain || number >= kFurther || end == text.data() + text.size() || *end != '>') return {-1, 0};
    return {size + kFurther - 1 - number, static_cast<size_t>(end + 1 - text.data())};
  }
};

/// What the library finds wrong; empty: nothing. Its index of pieces throws where the others return: a piece may be empty.
std::string load(sentencepiece::SentencePieceProcessor& processor, const std::string& bytes) {
  try {
    const auto status = processor.LoadFromSerializedProto(bytes);
    return status.ok() ? "" : status.ToString();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

OpenTokenizer open_sentencepiece(const std::string& bytes, const Path& path) {
  auto model = std::make_unique<SentencePieceModel>();
  const std::string fault = load(model->processor, bytes);
  check_input(fault.empty(), "data.tokenizer", path.string() + ": not a SentencePiece model (" + fault + ")",
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
