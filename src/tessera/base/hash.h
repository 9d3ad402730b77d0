#pragma once
// Hashes. SHA-256 (FIPS 180-4) and its keyed form HMAC (RFC 2104), for short texts: proofs that two processes know one
// secret. Checksums of 32 bits: CRC-32C (Castagnoli), beside every part of a training checkpoint, and the CRC-32 of zip
// archives.
//
//   const Digest proof = hmac_sha256(token, challenge);
//   if (!same_digest(proof, theirs)) refuse();
//   uint32_t crc = crc32c(first, n);
//   crc = crc32c(second, m, crc);                    // the same as over both in one piece
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view text);
Digest hmac_sha256(std::string_view key, std::string_view text);
/// Compares in a time that does not depend on where they differ.
bool same_digest(const Digest& a, const Digest& b);

inline std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// Continues from `crc`, the value over the bytes before. Uses the processor's instruction where there is one.
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0);
/// The same by tables, on any machine; kept beside the fast path as its reference.
uint32_t crc32c_portable(const void* data, size_t size, uint32_t crc = 0);

/// What zip archives keep of every entry.
uint32_t crc32_zip(const void* data, size_t size);

}  // namespace tessera
