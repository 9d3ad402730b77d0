#pragma once
// Rank and rendezvous of this process, from the environment variables of what started it: torchrun or our launcher; mpirun
// of Open MPI, MPICH and Intel MPI, which only starts processes (no MPI calls are made); srun; else it is one rank.
//
//   Rendezvous place = rendezvous_from_env();
#include <optional>
#include <string>

#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// Throws UserError (usage) if a variable is missing or not a number.
Rendezvous rendezvous_from_env();

/// Empty outside mpirun. The rendezvous is MASTER_ADDR:MASTER_PORT if set; on one host the loopback; on several hosts
/// the host of rank 0, as named by the batch system (Slurm, PBS, LSF) or mpirun. Throws UserError (usage) naming
/// variables that are missing or contradict each other, or if the address is unknown.
std::optional<Rendezvous> from_mpi();

/// Empty outside a Slurm task (also in the shell of salloc and in the batch script itself). The rendezvous is
/// MASTER_ADDR:MASTER_PORT if set, else the first host of the step and a port made of the job's and the step's numbers.
/// Throws UserError (usage) naming variables that are missing or contradict each other.
std::optional<Rendezvous> from_slurm();

/// The first host of a Slurm nodelist, "a[08-10,17],b" -> "a08"; empty if the text is not a nodelist.
std::string first_host(const std::string& nodelist);

/// Number of hosts in a nodelist, "a[08-10,17],b" -> 5. Counts the entries it can parse.
int count_hosts(const std::string& nodelist);

/// Entry `node` of Slurm's counts by node, ("4(x2),3", 2) -> 3; 0 if there is none.
int tasks_of_node(const std::string& counts, int node);

}  // namespace tessera::comm
