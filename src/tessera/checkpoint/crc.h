#pragma once
// Cyclic checksums of 32 bits by their reflected polynomial, eight bytes at a time: CRC-32C of our checkpoints and the
// CRC-32 of zip archives.
//
//   uint32_t sum = crc32_zip(data, size);
//   sum = crc_portable<0x82F63B78>(more, n, sum);              // continues
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tessera::checkpoint {

// tables[k][b]: the effect of byte b followed by k zero bytes, so that eight bytes are taken at once
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

/// What zip archives keep of every entry.
inline uint32_t crc32_zip(const void* data, size_t size) { return crc_portable<0xEDB88320>(data, size); }

}  // namespace tessera::checkpoint
