#pragma once
// A text of which there are few and many copies, such as the name of a unit in the instructions of a plan. Copies and
// comparisons are those of a pointer. Every different text is kept until the process ends.
//
//   Symbol unit = "blocks.7";
//   unit == "blocks.7"; "forward " + unit; const std::string& text = unit;
#include <concepts>
#include <ostream>
#include <string>
#include <string_view>

namespace tessera {

class Symbol {
 public:
  Symbol() : text_(&kEmpty) {}
  Symbol(std::string_view text) : text_(text.empty() ? &kEmpty : &kept(text)) {}
  Symbol(const std::string& text) : Symbol(std::string_view(text)) {}
  Symbol(const char* text) : Symbol(std::string_view(text)) {}

  const std::string& text() const { return *text_; }
  operator const std::string&() const { return *text_; }
  bool empty() const { return text_->empty(); }

  bool operator==(const Symbol&) const = default;
  template <typename Text>
  requires(std::convertible_to<const Text&, std::string_view> && !std::same_as<Text, Symbol>) bool operator==(
      const Text& other) const {
    return *text_ == std::string_view(other);
  }
  friend std::string operator+(const std::string& a, const Symbol& b) { return a + b.text(); }
  friend std::string operator+(const Symbol& a, const std::string& b) { return a.text() + b; }
  friend std::ostream& operator<<(std::ostream& out, const Symbol& symbol) { return out << symbol.text(); }

 private:
  static const std::string kEmpty;
  static const std::string& kept(std::string_view text);

  const std::string* text_;
};

}  // namespace tessera
