#pragma once
// 8-bit optimiser moments: blocks of 256 values share a scale, and a value is an index into a map that is dense near
// zero (Dettmers et al., 8-bit Optimizers, 2022). The codes equal those of bitsandbytes and torchao.
//
//   quantise_blocks(codes, scales, m, n, DynamicMap::with_sign());       // scales[ceil(n / 256)]
//   dequantise_blocks(m, codes, scales, n, DynamicMap::with_sign());
#include <array>
#include <cstdint>
#include <vector>

namespace tessera::ops {

inline constexpr int64_t kQuantBlock = 256;

/// 256 ascending values in [-1, 1] or [0, 1] over seven decades; a code is an index. The signed map is not symmetric: 0
/// is code 127, +1 exists, -1 does not (the lowest is -0.993). In the unsigned map 0 is code 0.
class DynamicMap {
 public:
  static const DynamicMap& with_sign();     ///< for first moments
  static const DynamicMap& without_sign();  ///< for second moments

  const std::array<float, 256>& values() const { return values_; }
  int zero() const { return zero_; }  ///< code of 0

  /// Codes of the nearest values to x / *scale, the upper one at ties, where *scale = the largest magnitude, at least
  /// 1e-12. NaN changes no scale and has code 255. At most kQuantBlock values. `keep_sign`: a negative value that would become 0 gets the code below, as in
  /// bitsandbytes' CUDA kernel.
  void quantise(uint8_t* codes, float* scale, const float* x, int64_t n, bool keep_sign = false) const;
  void dequantise(float* out, const uint8_t* codes, float scale, int64_t n) const;

 private:
  explicit DynamicMap(bool with_sign);
  void fill_buckets();

  std::array<float, 256> values_;
  int zero_ = 0;
  /// The leading 16 bits of |x| select a bucket; buckets of negative values follow. Each contains at most one border
  /// between codes: below thresholds_[b] in magnitude the code is codes_[b], from there on its neighbour away from
  /// zero.
  std::vector<float> thresholds_;
  std::vector<int32_t> codes_;
};

/// Whole ranges, with blocks divided among threads; the last block may be short.
void quantise_blocks(uint8_t* codes, float* scales, const float* x, int64_t n, const DynamicMap& map);
void dequantise_blocks(float* out, const uint8_t* codes, const float* scales, int64_t n, const DynamicMap& map);

}  // namespace tessera::ops
