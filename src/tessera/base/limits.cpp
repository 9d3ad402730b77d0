#include "tessera/base/limits.h"

#include <sys/resource.h>

#include <cerrno>

#include "tessera/base/units.h"

namespace tessera {

namespace {

struct Row {
  int error;
  __rlimit_resource limit;
  const char *what, *flag;
  bool bytes;
};
constexpr Row kRows[] = {{EMFILE, RLIMIT_NOFILE, "open files", "-n", false},
                         {EFBIG, RLIMIT_FSIZE, "a file's size", "-f", true},
                         {EAGAIN, RLIMIT_NPROC, "processes and threads", "-u", false},
                         {ENOMEM, RLIMIT_AS, "addresses", "-v", true}};

}  // namespace

std::string limit_behind(int error) {
  for (const Row& row : kRows) {
    rlimit limit{};
    if (row.error != error || getrlimit(row.limit, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    const auto value = static_cast<int64_t>(limit.rlim_cur);
    return std::string("; the limit of ") + row.what + " is " +
           (row.bytes ? format_bytes(value) : std::to_string(value)) + " (ulimit " + row.flag + ")";
  }
  return "";
}

}  // namespace tessera
