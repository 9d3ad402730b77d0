#pragma once
// What the NVIDIA driver says of this process's GPU, asked once a second by a thread of its own: NVML, the library behind
// nvidia-smi, opened at run time.
//
//   DriverWatch watch(properties.uuid);                 // does nothing where there is no NVML
//   if (const auto numbers = watch.take()) ...          // the means since the last call
//   watch.take_fault(milliseconds(500));                // "Xid 79 (the GPU has fallen off the bus)", if the driver says one
//
// A process has one, driver(), which hears of errors from the choice of its device on.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::device {

struct DriverNumbers {
  double utilisation = 0;  ///< share of the time in which some kernel ran, 0 to 1
  double watts = 0;        ///< that the board draws
  /// Taken on the GPU by all processes, without what the driver keeps for itself, some 0.5 GiB of an H100. Of a driver that
  /// does not tell that apart: taken since note_taken_memory().
  double memory_bytes = 0;
  bool operator==(const DriverNumbers&) const = default;
};

class DriverWatch {
 public:
  /// `uuid`: 16 bytes in hexadecimal digits, as Properties::uuid has them. Tests name another library and period.
  explicit DriverWatch(const std::string& uuid, const std::string& library = "libnvidia-ml.so.1",
                       std::chrono::milliseconds period = std::chrono::seconds(1));
  ~DriverWatch();
  DriverWatch(const DriverWatch&) = delete;
  DriverWatch& operator=(const DriverWatch&) = delete;

  /// Why the driver says nothing; empty where it does.
  const std::string& absence() const { return absence_; }
  /// The means of what was read since the last call; of a call before the next reading, the last one. Empty where the
  /// driver says nothing, or stopped to.
  std::optional<DriverNumbers> take();
  /// The error of the GPU that the driver tells within `wait`, by its number and what that means; empty: none. An Xid is what
  /// the kernel's log has of a GPU that failed.
  std::string take_fault(std::chrono::milliseconds wait);

 private:
  struct Driver;
  std::string absence_;
  std::unique_ptr<Driver> driver_;
};

/// Before a process starts the driver: remembers what of each GPU is taken, where the driver does not tell what it keeps for
/// itself. Tests name another library.
void note_taken_memory(const std::string& library = "libnvidia-ml.so.1");
/// Begins to ask about the GPU of this process, once, after use(); on a CPU it does nothing.
void watch_driver();
/// What watch_driver() began; null: nothing.
DriverWatch* driver();

}  // namespace tessera::device
