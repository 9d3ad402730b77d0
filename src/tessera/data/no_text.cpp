// The tokenizer of a build without SentencePiece (-DTESSERA_TEXT=OFF); sentencepiece.cpp is the other one.
#include "tessera/base/check.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

namespace {
[[noreturn]] void refuse(const Path& path) {
  throw UserError(Exit::input, "data.tokenizer", path.string() + ": this program was built without SentencePiece",
                  "install libsentencepiece-dev and build with -DTESSERA_TEXT=ON, or use samples prepared elsewhere");
}
}  // namespace

bool has_tokenizer() { return false; }

struct Tokenizer::Model {};

Tokenizer::Tokenizer(const Path& model) { refuse(model); }
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int64_t> Tokenizer::encode(std::string_view, int64_t) const { refuse({}); }
std::vector<int64_t> Tokenizer::encode_clean(std::string_view, int64_t) const { refuse({}); }

void train_tokenizer(const std::vector<std::string>&, int, const Path& out) { refuse(out); }

}  // namespace tessera::data
