#include "tessera/tools/import/config_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;
using Value = nlohmann::ordered_json;

constexpr int kMostBases = 8;            // files that are each the other's base
constexpr int kDeepest = 100;            // brackets in brackets
constexpr int64_t kMostItems = 100'000;  // of all lists and dicts of a file
constexpr int64_t kLongest = int64_t{1} << 20;

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Lays what stands in `over` over `under`, tables by their keys.
void lay_over(Value& under, const Value& over) {
  for (const auto& [key, value] : over.items()) {
    if (key == "_delete_") continue;
    const bool replaces = value.is_object() && value.contains("_delete_") && value["_delete_"] == true;
    if (!value.is_object()) {
      under[key] = value;
      continue;
    }
    if (replaces || !under.contains(key) || !under[key].is_object()) under[key] = Value::object();
    lay_over(under[key], value);
  }
}

class Reader {
 public:
  Reader(std::string_view text, std::string file, int bases) : text_(text), file_(std::move(file)), bases_(bases) {}

  /// The values of all names, over those of the bases.
  Value assignments() {
    for (skip_lines(); !at_end(); skip_lines()) {
      const std::string name = identifier("the name of a value");
      for (const char* statement : {"import", "from", "if", "for", "while", "def", "class", "with", "try", "del"})
        if (name == statement) fail("`" + name + "`: it would have to be run");
      skip_blanks();
      if (peek() != '=' || peek(1) == '=') fail("expected `" + name + " = VALUE`");
      ++at_;
      skip_blanks();
      Value value = expression();
      skip_blanks();
      if (peek() == ',') value = tuple_without_brackets(std::move(value));
      end_of_statement();
      if (name == "_base_")
        read_bases(value);
      else
        own_[name] = std::move(value);
    }
    Value all = std::move(base_);
    lay_over(all, own_);
    std::vector<std::string> hidden;
    for (const auto& [name, value] : all.items())
      if (name.starts_with("__")) hidden.push_back(name);
    for (const std::string& name : hidden) all.erase(name);
    return all;
  }

