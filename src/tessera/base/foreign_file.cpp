#include "tessera/base/foreign_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/units.h"

namespace tessera {

namespace {

constexpr int64_t kMostLine = int64_t{64} << 20;  // metrics of 8192 ranks take 4 MiB a line

/// A descriptor, and how many bytes the file has.
std::pair<int, int64_t> open_regular(const std::string& name, std::string_view where, std::string_view hint) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for a writer
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw UserError(Exit::input, where, name + ": cannot be opened: " + std::strerror(errno), hint);
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return {fd, info.st_size};
  ::close(fd);
  throw UserError(Exit::input, where,
                  name + (S_ISDIR(info.st_mode) ? ": is a folder, expected a file" : ": is no regular file"), hint);
}

}  // namespace

std::string read_foreign(const std::filesystem::path& file, int64_t most, std::string_view where,
                         std::string_view hint) {
  const std::string name = file.string();
  const auto [fd, bytes] = open_regular(name, where, hint);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(::fdopen(fd, "rb"), std::fclose);
  check_input(bytes <= most, where, name + ": has " + format_bytes(bytes) + ", expected at most " + format_bytes(most),
              hint);
  std::string text(static_cast<size_t>(bytes), '\0');
  text.resize(std::fread(text.data(), 1, text.size(), in.get()));
  check_input(!std::ferror(in.get()), where, name + ": cannot be read: " + std::strerror(errno),
              "see to that file or its disk");
  return text;
}

ForeignLines::ForeignLines(const std::filesystem::path& file, std::string_view where, std::string_view hint)
    : name_(file.string()), where_(where), file_(::fdopen(open_regular(name_, where, hint).first, "rb")) {}

bool ForeignLines::next(std::string& line) {
  line.clear();
  ++number_;
  for (;;) {
    const size_t end = ahead_.find('\n', begin_);
    ended_ = end != std::string::npos;
    line.append(ahead_, begin_, ended_ ? end - begin_ : end);
    begin_ = ended_ ? end + 1 : ahead_.size();
    if (ended_) return true;
    check_input(static_cast<int64_t>(line.size()) <= kMostLine, where_,
                name_ + ", line " + std::to_string(number_) + ": longer than " + format_bytes(kMostLine),
                "is this the file that its name says?");
    constexpr size_t kChunk = size_t{1} << 16;
    ahead_.resize(kChunk);
    ahead_.resize(std::fread(ahead_.data(), 1, kChunk, file_.get()));
    begin_ = 0;
    check_input(!std::ferror(file_.get()), where_, name_ + ": cannot be read: " + std::strerror(errno),
                "see to that file or its disk");
    if (ahead_.empty()) return !line.empty();
  }
}

}  // namespace tessera
