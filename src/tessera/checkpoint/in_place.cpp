#include "tessera/checkpoint/in_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/base/units.h"

namespace tessera::checkpoint {

using Path = std::filesystem::path;

namespace {

[[noreturn]] void refuse(const Path& file, const std::string& act, int error) {
  const WriteFailure failure = write_failure(error, file);
  throw UserError(Exit::disk, "file.write", file.string() + ": " + act + ": " + failure.what, failure.hint);
}

}  // namespace

WriteFailure write_failure(int error, const Path& file) {
  std::string what = std::strerror(error) + limit_behind(error);
  switch (error) {
    case ENOSPC: {
      struct statvfs disk {};
      const Path folder = file.has_parent_path() ? file.parent_path() : Path(".");
      if (::statvfs(folder.c_str(), &disk) != 0) return {what + ": the disk is full", "free space there"};
      const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
      if (disk.f_files > 0 && disk.f_favail == 0)
        return {what + ": all of its " + std::to_string(disk.f_files) + " inodes are in use (" + format_bytes(free) +
                    " free)",
                "remove files there (df -i counts them), or write elsewhere"};
      return {what + ": the disk is full, " + format_bytes(free) + " free there",
              "free space there, or write elsewhere"};
    }
    case EDQUOT:
      return {what + ": the quota of this user is used up", "remove files of yours there, or write elsewhere"};
    case EFBIG:
      return {what, limit_behind(error).empty() ? "write to a file system for larger files" : "raise that limit"};
    case ELOOP:
      return {what + ": it is a symbolic link, and nothing is written through links", "remove the link"};
    case ENOENT:
    case ENOTDIR:
      return {what, "check the path: whether its folder exists"};
    case EACCES:
    case EPERM:
    case EROFS:
      return {what, "check the path: whether it may be written"};
    default:
      return {what, "see to that disk"};
  }
}

int open_in_place(const Path& file, int flags) {
  // O_NONBLOCK: a pipe must not wait for its reader.
  int fd = -1;
  do fd = ::open(file.c_str(), flags | O_NOFOLLOW | O_NONBLOCK, 0666);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) refuse(file, "cannot be opened for writing", errno);
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  ::close(fd);
  throw UserError(Exit::disk, "file.write", file.string() + ": is not a regular file, and the run writes to it",
                  "remove it");
}

GrowingFile::GrowingFile(const Path& path, Begin begin)
    : path_(path),
      fd_(open_in_place(path, O_WRONLY | O_CREAT | O_CLOEXEC | (begin == Begin::empty ? O_TRUNC : O_APPEND))) {}

GrowingFile::~GrowingFile() { ::close(fd_); }

void GrowingFile::write(std::string_view text) {
  constexpr size_t kMost = size_t{1} << 20;
  kept_ += text;
  if (kept_.size() >= kMost) flush();
}

void GrowingFile::flush() {
  for (size_t done = 0; done < kept_.size();) {
    const ssize_t put = ::write(fd_, kept_.data() + done, kept_.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      kept_.erase(0, done);
      refuse(path_, "a write failed", errno);
    }
    done += static_cast<size_t>(put);
  }
  kept_.clear();
}

}  // namespace tessera::checkpoint
