// The published tables by their names, and Open-Sora 2.0's sizes, which are computed.
#include "tessera/data/buckets/aspect_ratios.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/data/buckets/area_buckets.h"
#include "tessera/data/buckets/ratio_tables.h"

namespace tessera::data {

namespace {

const RatioTable& table_of(const std::string& name) {
  std::string bare = name;
  if (bare.ends_with("_BIN")) bare.resize(bare.size() - 4);
  if (bare == "ASPECT_RATIO_480" || bare == "ASPECT_RATIO_720") bare = "ASPECT_RATIO_VIDEO_" + bare.substr(13) + "_MS";
  std::vector<std::string> names;
  for (const RatioTable& table : ratio_tables()) {
    if (bare == table.name) return table;
    names.push_back(table.name);
  }
  throw UserError(Exit::usage, "data.buckets", "'" + name + "' is no table of aspect ratios",
                  "did you mean " + nearest(name, names).front() + "? Shapes can be listed too: 1x1024x1024");
}

/// TABLE, or TABLE_16D: sides rounded down to multiples of 16.
std::vector<Bucket> buckets_of_table(const std::string& name, int64_t frames) {
  constexpr std::string_view kRounded = "_16D";
  constexpr int64_t kCell = 16;
  const bool rounded = name.ends_with(kRounded);
  const RatioTable& table = table_of(rounded ? name.substr(0, name.size() - kRounded.size()) : name);
  const auto pixels = [&](int side) {
    const int64_t length = int64_t{side} * table.unit;
    return rounded ? length / kCell * kCell : length;
  };
  std::vector<Bucket> buckets;
  for (const RatioRow& row : table.rows) {
    buckets.push_back({frames, pixels(row.height), pixels(row.width), row.ratio});
    buckets.back().area = table.area;
  }
  return buckets;
}

// ---- Open-Sora 2.0: sizes of about so many pixels, computed ------------------------------------------------------

/// "256px": 256 x 256 pixels; "480p": as many as 480 rows of 16:9 have. 0: neither.
int64_t pixels_of(const std::string& name) {
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == std::string::npos || digits < 2 || digits > 4) return 0;
  const int64_t side = std::stoll(name);
  if (name.substr(digits) == "px") return side * side;
  return name.substr(digits) == "p" ? static_cast<int64_t>(static_cast<double>(side * side) / 9 * 16) : 0;
}

/// The sides as that program's training has them (opensora/datasets/aspect.py, get_aspect_ratios_dict): multiples of 16,
/// of the neighbours by one such step the nearest to the number of pixels, a size once, then all of them upright.
std::vector<Bucket> sizes_of(int64_t pixels, int64_t frames) {
  constexpr int64_t kUnit = 16;
  constexpr double kRatios[] = {1 / 2.39, 1.0 / 2, 9.0 / 16, 1 / 1.85, 16.0 / 9,
                                8.0 / 5,  2.0 / 3, 3.0 / 4,  1};  // h / w
  std::vector<Bucket> wide;
  for (const double ratio : kRatios) {
    const auto units = [](double length) { return static_cast<int64_t>(std::floor(length / kUnit)) * kUnit; };
    int64_t width = units(std::sqrt(static_cast<double>(pixels) / ratio));
    int64_t height = units(static_cast<double>(pixels) / static_cast<double>(width));
    const std::pair<int64_t, int64_t> near[] = {
        {height - kUnit, width}, {height + kUnit, width}, {height, width - kUnit}, {height, width + kUnit}};
    for (const auto& [h, w] : near)
      if (std::abs(h * w - pixels) < std::abs(height * width - pixels)) height = h, width = w;
    const auto same = [&](const Bucket& other) { return other.height == height && other.width == width; };
    if (std::ranges::none_of(wide, same)) wide.push_back({frames, height, width, ratio});
  }
  std::vector<Bucket> all = wide;
  for (const Bucket& bucket : wide) {
    const Bucket upright{frames, bucket.width, bucket.height, 1 / bucket.ratio};
    const auto same = [&](const Bucket& other) { return std::abs(other.ratio - upright.ratio) < 1e-9; };
    const auto found = std::ranges::find_if(all, same);
    if (found == all.end())
      all.push_back(upright);
    else
      *found = upright;
  }
  return all;
}

/// The frames before a table's name, "81x"; 1 where nothing stands there, 0 where it is something else.
int64_t frames_of(const std::string& head) {
  if (head.empty()) return 1;
  const bool number = head.size() >= 2 && head.size() <= 6 && head.ends_with('x') &&
                      head.find_first_not_of("0123456789") == head.size() - 1;
  return number ? std::stoll(head) : 0;
}

/// Where the name of a table begins; npos: there is none.
size_t table_at(const std::string& text) {
  const size_t named = text.find("ASPECT_RATIO"), times = text.find('x');
  if (named != std::string::npos) return named;
  const auto computed = [](const std::string& name) { return names_area(name) || pixels_of(name) > 0; };
  if (computed(text)) return 0;
  return times != std::string::npos && computed(text.substr(times + 1)) ? times + 1 : std::string::npos;
}

}  // namespace

bool names_aspect_ratios(const std::string& text) { return table_at(text) != std::string::npos; }

std::vector<Bucket> aspect_buckets(const std::string& text) {
  const size_t begin = table_at(text);
  const int64_t frames = frames_of(text.substr(0, begin));
  if (begin == std::string::npos || frames < 1)
    throw UserError(Exit::usage, "data.buckets", "'" + text + "': expected FRAMESxTABLE",
                    "for example 81xASPECT_RATIO_VIDEO_480_MS");
  if (names_area(text.substr(begin))) return area_buckets(text.substr(begin), frames);
  std::vector<Bucket> buckets;
  if (const int64_t pixels = pixels_of(text.substr(begin)); pixels > 0) {
    buckets = sizes_of(pixels, frames);
  } else {
    buckets = buckets_of_table(text.substr(begin), frames);
  }
  const auto square = std::min_element(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) {
    return std::abs(a.ratio - 1) < std::abs(b.ratio - 1);
  });
  std::rotate(buckets.begin(), square, square + 1);
  return buckets;
}

std::vector<Bucket> buckets_of(const std::string& shape) {
  return names_aspect_ratios(shape) ? aspect_buckets(shape) : std::vector<Bucket>{parse_bucket(shape)};
}

}  // namespace tessera::data
