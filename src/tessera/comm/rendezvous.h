#pragma once
// Which rank a process is, and where it finds the others: from the environment variables of what started it. That is
// torchrun or our launcher; mpirun of Open MPI, MPICH and Intel MPI, which only starts processes (no MPI calls are made);
// srun; else it is one rank.
//
//   const Rendezvous place = rendezvous_from_env();
//   Comm comm(Rendezvous{.rank = 1, .world = 2, .port = 29500}, mesh, timeout_seconds);
#include <optional>
#include <string>

namespace tessera::comm {

/// Whether this build has Gloo; without it a program runs one rank alone.
bool has_gloo();

struct Rendezvous {
  int rank = 0, world = 1, local_rank = 0, local_world = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  bool store_is_hosted = false;  ///< the launcher (ours, torchrun's agent) hosts the store; else rank 0 does
  /// number of restarts (ours or torchrun's); a hosted store still has the keys of earlier attempts
  int attempt = 0;
  /// Requested number of ranks; more than `world` if our launcher continues without some nodes. 0: the same as `world`.
  int asked_world = 0;

  bool single() const { return world == 1; }
};

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
