#include "tessera/base/random.h"

#include <array>
#include <cmath>
#include <numbers>

namespace tessera {

namespace {
using Block = std::array<uint32_t, 4>;

Block philox(Block c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c[0];
    const uint64_t p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

uint64_t mix(uint64_t x) {  // finaliser of splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

double to_unit(uint32_t hi, uint32_t lo) {  // (0, 1): never 0, never 1
  const uint64_t bits = (static_cast<uint64_t>(hi) << 32 | lo) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Two normals from one block (Box-Muller): elements 2i and 2i+1.
std::array<double, 2> normal_pair(const Block& b) {
  const double radius = std::sqrt(-2.0 * std::log(to_unit(b[0], b[1])));
  const double angle = 2.0 * std::numbers::pi * to_unit(b[2], b[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}
}  // namespace

RandomKey::RandomKey(uint64_t seed, Purpose purpose, uint64_t a, uint64_t b) {
  const uint64_t k = mix(seed ^ mix(static_cast<uint64_t>(purpose)));
  const uint64_t h = mix(a ^ mix(b ^ mix(k)));
  key_[0] = static_cast<uint32_t>(k);
  key_[1] = static_cast<uint32_t>(k >> 32);
  high_[0] = static_cast<uint32_t>(h);
  high_[1] = static_cast<uint32_t>(h >> 32);
}

static Block block_at(const uint32_t* key, const uint32_t* high, uint64_t index) {
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), high[0], high[1]}, key[0], key[1]);
}

uint32_t RandomKey::bits(uint64_t index) const { return block_at(key_, high_, index)[0]; }

void RandomKey::half_words(uint16_t* out, uint64_t first, size_t count) const {
  for (size_t done = 0; done < count;) {
    const uint64_t at = first + done;
    const Block block = block_at(key_, high_, at / 8);
    for (uint64_t h = at % 8; h < 8 && done < count; ++h, ++done)
      out[done] = static_cast<uint16_t>(block[h / 2] >> (h % 2 * 16));
  }
}

double RandomKey::uniform(uint64_t index) const {
  const Block b = block_at(key_, high_, index);
  return to_unit(b[0], b[1]);
}

double RandomKey::normal(uint64_t index) const { return normal_pair(block_at(key_, high_, index / 2))[index % 2]; }

void RandomKey::normal(float* out, uint64_t first, size_t count) const {
  size_t done = 0;
  if (count > 0 && first % 2 == 1) out[done++] = static_cast<float>(normal(first));
  for (; done < count; done += 2) {
    const auto pair = normal_pair(block_at(key_, high_, (first + done) / 2));
    out[done] = static_cast<float>(pair[0]);
    if (done + 1 < count) out[done + 1] = static_cast<float>(pair[1]);
  }
}

uint64_t RandomKey::below(uint64_t index, uint64_t bound) const {
  const Block b = block_at(key_, high_, index);
  const uint64_t wide = static_cast<uint64_t>(b[0]) << 32 | b[1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(wide) * bound) >> 64);
}

uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001B3ull;
  return hash;
}

}  // namespace tessera
