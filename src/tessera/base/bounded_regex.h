#pragma once
// Regular expressions that come with files of strangers (alpha_pattern of a LoRA, a recipe's lora.targets): matched against
// names in time that is linear in both, and on a stack of a size that no expression changes.
//
//   const auto pattern = BoundedRegex::parse("blocks\\.[0-9]+\\.attn1\\.to_q");
//   if (pattern && pattern->matches("blocks.3.attn1.to_q")) ...
#include <functional>
#include <optional>
#include <string>

namespace tessera {

class BoundedRegex {
 public:
  /// What parse() takes, for messages.
  static constexpr const char* kBounds =
      "at most 256 characters, without (?= (?! and back-references, and with {n} up to 16 in all";

  /// ECMAScript's form within kBounds; nothing for anything else.
  static std::optional<BoundedRegex> parse(const std::string& expression);

  /// Whether all of the name matches. A name of more than 1024 characters matches nothing.
  bool matches(const std::string& name) const { return matches_(name); }

 private:
  explicit BoundedRegex(std::function<bool(const std::string&)> matches) : matches_(std::move(matches)) {}
  std::function<bool(const std::string&)> matches_;
};

}  // namespace tessera
