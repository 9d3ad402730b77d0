#include "tessera/families/frames/pixel_masks.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::families {

namespace {

struct Box {
  int64_t top, bottom, left, right;
};

/// Its middle and then its size are drawn; what reaches beyond the frame is cut off.
Box drawn_box(const ClipSizes& clip, const PixelDraws& draws) {
  const int64_t x = draws.whole(0, clip.width - 1), y = draws.whole(0, clip.height - 1);
  // a side of three pixels or less leaves the program nothing to draw from
  const auto side = [&](int64_t of) { return draws.whole(of / 4, std::max(of / 4, of / 4 * 3 - 1)); };
  const int64_t width = side(clip.width), height = side(clip.height);
  return {std::max<int64_t>(y - height / 2, 0), std::min(y + height / 2, clip.height),
          std::max<int64_t>(x - width / 2, 0), std::min(x + width / 2, clip.width)};
}

class Mask {
 public:
  explicit Mask(const ClipSizes& clip) : clip_(clip) {
    pixels_.resize(static_cast<size_t>(clip.frames * clip.height * clip.width));
  }
  void frames(int64_t begin, int64_t end, const Box& box) {
    for (int64_t f = begin; f < std::min(end, clip_.frames); ++f)
      for (int64_t y = box.top; y < box.bottom; ++y) {
        const int64_t row = (f * clip_.height + y) * clip_.width;
        if (box.left < box.right) std::fill(pixels_.begin() + row + box.left, pixels_.begin() + row + box.right, 1);
      }
  }
  void frames(int64_t begin, int64_t end) { frames(begin, end, {0, clip_.height, 0, clip_.width}); }
  /// In the first frame; its edge is outside.
  void ellipse(int64_t x, int64_t y, int64_t a, int64_t b) {
    const auto square = [](int64_t d, int64_t by) {
      const auto share = static_cast<double>(d) / static_cast<double>(by);
      return share * share;
    };
    for (int64_t i = 0; i < clip_.height * clip_.width; ++i)
      pixels_[static_cast<size_t>(i)] = square(i % clip_.width - x, a) + square(i / clip_.width - y, b) < 1;
  }
  void each(const std::function<bool(int64_t)>& on) {
    for (size_t i = 0; i < pixels_.size(); ++i) pixels_[i] = on(static_cast<int64_t>(i));
  }
  std::vector<uint8_t> done() { return std::move(pixels_); }

 private:
  const ClipSizes clip_;
  std::vector<uint8_t> pixels_;
};

/// A box of up to a quarter of the sides in each of some frames.
void boxes(Mask& mask, const ClipSizes& clip, const PixelDraws& draws) {
  const int64_t count = draws.whole(1, std::max<int64_t>(clip.frames / 2, 1));
  for (const int64_t frame : draws.chosen(clip.frames, count)) {
    const int64_t height = draws.whole(1, std::max<int64_t>(clip.height / 4, 1)),
                  width = draws.whole(1, std::max<int64_t>(clip.width / 4, 1));
    const int64_t top = draws.whole(0, clip.height - height), left = draws.whole(0, clip.width - width);
    mask.frames(frame, frame + 1, {top, top + height, left, left + width});
  }
}

void round(Mask& mask, bool circle, const ClipSizes& clip, const PixelDraws& draws) {
  const int64_t x = draws.whole(0, clip.width - 1), y = draws.whole(0, clip.height - 1);
  const int64_t side = std::min(clip.height, clip.width);
  const auto radius = [&] { return draws.whole(side / 8, std::max(side / 8, side / 4 - 1)); };
  const int64_t a = radius(), b = circle ? a : radius();
  mask.ellipse(x, y, a, b);
}

}  // namespace

const std::array<double, kPixelMaskKinds>& pixel_mask_weights(bool picture) {
  static constexpr std::array<double, kPixelMaskKinds> of_clip = {0.05, 0.2,  0.2, 0.2,  0.05,
                                                                  0.05, 0.05, 0.1, 0.05, 0.05},
                                                       of_picture = {0.2, 0.7, 0, 0, 0, 0, 0, 0.05, 0.05, 0};
  return picture ? of_picture : of_clip;
}

