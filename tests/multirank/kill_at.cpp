// A library that is loaded ahead of the C library (LD_PRELOAD) and ends a process at one instant: before or behind the
// n-th call of a kind on a path of a form. Or it makes that call fail, as a disk does.
//
//   TESSERA_KILL_AT="call=rename path=*/manifest.json nth=2 when=before who=0 end=self"
//
// who: the rank, or "launcher"; end: self, launcher (whose ranks die with it), sleep (a minute, whatever signals come), or
// the name of an error (ENOSPC ...).
// A file that TESSERA_KILL_DONE names is made when it has happened: it happens once, also across restarts.
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

struct Order {
  std::string call, path, when = "before", end = "self";
  int nth = 1;
  bool here = false;  // for this process
};

std::string value_of(const std::string& text, const std::string& key) {
  const size_t at = (" " + text).find(" " + key + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 1;
  return text.substr(begin, text.find(' ', begin) - begin);
}

const Order& order() {
  static const Order order = [] {
    Order o;
    const char* text = std::getenv("TESSERA_KILL_AT");
    if (!text) return o;
    const char* rank = std::getenv("RANK");
    o.here = value_of(text, "who") == (rank ? rank : "launcher");
    o.call = value_of(text, "call"), o.path = value_of(text, "path");
    o.when = value_of(text, "when"), o.end = value_of(text, "end");
    o.nth = std::atoi(value_of(text, "nth").c_str());
    return o;
  }();
  return order;
}

bool first_to_do_it() {
  const char* done = std::getenv("TESSERA_KILL_DONE");
  if (!done) return true;
  const int fd = static_cast<int>(::openat(AT_FDCWD, done, O_WRONLY | O_CREAT | O_EXCL, 0644));
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

int error_of(const std::string& name) {
  return name == "ENOSPC" ? ENOSPC : name == "EIO" ? EIO : name == "EDQUOT" ? EDQUOT : 0;
}

std::string path_of(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

/// Whether this is the call that was ordered.
bool is_it(const char* call, const std::string& path) {
  static std::atomic<int> seen{0};
  const Order& o = order();
  return o.here && o.call == call && ::fnmatch(o.path.c_str(), path.c_str(), 0) == 0 && ++seen == o.nth;
}

[[noreturn]] void end() {
  ::kill(order().end == "launcher" ? ::getppid() : ::getpid(), SIGKILL);
  for (;;) ::pause();  // a rank dies with its launcher
}

/// Does the call, or what was ordered instead.
template <class Call>
auto through(const char* name, const std::string& path, const Call& call) -> decltype(call()) {
  if (!is_it(name, path) || !first_to_do_it()) return call();
  if (const int error = error_of(order().end)) {
    errno = error;
    return -1;
  }
  if (order().end == "sleep") {
    for (const std::time_t until = std::time(nullptr) + 60; std::time(nullptr) < until;) ::usleep(100'000);
    return call();
  }
  if (order().when == "before") end();
  call();
  end();
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define TESSERA_ON_FD(name, result, parameters, arguments)                                              \
  extern "C" result name parameters {                                                                   \
    static const auto real = next<result(*) parameters>(#name);                                         \
    return order().here ? through(#name, path_of(fd), [&] { return real arguments; }) : real arguments; \
  }
#define TESSERA_ON_PATH(name, path, result, parameters, arguments)                               \
  extern "C" result name parameters {                                                            \
    static const auto real = next<result(*) parameters>(#name);                                  \
    return order().here ? through(#name, path, [&] { return real arguments; }) : real arguments; \
  }

TESSERA_ON_FD(write, ssize_t, (int fd, const void* data, size_t bytes), (fd, data, bytes))
TESSERA_ON_FD(ftruncate, int, (int fd, off_t bytes), (fd, bytes))
TESSERA_ON_FD(fsync, int, (int fd), (fd))
TESSERA_ON_FD(fdatasync, int, (int fd), (fd))
TESSERA_ON_PATH(rename, to, int, (const char* from, const char* to), (from, to))
TESSERA_ON_PATH(renameat2, to, int, (int a, const char* from, int b, const char* to, unsigned flags),
                (a, from, b, to, flags))
TESSERA_ON_PATH(unlink, path, int, (const char* path), (path))
TESSERA_ON_PATH(remove, path, int, (const char* path), (path))
TESSERA_ON_PATH(mkdir, path, int, (const char* path, mode_t mode), (path, mode))
