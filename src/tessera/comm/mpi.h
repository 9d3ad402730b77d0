#pragma once
// A rank that mpirun started: Open MPI's variables, or those of MPICH and Intel MPI. No MPI call is made: mpirun is
// taken as what starts processes.
//
//   if (const auto place = from_mpi()) ...;         // mpirun -n 4 tessera train recipe.toml
#include <optional>

#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// Nothing outside mpirun. The ranks meet at MASTER_ADDR and MASTER_PORT where those are set; on one host at the
/// loopback; on several where the batch system (Slurm, PBS, LSF) or mpirun itself says that rank 0 is. Throws UserError
/// (usage) naming the variables that are missing or contradict each other, and where the address cannot be known.
std::optional<Rendezvous> from_mpi();

}  // namespace tessera::comm
