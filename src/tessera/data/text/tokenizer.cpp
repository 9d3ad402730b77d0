#include "tessera/data/text/tokenizer.h"

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/data/text/tokenizer_model.h"

namespace tessera::data {

namespace {

constexpr const char *kVocabulary = "vocab.json", *kMerges = "merges.txt", *kSettings = "tokenizer_config.json";

OpenTokenizer open_json(const std::string& text, const Path& path) {
  const checkpoint::Json json = checkpoint::parse_json(text, path.string());
  const checkpoint::Json& model = checkpoint::json_member(json, "model", path.string());
  const bool unigram = model.is_object() && model.contains("type") && model["type"] == "Unigram";
  return unigram ? open_unigram_json(json, path) : open_bpe_json(json, path);
}

/// Whether a vocab.json is Qwen2's, of words with the blank before them, and not CLIP's, of words with their end.
bool is_qwen(const std::string& vocabulary) {
  const bool blanks = vocabulary.find("\u0120") != vocabulary.npos || vocabulary.find("\\u0120") != vocabulary.npos;
  return blanks && vocabulary.find("</w>\"") == vocabulary.npos;
}

/// Whether the tokenizer of a folder has no file but its settings, which name it, or the model's config.json does.
bool is_byt5(const Path& folder) {
  const auto names_it = [&](const char* name) {
    const Path file = folder / name;
    return std::filesystem::exists(file) && checkpoint::read_text(file).find("ByT5Tokenizer") != std::string::npos;
  };
  return std::filesystem::exists(folder / kSettings) && (names_it(kSettings) || names_it("config.json"));
}

OpenTokenizer open(const Path& path) {
  const std::string bytes = checkpoint::read_text(path);  // names a file that cannot be read
  if (path.filename() == kVocabulary) return is_qwen(bytes) ? open_qwen(bytes, path) : open_clip(bytes, path);
  if (path.filename() == kSettings) return open_byt5(bytes, path);
  if (path.extension() == ".json") return open_json(bytes, path);
  OpenTokenizer model = open_bpe_model(bytes);
  return model ? std::move(model) : open_sentencepiece(bytes, path);
}

}  // namespace

Path tokenizer_in(const Path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  // CLIP's tokenizer.json, which may be there too, is of another form
  if (std::filesystem::exists(path / kVocabulary) && std::filesystem::exists(path / kMerges)) return path / kVocabulary;
  // SentencePiece's own file of T5 says more than what transformers makes of it
  for (const char* name : {"spiece.model", "tokenizer.json", "tokenizer.model"})
    if (std::filesystem::exists(path / name)) return path / name;
  if (is_byt5(path)) return path / kSettings;
  const checkpoint::ModelFolder folder = checkpoint::find_parts(path);
  if (const checkpoint::ModelPart* part = folder.find("tokenizer"); part && part->weights != path)
    return tokenizer_in(part->weights);
  throw UserError(
      Exit::input, "data.tokenizer",
      path.string() + ": holds no tokenizer.json, tokenizer.model or spiece.model, and no vocab.json with a merges.txt",
      "give the tokenizer's folder or file that came with the text encoder");
}

std::string tokenizer_text(const Path& path) {
  const Path file = tokenizer_in(path);
  std::string text = checkpoint::read_text(file);
  if (file.filename() == kVocabulary) {
    const bool qwen = is_qwen(text);  // whose added tokens and template stand in a third file
    text += checkpoint::read_text(file.parent_path() / kMerges);
    if (const Path settings = file.parent_path() / kSettings; qwen && std::filesystem::exists(settings))
      text += checkpoint::read_text(settings);
  }
  return text;
}

Tokenizer::Tokenizer(const Path& path) : model_(open(tokenizer_in(path))) {}
Tokenizer::Tokenizer(OpenTokenizer model) : model_(std::move(model)) {}
Tokenizer Tokenizer::of_bytes() { return Tokenizer(open_byt5()); }
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::string Tokenizer::clean(std::string_view text) const { return model_->clean(text); }

std::vector<int64_t> Tokenizer::encode(std::string_view text, int64_t max_length) const {
  return encode_clean(clean(text), max_length);
}

std::vector<int64_t> Tokenizer::encode_clean(std::string_view text, int64_t max_length) const {
  check_internal(max_length > 0, "data.tokenizer",
                 "max_length " + std::to_string(max_length) + " leaves no room for a token");
  return model_->encode(text, max_length);
}

std::vector<int64_t> Tokenizer::encode_written(std::string_view text, int64_t max_length) const {
  check_internal(max_length > 0, "data.tokenizer",
                 "max_length " + std::to_string(max_length) + " leaves no room for a token");
  return model_->encode_written(text, max_length);
}

bool Tokenizer::chats() const { return model_->chats; }
const std::optional<std::string>& Tokenizer::default_system() const { return model_->default_system; }
int64_t Tokenizer::pad_id() const { return model_->pad; }
int64_t Tokenizer::bos_id() const { return model_->bos; }
int64_t Tokenizer::eos_id() const { return model_->eos; }
int64_t Tokenizer::unk_id() const { return model_->unk; }
int64_t Tokenizer::size() const { return model_->size; }

}  // namespace tessera::data
