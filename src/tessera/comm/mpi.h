#pragma once
// A rank started by mpirun, from the variables of Open MPI, or of MPICH and Intel MPI. No MPI calls are made: mpirun
// only starts processes.
//
//   if (const auto place = from_mpi()) ...;         // mpirun -n 4 tessera train recipe.toml
#include <optional>

#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// Empty outside mpirun. The rendezvous is MASTER_ADDR:MASTER_PORT if set; on one host the loopback; on several hosts
/// the host of rank 0, as named by the batch system (Slurm, PBS, LSF) or mpirun. Throws UserError (usage) naming
/// variables that are missing or contradict each other, or if the address is unknown.
std::optional<Rendezvous> from_mpi();

}  // namespace tessera::comm