const std::vector<std::string>& pixel_mask_names() {
  static const std::vector<std::string> names = {"box",   "all",   "from",    "between", "box_in_time",
                                                 "noise", "boxes", "ellipse", "circle",  "frames"};
  return names;
}

int pixel_mask_kind(int64_t frames, double u, const std::vector<Weighted>& given) {
  auto weights = pixel_mask_weights(frames == 1);
  if (!given.empty()) {
    double sum = 0;
    for (int kind = 0; kind < kPixelMaskKinds; ++kind) {
      double& weight = weights[static_cast<size_t>(kind)];
      const bool fits = weight > 0 || frames > 1;
      weight = 0;
      for (const Weighted& one : given)
        if (fits && one.name == pixel_mask_names()[static_cast<size_t>(kind)]) weight += one.weight;
      sum += weight;
    }
    if (sum == 0) return 1;  // a picture, of kinds that only clips have
    u *= sum;
  }
  int last = 0;
  for (int kind = 0; kind < kPixelMaskKinds; ++kind) {
    if (weights[static_cast<size_t>(kind)] == 0) continue;
    last = kind;
    if (u < weights[static_cast<size_t>(kind)]) return kind;
    u -= weights[static_cast<size_t>(kind)];
  }
  return last;  // the shares add up to one less a rounding
}

std::vector<uint8_t> pixel_mask(int kind, const ClipSizes& clip, const PixelDraws& draws) {
  constexpr int64_t kLeast = 1, kMost = 4;  // frames that are given at an end
  Mask mask(clip);
  switch (kind) {
    case 0:
      mask.frames(0, clip.frames, drawn_box(clip, draws));
      break;
    case 1:
      mask.frames(0, clip.frames);
      break;
    case 2:
      mask.frames(draws.whole(kLeast, kMost), clip.frames);
      break;
    case 3: {
      const int64_t given = draws.whole(kLeast, kMost);
      mask.frames(given, clip.frames - given);
      break;
    }
    case 4: {
      const Box box = drawn_box(clip, draws);
      const int64_t half = clip.frames / 2, begin = draws.whole(0, std::max<int64_t>(half - 1, 0));
      mask.frames(begin, draws.whole(half, std::max(half, clip.frames - 1)), box);
      break;
    }
    case 5:
      mask.each(draws.pixel);
      break;
    case 6:
      boxes(mask, clip, draws);
      break;
    case 7:
    case 8:
      round(mask, kind == 8, clip, draws);
      break;
    case 9:
      for (int64_t f = 0; f < clip.frames; ++f)
        if (draws.real() > 0.5) mask.frames(f, f + 1);
      break;
    default:
      throw UserError(Exit::usage, "frames.pixel_mask", "no kind " + std::to_string(kind) + " of masks",
                      "kinds are 0 to " + std::to_string(kPixelMaskKinds - 1));
  }
  return mask.done();
}

namespace {

constexpr std::pair<const char*, double ConditionShares::*> kShares[] = {
    {"nothing", &ConditionShares::nothing},
    {"first_frame", &ConditionShares::first_frame},
    {"inpaint", &ConditionShares::inpaint},
    {"photo", &ConditionShares::photo},
    {"no_references", &ConditionShares::no_references},
    {"flip", &ConditionShares::flip},
    {"previous", &ConditionShares::previous},
    {"no_background", &ConditionShares::no_background}};

}  // namespace

const std::vector<std::string>& share_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, member] : kShares) all.emplace_back(name);
    return all;
  }();
  return names;
}

double& share_of(ConditionShares& shares, const std::string& name) {
  for (const auto& [known, member] : kShares)
    if (name == known) return shares.*member;
  std::string names;
  for (const std::string& known : share_names()) names += (names.empty() ? "" : ", ") + known;
  throw UserError(Exit::usage, "recipe", "diffusion.draw_shares: unknown draw '" + name + "'", "there are " + names);
}

const std::vector<std::string>& droppable_conditions() {
  static const std::vector<std::string> names = {"control", "start", "reference", "image"};
  return names;
}

}  // namespace tessera::families
