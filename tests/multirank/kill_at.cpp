// A library that is loaded ahead of the C library (LD_PRELOAD) and ends a process at one instant: before or behind the
// n-th call of a kind on a path of a form. Or it makes that call fail, as a disk does.
//
//   TESSERA_KILL_AT="call=rename path=*/manifest.json nth=2 when=before who=0 end=self; call=..."
//
// call, path: patterns of fnmatch, @(a|b) too; text (may be left out): what is written holds it; who: the rank, or "launcher"; end: self, launcher (whose ranks die with it),
// all (both at once), sleep or sleep:4 (a minute, or 4 s, whatever signals come), or the name of an error (ENOSPC ...).
// The file TESSERA_KILL_DONE-0 is made when the first order has happened, -1 with the second: next is always the first that
// has not happened, so that each happens once and in its turn, across restarts of ranks and launchers.
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Order {
  std::string call, path, text, when = "before", end = "self", done;
  int nth = 1;
  bool here = false;  // for this process
};

std::string value_of(const std::string& text, const std::string& key) {
  const size_t at = (" " + text).find(" " + key + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 1;
  return text.substr(begin, text.find(' ', begin) - begin);
}

Order read_order(const std::string& text, const std::string& done) {
  Order o;
  const char* rank = std::getenv("RANK");
  o.here = value_of(text, "who") == (rank ? rank : "launcher");
  o.call = value_of(text, "call"), o.path = value_of(text, "path"), o.text = value_of(text, "text");
  o.when = value_of(text, "when"), o.end = value_of(text, "end");
  o.nth = std::atoi(value_of(text, "nth").c_str());
  o.done = done;
  return o;
}

std::vector<Order> read_orders() {
  std::vector<Order> all;
  const char *text = std::getenv("TESSERA_KILL_AT"), *done = std::getenv("TESSERA_KILL_DONE");
  if (!text || !done) return all;
  const std::string orders = text;
  for (size_t begin = 0; begin < orders.size();) {
    const size_t end = std::min(orders.find(';', begin), orders.size());
    all.push_back(read_order(orders.substr(begin, end - begin), std::string(done) + "-" + std::to_string(all.size())));
    begin = end + 1;
  }
  return all;
}

std::atomic<size_t> coming{0};  // the order that is next
std::atomic<int> seen{0};       // calls of it

/// The orders for this process. A rank begins as a fork of its launcher and gets its number then: it counts for itself. The
/// launcher may be a fork itself (warm_program.cpp), which gets its orders then.
const std::vector<Order>& orders() {
  static std::atomic<const std::vector<Order>*> all = nullptr;
  static std::atomic<const char*> of = nullptr, text = nullptr;
  const char *rank = std::getenv("RANK"), *given = std::getenv("TESSERA_KILL_AT");
  if (const auto* known = all.load(); known && of == rank && text == given) return *known;
  of = rank, text = given, coming = 0, seen = 0;
  return *(all = new std::vector<Order>(read_orders()));
}

/// The first that has not happened: another process may have done it, and this one may live on after its disk failed.
const Order& order() {
  const std::vector<Order>& all = orders();
  static const Order none;
  for (size_t i = coming; i < all.size() && ::access(all[i].done.c_str(), F_OK) == 0; i = coming)
    if (coming.compare_exchange_strong(i, i + 1)) seen = 0;
  return coming < all.size() ? all[coming] : none;
}

bool first_to_do_it(const Order& o) {
  const int fd = static_cast<int>(::openat(AT_FDCWD, o.done.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644));
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
bool is_it(const Order& o, const char* call, const std::string& path, std::string_view written) {
  return o.here && ::fnmatch(o.call.c_str(), call, FNM_EXTMATCH) == 0 &&
         ::fnmatch(o.path.c_str(), path.c_str(), FNM_EXTMATCH) == 0 && written.find(o.text) != written.npos &&
         ++seen == o.nth;
}

[[noreturn]] void end(const Order& o) {
  if (o.end != "self") ::kill(::getppid(), SIGKILL);
  if (o.end != "launcher") ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();  // a rank dies with its launcher
}

/// Does the call, or what was ordered instead.
template <class Call>
auto through(const char* name, const std::string& path, const Call& call, std::string_view written = {})
    -> decltype(call()) {
  const Order& o = order();
  if (!is_it(o, name, path, written) || !first_to_do_it(o)) return call();
  if (const int error = error_of(o.end)) {
    errno = error;
    return -1;
  }
  if (o.end.starts_with("sleep")) {
    const int seconds = o.end == "sleep" ? 60 : std::atoi(o.end.c_str() + std::strlen("sleep:"));
    for (const std::time_t until = std::time(nullptr) + seconds; std::time(nullptr) < until;) ::usleep(100'000);
    return call();
  }
  if (o.when == "before") end(o);
  call();
  end(o);
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

extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  const auto call = [&] { return real(fd, data, bytes); };
  return order().here ? through("write", path_of(fd), call, {static_cast<const char*>(data), bytes}) : call();
}
extern "C" ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  const auto call = [&] { return real(fd, parts, count); };
  if (!order().here) return call();
  std::string text;
  for (int i = 0; i < count; ++i) text.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  return through("writev", path_of(fd), call, text);
}
TESSERA_ON_FD(ftruncate, int, (int fd, off_t bytes), (fd, bytes))
TESSERA_ON_FD(fsync, int, (int fd), (fd))
TESSERA_ON_FD(fdatasync, int, (int fd), (fd))
TESSERA_ON_PATH(rename, to, int, (const char* from, const char* to), (from, to))
TESSERA_ON_PATH(renameat2, to, int, (int a, const char* from, int b, const char* to, unsigned flags),
                (a, from, b, to, flags))
TESSERA_ON_PATH(unlink, path, int, (const char* path), (path))
TESSERA_ON_PATH(remove, path, int, (const char* path), (path))
TESSERA_ON_PATH(mkdir, path, int, (const char* path, mode_t mode), (path, mode))
