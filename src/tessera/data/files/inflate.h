#pragma once
// Deflated members of zips (RFC 1951), by zlib.
//
//   const std::string clip = inflated(file, {.begin = begin, .bytes = size, .packed = packed, .crc32 = crc}, "a.zip/b.mp4");
#include <cstdint>
#include <string>

#include "tessera/checkpoint/file.h"

namespace tessera::data {

/// Most bytes that a member is inflated to: a clip of training data is a hundredth of it.
inline constexpr int64_t kMostInflated = int64_t{1} << 30;

bool has_inflate();  ///< whether this build has zlib

struct DeflatedBytes {
  int64_t begin = 0, packed = 0;  ///< where they lie in the file
  int64_t bytes = 0;              ///< what they become
  uint32_t crc32 = 0;             ///< of that
};

/// What they become. Memory grows with what is found, not with what is promised. Throws UserError (input) calling it
/// `name` where they are damaged, become more or fewer bytes than said or others than the checksum's, or more than `most`.
std::string inflated(const checkpoint::ReadFile& file, const DeflatedBytes& deflated, const std::string& name,
                     int64_t most = kMostInflated);

}  // namespace tessera::data
