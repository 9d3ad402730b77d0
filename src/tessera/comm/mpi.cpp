#include "tessera/comm/mpi.h"

#include <fstream>

#include "tessera/comm/environment.h"
#include "tessera/comm/slurm.h"

namespace tessera::comm {

namespace {

/// One row for each mpirun family. `present`: a variable that only this family sets.
struct Family {
  const char *present, *rank, *size, *local_rank, *local_size;
};
constexpr Family kFamilies[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    // MPICH and Intel MPI; srun sets PMI_RANK too, but not this variable.
    {"MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

constexpr const char* kMpirunHint =
    "mpirun sets these for the processes it starts; check that nothing between drops them";

/// Open MPI 4 gives every rank the address of mpirun, which in an allocation is the first host:
/// "12.0;tcp://10.0.0.1,...:41".
std::string host_of_mpirun() {
  const std::string uri = env::text("OMPI_MCA_orte_hnp_uri").value_or("");
  const size_t at = uri.find("tcp://");
  return at == uri.npos ? "" : uri.substr(at + 6, uri.find_first_of(",:", at + 6) - at - 6);
}

std::string first_line_of(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

/// The host of rank 0 if ranks are on several hosts; empty if no variable names it.
std::string host_of_rank_zero() {
  for (const char* list : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (const auto nodes = env::text(list)) return first_host(*nodes);
  if (const auto file = env::text("PBS_NODEFILE")) return first_line_of(*file);
  if (const auto hosts = env::text("LSB_HOSTS")) return hosts->substr(0, hosts->find(' '));
  return host_of_mpirun();
}

/// A port made of what the ranks of one mpirun share and no other run has; else torch's default port.
int port_of_job() {
  if (const int port = env::master_port()) return port;
  for (const char* job : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"})
    if (const auto name = env::text(job)) return env::port_of(*name);
  return 29500;
}

}  // namespace

std::optional<Rendezvous> from_mpi() {
  const Family* family = nullptr;
  for (const Family& candidate : kFamilies)
    if (!family && env::text(candidate.present)) family = &candidate;
  if (!family) return std::nullopt;
  const auto rank = env::number(family->rank), size = env::number(family->size);
  if (!rank || !size || *rank >= *size)
    env::refuse(env::describe(family->rank) + " and " + env::describe(family->size), kMpirunHint);

  Rendezvous place;
  place.rank = *rank;
  place.world = *size;
  if (place.single()) return place;
  const auto local = env::number(family->local_rank), local_size = env::number(family->local_size);
  place.local_rank = local.value_or(place.rank);
  place.local_world = local_size.value_or(place.world);
  if (place.local_rank >= place.local_world || place.local_world > place.world)
    env::refuse(env::describe(family->local_rank) + ", " + env::describe(family->local_size) + " and " +
                    env::describe(family->size),
                kMpirunHint);
  const bool one_host = place.local_world == place.world && place.local_rank == place.rank;
  if (const auto host = env::text("MASTER_ADDR")) {
    place.host = *host;
  } else if (!one_host) {
    place.host = host_of_rank_zero();
    if (place.host.empty())
      env::refuse("MASTER_ADDR is not set, the ranks are on several hosts, and mpirun does not name the host of rank 0",
                  "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ..., with the host of rank 0");
  }
  place.port = port_of_job();
  return place;
}

}  // namespace tessera::comm
