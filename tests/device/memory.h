#pragma once
// The memory of the simulated device: addresses that no code can read or write, and a shadow of their bytes at a known
// distance, which its "kernels" use.
//
//   void* data = memory().take(bytes, index);            // *data ends the process, with a word on stderr
//   float* x = memory().shadow<float>(data, n);          // throws unless n floats lie in one allocation
//
// An allocation ends at a page that neither side can touch, and its addresses are not used again soon, so an overrun of a
// kernel and a use after give() end the process too.
#include <array>
#include <cstdint>
#include <map>
#include <mutex>

namespace tessera::testing {

inline constexpr int kSimulatedDevices = 8;

class SimulatedMemory {
 public:
  /// Reserves the addresses and begins to explain faults at them; once a process.
  SimulatedMemory();

  /// Bytes of 0xff, NaN in fp32, bf16 and fp16, aligned to 512; null where the device has not so many left.
  void* take(int64_t bytes, int device);
  /// Of take(); null does nothing.
  void give(void* data);

  bool contains(const void* data) const;         ///< an address of the device
  bool shadow_contains(const void* data) const;  ///< an address that only kernels may know
  /// The device of an address of take().
  int device_of(const void* data) const;
  int64_t bytes_of(const void* data) const;       ///< of the allocation
  int64_t capacity() const { return capacity_; }  ///< TESSERA_SIMULATED_BYTES, else 4 GiB; of each device
  int64_t taken(int device) const;

  /// The bytes of n elements on the device, for kernels. Throws c10::Error where they are not in one allocation or not
  /// aligned to their size.
  template <class T>
  T* shadow(T* data, int64_t n) const {
    return static_cast<T*>(checked_shadow(data, n * static_cast<int64_t>(sizeof(T)), alignof(T)));
  }
  /// The same without types.
  void* shadow_bytes(const void* data, int64_t bytes) const { return checked_shadow(data, bytes, 1); }

 private:
  struct Range {
    char* data;        ///< what take() returned
    int64_t bytes;     ///< what it was asked for
    int64_t reserved;  ///< whole pages, with the closed one at their end
    int device;
  };
  void* checked_shadow(const void* data, int64_t bytes, size_t alignment) const;
  const Range* range_of(const void* data) const;
  char* place(int64_t reserved);
  void fill(char* begin, int64_t bytes) const;

  mutable std::mutex mutex_;
  std::map<char*, Range> ranges_;  ///< by their first page
  char *base_ = nullptr, *cursor_ = nullptr;
  int pattern_ =
      -1;  ///< a file of 0xff, mapped privately, so that large allocations cost memory where they are written
  int64_t capacity_ = 0;
  std::array<int64_t, kSimulatedDevices> taken_ = {};
};

/// That of this process.
SimulatedMemory& memory();

/// TESSERA_SIMULATED_SIZES=1: the device has sizes and addresses alone. Operators allocate their results and compute
/// nothing, so a model of any size takes a step in a second; what the host reads of it means nothing.
bool sizes_alone();

}  // namespace tessera::testing
