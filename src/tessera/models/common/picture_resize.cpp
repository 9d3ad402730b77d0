#include "tessera/models/common/picture_resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "tessera/base/check.h"

namespace tessera::models {

using at::Tensor;

namespace {

constexpr int kBits = 22;  // of a weight behind the point

double sinc(double x) {
  x *= std::numbers::pi;
  return x == 0 ? 1 : std::sin(x) / x;
}

double value_of(Filter filter, double x) {
  if (filter == Filter::lanczos) return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/// The inputs that make up an output, from `first` on, and their weights.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights;
};

std::vector<Taps> taps_of(int64_t from, int64_t to, Filter filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), wide = std::max(scale, 1.0);
  const double support = (filter == Filter::lanczos ? 3 : 2) * wide;
  std::vector<Taps> all;
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
    const auto end = std::min(from, static_cast<int64_t>(centre + support + 0.5));
    std::vector<double> values;
    double sum = 0;
    for (int64_t x = first; x < end; ++x) {
      values.push_back(value_of(filter, (static_cast<double>(x) - centre + 0.5) * (1 / wide)));
      sum += values.back();
    }
    Taps taps{first, {}};
    for (double value : values) {
      if (sum != 0) value /= sum;
      taps.weights.push_back(static_cast<int32_t>((value < 0 ? -0.5 : 0.5) + value * (1 << kBits)));
    }
    all.push_back(std::move(taps));
  }
  return all;
}

/// [outer, n, inner] -> [outer, to, inner].
Tensor pass(const Tensor& in, int64_t to, Filter filter) {
  const int64_t outer = in.size(0), n = in.size(1), inner = in.size(2);
  if (n == to) return in;
  const std::vector<Taps> taps = taps_of(n, to, filter);
  Tensor out = at::empty({outer, to, inner}, at::kByte);
  const uint8_t* from = in.const_data_ptr<uint8_t>();
  uint8_t* at = out.mutable_data_ptr<uint8_t>();
  for (int64_t o = 0; o < outer; ++o, from += n * inner)
    for (const Taps& of : taps)
      for (int64_t c = 0; c < inner; ++c, ++at) {
        int32_t sum = 1 << (kBits - 1);
        const uint8_t* value = from + of.first * inner + c;
        for (const int32_t weight : of.weights) sum += *value * weight, value += inner;
        *at = static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255));
      }
  return out;
}

}  // namespace

Tensor resized(const Tensor& picture, int64_t height, int64_t width, Filter filter) {
  check_internal(picture.dim() == 3 && picture.scalar_type() == at::kByte, "models.picture",
                 "a picture is bytes [H, W, C]");
  check_input(picture.numel() > 0 && height > 0 && width > 0, "models.picture", "a picture without a pixel",
              "give a picture with pixels");
  const int64_t h = picture.size(0), channels = picture.size(2);
  const Tensor rows = pass(picture.cpu().contiguous(), width, filter);
  return pass(rows.view({1, h, width * channels}), height, filter).view({height, width, channels});
}

Tensor covering(const Tensor& picture, int64_t height, int64_t width) {
  const auto h = static_cast<double>(picture.size(0)), w = static_cast<double>(picture.size(1));
  const double scale = std::max(static_cast<double>(width) / w, static_cast<double>(height) / h);
  const auto whole = [](double pixels) { return static_cast<int64_t>(std::nearbyint(pixels)); };  // half to even
  const Tensor large = resized(picture, whole(h * scale), whole(w * scale), Filter::lanczos);
  const auto middle = [&](int64_t side, int64_t kept) { return whole(static_cast<double>(side - kept) / 2); };
  return large.narrow(0, middle(large.size(0), height), height)
      .narrow(1, middle(large.size(1), width), width)
      .contiguous();
}

}  // namespace tessera::models
