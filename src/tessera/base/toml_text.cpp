#include "tessera/base/toml_text.h"

#include <cstdio>
#include <vector>

#include "tessera/base/text.h"

namespace tessera {

namespace {

constexpr int kMostDepth = 32;

/// Walks over a text as a TOML parser does, as far as strings and comments go.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}

  std::variant<TomlProblem, std::string> run() {
    if (static_cast<int64_t>(text_.size()) > kMostTomlBytes) return TomlProblem{1, "the text has more than 8 MiB"};
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    if (text_.starts_with(kMark)) at_ = kMark.size();
    while (at_ < text_.size() && !what_) step();
    if (what_) return TomlProblem{line_, what_};
    std::string readable;
    size_t done = 0;
    for (const size_t at : first_of_lines_) {
      const Utf8 letter = utf8_at(text_, at);
      char code[11];
      std::snprintf(code, sizeof code, "\\U%08X", letter.code);
      readable.append(text_.substr(done, at - done)).append(code);
      done = at + letter.bytes;
    }
    return readable.append(text_.substr(done));
  }

 private:
  void step() {
    const char c = text_[at_];
    if (c == '#') return quoted("\n", false);
    const bool quote = c == '"' || c == '\'';
    // toml++ 3.3 reads on behind the first letter of a number or date, over these, into undefined behaviour at a letter
    // beyond ASCII. TOML has none of them there.
    if (bare_ && (quote || (value_ && (c == '[' || c == '{' || c == '=')))) {
      what_ = "a quote, bracket or equals sign within a value or key that began without one";
      return;
    }
    if (quote) return string(c);
    if (static_cast<unsigned char>(c) >= 0x80) {
      what_ = utf8_at(text_, at_).valid ? "a letter beyond ASCII outside of quotes" : "not UTF-8";
      return;
    }
    if (c == '[' || c == '{')
      open(c);
    else if (c == ']' || c == '}')
      close();
    else if (c == ',' || c == '=' || c == '\n')
      next(c);
    else if (c == '.' && !value_)
      bare_ = false;  // of a dotted key
    else if (c != ' ' && c != '\t' && c != '\r')
      bare_ = true;
    if (c == '.') ++dots_;
    if (brackets_.size() > kMostDepth || dots_ > kMostDepth) what_ = "nested deeper than 32";
    ++at_;
  }

  void open(char bracket) {
    brackets_.push_back(bracket == '[' && value_);
    if (bracket == '{') value_ = false;  // keys come first
    bare_ = false;
    dots_ = 0;
  }

  void close() {
    if (!brackets_.empty()) brackets_.pop_back();
    value_ = bare_ = true;  // nothing but a comma, a bracket or the line's end comes behind it
  }

  /// Behind a comma, an equals sign or the end of a line: whether a value stands there, or a key.
  void next(char c) {
    value_ = c == '=' || (!brackets_.empty() && brackets_.back());
    bare_ = false;
    dots_ = 0;
    line_ += c == '\n';
  }

  void string(char quote) {
    const std::string_view longest = quote == '"' ? "\"\"\"" : "'''";
    const std::string_view quotes = text_.substr(at_).starts_with(longest) ? longest : longest.substr(0, 1);
    at_ += quotes.size();
    quoted(quotes, quote == '"');
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
      if (c == '\\' && escapes) escaped(end.size() > 1);
    }
  }

  /// Behind a backslash. What is escaped ends nothing; a line end, and the blanks of the lines behind it, are skipped.
  void escaped(bool several_lines) {
    if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\\')) {
      ++at_;
      return;
    }
    const std::string_view blanks = several_lines ? " \t\r\n" : " \t";
    bool line_ended = false;
    for (; at_ < text_.size() && blanks.find(text_[at_]) != blanks.npos; ++at_)
      if (text_[at_] == '\n') {
        line_ended = true;
        ++line_;
      }
    if (at_ == text_.size() || static_cast<unsigned char>(text_[at_]) < 0x80) return;
    if (line_ended)
      first_of_lines_.push_back(at_);
    else
      what_ = "a backslash before a letter beyond ASCII";
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1, dots_ = 0;
  std::vector<bool> brackets_;  ///< of those open: whether it is an array's
  bool value_ = false;          ///< a value stands here, not a key
  bool bare_ = false;           ///< behind the first letter of what has no quotes
  const char* what_ = nullptr;
  std::vector<size_t> first_of_lines_;  ///< letters beyond ASCII before which a backslash at a line's end skips blanks
};

}  // namespace

std::variant<TomlProblem, std::string> readable_toml(std::string_view text) { return Scan(text).run(); }

}  // namespace tessera
