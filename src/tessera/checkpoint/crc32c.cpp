#include "tessera/checkpoint/crc32c.h"

#include <cstring>

#include "tessera/checkpoint/crc.h"
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tessera::checkpoint {

namespace {

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

}  // namespace tessera::checkpoint
