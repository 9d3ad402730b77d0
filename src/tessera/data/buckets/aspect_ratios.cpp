// The published tables of PixArt and of the programs after it, in diffusers' values, and Open-Sora's.
#include "tessera/data/buckets/aspect_ratios.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "tessera/base/check.h"
#include "tessera/data/buckets/area_buckets.h"

namespace tessera::data {

namespace {

/// A ratio of height to width as the tables name it, and sides in units of the table.
struct RatioRow {
  double ratio;
  int height, width;
};
constexpr RatioRow kPictures[] = {
    {0.25, 8, 32},  {0.28, 8, 29},  {0.32, 9, 28},  {0.33, 9, 27},  {0.35, 9, 26},  {0.4, 10, 25},  {0.42, 10, 24},
    {0.48, 11, 23}, {0.5, 11, 22},  {0.52, 11, 21}, {0.57, 12, 21}, {0.6, 12, 20},  {0.68, 13, 19}, {0.72, 13, 18},
    {0.78, 14, 18}, {0.82, 14, 17}, {0.88, 15, 17}, {0.94, 15, 16}, {1.0, 16, 16},  {1.07, 16, 15}, {1.13, 17, 15},
    {1.21, 17, 14}, {1.29, 18, 14}, {1.38, 18, 13}, {1.46, 19, 13}, {1.67, 20, 12}, {1.75, 21, 12}, {2.0, 22, 11},
    {2.09, 23, 11}, {2.4, 24, 10},  {2.5, 25, 10},  {3.0, 27, 9},   {4.0, 32, 8}};
constexpr RatioRow kLargePictures[] = {
    {0.25, 8, 32},  {0.26, 8, 31},  {0.27, 8, 30},  {0.28, 8, 29},  {0.32, 9, 28},  {0.33, 9, 27},  {0.35, 9, 26},
    {0.4, 10, 25},  {0.42, 10, 24}, {0.48, 11, 23}, {0.5, 11, 22},  {0.52, 11, 21}, {0.57, 12, 21}, {0.6, 12, 20},
    {0.68, 13, 19}, {0.72, 13, 18}, {0.78, 14, 18}, {0.82, 14, 17}, {0.88, 15, 17}, {0.94, 15, 16}, {1.0, 16, 16},
    {1.07, 16, 15}, {1.13, 17, 15}, {1.21, 17, 14}, {1.29, 18, 14}, {1.38, 18, 13}, {1.46, 19, 13}, {1.67, 20, 12},
    {1.75, 21, 12}, {2.0, 22, 11},  {2.09, 23, 11}, {2.4, 24, 10},  {2.5, 25, 10},  {2.89, 26, 9},  {3.0, 27, 9},
    {3.11, 28, 9},  {3.62, 29, 8},  {3.75, 30, 8},  {3.88, 31, 8},  {4.0, 32, 8}};
constexpr RatioRow kVideo480[] = {{0.5, 28, 56},  {0.57, 30, 52}, {0.68, 33, 48}, {0.78, 35, 45},
                                  {1.0, 39, 39},  {1.13, 42, 37}, {1.29, 45, 35}, {1.46, 48, 33},
                                  {1.67, 51, 31}, {1.75, 52, 30}, {2.0, 56, 28}};
constexpr RatioRow kVideo720[] = {{0.5, 21, 42},  {0.57, 22, 40}, {0.68, 25, 36}, {0.78, 26, 34},
                                  {1.0, 30, 30},  {1.13, 32, 28}, {1.29, 34, 26}, {1.46, 36, 25},
                                  {1.67, 39, 23}, {1.75, 40, 22}, {2.0, 42, 21}};

struct RatioTable {
  const char* name;
  int unit;  ///< pixels
  std::span<const RatioRow> rows;
};
const RatioTable kRatioTables[] = {
    {"ASPECT_RATIO_256", 16, kPictures},          {"ASPECT_RATIO_512", 32, kPictures},
    {"ASPECT_RATIO_1024", 64, kPictures},         {"ASPECT_RATIO_2048", 128, kLargePictures},
    {"ASPECT_RATIO_4096", 256, kLargePictures},   {"ASPECT_RATIO_VIDEO_480_MS", 16, kVideo480},
    {"ASPECT_RATIO_VIDEO_720_MS", 32, kVideo720},
};

const RatioTable& table_of(const std::string& name) {
  std::string bare = name;
  if (bare.ends_with("_BIN")) bare.resize(bare.size() - 4);
  if (bare == "ASPECT_RATIO_480" || bare == "ASPECT_RATIO_720") bare = "ASPECT_RATIO_VIDEO_" + bare.substr(13) + "_MS";
  std::vector<std::string> names;
  for (const RatioTable& table : kRatioTables) {
    if (bare == table.name) return table;
    names.push_back(table.name);
  }
  throw UserError(Exit::usage, "data.buckets", "'" + name + "' is no table of aspect ratios",
                  "did you mean " + nearest(name, names).front() + "? Shapes can be listed too: 1x1024x1024");
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
    const RatioTable& table = table_of(text.substr(begin));
    for (const RatioRow& row : table.rows)
      buckets.push_back({frames, int64_t{row.height} * table.unit, int64_t{row.width} * table.unit, row.ratio});
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
