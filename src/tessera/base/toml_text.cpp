#include "tessera/base/toml_text.h"

#include "tessera/base/utf8.h"

namespace tessera {

namespace {

constexpr int kMostDepth = 32;

/// Walks over a text as a TOML parser does, as far as strings and comments go.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}

  std::optional<TomlProblem> run() {
    if (static_cast<int64_t>(text_.size()) > kMostTomlBytes) return TomlProblem{1, "the text has more than 8 MiB"};
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    if (text_.starts_with(kMark)) at_ = kMark.size();
    while (at_ < text_.size() && !what_) step();
    if (what_) return TomlProblem{line_, what_};
    return std::nullopt;
  }

 private:
  void step() {
    const char c = text_[at_];
    if (c == '#') return quoted("\n", false);
    for (const std::string_view quotes : {"\"\"\"", "'''", "\"", "'"})
      if (text_.substr(at_).starts_with(quotes)) {
        at_ += quotes.size();
        return quoted(quotes, c == '"');
      }
    if (static_cast<unsigned char>(c) >= 0x80) {
      what_ = utf8_at(text_, at_).valid ? "a letter beyond ASCII outside of quotes" : "not UTF-8";
      return;
    }
    if (c == '[' || c == '{') ++depth_, dots_ = 0;
    if (c == ']' || c == '}') depth_ -= depth_ > 0;
    if (c == ',' || c == '=' || c == '\n') dots_ = 0;
    if (c == '\n') ++line_;
    if (c == '.') ++dots_;
    if (depth_ > kMostDepth || dots_ > kMostDepth) what_ = "nested deeper than 32";
    ++at_;
  }

  /// To behind `end`. A string of one line ends with its line at the latest: what it lacks is the parser's to say.
  void quoted(std::string_view end, bool escapes) {
    while (at_ < text_.size() && !what_) {
      const char c = text_[at_];
      if (c == '\n' && end.size() == 1) return;
      if (text_.substr(at_).starts_with(end)) {
        at_ += end.size();
        return;
      }
      if (c == '\n') ++line_;
      const Utf8 letter = utf8_at(text_, at_);
      if (!letter.valid) what_ = "not UTF-8";
      at_ += letter.bytes;
      // what is escaped ends nothing; a line end is counted in its turn
      if (c == '\\' && escapes && at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\\')) ++at_;
    }
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1, depth_ = 0, dots_ = 0;
  const char* what_ = nullptr;
};

}  // namespace

std::optional<TomlProblem> toml_problem(std::string_view text) { return Scan(text).run(); }

}  // namespace tessera
