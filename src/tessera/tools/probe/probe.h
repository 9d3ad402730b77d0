#pragma once
// Measures what this machine does, into a profile that plan.profile takes: products, attention, the operators between
// them, memory, disk, what the engine adds (engine_times.h) and, under a launcher, collectives among the ranks, alone and
// beside compute.
//
//   tessera launch -n 2 probe --out machine.toml
//
// All ranks measure at the same time, because they will compute at the same time. A minute and a half at most.
#include <string>

#include "tessera/plan/simulate/profile.h"

namespace tessera::tools {

struct ProbeOptions {
  std::string name = "probed";
  std::string folder = ".";  ///< where the disk is measured
  double seconds = 0.4;      ///< spent on each measurement, about
};

/// Joins the ranks of the environment. Every rank returns the same profile: means over ranks.
/// Throws UserError (disk) when `folder` cannot be written.
plan::Profile probe(const ProbeOptions& options);

}  // namespace tessera::tools
