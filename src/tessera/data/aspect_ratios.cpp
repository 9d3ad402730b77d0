// The published tables of aspect ratios: PixArt's and those of the programs after it in diffusers' values, and Open-Sora
// 1.2's; and the sizes that Open-Sora 2.0 and other trainers compute.
#include "tessera/data/aspect_ratios.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

/// A ratio of height to width as the tables name it, and sides in units of the table.
struct RatioRow {
  double ratio;
  int height, width;
};

struct RatioTable {
  const char* name;
  int unit;  ///< pixels
  std::span<const RatioRow> rows;
  int64_t area = 0;  ///< pixels that clips are held against; 0: those of its square
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

// Open-Sora 1.2 (Zheng et al. 2024, opensora/datasets/aspect.py): most sides are the even ones of an area, but not all by one
// rule; about the nominal area.
constexpr RatioRow kRows144P[] = {
    {0.38, 117, 312}, {0.43, 125, 291}, {0.48, 133, 277}, {0.5, 135, 270},  {0.53, 139, 262}, {0.54, 141, 260},
    {0.56, 144, 256}, {0.62, 151, 241}, {0.67, 156, 234}, {0.75, 166, 221}, {1.0, 192, 192},  {1.33, 221, 165},
    {1.5, 235, 156},  {1.78, 256, 144}, {1.89, 263, 139}, {2.0, 271, 135},  {2.08, 277, 132}};
constexpr RatioRow kRows240P[] = {
    {0.38, 196, 522}, {0.43, 210, 490}, {0.48, 222, 462}, {0.5, 226, 452},  {0.53, 232, 438}, {0.54, 236, 436},
    {0.56, 240, 426}, {0.62, 252, 404}, {0.67, 262, 393}, {0.75, 276, 368}, {1.0, 320, 320},  {1.33, 370, 278},
    {1.5, 392, 262},  {1.78, 426, 240}, {1.89, 440, 232}, {2.0, 452, 226},  {2.08, 462, 222}};
constexpr RatioRow kRows360P[] = {
    {0.38, 294, 784}, {0.43, 314, 732}, {0.48, 332, 692}, {0.5, 340, 680},  {0.53, 350, 662}, {0.54, 352, 652},
    {0.56, 360, 640}, {0.62, 380, 608}, {0.67, 392, 588}, {0.75, 416, 554}, {1.0, 480, 480},  {1.33, 554, 416},
    {1.5, 588, 392},  {1.78, 640, 360}, {1.89, 660, 350}, {2.0, 678, 340},  {2.08, 692, 332}};
constexpr RatioRow kRows480P[] = {
    {0.38, 392, 1046}, {0.43, 420, 980}, {0.48, 444, 925}, {0.5, 452, 904},  {0.53, 466, 880}, {0.54, 470, 870},
    {0.56, 480, 854},  {0.62, 506, 810}, {0.67, 522, 784}, {0.75, 554, 738}, {1.0, 640, 640},  {1.33, 740, 555},
    {1.5, 784, 522},   {1.78, 854, 480}, {1.89, 880, 466}, {2.0, 906, 454},  {2.08, 924, 444}};
constexpr RatioRow kRows720P[] = {
    {0.38, 588, 1568}, {0.43, 628, 1466}, {0.48, 666, 1388}, {0.5, 678, 1356},  {0.53, 698, 1318}, {0.54, 706, 1306},
    {0.56, 720, 1280}, {0.62, 758, 1212}, {0.67, 784, 1176}, {0.75, 832, 1110}, {1.0, 960, 960},   {1.33, 1108, 832},
    {1.5, 1176, 784},  {1.78, 1280, 720}, {1.89, 1320, 698}, {2.0, 1358, 680},  {2.08, 1386, 666}};
constexpr RatioRow kRows1080P[] = {{0.38, 882, 2352},  {0.43, 942, 2198},  {0.48, 998, 2080},  {0.5, 1018, 2036},
                                   {0.53, 1048, 1980}, {0.54, 1058, 1958}, {0.56, 1080, 1920}, {0.62, 1138, 1820},
                                   {0.67, 1176, 1764}, {0.75, 1248, 1664}, {1.0, 1440, 1440},  {1.33, 1662, 1246},
                                   {1.5, 1764, 1176},  {1.78, 1920, 1080}, {1.89, 1980, 1048}, {2.0, 2036, 1018},
                                   {2.08, 2078, 998}};
constexpr RatioRow kRows2K[] = {{0.38, 1176, 3136}, {0.43, 1256, 2930}, {0.48, 1330, 2770}, {0.5, 1358, 2716},
                                {0.53, 1398, 2640}, {0.54, 1412, 2612}, {0.56, 1440, 2560}, {0.62, 1518, 2428},
                                {0.67, 1568, 2352}, {0.75, 1662, 2216}, {1.0, 1920, 1920},  {1.33, 2218, 1664},
                                {1.5, 2352, 1568},  {1.78, 2560, 1440}, {1.89, 2638, 1396}, {2.0, 2716, 1358},
                                {2.08, 2772, 1330}};
constexpr RatioRow kRows4K[] = {{0.38, 1764, 4704}, {0.43, 1886, 4400}, {0.48, 1996, 4158}, {0.5, 2036, 4072},
                                {0.53, 2096, 3960}, {0.54, 2118, 3918}, {0.56, 2160, 3840}, {0.62, 2276, 3642},
                                {0.67, 2352, 3528}, {0.75, 2494, 3326}, {1.0, 2880, 2880},  {1.33, 3326, 2494},
                                {1.5, 3528, 2352},  {1.78, 3840, 2160}, {1.89, 3958, 2096}, {2.0, 4072, 2036},
                                {2.08, 4156, 1994}};
constexpr RatioRow kRows2880[] = {
    {0.25, 22, 90}, {0.26, 22, 87}, {0.27, 22, 84}, {0.28, 22, 81}, {0.32, 25, 78}, {0.33, 25, 75}, {0.34, 25, 73},
    {0.4, 28, 70},  {0.42, 28, 67}, {0.47, 30, 64}, {0.49, 30, 61}, {0.51, 30, 59}, {0.55, 33, 60}, {0.59, 33, 56},
    {0.68, 36, 53}, {0.72, 36, 50}, {0.78, 39, 50}, {0.83, 39, 47}, {0.89, 42, 47}, {0.93, 42, 45}, {1.0, 45, 45},
    {1.07, 45, 42}, {1.12, 47, 42}, {1.21, 47, 39}, {1.28, 50, 39}, {1.39, 50, 36}, {1.47, 53, 36}, {1.7, 56, 33},
    {1.82, 60, 33}, {2.03, 61, 30}, {2.13, 64, 30}, {2.39, 67, 28}, {2.5, 70, 28},  {2.92, 73, 25}, {3.0, 75, 25},
    {3.12, 78, 25}, {3.68, 81, 22}, {3.82, 84, 22}, {3.95, 87, 22}, {4.0, 90, 22}};

const RatioTable kTables[] = {
    {"ASPECT_RATIO_256", 16, kPictures},
    {"ASPECT_RATIO_512", 32, kPictures},
    {"ASPECT_RATIO_1024", 64, kPictures},
    {"ASPECT_RATIO_2048", 128, kLargePictures},
    {"ASPECT_RATIO_4096", 256, kLargePictures},
    {"ASPECT_RATIO_VIDEO_480_MS", 16, kVideo480},
    {"ASPECT_RATIO_VIDEO_720_MS", 32, kVideo720},
    {"ASPECT_RATIO_256_40", 16, kLargePictures},
    {"ASPECT_RATIO_512_40", 32, kLargePictures},
    {"ASPECT_RATIO_1024_40", 64, kLargePictures},
    {"ASPECT_RATIO_2880", 64, kRows2880, 2880 * 2880},
    {"ASPECT_RATIO_144P", 1, kRows144P, 36864},
    {"ASPECT_RATIO_240P", 1, kRows240P, 102240},
    {"ASPECT_RATIO_360P", 1, kRows360P, 230400},
    {"ASPECT_RATIO_480P", 1, kRows480P, 409920},
    {"ASPECT_RATIO_720P", 1, kRows720P, 921600},
    {"ASPECT_RATIO_1080P", 1, kRows1080P, 2073600},
    {"ASPECT_RATIO_2K", 1, kRows2K, 3686400},
    {"ASPECT_RATIO_4K", 1, kRows4K, 8294400},
};

const RatioTable& table_of(const std::string& name) {
  std::string bare = name;
  if (bare.ends_with("_BIN")) bare.resize(bare.size() - 4);
  if (bare == "ASPECT_RATIO_480" || bare == "ASPECT_RATIO_720") bare = "ASPECT_RATIO_VIDEO_" + bare.substr(13) + "_MS";
  std::vector<std::string> names;
  for (const RatioTable& table : kTables) {
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

constexpr int64_t kUnit = 16;  ///< pixels: what these programs round sides to

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

// ---- Shapes of about one area at many aspect ratios, as other trainers compute them -----------------------------------

constexpr int64_t kMostSide = 1 << 14;  ///< of a square of the area

Bucket shape(int64_t frames, int64_t height, int64_t width) {
  return {frames, height, width, static_cast<double>(height) / static_cast<double>(width)};
}

void nearest_first(std::vector<Bucket>& buckets, double ratio) {
  const auto off = [&](const Bucket& b) { return std::abs(std::log(b.ratio / ratio)); };
  const auto first = std::ranges::min_element(buckets, {}, off);
  std::rotate(buckets.begin(), first, first + 1);
}

std::vector<Bucket> of_area(int64_t width, int64_t height, int64_t frames) {
  const int64_t area = width * height;
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(area)));
  std::vector<Bucket> buckets;
  const auto add = [&](const Bucket& bucket) {
    if (std::ranges::find(buckets, bucket) == buckets.end()) buckets.push_back(bucket);
  };
  for (int64_t a = side / 2 / kUnit * kUnit; a < side + kUnit; a += kUnit) {
    const int64_t b = area / a / kUnit * kUnit;
    add(shape(frames, a, b));
    add(shape(frames, b, a));
  }
  nearest_first(buckets, static_cast<double>(height) / static_cast<double>(width));
  return buckets;
}

std::vector<Bucket> of_ratios(int64_t side, double least, double most, int64_t count, int64_t frames) {
  const double area = static_cast<double>(side) * static_cast<double>(side);
  const auto rounded = [](double pixels) {
    return std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(pixels / kUnit))) * kUnit;
  };
  std::vector<Bucket> buckets;
  for (int64_t i = 0; i < count; ++i) {
    const double along = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0;
    const double ratio = least * std::pow(most / least, along), width = std::sqrt(area * ratio);
    buckets.push_back({frames, rounded(area / width), rounded(width), 1 / ratio});
  }
  nearest_first(buckets, 1);
  return buckets;
}

