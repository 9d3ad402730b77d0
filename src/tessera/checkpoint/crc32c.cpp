#include "tessera/checkpoint/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tessera::checkpoint {

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

}  // namespace tessera::checkpoint