  Value alone() {
    skip_blanks();
    Value value = expression();
    skip_blanks();
    if (!at_end()) fail("expected nothing after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<long>(std::min(at_, text_.size())), '\n');
    throw UserError(Exit::usage, "import", file_ + ", line " + std::to_string(line) + ": " + what,
                    "a configuration is read, not run: it may hold literals, names assigned before and arithmetic");
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    if (!starts(word)) return false;
    at_ += word.size();
    return true;
  }

  void skip_comment() {
    if (peek() == '#')
      while (!at_end() && peek() != '\n') ++at_;
  }
  /// Within brackets a value goes on over lines.
  void skip_blanks() {
    while (!at_end()) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\r' || (!opened_.empty() && c == '\n'))
        ++at_;
      else if (c == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n')))
        at_ += peek(1) == '\n' ? 2 : 3;
      else if (c == '#' && !opened_.empty())
        skip_comment();
      else
        return;
    }
  }
  void skip_lines() {
    if (at_ == 0) take("\xEF\xBB\xBF");
    bool new_line = true;
    while (!at_end()) {
      const char c = peek();
      if (c == '\n' || c == ';') {
        new_line = c == '\n';
        ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r') {
        const bool indents = new_line && at_ + 1 < text_.size();
        while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
        if (indents && !at_end() && peek() != '\n' && peek() != '#') fail("a line that is indented");
      } else if (c == '#') {
        skip_comment();
      } else if (starts("\"\"\"") || starts("'''")) {
        string_literal(false);  // a text that stands alone says what the file is for
      } else {
        return;
      }
    }
  }
  void end_of_statement() {
    skip_blanks();
    skip_comment();
    if (!at_end() && peek() != '\n' && peek() != ';') fail("expected the end of the line, found `" + next_word() + "`");
  }
  std::string next_word() const {
    const size_t end = std::min(text_.find_first_of(" \t\r\n", at_ + 1), at_ + 20);
    return std::string(text_.substr(at_, end - at_));
  }

  std::string identifier(const char* expected) {
    if (!is_letter(peek())) fail(std::string("expected ") + expected + ", found `" + next_word() + "`");
    const size_t from = at_;
    while (is_letter(peek()) || is_digit(peek())) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  // ---- expressions, by Python's order of operators ------------------------------------------------------------

  Value expression() {
    if (++depth_ > kDeepest) fail("more than " + std::to_string(kDeepest) + " brackets and signs in one another");
    Value value = product();
    for (skip_blanks(); peek() == '+' || peek() == '-'; skip_blanks()) {
      const char sign = text_[at_++];
      skip_blanks();
      value = sum(std::move(value), product(), sign);
    }
    --depth_;
    return value;
  }
  Value product() {
    Value value = signed_value();
    for (skip_blanks(); peek() == '*' || peek() == '/' || peek() == '%'; skip_blanks()) {
      if (starts("**")) fail("a power of what is no number");
      const std::string how = take("//") ? "//" : std::string(1, text_[at_++]);
      skip_blanks();
      value = multiply(std::move(value), signed_value(), how);
    }
    return value;
  }
  Value signed_value() {
    const char sign = peek();
    if (sign != '+' && sign != '-') return power();
    if (++depth_ > kDeepest) fail("more than " + std::to_string(kDeepest) + " brackets and signs in one another");
    ++at_;
    skip_blanks();
    Value value = signed_value();
    --depth_;
    if (!value.is_number()) fail("a sign before what is no number");
    if (sign == '+') return value;
    if (value.is_number_float()) return -value.get<double>();
    return minus(0, value.get<int64_t>());
  }
  Value power() {
    Value base = atom();
    skip_blanks();
    if (!take("**")) return base;
    skip_blanks();
    const Value exponent = signed_value();
    if (!base.is_number() || !exponent.is_number()) fail("a power of what is no number");
    if (base.is_number_integer() && exponent.is_number_integer() && exponent.get<int64_t>() >= 0) {
      int64_t result = 1;
      if (exponent.get<int64_t>() > 1000) fail("a power beyond the 1000th");
      for (int64_t i = 0; i < exponent.get<int64_t>(); ++i) result = times(result, base.get<int64_t>());
      return result;
    }
    return finite(std::pow(base.get<double>(), exponent.get<double>()));
  }

  int64_t plus(int64_t a, int64_t b) const {
    int64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? too_large() : sum;
  }
  int64_t minus(int64_t a, int64_t b) const {
    int64_t difference = 0;
    return __builtin_sub_overflow(a, b, &difference) ? too_large() : difference;
  }
  int64_t times(int64_t a, int64_t b) const {
    int64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? too_large() : product;
  }
  int64_t too_large() const { fail("a number beyond 64 bits"); }
  Value finite(double value) {
    if (!std::isfinite(value)) fail("a number that is not finite");
    return value;
  }

  Value sum(Value a, Value b, char sign) {
    if (sign == '+' && a.is_string() && b.is_string()) return bounded(a.get<std::string>() + b.get<std::string>());
    if (sign == '+' && a.is_array() && b.is_array()) {
      count(items(b));
      a.insert(a.end(), b.begin(), b.end());
      return a;
    }
    if (!a.is_number() || !b.is_number()) fail("numbers, strings and lists are added, each to its kind");
    if (a.is_number_integer() && b.is_number_integer())
      return sign == '+' ? plus(a.get<int64_t>(), b.get<int64_t>()) : minus(a.get<int64_t>(), b.get<int64_t>());
    return finite(sign == '+' ? a.get<double>() + b.get<double>() : a.get<double>() - b.get<double>());
  }
  Value multiply(Value a, Value b, const std::string& how) {
    if (how == "*" && a.is_number_integer() && b.is_array()) std::swap(a, b);
    if (how == "*" && a.is_array() && b.is_number_integer()) {
      const int64_t copies = std::clamp<int64_t>(b.get<int64_t>(), 0, kMostItems + 1);
      count(times(copies, items(a)));
      Value list = Value::array();
      for (int64_t i = 0; i < copies; ++i) list.insert(list.end(), a.begin(), a.end());
      return list;
    }
    if (!a.is_number() || !b.is_number()) fail("`" + how + "` of what are no numbers");
    const bool whole = a.is_number_integer() && b.is_number_integer();
    if (how == "*")
      return whole ? Value(times(a.get<int64_t>(), b.get<int64_t>())) : finite(a.get<double>() * b.get<double>());
    if (b.get<double>() == 0) fail("a division by zero");
    if (how == "/") return finite(a.get<double>() / b.get<double>());
    if (!whole) {
      const double quotient = std::floor(a.get<double>() / b.get<double>());
      return finite(how == "//" ? quotient : a.get<double>() - quotient * b.get<double>());
    }
    const int64_t x = a.get<int64_t>(), y = b.get<int64_t>();
    if (y == -1) return how == "//" ? Value(minus(0, x)) : Value(0);
    const int64_t rest = x % y, up = rest != 0 && (rest < 0) != (y < 0);  // Python's quotient goes down, C++'s to zero
    return how == "//" ? x / y - up : rest + up * y;
  }

  Value tuple_without_brackets(Value first) {
    Value list = Value::array({std::move(first)});
    while (take(",")) {
      skip_blanks();
      if (at_end() || peek() == '\n' || peek() == '#' || peek() == ';') break;
      list.push_back(expression());
      count(1);
      skip_blanks();
    }
    return list;
  }

  // ---- what stands by itself ----------------------------------------------------------------------------------

  Value atom() {
    const char c = peek();
    if (c == '[' || c == '(') return sequence();
    if (c == '{') return braces();
    if (c == '"' || c == '\'') return strings();
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return number();
    if (is_letter(c)) return named();
    fail(at_end() || c == '\n' || c == '#' ? "a value is missing" : "expected a value, found `" + next_word() + "`");
  }

  void open() {
    opened_.push_back(at_++);
    skip_blanks();
  }
  [[noreturn]] void never_closed() {
    at_ = opened_.back();
    fail("`" + next_word() + "` is not closed");
  }
  void close(char bracket) {
    skip_blanks();
    if (at_end()) never_closed();
    if (peek() != bracket) fail("unexpected `" + next_word() + "`");
    ++at_;
    opened_.pop_back();
  }
  /// Between items; false where the list ends.
  bool comma(char bracket) {
    skip_blanks();
    if (peek() == bracket) return false;
    if (at_end()) never_closed();
    if (!take(",")) fail("expected `,`, found `" + next_word() + "`");
    skip_blanks();
    return peek() != bracket;
  }

  Value sequence() {
    const char last = peek() == '[' ? ']' : ')';
    open();
    Value list = Value::array();
    bool commas = false;
    if (peek() != last) do {
        list.push_back(expression());
        count(1);
        skip_blanks();
        commas = commas || peek() == ',';
        if (starts_word("for")) fail("a list that is computed");
      } while (comma(last));
    close(last);
    return last == ')' && !commas && list.size() == 1 ? Value(list[0]) : list;  // (1) is 1, (1,) a tuple
  }
  Value braces() {
    open();
    Value table = Value::object();
    if (peek() != '}') do {
        const Value key = expression();
        skip_blanks();
        if (!take(":")) fail("expected `:` after a key");
        skip_blanks();
        table[key_text(key)] = expression();
        count(1);
      } while (comma('}'));
    close('}');
    return table;
  }
  std::string key_text(const Value& key) {
    if (key.is_string()) return key.get<std::string>();
    if (key.is_array() || key.is_object()) fail("a key that is a list");
    return key.is_null() ? "None" : key.dump();
  }
  Value named() {
    const size_t from = at_;
    const std::string name = identifier("a value");
    if (peek() == '"' || peek() == '\'') {
      std::string prefix = name;
      std::ranges::transform(prefix, prefix.begin(), [](unsigned char c) { return std::tolower(c); });
      if (prefix == "r" || prefix == "u") return at_ = from, strings();
      fail("a string with `" + name + "` before it");
    }
    if (name == "None") return nullptr;
    if (name == "True" || name == "False") return name == "True";
    skip_blanks();
    if (peek() == '(') {
      if (name != "dict") at_ = from, fail("a call of " + name + ": only dict(...) is read");
      return arguments();
    }
    const bool of_base = name == "_base_";
    if (!of_base && !own_.contains(name))
      at_ = from,
      fail(name + " was not assigned before" + (base_.contains(name) ? ": _base_." + name + " is meant?" : ""));
    const Value* found = of_base ? &base_ : &own_[name];
    while (of_base && take(".")) {
      const std::string key = identifier("a name of a base");
      if (!found->is_object() || !found->contains(key)) fail("the bases have no " + key);
      found = &(*found)[key];
    }
    if (peek() == '.' || peek() == '[') at_ = from, fail("a part of " + name);
    count(items(*found));
    return *found;
  }
  Value arguments() {
    open();
    Value table = Value::object();
    if (peek() != ')') do {
        const std::string key = identifier("an argument NAME=VALUE of dict");
        skip_blanks();
        if (peek() != '=' || peek(1) == '=') fail("expected an argument NAME=VALUE of dict");
        ++at_;
        skip_blanks();
        table[key] = expression();
        count(1);
      } while (comma(')'));
    close(')');
    return table;
  }

  Value number() {
    std::string digits;
    const auto run = [&](auto belongs) {
      for (; belongs(peek()) || (peek() == '_' && belongs(peek(1))); ++at_)
        if (peek() != '_') digits += peek();
    };
    int base = 10;
    if (peek() == '0' && std::string_view("xXoObB").find(peek(1)) != std::string_view::npos && peek(1) != '\0') {
      const int letter = std::tolower(static_cast<unsigned char>(peek(1)));
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
      at_ += 2;
      run([](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
      return integer(digits, base);
    }
    run(is_digit);
    bool whole = true;
    if (peek() == '.') whole = false, digits += text_[at_++], run(is_digit);
    if (peek() == 'e' || peek() == 'E') {
      const bool sign = peek(1) == '+' || peek(1) == '-';
      if (!is_digit(peek(sign ? 2 : 1))) fail("a number without the digits of its exponent");
      whole = false, digits += 'e', ++at_;
      if (sign) digits += text_[at_++];
      run(is_digit);
    }
    if (is_letter(peek())) fail("a number that ends in a letter");
    if (whole) return integer(digits, base);
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc::result_out_of_range) fail("a number beyond what doubles hold");
    if (error != std::errc{}) fail("`" + digits + "` is no number");
    return value;
  }
  Value integer(const std::string& digits, int base) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error == std::errc::result_out_of_range) fail("a number beyond 64 bits");
    if (error != std::errc{} || end != digits.data() + digits.size()) fail("`" + digits + "` is no number");
    return value;
  }

  /// Neighbours are one string.
  Value strings() {
    std::string text;
    do {
      const bool raw = peek() == 'r' || peek() == 'R';
      if (is_letter(peek())) ++at_;
      text += string_literal(raw);
      skip_blanks();
    } while (peek() == '"' || peek() == '\'');
    return bounded(text);
  }
  std::string string_literal(bool raw) {
    const std::string quote(starts(std::string(3, peek())) ? 3 : 1, peek());
    at_ += quote.size();
    std::string text;
    for (; !at_end() && !starts(quote); ++at_) {
      if (quote.size() == 1 && peek() == '\n') break;
      if (peek() == '\\' && raw) text += text_[at_++];
      if (peek() == '\\' && !raw)
        text += escaped();
      else if (!at_end())
        text += peek();
    }
    if (!take(quote)) fail("a string without its end");
    return text;
  }
  /// What a backslash and the letter after it stand for; stops on the letter.
  std::string escaped() {
    constexpr std::string_view kLetters = "nrt0\\'\"abfv", kMeant{"\n\r\t\0\\'\"\a\b\f\v", 11};
    const char letter = peek(1);
    if (letter == 'x' || letter == 'u' || letter == 'U' || letter == 'N' || is_digit(letter))
      if (letter != '0' || is_digit(peek(2))) fail(std::string("a character by its number, \\") + letter);
    ++at_;
    if (letter == '\n') return {};
    const size_t known = letter == '\0' ? std::string_view::npos : kLetters.find(letter);
    return known == std::string_view::npos ? std::string("\\") + letter : std::string(1, kMeant[known]);
  }

  bool starts_word(std::string_view word) const {
    return starts(word) && !is_letter(peek(word.size())) && !is_digit(peek(word.size()));
  }

  // ---- bounds -------------------------------------------------------------------------------------------------

  /// Values in a value, a long string as several.
  static int64_t items(const Value& value) {
    if (value.is_string()) return 1 + static_cast<int64_t>(value.get_ref<const std::string&>().size() / 100);
    if (!value.is_structured()) return 1;
    int64_t n = 1;
    for (const auto& inner : value) n += items(inner);
    return n;
  }
  void count(int64_t items) {
    items_ += items;
    if (items_ > kMostItems) fail("more than " + std::to_string(kMostItems) + " items");
  }
  Value bounded(std::string text) {
    if (static_cast<int64_t>(text.size()) > kLongest)
      fail("a string of more than " + std::to_string(kLongest) + " bytes");
    return text;
  }

  // ---- bases --------------------------------------------------------------------------------------------------

  void read_bases(const Value& names) {
    if (!own_.empty()) fail("_base_ stands after other names");
    if (bases_ >= kMostBases)
      fail("more than " + std::to_string(kMostBases) + " files that are each the next one's base");
    for (const Value& name : names.is_array() ? names : Value::array({names})) {
      if (!name.is_string()) fail("_base_ names files");
      const fs::path path = fs::path(file_).parent_path() / name.get<std::string>();
      const std::string text = read_foreign(path.string(), kLongest, "import");
      const Value base = Reader(text, path.string(), bases_ + 1).assignments();
      for (const auto& [key, value] : base.items())
        if (base_.contains(key)) fail("two of the bases have " + key);
      base_.update(base);
      count(items(base));
    }
  }

  std::string_view text_;
  const std::string file_;
  const int bases_;  // files of which this is a base
  size_t at_ = 0;
  std::vector<size_t> opened_;  // where the brackets around stand
  int depth_ = 0;
  int64_t items_ = 0;
  Value own_ = Value::object(), base_ = Value::object();
};

}  // namespace

Value read_python_config(const std::string& path) {
  const std::string text = read_foreign(path, kLongest, "import");
  return Reader(text, path, 0).assignments();
}

Value python_value(const std::string& text) {
  try {
    return Reader(text, "a flag", 0).alone();
  } catch (const UserError&) {
    return text;
  }
}

}  // namespace tessera::tools
