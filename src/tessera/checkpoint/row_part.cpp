#include "tessera/checkpoint/row_part.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>

namespace tessera::checkpoint {

namespace {

using Shape = std::vector<int64_t>;

/// Reads "3-6of7c" and the like from the left.
class Text {
 public:
  explicit Text(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}
  bool number(int64_t& value) {
    const auto [stop, wrong] = std::from_chars(at_, end_, value);
    if (wrong != std::errc() || value < 0) return false;
    at_ = stop;
    return true;
  }
  bool word(std::string_view wanted) {
    if (!std::string_view(at_, end_).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  bool at_end() const { return at_ == end_; }

 private:
  const char *at_, *end_;
};

int64_t row_size(const Shape& shape) {
  int64_t size = 1;
  for (size_t i = 1; i < shape.size(); ++i) size *= shape[i];
  return size;
}

/// The row of the file, within its part, that is row `row` here.
int64_t row_there(int64_t row, int64_t pairs) {
  if (pairs == 0) return row;
  const int64_t in_head = row % pairs, half = pairs / 2;
  return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

/// Where the rows of a part lie in the stored tensor.
struct Place {
  int64_t rows, size;       ///< of the part, and elements of one
  int64_t begin = 0, step;  ///< of the first, and from row to row; in stored elements
  Place(const RowPart& part, const Shape& stored) {
    const Shape shape = *part_shape(part, stored);
    rows = shape[0], size = row_size(shape), step = row_size(stored);
    begin = part.columns ? step / part.count * part.first : stored[0] / part.count * part.first * step;
  }
};

}  // namespace

std::optional<RowPart> row_part(std::string_view name) {
  const size_t end = name.rfind('.');
  if (end == name.npos || end == 0) return std::nullopt;
  const size_t before = name.rfind('.', end - 1);
  if (before == name.npos) return std::nullopt;
  Text text(name.substr(before + 1, end - before - 1));
  RowPart part;
  if (!text.number(part.first)) return std::nullopt;
  part.last = part.first;
  if (text.word("-") && !text.number(part.last)) return std::nullopt;
  ++part.last;
  if (!text.word("of") || !text.number(part.count)) return std::nullopt;
  part.columns = text.word("c");
  if (text.word("p") && (!text.number(part.pairs) || part.pairs == 0 || part.pairs % 2 != 0)) return std::nullopt;
  if (!text.at_end() || part.first >= part.last || part.last > part.count) return std::nullopt;
  part.whole = std::string(name.substr(0, before)).append(name.substr(end));
  return part;
}

std::string part_name(std::string_view whole, const RowPart& part) {
  const size_t end = whole.rfind('.');
  std::string text = "." + std::to_string(part.first);
  if (part.size() > 1) text += "-" + std::to_string(part.last - 1);
  text += "of" + std::to_string(part.count);
  if (part.columns) text += "c";
  if (part.pairs > 0) text += "p" + std::to_string(part.pairs);
  return std::string(whole.substr(0, end)).append(text).append(whole.substr(end));
}

std::string whole_name(std::string_view name) {
  const auto part = row_part(name);
  return part ? part->whole : std::string(name);
}

std::optional<Shape> part_shape(const RowPart& part, Shape stored) {
  const size_t dim = part.columns ? 1 : 0;
  if (stored.size() <= dim || stored[dim] % part.count != 0) return std::nullopt;
  stored[dim] = stored[dim] / part.count * part.size();
  if (part.pairs > 0 && stored[0] % part.pairs != 0) return std::nullopt;
  return stored;
}

Shape stored_shape(const RowPart& part, Shape shape) {
  int64_t& size = shape[part.columns ? 1 : 0];
  size = size / part.size() * part.count;
  return shape;
}

void read_part(const RowPart& part, const Shape& stored, size_t element, int64_t begin, int64_t count,
               const ReadRange& read, void* to) {
  const Place place(part, stored);
  auto* out = static_cast<std::byte*>(to);
  if (!part.columns && part.pairs == 0) return read(place.begin + begin, count, to);
  const int64_t end = begin + count, head = part.pairs;
  std::vector<std::byte> rows;  // of the head that was read last: its rows lie together, in another order
  int64_t held = -1;
  while (begin < end) {
    const int64_t row = begin / place.size, from = begin % place.size, n = std::min(place.size - from, end - begin);
    if (head == 0) {
      read(place.begin + row * place.step + from, n, out);
    } else {
      if (row / head != held) {
        held = row / head;
        rows.resize(static_cast<size_t>(head * place.size) * element);
        read(place.begin + held * head * place.step, head * place.size, rows.data());
      }
      const int64_t there = row_there(row, head) - held * head;
      std::memcpy(out, rows.data() + static_cast<size_t>(there * place.size + from) * element,
                  static_cast<size_t>(n) * element);
    }
    out += static_cast<size_t>(n) * element;
    begin += n;
  }
}

void put_part(const RowPart& part, const Shape& stored, size_t element, const void* from, void* whole) {
  const Place place(part, stored);
  const size_t bytes = static_cast<size_t>(place.size) * element;
  const auto* in = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::byte*>(whole);
  for (int64_t row = 0; row < place.rows; ++row)
    std::memcpy(out + static_cast<size_t>(place.begin + row_there(row, part.pairs) * place.step) * element,
                in + static_cast<size_t>(row) * bytes, bytes);
}

}  // namespace tessera::checkpoint
