#pragma once
// The average of the weights (plan::StateFormat::ema) in place of the trained ones, to sample and export.
//
//   const AveragedWeights averaged(store, comm, /*used=*/true);        // the trained weights return when it goes
#include "tessera/comm/comm.h"
#include "tessera/engine/store/store.h"

namespace tessera::engine {

/// Between steps. While it lives, no step may run and nothing is saved. All ranks take part. Masters are fp32 or split:
/// both ways are exact, and need no memory. All experts change places with their averages.
class AveragedWeights {
 public:
  /// Not `used`: does nothing. Throws InternalError if there is no average.
  AveragedWeights(Store& store, comm::Comm& comm, bool used);
  ~AveragedWeights() noexcept(false);
  AveragedWeights(const AveragedWeights&) = delete;

 private:
  void swap();
  void swap_active();

  Store& store_;
  comm::Comm& comm_;
  const bool used_;
};

}  // namespace tessera::engine
