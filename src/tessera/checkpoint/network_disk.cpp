#include "tessera/checkpoint/network_disk.h"

#include <fcntl.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tessera::checkpoint {

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
