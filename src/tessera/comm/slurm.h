#pragma once
// A rank that srun started: place and meeting point from Slurm's variables.
//
//   if (const auto place = from_slurm()) ...;       // srun -N 2 --ntasks-per-node 4 tessera train recipe.toml
#include <optional>
#include <string>

#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

/// Nothing outside a task of Slurm (also in the shell of salloc and in the batch script itself). The ranks meet at
/// MASTER_ADDR and MASTER_PORT where those are set, else on the first host of the step, at a port made of the job's and
/// the step's numbers. Throws UserError (usage) naming the variables that are missing or contradict each other.
std::optional<Rendezvous> from_slurm();

/// The first host of Slurm's nodelist, "a[08-10,17],b" -> "a08"; empty when the text is no such list.
std::string first_host(const std::string& nodelist);

/// Hosts of a nodelist, "a[08-10,17],b" -> 5. Counts what it can read.
int count_hosts(const std::string& nodelist);

/// Entry `node` of Slurm's counts by node, ("4(x2),3", 2) -> 3; 0 when there is none.
int tasks_of_node(const std::string& counts, int node);

}  // namespace tessera::comm
