#pragma once
// A rank started by srun: its rank and rendezvous, from Slurm's variables.
//
//   if (const auto place = from_slurm()) ...;       // srun -N 2 --ntasks-per-node 4 tessera train recipe.toml
#include <optional>
#include <string>

#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

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
