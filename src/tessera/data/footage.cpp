#include "tessera/data/footage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tessera::data {

namespace {

constexpr int kCells = 12;          // of a side
constexpr float kCut = 14;          // mean levels by which cells change at a cut
constexpr float kJump = 2.5F;       // and how many times as much as from one frame to the next beside it
constexpr float kSame = 0.5F;       // mean levels by which coding may change a cell of a frame that stands still
constexpr int kDark = 20;           // the brightest that a mean of black is, of a row, a column or a frame
constexpr int kDarkPixel = 40;      // and of one pixel of it, with what coding and resizing spill from its neighbours
constexpr int kEdge = 10;           // levels between a bar and the picture, in some frame
constexpr double kLeastBar = 0.02;  // of a side
constexpr int64_t kAtOnce = 256;    // frames of a whole video that are decoded at once
constexpr int kSmallSide = 128;

int level(const uint8_t* pixel) { return (77 * pixel[0] + 150 * pixel[1] + 29 * pixel[2]) >> 8; }

/// A row or column of a picture.
struct Line {
  const uint8_t* first;
  int count;
  ptrdiff_t step;  // pixels from one to the next

  int mean() const {
    int64_t sum = 0;
    for (int i = 0; i < count; ++i) sum += level(first + 3 * step * i);
    return static_cast<int>(sum / std::max(count, 1));
  }
  /// But for dust, or the corner of a logo.
  bool dark() const {
    int bright = 0;
    for (int i = 0; i < count; ++i) bright += level(first + 3 * step * i) > kDarkPixel;
    return mean() <= kDark && bright * 50 <= count;
  }
};

/// The mean over each cell of a picture of what `of` says of each byte.
template <class Of>
std::vector<float> means_of_cells(int height, int width, size_t channels, const Of& of) {
  const int rows = std::min(height, kCells), columns = std::min(width, kCells);
  std::vector<float> sums(static_cast<size_t>(rows * columns) * channels), counts(static_cast<size_t>(rows * columns));
  size_t at = 0;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x, at += 3) {
      const auto cell = static_cast<size_t>(y * rows / height * columns + x * columns / width);
      for (size_t c = 0; c < 3; ++c) sums[channels * cell + c % channels] += static_cast<float>(of(at + c));
      ++counts[cell];
    }
  for (size_t i = 0; i < sums.size(); ++i) sums[i] /= counts[i / channels] * 3 / static_cast<float>(channels);
  return sums;
}

}  // namespace

void FootageWatch::Side::see(int now, bool edge) {
  if (run >= 0 && now > run) return;
  sharp = edge || (now == run && sharp);
  run = now;
}

void FootageWatch::look_for_bars(const uint8_t* rgb) {
  const auto row = [&](int y) { return Line{rgb + static_cast<ptrdiff_t>(y) * width_ * 3, width_, 1}; };
  const auto column = [&](int x) { return Line{rgb + static_cast<ptrdiff_t>(x) * 3, height_, width_}; };
  const auto look = [&](Side& side, int most, const auto& line) {
    int run = 0;
    while (run < most && line(run).dark()) ++run;
    if (run == most) return;  // a black frame says nothing about bars
    side.see(run, run > 0 && line(run).mean() - line(run - 1).mean() >= kEdge);
  };
  look(sides_[0], height_, [&](int i) { return row(i); });
  look(sides_[1], height_, [&](int i) { return row(height_ - 1 - i); });
  look(sides_[2], width_, [&](int i) { return column(i); });
  look(sides_[3], width_, [&](int i) { return column(width_ - 1 - i); });
}

void FootageWatch::add(const uint8_t* rgb, int height, int width) {
  height_ = height, width_ = width;
  std::vector<float> cells = means_of_cells(height, width, 3, [&](size_t i) { return rgb[i]; });
  if (found_.frames++ > 0) {
    float step = 0;
    for (size_t i = 0; i < cells.size(); ++i) step += std::abs(cells[i] - cells_[i]);
    steps_.push_back(step / static_cast<float>(cells.size()));
    const auto moved =
        means_of_cells(height, width, 1, [&](size_t i) { return std::abs(int{rgb[i]} - int{last_[i]}); });
    found_.repeated += *std::ranges::max_element(moved) <= kSame;
  }
  cells_ = std::move(cells);
  last_.assign(rgb, rgb + static_cast<size_t>(height) * width * 3);
  look_for_bars(rgb);
}

Footage FootageWatch::footage() const {
  Footage footage = found_;
  footage.black = footage.frames > 0 && sides_[0].run < 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    // A flash and fast movement step as far again right before or after.
    const float beside = std::max(i > 0 ? steps_[i - 1] : 0, i + 1 < steps_.size() ? steps_[i + 1] : 0);
    if (steps_[i] >= kCut && steps_[i] >= kJump * beside) footage.cuts.push_back(static_cast<int64_t>(i) + 1);
  }
  const auto share = [](const Side& side, int of) {
    const double part = of > 0 && side.sharp ? static_cast<double>(side.run) / of : 0;
    return part >= kLeastBar ? part : 0;
  };
  footage.bars = {share(sides_[0], height_), share(sides_[1], height_), share(sides_[2], width_),
                  share(sides_[3], width_)};
  return footage;
}

Footage look_at(const Frames& frames) {
  FootageWatch watch;
  for (int i = 0; i < frames.count; ++i) watch.add(frames.frame(i), frames.height, frames.width);
  return watch.footage();
}

Footage look_through(const Path& path, const VideoInfo& info, double fps, const Showing& showing) {
  const double scale = std::min(1.0, static_cast<double>(kSmallSide) / std::min(info.height, info.width));
  ClipSpec part;
  part.height = std::max(1, static_cast<int>(std::lround(info.height * scale)));
  part.width = std::max(1, static_cast<int>(std::lround(info.width * scale)));
  part.fps = fps, part.showing = showing;
  const int64_t count = frames_at(info, fps);
  const double rate = rate_of(info, fps);
  FootageWatch watch;
  for (int64_t begin = 0; begin < count; begin += kAtOnce) {
    part.frames = static_cast<int>(std::min(kAtOnce, count - begin));
    part.start = static_cast<double>(begin) / rate;
    const Frames frames = decode_clip(path, part);
    for (int i = 0; i < frames.count; ++i) watch.add(frames.frame(i), frames.height, frames.width);
  }
  return watch.footage();
}

}  // namespace tessera::data
