#include "tessera/comm/shared_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::comm {
namespace {

constexpr int64_t kBytes = 10'000;

/// Its first bytes.
char* mapped(const SharedFile& file) {
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), 0);
  EXPECT_NE(memory, MAP_FAILED);
  return static_cast<char*>(memory);
}

TEST(SharedFile, AnotherProcessReadsAndWritesTheSameBytes) {
  const auto made = SharedFile::create("test", kBytes);
  ASSERT_TRUE(made);
  char* here = mapped(*made);
  EXPECT_EQ(here[kBytes - 1], 0) << "new memory is zero";
  here[0] = 'a';
  const SharedFile::Address address = made->address();
  const pid_t child = fork();
  if (child == 0) {
    close(made->descriptor());  // what it inherits is not what it opens
    const auto same = SharedFile::open(address, kBytes);
    if (!same) _exit(1);
    char* there = mapped(*same);
    if (there[0] != 'a') _exit(2);
    there[1] = 'b';
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(here[1], 'b');
}

TEST(SharedFile, AnotherFileIsNotTakenForIt) {
  auto made = SharedFile::create("test", kBytes);
  const auto other = SharedFile::create("test", kBytes);
  ASSERT_TRUE(made && other);
  const SharedFile::Address address = made->address();
  EXPECT_TRUE(SharedFile::open(address, kBytes));
  EXPECT_FALSE(SharedFile::open(address, kBytes + 1)) << "of another size";
  SharedFile::Address wrong = address;
  wrong.descriptor = other->descriptor();
  EXPECT_FALSE(SharedFile::open(wrong, kBytes)) << "another container may have such a process with such a descriptor";
  wrong = address;
  wrong.token ^= 1;
  EXPECT_FALSE(SharedFile::open(wrong, kBytes));
  made = nullptr;
  EXPECT_FALSE(SharedFile::open(address, kBytes)) << "it is gone";
}

}  // namespace
}  // namespace tessera::comm
