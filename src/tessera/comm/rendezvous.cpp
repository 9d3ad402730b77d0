#include "tessera/comm/rendezvous.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/comm/environment.h"

namespace tessera::comm {

namespace {

constexpr const char* kSrunHint = "start the ranks with srun, one task a rank";

/// The first of the variables that is set; if none is, the first name, for messages. A step's variables come before the
/// allocation's, because a step may be smaller.
const char* first_set(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (env::text(name)) return name;
  return *names.begin();
}

/// Entries of a nodelist; commas inside brackets belong to an entry.
std::vector<std::string> entries(const std::string& nodelist) {
  std::vector<std::string> list(1);
  int depth = 0;
  for (const char c : nodelist) {
    depth += (c == '[') - (c == ']');
    if (c == ',' && depth == 0)
      list.emplace_back();
    else
      list.back() += c;
  }
  return list;
}

/// "8-10,17" -> 4.
int count_range(const std::string& text) {
  int count = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const size_t dash = item.find('-');
    count += dash == item.npos ? 1 : std::max(1, std::atoi(item.c_str() + dash + 1) - std::atoi(item.c_str()) + 1);
    at = end + 1;
  }
  return count;
}

int port_of_step() {
  if (const int port = env::master_port()) return port;
  const auto job = env::text("SLURM_JOB_ID") ? env::text("SLURM_JOB_ID") : env::text("SLURM_JOBID");
  if (!job) env::refuse("neither MASTER_PORT nor SLURM_JOB_ID is set: the rendezvous port is unknown", kSrunHint);
  return env::port_of("slurm " + *job + "." + env::text("SLURM_STEP_ID").value_or("0"));
}

}  // namespace

std::string first_host(const std::string& nodelist) {
  std::string host;
  const std::string entry = entries(nodelist).front();
  for (size_t at = 0; at < entry.size(); ++at) {
    if (entry[at] != '[') {
      host += entry[at];
      continue;
    }
    const size_t close = entry.find(']', at);
    if (close == entry.npos) return {};
    const std::string range = entry.substr(at + 1, close - at - 1);
    host += range.substr(0, range.find_first_of("-,"));
    at = close;
  }
  return host;
}

int count_hosts(const std::string& nodelist) {
  int count = 0;
  for (const std::string& entry : entries(nodelist)) {
    int hosts = entry.empty() ? 0 : 1;
    for (size_t open = entry.find('['); open != entry.npos; open = entry.find('[', open + 1))
      hosts *= count_range(entry.substr(open + 1, entry.find(']', open) - open - 1));
    count += hosts;
  }
  return count;
}

int tasks_of_node(const std::string& counts, int node) {
  for (const std::string& entry : entries(counts)) {
    const size_t times = entry.find("(x");
    const int repeats = times == entry.npos ? 1 : std::atoi(entry.c_str() + times + 2);
    if (node < repeats) return std::atoi(entry.c_str());
    node -= repeats;
  }
  return 0;
}

