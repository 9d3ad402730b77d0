#include "tessera/data/buckets/area_buckets.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

constexpr int64_t kUnit = 16;           ///< pixels: what both programs round sides of these models to
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

}  // namespace

bool names_area(const std::string& text) { return text.starts_with("AREA_") || text.starts_with("RATIOS_"); }

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
  throw UserError(Exit::usage, "data.buckets",
                  "'" + text + "': expected AREA_WIDTHxHEIGHT or RATIOS_SIDE_LEAST_MOST_COUNT",
                  "for example AREA_832x480, or RATIOS_512_0.5_2_7: seven ratios of width to height");
}

}  // namespace tessera::data
