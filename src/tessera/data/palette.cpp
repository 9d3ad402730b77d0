#include "tessera/data/palette.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

constexpr int kBits = 5, kShift = 8 - kBits, kCells = 1 << (3 * kBits);
constexpr size_t kMost = 256;

int cell(int r, int g, int b) { return (r >> kShift) << (2 * kBits) | (g >> kShift) << kBits | b >> kShift; }

/// Pixels of one 5-bit cell of the colour cube.
struct Bin {
  int64_t count = 0;
  std::array<int64_t, 3> sum{};
  int mean(int channel) const { return static_cast<int>((sum[channel] + count / 2) / count); }
};

/// Bins [begin, end) of the list, which are one box of the cube.
struct Box {
  size_t begin, end;
  int channel = 0;   ///< its longest side
  double worth = 0;  ///< how much a split is wanted
};

Box make_box(const std::vector<Bin>& bins, size_t begin, size_t end) {
  Box box{begin, end};
  int64_t count = 0;
  for (size_t i = begin; i < end; ++i) count += bins[i].count;
  int longest = 0;
  for (int c = 0; c < 3; ++c) {
    int low = 255, high = 0;
    for (size_t i = begin; i < end; ++i) low = std::min(low, bins[i].mean(c)), high = std::max(high, bins[i].mean(c));
    if (high - low > longest) longest = high - low, box.channel = c;
  }
  // Between pixels alone (large flat areas take all colours) and range alone (a few odd pixels do).
  box.worth = longest * std::sqrt(static_cast<double>(count));
  return box;
}

}  // namespace

Palette choose_palette(const Frames& frames) {
  std::vector<Bin> cube(kCells), bins;
  for (size_t i = 0; i + 2 < frames.rgb.size(); i += 3) {
    const uint8_t* p = frames.rgb.data() + i;
    Bin& bin = cube[static_cast<size_t>(cell(p[0], p[1], p[2]))];
    ++bin.count;
    for (int c = 0; c < 3; ++c) bin.sum[c] += p[c];
  }
  std::copy_if(cube.begin(), cube.end(), std::back_inserter(bins), [](const Bin& bin) { return bin.count > 0; });
  check_internal(!bins.empty(), "data.palette", "a clip without pixels");

  std::vector<Box> boxes = {make_box(bins, 0, bins.size())};
  while (boxes.size() < kMost) {
    const auto widest =
        std::max_element(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.worth < b.worth; });
    if (widest->worth == 0) break;  // every box is one colour
    const Box box = *widest;
    std::sort(bins.begin() + static_cast<long>(box.begin), bins.begin() + static_cast<long>(box.end),
              [&](const Bin& a, const Bin& b) { return a.mean(box.channel) < b.mean(box.channel); });
    int64_t total = 0, below = 0;
    for (size_t i = box.begin; i < box.end; ++i) total += bins[i].count;
    size_t middle = box.begin;
    while (middle + 1 < box.end && (middle == box.begin || 2 * below < total)) below += bins[middle++].count;
    *widest = make_box(bins, box.begin, middle);
    boxes.push_back(make_box(bins, middle, box.end));
  }

  std::vector<Palette::Colour> colours;
  for (const Box& box : boxes) {
    Bin all;
    for (size_t i = box.begin; i < box.end; ++i) {
      all.count += bins[i].count;
      for (int c = 0; c < 3; ++c) all.sum[c] += bins[i].sum[c];
    }
    colours.push_back(
        {static_cast<uint8_t>(all.mean(0)), static_cast<uint8_t>(all.mean(1)), static_cast<uint8_t>(all.mean(2))});
  }
  return Palette(std::move(colours));
}

Palette::Palette(std::vector<Colour> colours) : colours_(std::move(colours)), cells_(kCells) {
  check_internal(!colours_.empty() && colours_.size() <= kMost, "data.palette", "1 to 256 colours are needed");
  const int half = 1 << (kShift - 1);
  for (int i = 0; i < kCells; ++i) {
    const auto level = [&](int place) { return ((i >> (place * kBits)) & ((1 << kBits) - 1)) << kShift | half; };
    cells_[static_cast<size_t>(i)] = nearest(level(2), level(1), level(0));
  }
  // Where all colours are used up the steps between them show; a clip of few colours needs no dither.
  spread_ = colours_.size() == kMost ? 1 << kShift : 0;
}

uint8_t Palette::nearest(int r, int g, int b) const {
  int best = std::numeric_limits<int>::max();
  size_t found = 0;
  for (size_t i = 0; i < colours_.size(); ++i) {
    const int dr = r - colours_[i][0], dg = g - colours_[i][1], db = b - colours_[i][2];
    const int distance = 2 * dr * dr + 4 * dg * dg + 3 * db * db;  // the eye's weights, roughly
    if (distance < best) best = distance, found = i;
  }
  return static_cast<uint8_t>(found);
}

std::vector<uint8_t> Palette::map(const Frames& frames, int index) const {
  static constexpr int kBayer[4][4] = {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}};
  std::vector<uint8_t> indices;
  indices.reserve(frames.frame_bytes() / 3);
  const uint8_t* p = frames.frame(index);
  for (int y = 0; y < frames.height; ++y)
    for (int x = 0; x < frames.width; ++x, p += 3) {
      const int shift = spread_ * (2 * kBayer[y % 4][x % 4] - 15) / 32;
      const auto level = [&](int c) { return std::clamp(p[c] + shift, 0, 255); };
      indices.push_back(cells_[static_cast<size_t>(cell(level(0), level(1), level(2)))]);
    }
  return indices;
}

}  // namespace tessera::data
