#include "tessera/plan/unit_pattern.h"

#include <charconv>

namespace tessera::plan {

Numbered numbered(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  Numbered result{std::string(name), -1};
  // "07" stays a plain name because it could not be written back from its number.
  if (digits == 0 || digits == name.size() || (name[digits] == '0' && name.size() > digits + 1)) return result;
  int64_t index = 0;
  if (std::from_chars(name.data() + digits, name.data() + name.size(), index).ec != std::errc()) return result;
  return {std::string(name.substr(0, digits)), index};
}

std::vector<size_t> matching(std::string_view pattern, const std::vector<std::string>& names) {
  std::vector<size_t> found;
  for (size_t u = 0; u < names.size(); ++u)
    if (names[u] == pattern) return {u};
  if (pattern.ends_with('*')) {
    for (size_t u = 0; u < names.size(); ++u)
      if (names[u].starts_with(pattern.substr(0, pattern.size() - 1))) found.push_back(u);
    return found;
  }
  const size_t dash = pattern.rfind('-');
  if (dash == std::string_view::npos) return found;
  const Numbered first = numbered(pattern.substr(0, dash));
  int64_t last = -1;
  std::from_chars(pattern.data() + dash + 1, pattern.data() + pattern.size(), last);
  for (size_t u = 0; u < names.size(); ++u) {
    const Numbered name = numbered(names[u]);
    if (first.index >= 0 && name.stem == first.stem && name.index >= first.index && name.index <= last)
      found.push_back(u);
  }
  // every unit of a range must exist, else the range is a typing error
  const auto covered = static_cast<int64_t>(found.size());
  return covered > 0 && covered == last - first.index + 1 ? found : std::vector<size_t>{};
}

}  // namespace tessera::plan
