#include "tessera/checkpoint/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <regex>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/in_place.h"

namespace tessera::checkpoint {

namespace {

/// Of this machine since it was started: 8 hexadecimal digits.
const std::string& machine_tag() {
  static const std::string tag = [] {
    std::string id, digits;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    for (const char c : id)
      if (std::isxdigit(static_cast<unsigned char>(c)) && digits.size() < 8) digits += c;
    return digits + std::string(8 - digits.size(), '0');
  }();
  return tag;
}

/// Of this process alone: process numbers are the same in two containers or hosts that share a file system.
std::string process_tag() {
  std::random_device random;
  char text[20];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return machine_tag() + text;
}

/// A call of the system until no signal interrupts it: on a network disk any may be.
template <class Call>
auto uninterrupted(const Call& call) -> decltype(call()) {
  decltype(call()) result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

/// Opens a file to read it. On a network disk a name may lead to a file that has just been replaced there: it is looked up
/// again.
int open_to_read(const Path& path) {
  constexpr int kTries = 20;
  for (int tried = 1;; ++tried) {
    // O_NONBLOCK: opening a pipe by mistake must not wait for a writer
    const int fd = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (fd >= 0 || errno != ESTALE || tried == kTries) return fd;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// The name of the file that a temporary one was to become; empty: it is none. ".<tag>-<n>.partial" is
/// what a DurableFile puts behind it; earlier versions had shorter tags, and the number of the process.
std::string file_behind(const std::string& name) {
  static const std::regex form(R"((.+)\.[0-9a-f]{1,24}-[0-9]+\.partial)");
  std::smatch found;
  return std::regex_match(name, found, form) ? found[1].str() : "";
}

/// Whether a temporary name was made on another machine, or before this one was started.
bool made_elsewhere(const std::string& name) {
  static const std::regex form(R"(.+\.([0-9a-f]{8})[0-9a-f]{16}-[0-9]+\.partial)");
  std::smatch found;
  return std::regex_match(name, found, form) && found[1].str() != machine_tag();
}

/// A process number says less than a lock: it may have gone to another, or be of one that nobody has taken leave of. But a
/// lock says nothing where the disk has none, and may say nothing of other machines (Lustre with localflock): then nobody
/// counts as writing who has not done so for an hour.
void remove_unless_held(const Path& partial) {
  constexpr time_t kLong = 3600;
  const int fd = ::open(partial.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  const bool locked = uninterrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0;
  const bool held = !locked && errno == EWOULDBLOCK, known = locked && !made_elsewhere(partial.filename().string());
  struct stat info {};
  const bool old = ::fstat(fd, &info) == 0 && info.st_mtime < std::time(nullptr) - kLong;
  std::error_code gone;
  if (!held && (known || old)) std::filesystem::remove_all(partial, gone);
  ::close(fd);
}

using std::string_view_literals::operator""sv;

struct Kind {
  std::string_view magic;
  int64_t at;  ///< offset of the magic
  const char* words;
};
constexpr Kind kKinds[] = {
    {"version https://git-lfs"sv, 0, "a Git LFS pointer and not the file itself ('git lfs pull' gets that)"},
    {"PK\x03\x04"sv, 0, "a zip archive, perhaps a file of torch.save (tessera convert FILE OUT.safetensors)"},
    {"GGUF"sv, 0, "a GGUF file, which only inference programs read"},
    {"<!DOCTYPE"sv, 0, "a web page: a download that failed"},
    {"<html"sv, 0, "a web page: a download that failed"},
    {"\x89PNG"sv, 0, "a PNG picture"},
    {"\xff\xd8\xff"sv, 0, "a JPEG picture"},
    {"GIF8"sv, 0, "a GIF"},
    {"ftyp"sv, 4, "an MP4 or QuickTime video"},
    {"\x1a\x45\xdf\xa3"sv, 0, "a Matroska or WebM video"},
    {"RIFF"sv, 0, "an AVI, WAV or WebP file"},
    {"%PDF"sv, 0, "a PDF"},
    {"\x93NUMPY"sv, 0, "a NumPy array"},
    {"\x89HDF\r\n"sv, 0, "an HDF5 file"},
    {"\x1f\x8b"sv, 0, "packed by gzip: unpack it first"},
    {"\x28\xb5\x2f\xfd"sv, 0, "packed by zstd: unpack it first"},
    {"7z\xbc\xaf"sv, 0, "packed by 7-Zip: unpack it first"},
    {"\x7f"
     "ELF"sv,
     0, "a program"},
};

/// A pickle begins with its protocol, 2 to 5. So may the length of a safetensors header, which then fits into the file.
bool is_pickle(std::string_view start, int64_t file_bytes) {
  uint64_t length = 0;
  if (start.size() < sizeof length || start[0] != '\x80' || start[1] < 2 || start[1] > 5) return false;
  std::memcpy(&length, start.data(), sizeof length);
  return length > static_cast<uint64_t>(file_bytes);
}

bool is_text(std::string_view start) {
  return std::all_of(start.begin(), start.end(),
                     [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t'; });
}

}  // namespace

ReadFile::ReadFile(const Path& path) : path_(path) {
  fd_ = open_to_read(path);
  if (fd_ < 0) throw UserError(Exit::input, "file.open", path.string() + ": " + std::strerror(errno), "check the path");
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw UserError(Exit::input, "file.open", path.string() + ": not a regular file", "check the path");
  }
  size_ = info.st_size;
}

ReadFile::~ReadFile() {
  if (fd_ >= 0) ::close(fd_);
}

ReadFile::ReadFile(ReadFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

ReadFile& ReadFile::operator=(ReadFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

void ReadFile::read(int64_t offset, int64_t bytes, void* to) const {
  char* at = static_cast<char*>(to);
  for (int64_t done = 0; done < bytes;) {
    ssize_t got = ::pread(fd_, at + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw UserError(Exit::input, "file.read",
                      path_.string() + ": expected " + std::to_string(bytes) + " bytes at offset " +
                          std::to_string(offset) + ", found " + std::to_string(done) + " (" +
                          (got < 0 ? std::strerror(errno) : "end of file") + ")",
                      "the file was cut short or its disk fails");
    done += got;
  }
}

Path temporary_name(Path path) {
  thread_local std::string tag;
  thread_local pid_t process = 0;
  if (process != ::getpid()) process = ::getpid(), tag = process_tag();  // a rank is a fork of its launcher
  static std::atomic<int> counter = 0;                                   // two threads may write the same path
  return path += "." + tag + "-" + std::to_string(counter++) + ".partial";
}

namespace {

/// A device (/dev/null), a named pipe, or an open file of this process under its name (/dev/stdout): what is written goes
/// there, and a file that is renamed would take its place.
bool takes_what_is_written(const Path& path) {
  using std::filesystem::file_type;
  std::error_code unseen;
  const file_type kind = std::filesystem::status(path, unseen).type();
  if (kind == file_type::character || kind == file_type::fifo) return true;
  if (!std::filesystem::is_symlink(path, unseen)) return false;
  const auto of_process = [](const Path& name) { return name.string().starts_with("/proc/"); };
  return of_process(std::filesystem::read_symlink(path, unseen)) ||
         of_process(std::filesystem::weakly_canonical(path.parent_path(), unseen));
}

/// The open file of this process that the path names, so that what others write to it comes before or behind; -1: none.
int descriptor_named(const Path& path) {
  std::error_code unseen;
  const Path link = std::filesystem::read_symlink(path, unseen);
  for (const std::string& name : {path.string(), link.string()})
    for (const std::string_view folder : {"/proc/self/fd/", "/dev/fd/"})
      if (int number = -1; name.starts_with(folder) && name.size() < folder.size() + 5 &&
                           std::sscanf(name.c_str() + folder.size(), "%d", &number) == 1)
        return number;
  return -1;
}

}  // namespace

DurableFile::DurableFile(const Path& path, int64_t bytes_needed) : path_(path), needed_(bytes_needed) {
  if (takes_what_is_written(path)) {
    const int named = descriptor_named(path);
    fd_ = uninterrupted([&] {
      return named >= 0 ? ::fcntl(named, F_DUPFD_CLOEXEC, 0) : ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    });
    if (fd_ < 0) fail("open");
    return;
  }
  partial_ = temporary_name(path);
  // Locked while it is written: see remove_dead_partials, which may take it away between the two calls.
  for (struct stat info{};;) {
    fd_ = uninterrupted(
        [&] { return ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644); });
    if (fd_ < 0) fail("create");
    uninterrupted([&] { return ::flock(fd_, LOCK_EX); });
    if (::fstat(fd_, &info) != 0 || info.st_nlink > 0) break;
    ::close(fd_);
  }
}

void remove_dead_partials(const Path& folder) {
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(folder, gone))
    if (!file_behind(entry.path().filename().string()).empty()) remove_unless_held(entry.path());
}

void remove_dead_partials_of(const Path& path) {
  const Path clean = path.has_filename() ? path : path.parent_path();
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator(clean.has_parent_path() ? clean.parent_path() : Path("."), gone))
    if (file_behind(entry.path().filename().string()) == clean.filename()) remove_unless_held(entry.path());
}

PartialFolder::PartialFolder(const Path& final, std::string_view hint)
    : final_(final.has_filename() ? final : final.parent_path()), partial_(temporary_name(final_)) {
  remove_dead_partials_of(final_);
  do {  // as in DurableFile, another writer may take it away between the calls
    if (fd_ >= 0) ::close(fd_);
    make_folder(partial_, hint);
    fd_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);
  } while (!std::filesystem::exists(partial_));
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(partial_, ignored);
  if (fd_ >= 0) ::close(fd_);
}

DurableFile::~DurableFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void DurableFile::fail(std::string_view act) {
  const int error = errno;
  const WriteFailure failure = write_failure(error, path_);
  // the constructor may throw: no destructor would run then
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!partial_.empty()) ::unlink(partial_.c_str());
  throw UserError(Exit::disk, "file.write",
                  path_.string() + ": cannot " + std::string(act) + ": " + failure.what + " (" +
                      format_bytes(written_) + (needed_ > 0 ? " of " + format_bytes(needed_) : "") + " written)",
                  failure.hint + (partial_.empty() ? "" : "; what was there before is untouched"));
}

void DurableFile::write(const void* data, int64_t bytes) {
  const char* at = static_cast<const char*>(data);
  constexpr int64_t kChunk = int64_t{64} << 20;  // one call writes at most 2 GiB anyway; smaller ones show progress
  while (bytes > 0) {
    ssize_t put = ::write(fd_, at, static_cast<size_t>(std::min(bytes, kChunk)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write");
    at += put;
    bytes -= put;
    written_ += put;
  }
}

void DurableFile::commit() {
  if (partial_.empty()) {
    if (::close(std::exchange(fd_, -1)) != 0) fail("close");
    return;
  }
  if (uninterrupted([&] { return ::fsync(fd_); }) != 0) fail("flush");
  if (uninterrupted([&] { return ::rename(partial_.c_str(), path_.c_str()); }) != 0) {
    // NFS asks again where an answer was lost, and is told that the file has no such name: it has the new one.
    struct stat mine {
    }, there{};
    const int error = errno;
    const bool done = error == ENOENT && ::fstat(fd_, &mine) == 0 && ::stat(path_.c_str(), &there) == 0 &&
                      mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    errno = error;
    if (!done) fail("rename");
  }
  partial_.clear();
  if (::close(std::exchange(fd_, -1)) != 0) fail("close");  // and with it the lock: not while it is a partial
  sync_folder(path_.parent_path());
}

void make_folder(const Path& folder, std::string_view hint) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return;
  const WriteFailure failure = write_failure(error.value(), folder);
  throw UserError(Exit::disk, "file.folder", folder.string() + ": cannot be made: " + failure.what,
                  error.value() == ENOSPC || error.value() == EDQUOT ? std::string_view(failure.hint) : hint);
}

std::string read_text(const Path& path) {
  constexpr int64_t kMost = int64_t{1} << 30;  // the manifest of a checkpoint of 8192 ranks is a quarter of it
  ReadFile file(path);
  check_input(file.size() <= kMost, "file.read",
              path.string() + ": has " + format_bytes(file.size()) + ", expected at most " + format_bytes(kMost),
              "is this the file that its name says?");
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, file.size(), text.data());
  return text;
}

void write_text(const Path& path, std::string_view text) {
  DurableFile file(path, static_cast<int64_t>(text.size()));
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

void sync_folder(const Path& folder) {
  Path path = folder.empty() ? Path(".") : folder;
  const int fd = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  const bool flushed = fd >= 0 && uninterrupted([&] { return ::fsync(fd); }) == 0;
  const bool ok = flushed || (fd >= 0 && (errno == EINVAL || errno == ENOTSUP));  // there is nothing to flush
  int error = errno;
  if (fd >= 0) ::close(fd);
  if (!ok) throw UserError(Exit::disk, "file.sync", path.string() + ": " + std::strerror(error), "check that disk");
}

std::string what_else(const ReadFile& file) {
  constexpr int64_t kRead = 24, kShown = 16;
  if (file.size() == 0) return "empty";
  std::string start(static_cast<size_t>(std::min(file.size(), kRead)), '\0');
  file.read(0, static_cast<int64_t>(start.size()), start.data());
  for (const Kind& kind : kKinds)
    if (start.size() > static_cast<size_t>(kind.at) &&
        std::string_view(start).substr(static_cast<size_t>(kind.at)).starts_with(kind.magic))
      return kind.words;
  if (is_pickle(start, file.size()))
    return "a plain pickle and no file of torch.save (in Python: torch.save(pickle.load(open(FILE, \"rb\")), NEW), if you "
           "trust who made it: loading a pickle runs what it holds)";
  // A safetensors file begins with a length of 8 bytes, of which the upper ones are zero.
  if (!is_text(start)) return {};
  std::string shown = start.substr(0, std::min(start.find_first_of("\r\n"), static_cast<size_t>(kShown)));
  return "a text file (it begins with \"" + shown + "\")";
}

namespace {

/// File systems that several machines mount, by statfs's f_type. FUSE has those of object stores and sshfs.
constexpr std::array<uint32_t, 15> kNetworkFileSystems = {
    0x6969 /* NFS */,      0x517B /* SMB */,        0xFF534D42 /* CIFS */,
    0xFE534D42 /* SMB2 */, 0x0BD00BD0 /* Lustre */, 0x47504653 /* GPFS */,
    0x00C36400 /* Ceph */, 0x19830326 /* BeeGFS */, 0xAAD7AAEA /* PanFS */,
    0x65735546 /* FUSE */, 0x7461636F /* OCFS2 */,  0x01161970 /* GFS2 */,
    0x5346414F /* AFS */,  0x6B414653 /* kAFS */,   0x73757245 /* Coda */};

}  // namespace

bool on_network_disk(const std::filesystem::path& path) {
  std::filesystem::path there = std::filesystem::absolute(path);
  struct statfs status {};
  while (::statfs(there.c_str(), &status) != 0 && there.has_relative_path()) there = there.parent_path();
  return std::ranges::find(kNetworkFileSystems, static_cast<uint32_t>(status.f_type)) != kNetworkFileSystems.end();
}

bool await_file(const std::filesystem::path& path) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(kSeenSeconds);
  // Opening it asks the server, and what has been asked for before may be answered from memory.
  const auto there = [&] {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) ::close(fd);
    return fd >= 0 || errno == EACCES;
  };
  while (!there()) {
    if (!on_network_disk(path) || Clock::now() > until) return false;
    if (const int fd = ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) ::close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

}  // namespace tessera::checkpoint
