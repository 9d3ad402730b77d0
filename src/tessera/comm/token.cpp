#include "tessera/comm/token.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/file.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/environment.h"

namespace tessera::comm {

namespace fs = std::filesystem;

namespace {

constexpr size_t kShortest = 16;  // characters of TESSERA_TOKEN
constexpr size_t kLongest = 1024;

fs::path token_file(const fs::path& run) { return run / ".token"; }

[[noreturn]] void fail(const fs::path& file, const char* act, int error) {
  throw UserError(Exit::disk, "run.out",
                  file.string() + ": cannot be " + act + ": " + std::strerror(error) + limit_behind(error),
                  std::string("see to the folder's permissions, or set ") + kTokenVariable);
}

fs::path run_of_process;

/// Empty unless it is a whole token in a file of this user that nobody else can read.
std::string token_in(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    return {};
  std::array<char, kLongest> text;
  const ssize_t size = pread(fd, text.data(), text.size(), 0);
  const auto end = std::find(text.begin(), text.begin() + std::max<ssize_t>(size, 0), '\n');
  const std::string token(text.begin(), end);
  return token.size() < kShortest ? std::string() : token;
}

}  // namespace

std::string token_from_env() {
  const std::string token = env::text(kTokenVariable).value_or("");
  if (!token.empty() && (token.size() < kShortest || token.size() > kLongest))
    env::refuse(std::string(kTokenVariable) + " has " + std::to_string(token.size()) + " characters, expected " +
                    std::to_string(kShortest) + " to " + std::to_string(kLongest),
                "openssl rand -hex 32 prints one that nobody guesses");
  return token;
}

void set_token_folder(const fs::path& run) { run_of_process = run; }
const fs::path& token_folder() { return run_of_process; }

void warn_of_open_store(const std::string& host) {
  log::warn("the rendezvous at " + host + " has no token: whoever reaches it can end this run. Set " + kTokenVariable +
            " to the same secret on all nodes (openssl rand -hex 32), or run.out to a folder that they share");
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  const auto all = static_cast<ssize_t>(count);
  if (getrandom(bytes.data(), count, 0) == all) return bytes;
  const int refused = errno;
  const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  const bool read = fd >= 0 && ::read(fd, bytes.data(), count) == all;
  if (fd >= 0) ::close(fd);
  if (!read)
    throw UserError(
        Exit::usage, "comm",
        std::string("this process may not call getrandom (") + std::strerror(refused) +
            ") and cannot read /dev/urandom, and the run's token is made of random numbers",
        "allow getrandom in the seccomp profile of the container, or in the security policy of this system");
  return bytes;
}

std::string random_token() {
  std::string token;
  for (const char byte : random_bytes(32))
    token += {"0123456789abcdef"[static_cast<uint8_t>(byte) >> 4], "0123456789abcdef"[byte & 15]};
  return token;
}

bool shared_between_nodes(const fs::path& run, const std::string& host) {
  if (is_loopback(host)) return true;
  return checkpoint::on_network_disk(run);
}

std::string make_token(const fs::path& run) {
  std::error_code error;
  fs::create_directories(run, error);
  const fs::path file = token_file(run);
  if (const std::string token = read_token(run); !token.empty()) return token;
  // Written under another name first: nobody reads half of it. What a kill left of that goes.
  const fs::path draft = run / ".token.partial";
  ::unlink(draft.c_str());
  const int fd = ::open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) fail(draft, "made", errno);
  const std::string line = random_token() + "\n";
  const bool written =
      fchmod(fd, 0600) == 0 && ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int failed = errno;
  const std::string token = written ? token_in(fd) : std::string();
  ::close(fd);
  const bool named = written && !token.empty() && ::rename(draft.c_str(), file.c_str()) == 0;
  if (!named) ::unlink(draft.c_str());
  if (!written) fail(draft, "written", failed);
  return named ? read_token(run) : std::string();
}

std::string read_token(const fs::path& run) {
  const int fd = ::open(token_file(run).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return {};
  const std::string token = token_in(fd);
  ::close(fd);
  return token;
}

}  // namespace tessera::comm
