#pragma once
// Tar archives as tarfile, GNU tar and WebDataset write them: POSIX ustar, with pax headers or GNU's long names.
//
//   for (const Member& member : read_tar(checkpoint::ReadFile("00000.tar"))) ...
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/file.h"

namespace tessera::data {

struct Member {
  std::string name;              ///< as in the archive, without a leading "./"
  int64_t begin = 0, bytes = 0;  ///< where its bytes lie in the archive, and its size
  int64_t packed = -1;           ///< of zips: it is deflated, in so many bytes; -1: its bytes are there as they are
  uint32_t crc32 = 0;            ///< of a deflated one's content
};

/// The regular files in their order. Every header's checksum is checked, every member lies inside the file. Throws
/// UserError (input) naming the archive and the byte.
std::vector<Member> read_tar(const checkpoint::ReadFile& file);

}  // namespace tessera::data
