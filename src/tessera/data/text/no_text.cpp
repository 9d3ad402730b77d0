// The unigram tokenizer of a build without SentencePiece (-DTESSERA_TEXT=OFF); sentencepiece.cpp is the other one.
#include "tessera/base/check.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/data/text/tokenizer_model.h"

namespace tessera::data {

namespace {
[[noreturn]] void refuse(const Path& path) {
  throw UserError(Exit::input, "data.tokenizer", path.string() + ": this program was built without SentencePiece",
                  "install libsentencepiece-dev and build with -DTESSERA_TEXT=ON, or use samples prepared elsewhere");
}
}  // namespace

bool has_tokenizer() { return false; }

OpenTokenizer open_sentencepiece(const std::string&, const Path& path) { refuse(path); }

void train_tokenizer(const std::vector<std::string>&, int, const Path& out) { refuse(out); }

}  // namespace tessera::data
