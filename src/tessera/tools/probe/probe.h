#pragma once
// Measures what this machine does, into a profile that plan.profile takes: products, attention, the operators between
// them, memory, copies, disk, what the engine adds (engine_times.h) and, under a launcher, collectives among the ranks, alone and
// beside compute.
//
//   tessera launch -n 2 probe --out machine.toml
//
// All ranks measure at the same time, because they will compute at the same time. A minute and a half at most.
//
// | file | what it is |
// | clock.h | by what calls are timed: the clock of a CPU, or events of a device |
// | sizes.h | what is timed: sizes of the models that the machine trains |
// | signatures.h, rates.h, transfers.h, engine_times.h | the measurements, which know neither |
#include <string>

#include "tessera/plan/simulate/profile.h"

namespace tessera::tools {

struct ProbeOptions {
  std::string name = "probed";
  std::string folder = ".";     ///< where the disk is measured
  double seconds = 0.4;         ///< spent on each measurement, about
  std::string device = "auto";  ///< as run.device
  int64_t host_memory = 0;      ///< bytes of the machine; 0: what its system shows, which of some virtual ones grows
  bool small = false;           ///< a dry run: sizes that take no time, whose rates say nothing of training
};

/// Joins the ranks of the environment. Every rank returns the same profile: means over ranks.
/// Throws UserError: (disk) when `folder` cannot be written, (usage) as job::choose_device.
plan::Profile probe(const ProbeOptions& options);

}  // namespace tessera::tools
