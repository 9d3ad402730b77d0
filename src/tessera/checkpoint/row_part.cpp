#include "tessera/checkpoint/row_part.h"

#include <charconv>

namespace tessera::checkpoint {

std::optional<RowPart> row_part(std::string_view name) {
  const size_t last = name.rfind('.');
  if (last == name.npos || last == 0) return std::nullopt;
  const size_t before = name.rfind('.', last - 1);
  if (before == name.npos) return std::nullopt;
  const char *at = name.data() + before + 1, *end = name.data() + last;
  RowPart part;
  const auto [middle, wrong_index] = std::from_chars(at, end, part.index);
  if (wrong_index != std::errc() || !std::string_view(middle, end).starts_with("of")) return std::nullopt;
  const auto [stop, wrong_count] = std::from_chars(middle + 2, end, part.count);
  if (wrong_count != std::errc() || stop != end || part.index < 0 || part.index >= part.count) return std::nullopt;
  part.whole = std::string(name.substr(0, before)).append(name.substr(last));
  return part;
}

std::string part_name(std::string_view whole, int64_t index, int64_t count) {
  const size_t last = whole.rfind('.');
  const std::string part = "." + std::to_string(index) + "of" + std::to_string(count);
  return std::string(whole.substr(0, last)).append(part).append(whole.substr(last));
}

}  // namespace tessera::checkpoint
