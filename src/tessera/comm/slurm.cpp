#include "tessera/comm/slurm.h"

#include <algorithm>
#include <cstdlib>
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

}  // namespace tessera::comm
