// A library that is loaded ahead of the C library (LD_PRELOAD) and makes a folder behave as network file systems do. Each rank
// counts as a machine of its own, the launcher as that of rank 0.
//
//   TESSERA_FAR_DISK=/tmp/run  TESSERA_FAR_DISK_LOG=/tmp/log  TESSERA_FAR_DISK_DOES="late=3 nolock eintr estale lost"
//
// late=S: what a machine renames the others see S seconds later. nolock: flock is not there. eintr: every other call that
// opens, flushes, renames or locks is interrupted first. estale: every other open for reading finds a stale name first. lost:
// a rename is done, and its answer is lost: asked again, the server says that the old name is gone.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool does(const char* what) {
  return (" " + variable("TESSERA_FAR_DISK_DOES") + " ").find(std::string(" ") + what) != std::string::npos;
}

double late() {
  const std::string all = variable("TESSERA_FAR_DISK_DOES");
  const size_t at = all.find("late=");
  return at == std::string::npos ? 0 : std::atof(all.c_str() + at + 5);
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string machine() {
  const std::string rank = variable("RANK");
  return rank.empty() ? "0" : rank;
}

std::string path_of(int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

std::string absolute(int folder, const char* path) {
  if (!path || !*path) return "";
  if (*path == '/') return path;
  char here[PATH_MAX];
  return (folder != AT_FDCWD ? path_of(folder) : getcwd(here, sizeof here) ? here : "") + std::string("/") + path;
}

bool is_far(const std::string& path) {
  const std::string folder = variable("TESSERA_FAR_DISK");
  return !folder.empty() && (path == folder || path.rfind(folder + "/", 0) == 0);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

using Open = int (*)(const char*, int, ...);
Open real_open() {
  static const auto real = next<Open>("open");
  return real;
}

/// What machines renamed, a line each: machine, time, path.
void note(const std::string& path) {
  const int fd = real_open()(variable("TESSERA_FAR_DISK_LOG").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  char time[40];
  std::snprintf(time, sizeof time, "%.6f", now());
  const std::string line = machine() + " " + time + " " + path + "\n";
  if (write(fd, line.data(), line.size()) < 0) std::abort();
  close(fd);
}

/// Whether another machine has given the path, or a folder above it, its name just now.
bool is_unseen(const std::string& path) {
  const double seconds = late();
  if (seconds <= 0 || !is_far(path)) return false;
  const int fd = real_open()(variable("TESSERA_FAR_DISK_LOG").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::string log;
  char block[4096];
  for (ssize_t got; (got = read(fd, block, sizeof block)) > 0;) log.append(block, static_cast<size_t>(got));
  close(fd);
  bool unseen = false;
  for (size_t at = 0, end; (end = log.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = log.substr(at, end - at);
    const size_t time = line.find(' '), name = line.find(' ', time + 1);
    const std::string renamed = line.substr(name + 1);
    if (path != renamed && path.rfind(renamed + "/", 0) != 0) continue;
    unseen = line.substr(0, time) != machine() && now() - std::atof(line.c_str() + time) < seconds;
  }
  return unseen;
}

/// Every other call of this process: the first of two fails.
bool fails_first(const char* what, const std::string& path) {
  static std::atomic<unsigned> interrupted{0}, stale{0};
  return is_far(path) && does(what) && (*what == 'e' && what[1] == 'i' ? interrupted : stale)++ % 2 == 0;
}

int failed(int error) {
  errno = error;
  return -1;
}

int open_far(int folder, const char* path, int flags, mode_t mode) {
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat");
  const std::string name = absolute(folder, path);
  if (is_unseen(name) && (flags & O_CREAT) == 0) return failed(ENOENT);
  if ((flags & O_DIRECTORY) == 0 && fails_first("eintr", name)) return failed(EINTR);
  if ((flags & (O_ACCMODE | O_DIRECTORY)) == O_RDONLY && fails_first("estale", name)) return failed(ESTALE);
  return real(folder, path, flags, mode);
}

mode_t mode_in(int flags, va_list more) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; }

/// A rename that is done by `call`.
template <class Call>
int rename_far(const std::string& to, const Call& call) {
  if (!is_far(to)) return call();
  if (fails_first("eintr", to)) return failed(EINTR);
  const int done = call();
  if (done == 0) note(to);
  return done == 0 && does("lost") ? failed(ENOENT) : done;
}

dirent* seen_entry(DIR* folder, dirent* (*real)(DIR*)) {
  const std::string path = late() > 0 ? path_of(dirfd(folder)) : "";
  dirent* entry = real(folder);
  while (entry && is_unseen(path + "/" + entry->d_name)) entry = real(folder);
  return entry;
}

template <class Status>
int with_type(int done, const std::string& path, Status* status) {
  if (done == 0 && is_far(path)) status->f_type = 0x6969;  // NFS
  return done;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_in(flags, more);
  va_end(more);
  return open_far(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_in(flags, more);
  va_end(more);
  return open_far(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_in(flags, more);
  va_end(more);
  return open_far(folder, path, flags, mode);
}
int rename(const char* from, const char* to) noexcept {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  return rename_far(absolute(AT_FDCWD, to), [&] { return real(from, to); });
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  static const auto real = next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  if (is_far(absolute(b, to))) return failed(EINVAL);  // as NFS has it
  return real(a, from, b, to, flags);
}
int stat(const char* path, struct stat* found) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("stat");
  return is_unseen(absolute(AT_FDCWD, path)) ? failed(ENOENT) : real(path, found);
}
int lstat(const char* path, struct stat* found) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("lstat");
  return is_unseen(absolute(AT_FDCWD, path)) ? failed(ENOENT) : real(path, found);
}
int stat64(const char* path, struct stat64* found) noexcept {
  static const auto real = next<int (*)(const char*, struct stat64*)>("stat64");
  return is_unseen(absolute(AT_FDCWD, path)) ? failed(ENOENT) : real(path, found);
}
int lstat64(const char* path, struct stat64* found) noexcept {
  static const auto real = next<int (*)(const char*, struct stat64*)>("lstat64");
  return is_unseen(absolute(AT_FDCWD, path)) ? failed(ENOENT) : real(path, found);
}
int access(const char* path, int mode) noexcept {
  static const auto real = next<int (*)(const char*, int)>("access");
  return is_unseen(absolute(AT_FDCWD, path)) ? failed(ENOENT) : real(path, mode);
}
dirent* readdir(DIR* folder) {
  static const auto real = next<dirent* (*)(DIR*)>("readdir");
  return seen_entry(folder, real);
}
dirent64* readdir64(DIR* folder) {  // of 64-bit systems, the same
  return reinterpret_cast<dirent64*>(readdir(folder));
}
int statfs64(const char* path, struct statfs64* found) noexcept {
  static const auto real = next<int (*)(const char*, struct statfs64*)>("statfs64");
  return with_type(real(path, found), absolute(AT_FDCWD, path), found);
}
int statfs(const char* path, struct statfs* found) noexcept {
  static const auto real = next<int (*)(const char*, struct statfs*)>("statfs");
  return with_type(real(path, found), absolute(AT_FDCWD, path), found);
}
int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  return fails_first("eintr", path_of(fd)) ? failed(EINTR) : real(fd);
}
int flock(int fd, int how) noexcept {
  static const auto real = next<int (*)(int, int)>("flock");
  const std::string path = path_of(fd);
  if (is_far(path) && does("nolock")) return failed(ENOLCK);
  return fails_first("eintr", path) ? failed(EINTR) : real(fd, how);
}
}
