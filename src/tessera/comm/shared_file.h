#pragma once
// Memory that processes of one machine share: an unnamed file (memfd). Nothing can be left behind in /dev/shm, whose size
// does not matter, and the kernel frees it with the last process that has it open or mapped.
//
//   const auto made = SharedFile::create("rings", bytes);          // zeros; its address travels by a store or a group
//   const auto same = SharedFile::open(made->address(), bytes);    // in another process
//   mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, same->descriptor(), 0);
#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::comm {

class SharedFile {
 public:
  /// Where others open it: numbers that a double holds exactly.
  struct Address {
    int64_t process = 0, descriptor = -1;
    int64_t token = 0;  ///< of this file alone: another container may have the same process and descriptor
  };

  /// `name`: in /proc/PID/maps, "memfd:tessera-rings-TOKEN". Null where the system has no such files, or no room.
  static std::unique_ptr<SharedFile> create(std::string_view name, int64_t bytes);
  /// Null where it cannot be reached (another machine, another user, a container of its own) or has another size.
  static std::unique_ptr<SharedFile> open(const Address& address, int64_t bytes);
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// Holds while this object lives.
  Address address() const;
  int descriptor() const {
    return descriptor_;
  }  ///< open()'s is a description of its own, as locks of the file need it
  int64_t size() const { return size_; }

 private:
  SharedFile(int descriptor, int64_t size, int64_t token) : descriptor_(descriptor), size_(size), token_(token) {}
  const int descriptor_;
  const int64_t size_, token_;
};

}  // namespace tessera::comm
