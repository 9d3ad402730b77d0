#include "tessera/comm/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace tessera::comm {

namespace {

constexpr uint64_t kTokens = uint64_t{1} << 53;

/// In the file's name, which processes that open it compare, whatever the file holds.
std::string text_of(int64_t token) {
  char text[24];
  std::snprintf(text, sizeof text, "-%014llx", static_cast<unsigned long long>(token));
  return text;
}

/// What the system calls the file, "/memfd:tessera-rings-0123456789abcd (deleted)".
std::string path_of(int descriptor) {
  char path[256];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  return length < 0 ? std::string() : std::string(path, static_cast<size_t>(length));
}

}  // namespace

std::unique_ptr<SharedFile> SharedFile::create(std::string_view name, int64_t bytes) {
  uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) != sizeof token) return nullptr;
  token %= kTokens;
  const auto own = static_cast<int64_t>(token);
  const int descriptor = memfd_create(("tessera-" + std::string(name) + text_of(own)).c_str(), MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<SharedFile> made(new SharedFile(descriptor, bytes, own));
  return ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? std::move(made) : nullptr;
}

std::unique_ptr<SharedFile> SharedFile::open(const Address& address, int64_t bytes) {
  const std::string path = "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<SharedFile> same(new SharedFile(descriptor, bytes, address.token));
  struct stat status = {};
  const bool is_it = path_of(descriptor).find(text_of(address.token)) != std::string::npos;
  return is_it && fstat(descriptor, &status) == 0 && status.st_size == bytes ? std::move(same) : nullptr;
}

SharedFile::~SharedFile() { close(descriptor_); }

SharedFile::Address SharedFile::address() const { return {getpid(), descriptor_, token_}; }

}  // namespace tessera::comm
