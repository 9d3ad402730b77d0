#include "tessera/checkpoint/in_place.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/files.h"

namespace tessera::checkpoint {
namespace {

class InPlace : public FileTest {};

TEST_F(InPlace, AFileGrowsBehindWhatIsThereOrBeginsAnew) {
  const Path file = write("log", "old\n");
  {
    GrowingFile log(file, GrowingFile::Begin::behind);
    log.write("new\n");
    EXPECT_EQ(read_text(file), "old\n") << "not flushed";
    log.flush();
    EXPECT_EQ(read_text(file), "old\nnew\n");
    log.write("lost");
  }
  EXPECT_EQ(read_text(file), "old\nnew\n");
  GrowingFile anew(file, GrowingFile::Begin::empty);
  EXPECT_EQ(read_text(file), "");
  const std::string large(3 << 20, 'x');
  anew.write(large);
  EXPECT_EQ(read_text(file), large) << "too much to keep";
}

TEST_F(InPlace, NothingButARegularFileIsWritten) {
  const Path outside = write("outside", "somebody's");
  std::filesystem::create_symlink(outside, path("link"));
  std::filesystem::create_symlink(path("nothing"), path("dangling"));
  std::filesystem::create_directory(path("folder"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  struct Case {
    const char *name, *words;
  };
  for (const auto& [name, words] : {Case{"link", "it is a symbolic link, and nothing is written through links; remove"},
                                    {"dangling", "it is a symbolic link"},
                                    {"folder", "cannot be opened for writing: Is a directory"},
                                    {"pipe", "pipe: "},  // whose reader nobody waits for
                                    {"no/such/file", "cannot be opened for writing: No such file"}})
    for (const auto begin : {GrowingFile::Begin::empty, GrowingFile::Begin::behind})
      expect_error(Exit::disk, {name, words}, [&] { GrowingFile(path(name), begin); });
  expect_error(Exit::disk, {"is not a regular file"}, [&] { open_in_place(path("pipe"), O_RDWR); });
  expect_error(Exit::disk, {"is not a regular file"}, [&] { open_in_place("/dev/null", O_WRONLY); });
  EXPECT_EQ(read_text(outside), "somebody's");
  EXPECT_FALSE(std::filesystem::exists(path("nothing")));
}

TEST_F(InPlace, ADiskIsCalledFullWhereItIsFull) {
  expect_error(Exit::disk, {"/dev/full", "is not a regular file"}, [] { open_in_place("/dev/full", O_WRONLY); });
  EXPECT_NE(write_failure(ENOSPC, path("a")).what.find("the disk is full"), std::string::npos);
  struct Case {
    int error;
    const char *what, *hint;
  };
  for (const auto& [error, what, hint] : {Case{EIO, "Input/output error", "see to that disk"},
                                          {EROFS, "Read-only file system", "whether it may be written"},
                                          {EACCES, "Permission denied", "whether it may be written"},
                                          {EDQUOT, "quota of this user", "remove files of yours"},
                                          {EFBIG, "File too large", ""},
                                          {ENOENT, "No such file", "whether its folder exists"},
                                          {ESTALE, "Stale file handle", "see to that disk"}}) {
    const WriteFailure failure = write_failure(error, path("a"));
    EXPECT_NE(failure.what.find(what), std::string::npos) << failure.what;
    EXPECT_NE(failure.hint.find(hint), std::string::npos) << failure.hint;
    EXPECT_EQ((failure.what + failure.hint).find("disk is full"), std::string::npos) << failure.what;
    EXPECT_EQ(failure.hint.find("free space"), std::string::npos) << failure.hint;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
