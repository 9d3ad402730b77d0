#include "tessera/engine/store/disk.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>

#include "tessera/base/check.h"
#include "tessera/engine/store/host_memory.h"

namespace tessera::engine {
namespace {

class DiskTest : public ::testing::Test {
 protected:
  std::string folder_ =
      (std::filesystem::temp_directory_path() / ("tessera-disk-" + std::to_string(getpid()))).string();
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static void fill(char* data, int64_t bytes, int seed) {
    std::minstd_rand random(static_cast<unsigned>(seed));
    for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(random());
  }
};

TEST_F(DiskTest, WhatIsWrittenIsReadBackAtAnySize) {
  const int64_t sizes[] = {1, 4096, 4097, (1 << 20) + 12345, 9 << 20};
  int64_t all = 0;
  for (int64_t n : sizes) all += round_up(n, 4096);
  Disk disk({folder_}, all);
  std::vector<int64_t> at;
  HostMemory memory;
  memory.reserve(10 << 20);
  int seed = 0;
  for (int64_t n : sizes) {
    at.push_back(disk.reserve(n));
    fill(memory.at(0), n, ++seed);
    disk.write(at.back(), memory.at(0), n);
  }
  seed = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    std::vector<char> expected(static_cast<size_t>(sizes[i]));
    fill(expected.data(), sizes[i], ++seed);
    std::memset(memory.at(0), 0, static_cast<size_t>(sizes[i]));
    disk.read(at[i], memory.at(0), sizes[i]);
    EXPECT_EQ(std::memcmp(memory.at(0), expected.data(), expected.size()), 0) << sizes[i] << " bytes, " << disk.how();
  }
}

TEST_F(DiskTest, TheMappingAndTheDirectWaySeeTheSameBytes) {
  constexpr int64_t kBytes = 3 << 20;
  Disk disk({folder_}, kBytes);
  const int64_t at = disk.reserve(kBytes);
  HostMemory memory;
  memory.reserve(kBytes);
  auto* mapped = static_cast<char*>(disk.map(at, kBytes));
  fill(mapped, kBytes, 1);
  disk.read(at, memory.at(0), kBytes);
  EXPECT_EQ(std::memcmp(memory.at(0), mapped, kBytes), 0) << "what loading wrote, a step must read";
  fill(memory.at(0), kBytes, 2);
  disk.write(at, memory.at(0), kBytes);
  EXPECT_EQ(std::memcmp(memory.at(0), mapped, kBytes), 0) << "what a step wrote, a checkpoint must read";
}

TEST_F(DiskTest, AChecksumTellsThatWhatIsReadIsNotWhatWasWritten) {
  constexpr int64_t kBytes = 3 * 4096;
  HostMemory memory;
  memory.reserve(kBytes);
  for (const bool checksum : {true, false}) {
    Disk disk({folder_, checksum}, 2 * kBytes);
    const int64_t at = disk.reserve(kBytes);
    fill(memory.at(0), kBytes, 1);
    disk.write(at, memory.at(0), kBytes - 100);
    disk.read(at, memory.at(0), kBytes - 100);
    static_cast<char*>(disk.map(at, kBytes))[5000] ^= 1;  // as a failing disk would
    if (!checksum) {
      disk.read(at, memory.at(0), kBytes - 100);
      continue;
    }
    try {
      disk.read(at, memory.at(0), kBytes - 100);
      FAIL() << "accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::disk);
      EXPECT_NE(std::string(error.what()).find("checksum"), std::string::npos) << error.what();
    }
    disk.flush();  // what is written through the mapping is meant
    disk.read(at, memory.at(0), kBytes - 100);
    disk.write(at, memory.at(0), kBytes);
    disk.write(at + 4096, memory.at(0), 4096);  // a part of what was written is another thing now
    disk.read(at, memory.at(0), kBytes);
  }
}

TEST_F(DiskTest, NothingIsLeftInTheFolder) {
  { const Disk disk({folder_}, 1 << 20); }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

void expect_refusal(const std::string& folder, int64_t bytes, const std::string& part) {
  try {
    const Disk disk({folder}, bytes);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::disk);
    const std::string text = error.what();
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("plan.nvme"), std::string::npos) << text;
  }
}

TEST_F(DiskTest, ADiskThatIsTooSmallIsRefusedBeforeTheFirstStepWithItsSize) {
  expect_refusal(folder_, int64_t{1} << 60, "cannot be set aside");
}

TEST_F(DiskTest, AFolderThatCannotBeMadeIsNamed) { expect_refusal("/proc/tessera", 4096, "/proc/tessera"); }

/// What a read or write that fails says: the folder, how much, where, the reason, and where to start again.
template <typename Call>
void expect_failure(const Call& call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::disk);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in: " << error.what();
  }
}

TEST_F(DiskTest, AWriteThatFailsNamesFolderBytesAndReasonAndLosesNothing) {
  constexpr int64_t kBytes = 5 << 20;
  Disk disk({folder_}, kBytes);
  const int64_t at = disk.reserve(kBytes);
  HostMemory memory;
  memory.reserve(kBytes);
  fill(memory.at(0), kBytes, 3);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{2 << 20, before.rlim_max};  // the disk takes two of five pieces
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  expect_failure([&] { disk.write(at, memory.at(0), kBytes); },
                 {folder_, "writing", "5.00 MiB", "File too large", "the last checkpoint"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  disk.write(at, memory.at(0), kBytes);  // what was to be written is still there, and the disk still works
  std::vector<char> expected(kBytes);
  fill(expected.data(), kBytes, 3);
  std::memset(memory.at(0), 0, kBytes);
  disk.read(at, memory.at(0), kBytes);
  EXPECT_EQ(std::memcmp(memory.at(0), expected.data(), expected.size()), 0);
}

TEST_F(DiskTest, AReadThatFailsIsAnErrorAndNotStaleBytes) {
  constexpr int64_t kBytes = 4 << 20;
  Disk disk({folder_}, kBytes);
  const int64_t at = disk.reserve(kBytes);
  HostMemory memory;
  memory.reserve(kBytes);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
    if (file.find(folder_ + "/tessera-tier-") == std::string::npos) continue;
    ASSERT_EQ(truncate(entry.path().c_str(), 3 << 20), 0);  // its last quarter cannot be read any more
    break;
  }
  disk.read(at, memory.at(0), 3 << 20);
  expect_failure([&] { disk.read(at, memory.at(0), kBytes); },
                 {folder_, "reading", "4.00 MiB", "Input/output error", "plan.nvme", "the last checkpoint"});
}

TEST(HostMemoryTest, MoreThanTheMachineHasIsRefusedAndSaysWhatToDo) {
  HostMemory memory;
  try {
    memory.reserve(int64_t{1} << 60);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::memory);
    EXPECT_NE(std::string(error.what()).find("offload less"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::engine