std::optional<Rendezvous> from_slurm() {
  const char* tasks_name = first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  const auto rank = env::number("SLURM_PROCID"), tasks = env::number(tasks_name), local = env::number("SLURM_LOCALID");
  if (!rank) {
    if (local) env::refuse("SLURM_LOCALID is " + std::to_string(*local) + " and SLURM_PROCID is not set", kSrunHint);
    return std::nullopt;
  }
  const bool batch_script = env::text("ENVIRONMENT") == "BATCH" && !env::text("SLURM_STEP_ID");
  if (batch_script) {
    if (tasks.value_or(1) > 1)
      log::warn("this is the batch script of a job of " + std::to_string(*tasks) +
                " tasks, not a task: running one rank; 'srun tessera ...' runs them all");
    return std::nullopt;
  }
  if (!tasks || *rank >= *tasks)
    env::refuse(env::describe("SLURM_PROCID") + " and " + env::describe(tasks_name), kSrunHint);

  Rendezvous place;
  place.rank = *rank;
  place.world = *tasks;
  if (place.single()) return place;
  const char* list_name = first_set({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const auto nodelist = env::text(list_name);
  const int nodes = env::number(first_set({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}))
                        .value_or(nodelist ? count_hosts(*nodelist) : 0);
  const bool one_host = nodes == 1;

  if (!local && !one_host) env::refuse("SLURM_PROCID is set and SLURM_LOCALID is not", kSrunHint);
  place.local_rank = local.value_or(place.rank);
  const auto counts = env::text(first_set({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}));
  const int here = counts ? tasks_of_node(*counts, env::number("SLURM_NODEID").value_or(0)) : 0;
  if (here > 0)
    place.local_world = std::min(here, place.world);
  else
    place.local_world = one_host || nodes == 0 ? place.world : (place.world + nodes - 1) / nodes;
  if (place.local_rank >= place.local_world)
    env::refuse(env::describe("SLURM_LOCALID") + ", but this node runs " + std::to_string(place.local_world) + " tasks",
                kSrunHint);

  if (const auto host = env::text("MASTER_ADDR")) {
    place.host = *host;
  } else if (!one_host) {
    if (!nodelist)
      env::refuse("neither MASTER_ADDR nor SLURM_NODELIST is set: the rendezvous host is unknown", kSrunHint);
    place.host = first_host(*nodelist);
    if (place.host.empty()) env::refuse(env::describe(list_name) + ", which is no list of hosts", "set MASTER_ADDR");
  }
  place.port = port_of_step();
  return place;
}

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

namespace {

/// Variables of torchrun, which our launcher sets too.
Rendezvous from_torchrun() {
  Rendezvous place;
  place.world = env::number("WORLD_SIZE").value_or(1);
  const auto rank = env::number("RANK");
  if (!rank && place.world > 1) env::refuse(env::describe("WORLD_SIZE") + " and RANK is not set");
  place.rank = rank.value_or(0);
  if (place.rank >= place.world) env::refuse(env::describe("WORLD_SIZE") + " and " + env::describe("RANK"));
  place.local_rank = env::number("LOCAL_RANK").value_or(place.rank);
  place.local_world = env::number("LOCAL_WORLD_SIZE").value_or(place.world);
  if (place.local_world > place.world || place.local_rank >= place.local_world)
    env::refuse(env::describe("LOCAL_RANK") + ", " + env::describe("LOCAL_WORLD_SIZE") + " and " +
                env::describe("WORLD_SIZE"));
  place.port = env::master_port();
  if (const auto host = env::text("MASTER_ADDR"))
    place.host = *host;
  else if (place.local_world < place.world)
    env::refuse("MASTER_ADDR is not set and " + std::to_string(place.world - place.local_world) +
                " of the ranks are on other machines");
  if (!place.single() && place.port == 0) env::refuse("MASTER_PORT is not set");
  place.store_is_hosted =
      env::text("TESSERA_STORE") == "launcher" || env::text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  place.attempt = env::number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  place.asked_world = env::number("TESSERA_ASKED_WORLD").value_or(0);
  return place;
}

}  // namespace

// A launcher inside an allocation determines its ranks, so torchrun's variables come first. mpirun starts its helpers
// with srun, whose variables its ranks inherit, so mpirun comes before Slurm.
Rendezvous rendezvous_from_env() {
  if (env::text("RANK")) return from_torchrun();
  auto place = from_mpi();
  if (!place) place = from_slurm();
  if (!place) return from_torchrun();
  // Batch scripts often export WORLD_SIZE for programs that need it.
  if (const auto world = env::number("WORLD_SIZE"); world && *world != place->world)
    env::refuse(env::describe("WORLD_SIZE") + ", but the variables of mpirun or Slurm say " +
                    std::to_string(place->world) + " ranks",
                "leave WORLD_SIZE unset");
  return *place;
}

}  // namespace tessera::comm
