#include "tessera/base/hash.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tessera {

namespace {

constexpr size_t kBlock = 64;

constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

void add_block(State& state, const char* block) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i)
    for (size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<uint8_t>(block[4 * i + b]);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t one = h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t two = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const State sum = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < sum.size(); ++i) state[i] += sum[i];
}

}  // namespace

Digest sha256(std::string_view text) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(text);
  padded += '\x80';
  padded.resize((padded.size() + 8 + kBlock - 1) / kBlock * kBlock - 8);
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(uint64_t{text.size()} * 8 >> shift);
  for (size_t at = 0; at < padded.size(); at += kBlock) add_block(state, padded.data() + at);
  Digest digest{};
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  std::string block(key);
  if (key.size() > kBlock) {
    const Digest short_key = sha256(key);
    block = bytes_of(short_key);
  }
  block.resize(kBlock);
  std::string inner = block, outer = block;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  const Digest digest = sha256(inner.append(text));
  return sha256(outer.append(bytes_of(digest)));
}

bool same_digest(const Digest& a, const Digest& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

namespace {

// Eight bytes at a time, by the reflected polynomial. tables[k][b]: the effect of byte b followed by k zero bytes, so that eight bytes are taken at once
template <uint32_t kPolynomial>
constexpr std::array<std::array<uint32_t, 256>, 8> crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
  return tables;
}

template <uint32_t kPolynomial>
uint32_t crc_portable(const void* data, size_t size, uint32_t crc = 0) {
  static constexpr auto kTables = crc_tables<kPolynomial>();
  const uint8_t* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) crc ^= kTables[static_cast<size_t>(7 - k)][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; --size, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xff];
  return ~crc;
}

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const void* data, size_t size, uint32_t crc) {
  const char* at = static_cast<const char*>(data);
  uint64_t state = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    state = _mm_crc32_u64(state, word);
  }
  uint32_t rest = static_cast<uint32_t>(state);
  for (; size > 0; --size, ++at) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(*at));
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_portable(const void* data, size_t size, uint32_t crc) {
  return crc_portable<kPolynomial>(data, size, crc);
}

uint32_t crc32c(const void* data, size_t size, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_sse42(data, size, crc);
#endif
  return crc32c_portable(data, size, crc);
}

uint32_t crc32_zip(const void* data, size_t size) { return crc_portable<0xEDB88320>(data, size); }

}  // namespace tessera
