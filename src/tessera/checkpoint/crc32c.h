#pragma once
// CRC-32C (Castagnoli), the checksum beside every part of a training checkpoint.
//
//   uint32_t crc = crc32c(first, n);
//   crc = crc32c(second, m, crc);                    // the same as over both in one piece
#include <cstddef>
#include <cstdint>

namespace tessera::checkpoint {

/// Continues from `crc`, the value over the bytes before. Uses the processor's instruction where there is one.
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0);
/// The same by tables, on any machine; kept beside the fast path as its reference.
uint32_t crc32c_portable(const void* data, size_t size, uint32_t crc = 0);

}  // namespace tessera::checkpoint
