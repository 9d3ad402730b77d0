#include "tessera/data/tone_map.h"

#include <algorithm>
#include <cmath>

namespace tessera::data {

namespace {

constexpr double kWhite = 203;       // nits of SDR white in HDR, BT.2408
constexpr double kMostNits = 10000;  // nits of PQ's signal 1
constexpr double kHlgScreen = 1000;  // nits, to which HLG's system gamma of 1.2 belongs
constexpr int kTable = 4096;

/// Scene light 0 to 1 of an HLG signal, BT.2100.
double hlg_to_scene(double signal) {
  constexpr double a = 0.17883277, b = 1 - 4 * a;
  const double c = 0.5 - a * std::log(4 * a);
  return signal <= 0.5 ? signal * signal / 3 : (std::exp((signal - c) / a) + b) / 12;
}

/// BT.2390's curve: nits on a screen of kWhite, of nits in pictures of up to `peak`.
double mapped(double nits, double peak) {
  if (peak <= kWhite) return std::min(nits, kWhite);
  const double top = nits_to_pq(peak), most = nits_to_pq(kWhite) / top, knee = 1.5 * most - 0.5;
  const double x = std::min(nits_to_pq(nits) / top, 1.0);
  if (x < knee) return nits;
  const double t = (x - knee) / (1 - knee), t2 = t * t, t3 = t2 * t;
  const double y =
      (2 * t3 - 3 * t2 + 1) * knee + (t3 - 2 * t2 + t) * (1 - knee) + (-2 * t3 + 3 * t2) * most;  // Hermite
  return pq_to_nits(y * top);
}

/// Tables over nits are by their fourth root, which spaces them nearly as eyes do.
float place_of(float nits) {
  return std::sqrt(std::sqrt(std::min(nits / static_cast<float>(kMostNits), 1.0F))) * (kTable - 1);
}

}  // namespace

double pq_to_nits(double signal) {
  constexpr double m1 = 1305.0 / 8192, m2 = 2523.0 / 32, c1 = 107.0 / 128, c2 = 2413.0 / 128, c3 = 2392.0 / 128;
  const double p = std::pow(std::clamp(signal, 0.0, 1.0), 1 / m2);
  return kMostNits * std::pow(std::max(p - c1, 0.0) / (c2 - c3 * p), 1 / m1);
}

double nits_to_pq(double nits) {
  constexpr double m1 = 1305.0 / 8192, m2 = 2523.0 / 32, c1 = 107.0 / 128, c2 = 2413.0 / 128, c3 = 2392.0 / 128;
  const double y = std::pow(std::clamp(nits / kMostNits, 0.0, 1.0), m1);
  return std::pow((c1 + c2 * y) / (1 + c3 * y), m2);
}

ToneMap::ToneMap(const From& from) : from_(from), linear_(1 << 16), gain_(kTable + 1), coded_(kTable) {
  for (size_t code = 0; code < linear_.size(); ++code) {
    const double signal = static_cast<double>(code) / static_cast<double>(linear_.size() - 1);
    linear_[code] = static_cast<float>(from.hlg ? hlg_to_scene(signal) : pq_to_nits(signal));
  }
  for (int i = 0; i <= kTable; ++i) {
    const double nits = kMostNits * std::pow(std::max(i, 1) / (kTable - 1.0), 4);
    gain_[static_cast<size_t>(i)] = static_cast<float>(mapped(nits, from.peak) / nits / kWhite);
  }
  for (int i = 0; i < kTable; ++i)  // BT.1886: the screen raises to the power of 2.4
    coded_[static_cast<size_t>(i)] = static_cast<uint8_t>(std::lround(255 * std::pow(i / (kTable - 1.0), 2 / 2.4)));
}

void ToneMap::convert(const uint16_t* from, uint8_t* to, int64_t pixels) const {
  // BT.2087: from the primaries of BT.2020 to those of BT.709
  constexpr float kToNarrow[3][3] = {
      {1.6605F, -0.5876F, -0.0728F}, {-0.1246F, 1.1329F, -0.0083F}, {-0.0182F, -0.1006F, 1.1187F}};
  for (int64_t i = 0; i < pixels; ++i, from += 3, to += 3) {
    float light[3] = {linear_[from[0]], linear_[from[1]], linear_[from[2]]};
    if (from_.hlg) {
      const float scene = 0.2627F * light[0] + 0.6780F * light[1] + 0.0593F * light[2];
      const float shown = static_cast<float>(kHlgScreen) * std::pow(scene, 0.2F);
      for (float& channel : light) channel *= shown;
    }
    float narrow[3] = {light[0], light[1], light[2]};
    if (from_.wide)
      for (size_t c = 0; c < 3; ++c)
        narrow[c] =
            std::max(kToNarrow[c][0] * light[0] + kToNarrow[c][1] * light[1] + kToNarrow[c][2] * light[2], 0.0F);
    // The brightest channel decides for all, which keeps the hue and clips none.
    const float place = place_of(std::max({narrow[0], narrow[1], narrow[2]}));
    const auto below = static_cast<size_t>(place);
    const float gain = gain_[below] + (place - static_cast<float>(below)) * (gain_[below + 1] - gain_[below]);
    for (size_t c = 0; c < 3; ++c)
      to[c] = coded_[static_cast<size_t>(std::lround(std::sqrt(std::min(narrow[c] * gain, 1.0F)) * (kTable - 1)))];
  }
}

}  // namespace tessera::data
