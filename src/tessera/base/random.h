#pragma once
// Counter-based random numbers: a draw depends only on (seed, purpose, step, sample, index), not on mesh or rank.
// Philox4x32-10 (Salmon et al., SC'11). There is no state to save, and any element can be drawn by itself.
//
//   RandomKey key(seed, Purpose::noise, step, sample);
//   key.normal(out, first_index, count);           // standard normals, element i depends on (key, i) only
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class Purpose : uint32_t {
  init = 1,
  order = 2,
  noise = 3,
  timestep = 4,
  dropout = 5,
  sample = 6,
  expert = 7,
  test = 8,
  rounding = 9
};

class RandomKey {
 public:
  RandomKey(uint64_t seed, Purpose purpose, uint64_t a = 0, uint64_t b = 0);

  uint32_t bits(uint64_t index) const;  ///< 32 uniform bits
  /// 16 uniform bits for each of the elements first..first+count, eight elements from one block.
  void half_words(uint16_t* out, uint64_t first, size_t count) const;
  double uniform(uint64_t index) const;                         ///< in (0, 1), 53 bits
  double normal(uint64_t index) const;                          ///< one standard normal; equals normal(out, index, 1)
  void normal(float* out, uint64_t first, size_t count) const;  ///< elements first..first+count
  uint64_t below(uint64_t index, uint64_t bound) const;         ///< uniform in [0, bound)

  /// Key and high counter words, for the same generator on a device: block b is Philox of {b, b >> 32, w[2], w[3]} with
  /// key {w[0], w[1]}.
  std::array<uint32_t, 4> words() const { return {key_[0], key_[1], high_[0], high_[1]}; }

 private:
  uint32_t key_[2];
  uint32_t high_[2];
};

/// 64-bit FNV-1a of a text; names a parameter in a key.
uint64_t hash_text(std::string_view text);

}  // namespace tessera
