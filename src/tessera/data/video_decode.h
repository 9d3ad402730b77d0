#pragma once
// HDR pictures (PQ, HLG) as SDR, by the curve of BT.2390 with white at 203 nits.
//
//   const ToneMap map({.hlg = false, .wide = true, .peak = 1000});
//   map.convert(rgb48, rgb24, pixels);
//
// [Note: tone mapping] FFmpeg's filter graph would do this with zscale, and turning and deinterlacing with transpose and
// bwdif. In Debian's build libavfilter brings 31 libraries of 54 MiB into the wheel (speech synthesis and recognition,
// Vulkan, LAPACK), a third of what it carries now, for the 300 lines of this module, fields in video_decode.cpp and the turns of
// video_source.h. So these are ours.
#include <cstdint>
#include <vector>

namespace tessera::data {

class ToneMap {
 public:
  struct From {
    bool hlg = false;    ///< ARIB STD-B67, shown on a screen of 1000 nits; else SMPTE ST 2084
    bool wide = true;    ///< primaries of BT.2020; else those of BT.709
    double peak = 1000;  ///< nits of the brightest that the pictures were made for
    bool operator==(const From&) const = default;
  };
  explicit ToneMap(const From& from);

  const From& from() const { return from_; }
  /// From RGB of 16 bits a channel, as coded, to 8 bits of BT.709 as screens of BT.1886 show them.
  void convert(const uint16_t* from, uint8_t* to, int64_t pixels) const;

 private:
  From from_;
  std::vector<float> linear_,
      gain_;                    // by code value: nits (of hlg light of the scene); by brightness: what it is times
  std::vector<uint8_t> coded_;  // by the root of what is shown, 1 being white
};

/// Nits of a PQ signal from 0 to 1, and the signal of nits.
double pq_to_nits(double signal);
double nits_to_pq(double nits);

}  // namespace tessera::data
