#pragma once
// Which rank this process is and where the others meet, from the environment of whoever started it.
//
//   Rendezvous place = rendezvous_from_env();     // of torchrun or our launcher, mpirun, Slurm; none: one rank
#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// Throws UserError (usage) for a variable that is missing or not a number.
Rendezvous rendezvous_from_env();

}  // namespace tessera::comm
