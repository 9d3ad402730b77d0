#pragma once
// What ranks that share tokens exchange inside an instruction, beside its compute: the part that nothing hides.
//
//   exposed({{.begun = 0, .awaited = 0.9, .seconds = 0.2}, {.begun = 0.9, .awaited = 0.9, .seconds = 0.2}});   // {0, 0.2}
#include <vector>

namespace tessera::plan {

/// A message of an instruction, in seconds of its compute.
struct Exchange {
  double begun = 0, awaited = 0;  ///< where it is begun, and where the compute waits for it
  double seconds = 0;             ///< if it runs alone
};

/// Seconds that the compute waits for each. Those that are awaited later than they are begun run one after another on a lane of
/// their own, in the order given, which is that in which they are begun and awaited; while the compute waits for any, this lane
/// goes on. One that is awaited where it is begun is waited for whole.
std::vector<double> exposed(const std::vector<Exchange>& exchanges);

}  // namespace tessera::plan
