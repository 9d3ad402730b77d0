#include "tessera/checkpoint/box.h"

#include <algorithm>

namespace tessera::checkpoint {

namespace {

int64_t extent(const std::pair<int64_t, int64_t>& side) { return std::max<int64_t>(side.second - side.first, 0); }

Box intersect(const Box& a, const Box& b) {
  Box both;
  for (size_t i = 0; i < a.size(); ++i)
    both.emplace_back(std::max(a[i].first, b[i].first), std::min(a[i].second, b[i].second));
  return both;
}

int64_t flat_index(const Box& box, const Shape& at) {
  int64_t index = 0;
  for (size_t i = 0; i < box.size(); ++i) index = index * extent(box[i]) + at[i] - box[i].first;
  return index;
}

}  // namespace

Box whole_box(const Shape& shape) {
  Box box;
  for (int64_t dim : shape) box.emplace_back(0, dim);
  return box;
}

int64_t volume(const Box& box) {
  int64_t count = 1;
  for (const auto& side : box) count *= extent(side);
  return count;
}

bool fits(const Box& box, const Shape& shape) {
  if (box.size() != shape.size()) return false;
  for (size_t i = 0; i < box.size(); ++i)
    if (box[i].first < 0 || box[i].first > box[i].second || box[i].second > shape[i]) return false;
  return true;
}

bool overlap(const Box& a, const Box& b) { return a.size() == b.size() && volume(intersect(a, b)) > 0; }

std::string box_text(const Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.size(); ++i)
    text.append(i ? ", " : "").append(std::to_string(box[i].first)).append(":").append(std::to_string(box[i].second));
  return text + "]";
}

void for_each_run(const Box& a, const Box& b, const std::function<void(int64_t, int64_t, int64_t)>& run) {
  Box both = intersect(a, b);
  if (volume(both) == 0) return;
  // A run covers dimensions [outer, n): all but its first are whole in both boxes, so it is contiguous in both.
  size_t outer = both.size();
  while (outer > 0) {
    --outer;
    if (both[outer] != a[outer] || both[outer] != b[outer]) break;
  }
  int64_t length = volume(Box(both.begin() + static_cast<std::ptrdiff_t>(outer), both.end()));
  Shape at;
  for (const auto& side : both) at.push_back(side.first);
  while (true) {
    run(flat_index(a, at), flat_index(b, at), length);
    size_t dim = outer;  // count up the outer dimensions, the last of them fastest
    while (dim > 0 && ++at[dim - 1] == both[dim - 1].second) --dim, at[dim] = both[dim].first;
    if (dim == 0) return;
  }
}

}  // namespace tessera::checkpoint
