#include "tessera/base/hash.h"

#include <gtest/gtest.h>

#include <string>

#include "tessera/base/random.h"

namespace tessera::checkpoint {

TEST(Crc32c, KnownVectors) {
  // RFC 3720, B.4, and the check value of the CRC catalogue
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(crc32c_portable("123456789", 9), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAu);
  EXPECT_EQ(crc32c_portable(std::string(32, '\xff').data(), 32), 0x62A8AB43u);
  EXPECT_EQ(crc32c(nullptr, 0), 0u);
}

TEST(Crc32c, InstructionAndTablesAgreeAtAnyLengthAlignmentAndSplit) {
  RandomKey key(1, Purpose::test);
  std::string bytes;
  for (uint64_t i = 0; i < 300; ++i) bytes.push_back(static_cast<char>(key.bits(i)));
  for (size_t first = 0; first < 9; ++first)
    for (size_t size = 0; first + size <= bytes.size(); ++size) {
      uint32_t whole = crc32c(bytes.data() + first, size);
      ASSERT_EQ(whole, crc32c_portable(bytes.data() + first, size)) << first << " " << size;
      size_t split = size / 3;
      ASSERT_EQ(whole, crc32c(bytes.data() + first + split, size - split, crc32c(bytes.data() + first, split)));
    }
}

}  // namespace tessera::checkpoint