/// At most as many cells of 16 x 16 pixels as the square of that side has, as wide as fits for each height.
std::vector<Bucket> of_cells(int64_t side, int64_t frames) {
  constexpr int64_t kMostRatio = 4;
  const auto cells =
      static_cast<int64_t>(std::nearbyint(std::pow(static_cast<double>(side) / static_cast<double>(kUnit), 2)));
  std::vector<Bucket> buckets;
  for (int64_t rows = cells, columns = 1; rows > 0; (columns + 1) * rows <= cells ? ++columns : --rows) {
    if (std::max(rows, columns) > kMostRatio * std::min(rows, columns)) continue;
    buckets.push_back(shape(frames, rows * kUnit, columns * kUnit));
    buckets.back().ratio = std::nearbyint(buckets.back().ratio * 1e5) / 1e5;
  }
  nearest_first(buckets, 1);
  return buckets;
}

/// Whether the text begins as one of the forms of area_buckets() does.
bool names_area(const std::string& text) {
  return text.starts_with("AREA_") || text.starts_with("RATIOS_") || text.starts_with("CELLS_");
}

/// AREA_WIDTHxHEIGHT: every multiple of 16 from half the side of the square of this area up to that side, beside the
/// longest multiple of 16 that keeps the area, lying and upright (musubi-tuner, dataset/bucket.py, BucketSelector); the
/// shape nearest to the named one comes first. RATIOS_SIDE_LEAST_MOST_COUNT: so many ratios of width to height, evenly
/// spaced in their logarithm, at the area of a square of SIDE, sides rounded to 16 (diffusion-pipe, utils/dataset.py);
/// the one nearest to a square comes first. CELLS_SIDE: ratios up to 4 in steps of a row or a column of 16 pixels, of at most
/// the area of the square of SIDE (HunyuanVideo-1.5, hyvideo/utils/data_utils.py); the square comes first. Samples have the
/// first shape. Throws UserError (usage) showing the text.
std::vector<Bucket> area_buckets(const std::string& text, int64_t frames) {
  long long a = 0, b = 0;
  double least = 0, most = 0;
  int end = 0;
  const auto whole = [&](int found, int wanted) { return found == wanted && static_cast<size_t>(end) == text.size(); };
  const auto sides = [](long long side) { return side >= kUnit * 2 && side <= kMostSide; };
  if (whole(std::sscanf(text.c_str(), "AREA_%lldx%lld%n", &a, &b, &end), 2) && sides(a) && sides(b))
    return of_area(a, b, frames);
  end = 0;
  if (whole(std::sscanf(text.c_str(), "RATIOS_%lld_%lf_%lf_%lld%n", &a, &least, &most, &b, &end), 4) && sides(a) &&
      least >= 0.01 && most >= least && most <= 100 && b >= 1 && b <= 256)
    return of_ratios(a, least, most, b, frames);
  end = 0;
  if (whole(std::sscanf(text.c_str(), "CELLS_%lld%n", &a, &end), 1) && sides(a)) return of_cells(a, frames);
  throw UserError(Exit::usage, "data.buckets",
                  "'" + text + "': expected AREA_WIDTHxHEIGHT, RATIOS_SIDE_LEAST_MOST_COUNT or CELLS_SIDE",
                  "for example AREA_832x480, or RATIOS_512_0.5_2_7: seven ratios of width to height");
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
