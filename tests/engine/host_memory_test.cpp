// Host memory whose end is a file that processes share.
#include "tessera/engine/store/host_memory.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tessera/base/check.h"

namespace tessera::engine {
namespace {

constexpr int64_t kOwn = 1536, kShared = 70'000;

TEST(SharedHostMemory, HasItsOwnBytesBeforeThoseOfTheFile) {
  const auto file = comm::SharedFile::create("test", kShared);
  ASSERT_TRUE(file);
  HostMemory one, other;
  one.reserve(kOwn, *file), other.reserve(kOwn, *file);
  EXPECT_EQ(one.size(), kOwn + kShared);
  std::memset(one.at(0), 1, kOwn), std::memset(one.at(kOwn), 2, kShared);
  for (const int64_t at : {int64_t{0}, kOwn - 1}) EXPECT_EQ(*other.at(at), 0) << "its own";
  for (const int64_t at : {kOwn, kOwn + kShared - 1}) EXPECT_EQ(*other.at(at), 2) << "the file's";
  other.at(kOwn)[5] = 3;
  EXPECT_EQ(one.at(kOwn)[5], 3);
}

TEST(SharedHostMemory, NobodyWritesTheFileWhileWritesAreNotAllowed) {
  const auto file = comm::SharedFile::create("test", kShared);
  ASSERT_TRUE(file);
  HostMemory memory, writer;
  memory.reserve(kOwn, *file), writer.reserve(0, *file);
  memory.allow_writes(false);
  *memory.at(kOwn - 1) = 1;  // its own it may
  *writer.at(0) = 4;
  EXPECT_EQ(*memory.at(kOwn), 4);
  EXPECT_DEATH(*memory.at(kOwn) = 5, "");
  EXPECT_DEATH(*memory.at(kOwn + kShared - 1) = 5, "");
  memory.allow_writes(true);
  *memory.at(kOwn) = 5;
  EXPECT_EQ(*writer.at(0), 5);
}

TEST(SharedHostMemory, MoreThanTheMachineHasIsRefused) {
  const auto file = comm::SharedFile::create("test", kShared);
  ASSERT_TRUE(file);
  HostMemory memory;
  EXPECT_THROW(memory.reserve(int64_t{1} << 60, *file), UserError);
}

}  // namespace
}  // namespace tessera::engine
