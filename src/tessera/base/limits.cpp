#include "tessera/base/limits.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

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
                         {EAGAIN, RLIMIT_AS, "addresses", "-v", true},  // of the stack of a thread
                         {EAGAIN, RLIMIT_NPROC, "processes and threads", "-u", false},
                         {ENOMEM, RLIMIT_AS, "addresses", "-v", true}};

}  // namespace

std::string limit_behind(int error) {
  std::string words;
  for (const Row& row : kRows) {
    rlimit limit{};
    if (row.error != error || getrlimit(row.limit, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    const auto value = static_cast<int64_t>(limit.rlim_cur);
    words += std::string("; the limit of ") + row.what + " is " +
             (row.bytes ? format_bytes(value) : std::to_string(value)) + " (ulimit " + row.flag + ")";
  }
  return words;
}

std::string limit_behind(std::string_view message) {
  for (const Row& row : kRows)
    if (message.find(std::strerror(row.error)) != message.npos) return limit_behind(row.error);
  return "";
}

std::optional<UserError> shortage(const std::exception& error) {
  const std::string text = error.what(), line = text.substr(0, text.find('\n'));
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  const int number = system ? system->code().value() : ENOMEM;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) || number == EAGAIN || (system && number == ENOMEM) ||
                      line.find("annot allocate memory") != std::string::npos ||
                      line.find("can't allocate memory") != std::string::npos;
  if (!memory) return std::nullopt;
  const std::string limit = limit_behind(number);
  return UserError(
      Exit::memory, "",
      (number == EAGAIN ? "no more threads can be had (" : "the machine is out of memory (") + line + ")" + limit,
      limit.empty() ? "end other programs, or plan with less: plan.budget, plan.host_budget" : "raise that limit");
}

void require_addresses(int64_t bytes) {
  const std::string limit = limit_behind(ENOMEM);
  if (limit.empty()) return;
  // A mapping that nothing is written to takes addresses and no memory.
  void* there =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (there == MAP_FAILED)
    throw UserError(Exit::memory, "",
                    "this process needs " + format_bytes(bytes) + " more of addresses for threads and buffers" + limit,
                    "raise that limit: ulimit -v unlimited");
  munmap(there, static_cast<size_t>(bytes));
}

void require_files(int64_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(count)) return;
  throw UserError(Exit::usage, "",
                  "this process needs " + std::to_string(count) + " open files for data, checkpoints and other ranks" +
                      limit_behind(EMFILE),
                  "raise that limit: ulimit -n 1024");
}

std::filesystem::path this_program() {
  std::error_code error;
  const std::filesystem::path self = "/proc/self/exe";
  (void)std::filesystem::read_symlink(self, error);
  if (error)
    throw UserError(Exit::usage, "", self.string() + ": " + error.message() + ": this process cannot see /proc",
                    "mount /proc where tessera runs (mount -t proc proc /proc): ranks are started and watched by it");
  return self;
}

}  // namespace tessera
