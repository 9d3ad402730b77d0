#pragma once
// The numbers of a step: squared gradients, the errors of quantised activations and what the objective reads. They stay where
// they are computed until `norm`, the only place where the host waits for a device.
//
//   numbers.begin();
//   numbers.add(unit, gradient);                          // of a gradient that is gone before the norm
//   const double squares = numbers.read(objective);       // at the norm, of all
#include <vector>

#include "tessera/engine/saved.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/objective.h"

namespace tessera::engine {

class StepNumbers {
 public:
  explicit StepNumbers(Store& store);
  ~StepNumbers();
  StepNumbers(const StepNumbers&) = delete;

  /// A step begins. The first one takes memory of the device, beside what the plan counts.
  void begin();
  /// The unit's share of the norm. Lanes may add those of different units at once.
  void add(int unit, const Tensor& gradient);
  /// This rank's sum of squares, of the gradients that were not added too; hands the objective its numbers.
  double read(net::Objective& objective);

  CompressionError& compression_error() { return compression_error_; }
  /// The error of the activations that were quantised since the last call.
  CompressionError take_compression_error() { return std::exchange(compression_error_, {}); }

 private:
  void reserve();
  int64_t bytes() const;
  Tensor at(int64_t begin, int64_t end) const;

  Store& store_;
  const device::Backend& table_;
  std::vector<int64_t> first_;  // by unit: the place of its first buffer's squares
  int64_t count_ = 0;
  void* data_ = nullptr;              // squares by buffer, 0 of those that this rank does not count; then the errors
  std::vector<double> of_offloaded_;  // squares of gradients that are the host's
  std::vector<char> added_;           // by unit
  HostMemory host_{HostMemory::Refused::drivers_own};
  device::Mark copied_;
  CompressionError compression_error_;
};

}  // namespace tessera::engine
