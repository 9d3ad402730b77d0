#pragma once
// Files that are written where they are: a lock, logs that grow while others read them. (What is written once is a
// DurableFile, which replaces whatever has its name.)
//
//   const int lock = open_in_place(run / ".lock", O_RDWR | O_CREAT);
//   GrowingFile lines(run / "events.log", GrowingFile::Begin::behind);
//   lines.write(line), lines.flush();
//
// A run folder may be shared, or come out of a stranger's archive. Where one of these names is a symbolic link, opening it
// would cut or lengthen a file outside, with the rights of whoever trains: it is refused.
#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

/// What to say of a write that failed with an errno, and what to do about it. A full disk is called that, with what is left
/// on it: bytes or inodes.
struct WriteFailure {
  std::string what, hint;
};
WriteFailure write_failure(int error, const std::filesystem::path& file);

/// A descriptor of the regular file, by flags of open(2). Throws UserError (disk): also where it is a link, a pipe or a
/// device. The caller closes it.
int open_in_place(const std::filesystem::path& file, int flags);

class GrowingFile {
 public:
  enum class Begin { empty, behind };  ///< without what was there, or behind it
  GrowingFile(const std::filesystem::path& path, Begin begin);
  ~GrowingFile();  ///< what is not flushed is lost
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  /// Both throw UserError (disk) where the system takes no more. A text of several MiB is written through at once.
  void write(std::string_view text);
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
  std::string kept_;  // for the next flush
};

}  // namespace tessera::checkpoint
