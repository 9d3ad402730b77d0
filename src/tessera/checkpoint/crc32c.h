#pragma once
// Cyclic checksums of 32 bits: CRC-32C (Castagnoli), beside every part of a training checkpoint, and the CRC-32 of zip archives.
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

/// What zip archives keep of every entry.
uint32_t crc32_zip(const void* data, size_t size);

}  // namespace tessera::checkpoint
