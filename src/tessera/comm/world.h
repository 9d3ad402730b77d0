#pragma once
// Rank and rendezvous of this process, from the environment variables of its launcher.
//
//   Rendezvous place = rendezvous_from_env();     // torchrun or our launcher, mpirun, Slurm; else one rank
#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// Throws UserError (usage) if a variable is missing or not a number.
Rendezvous rendezvous_from_env();

}  // namespace tessera::comm
