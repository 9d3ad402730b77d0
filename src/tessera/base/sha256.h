#pragma once
// SHA-256 (FIPS 180-4) and its keyed form HMAC (RFC 2104), for short texts: proofs that two processes know one secret.
//
//   const Digest proof = hmac_sha256(token, challenge);
//   if (!same_digest(proof, theirs)) refuse();
#include <array>
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

}  // namespace tessera
