#include "tessera/comm/launch/launcher.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/environment.h"
#include "tessera/comm/launch/local_ranks.h"
#include "tessera/comm/launch/machine.h"
#include "tessera/comm/launch/nodes.h"
#include "tessera/comm/launch/stop_signals.h"
#include "tessera/comm/patience.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/run_lock.h"

namespace tessera::comm {

namespace {

constexpr double kOtherNodes = 6;  // seconds in which another node reports why a rank lost its peers

struct Endpoint {
  std::string host = "127.0.0.1";
  int port = 0;
};

Endpoint parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  if (text.empty()) return endpoint;
  const size_t colon = text.rfind(':');
  endpoint.host = text.substr(0, colon);
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']'))  // an address of IPv6
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (endpoint.host.empty() || endpoint.host.find_first_of("[]") != std::string::npos || error != std::errc() ||
      end != port.data() + port.size() || endpoint.port < 1 || endpoint.port > 65535)
    throw UserError(Exit::usage, "launch", "--rdzv-endpoint " + text + ": expected HOST:PORT",
                    "for example 10.0.0.1:29500, or [fd00::1]:29500");
  return endpoint;
}

/// What a scheduler says of this launcher. Empty or negative: it does not say it.
struct Said {
  std::string by;                     // the variables, for messages
  std::string rank_name, place_name;  // those of the node's rank, and of where node 0 is
  std::string hint;
  int nnodes = 0, node_rank = -1, least = 0;
  std::string endpoint = {};
};

constexpr int kPort = 29500;  // torch's, where nothing names another

std::string endpoint_of(const std::string& host, int port) { return place_text(host, port > 0 ? port : kPort); }

std::string master() {
  const auto host = env::text("MASTER_ADDR");
  return host ? endpoint_of(*host, env::master_port()) : "";
}

/// Kubeflow and torchrun's own: the flags of torchrun as variables.
Said said_by_torchrun() {
  Said said{"PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR",
            "a PyTorchJob with an elasticPolicy does not number its pods: leave that out, and use --min-nodes M"};
  const std::string nodes = *env::text("PET_NNODES");  // N, or MIN:MAX
  const size_t colon = nodes.find(':');
  for (const std::string& count : {nodes.substr(0, colon), colon == nodes.npos ? nodes : nodes.substr(colon + 1)}) {
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), said.nnodes);
    if (error != std::errc() || end != count.data() + count.size() || said.nnodes < 1)
      env::refuse("PET_NNODES=" + nodes + ": expected N or MIN:MAX", "a count of machines");
    if (said.least == 0) said.least = said.nnodes;
  }
  if (said.least == said.nnodes) said.least = 0;
  for (const char* name : {"PET_NODE_RANK", "JOB_COMPLETION_INDEX"})
    if (said.node_rank < 0) said.node_rank = env::number(name).value_or(-1);
  const auto endpoint = env::text("PET_RDZV_ENDPOINT"), host = env::text("PET_MASTER_ADDR");
  if (endpoint)
    said.endpoint = endpoint->find(':') == std::string::npos ? endpoint_of(*endpoint, 0) : *endpoint;
  else if (host)
    said.endpoint = endpoint_of(*host, env::number("PET_MASTER_PORT").value_or(0));
  return said;
}

Said said_by_skypilot() {
  const std::string hosts = env::text("SKYPILOT_NODE_IPS").value_or("");
  Said said{"SKYPILOT_NUM_NODES",
            "SKYPILOT_NODE_RANK",
            "SKYPILOT_NODE_IPS",
            "SkyPilot sets these in `run:`",
            *env::number("SKYPILOT_NUM_NODES"),
            env::number("SKYPILOT_NODE_RANK").value_or(-1)};
  if (!hosts.empty()) said.endpoint = endpoint_of(hosts.substr(0, hosts.find_first_of(" \n")), env::master_port());
  return said;
}

/// srun and mpirun number processes: as machines where there is one on each.
Said said_of_tasks(const Rendezvous& place, const std::string& by, const std::string& hint) {
  if (place.local_world > 1)
    env::refuse(
        std::to_string(place.local_world) + " launchers were started on this machine, expected one (" + by + ")",
        hint + ", one launcher a machine; or without `launch`, one process a rank");
  return {by, by, by, hint, place.world, place.rank, 0, place.single() ? "" : endpoint_of(place.host, place.port)};
}

/// A batch script runs on the first machine alone.
bool in_batch_script() {
  if (env::text("ENVIRONMENT") != "BATCH" || env::text("SLURM_STEP_ID")) return false;
  if (const auto nodes = env::number("SLURM_NNODES"); nodes && *nodes > 1)
    log::warn("this is the batch script of a job of " + std::to_string(*nodes) +
              " machines: launching on this one alone; 'srun --ntasks-per-node=1 tessera launch ...' launches on all");
  return true;
}

/// The first that is there. A launcher inside an allocation may be started by another one: mpirun uses srun, SkyPilot both.
Said said_by_whoever_started_this() {
  if (env::text("PET_NNODES")) return said_by_torchrun();
  if (env::text("SKYPILOT_NUM_NODES")) return said_by_skypilot();
  if (const auto place = from_mpi()) return said_of_tasks(*place, "mpirun's variables", "mpirun --map-by ppr:1:node");
  if (env::text("SLURM_PROCID") && !in_batch_script())
    if (const auto place = from_slurm()) return said_of_tasks(*place, "srun's variables", "srun --ntasks-per-node=1");
  if (env::text("JOB_COMPLETION_INDEX"))
    return {"JOB_COMPLETION_INDEX",
            "JOB_COMPLETION_INDEX",
            "MASTER_ADDR",
            "set MASTER_ADDR in the manifest: pod 0's name behind its headless service",
            0,
            env::number("JOB_COMPLETION_INDEX").value_or(-1)};
  return {};
}

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const std::vector<std::string>& arguments, const RankProgram& program,
           const Endpoint& endpoint)
      : options_(options), forks_(arguments, program), nodes_(options, endpoint.host, endpoint.port) {}

  int run() {
    for (int restarts = 0;; ++restarts) {
      const Verdict end = attempt(nodes_.rendezvous());
      // Only a lost rank is worth a restart: a wrong recipe, file or disk would fail again.
      if (end.code != Exit::rank_lost || restarts == options_.max_restarts || signals_seen() > 0) {
        nodes_.leave();
        return static_cast<int>(end.code);
      }
      fault_ = end.text;
      note();
      log::warn("restart " + std::to_string(restarts + 1) + " of " + std::to_string(options_.max_restarts) +
                ": restarting from the last complete checkpoint");
    }
  }

 private:
  /// For metrics.jsonl, which rank 0 writes: also when that is killed before it comes to it.
  void note() const {
    if (!lock_) return;
    try {
      note_fault(options_.run, fault_);
    } catch (const UserError& error) {
      log::warn(error.what());
    }
  }

  /// Starts the ranks once and watches them until they end; reports what the user should know.
  Verdict attempt(const Nodes::Round& round) {
    RanksStart start;
    start.ranks = options_.nproc;
    start.bind = options_.bind;
    start.first_rank = round.place * options_.nproc;
    start.world = static_cast<int>(round.nodes.size()) * options_.nproc;
    start.asked_world = options_.nnodes * options_.nproc;
    start.host = nodes_.host();
    start.port = nodes_.port();
    start.token = nodes_.token();
    start.attempt = round.number;
    if (lock_) start.locked = std::filesystem::absolute(options_.run);
    start.run = options_.run;
    start.timeout = options_.timeout;
    nodes_.pause();
    LocalRanks ranks(start, forks_);
    nodes_.resume();
    const Verdict end = watch(ranks);
    if (!end.text.empty()) log::error(end.text);
    ranks.end_all();
    return end;
  }

  Verdict watch(LocalRanks& ranks) {
    int passed_on = 0, saves = 0;
    auto looked = Clock::now();
    const auto look = [&] {
      // If the launcher itself was suspended (Ctrl-Z, a closed laptop), the gap must not count as silence of anyone.
      const bool suspended = seconds_since(looked) > kPause;
      looked = Clock::now();
      ranks.look(suspended);
      if (suspended) nodes_.woke();
      for (; passed_on < signals_seen(); ++passed_on) ranks.signal(last_signal());
      if (const int asked = saves_seen(); saves < asked) saves = asked, ranks.save();
    };
    nodes_.meanwhile(look);
    const Verdict end = watch(ranks, look);
    nodes_.meanwhile({});
    return end;
  }

  Verdict watch(LocalRanks& ranks, const std::function<void()>& look) {
    std::optional<Clock::time_point> lost_peers;
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      look();
      try {
        if (auto verdict = nodes_.poll(ranks.longest_wait(), lost_peers.has_value())) {
          nodes_.report(*verdict);
          return *verdict;
        }
        const bool over = ranks.over();
        if (auto end = ranks.verdict(nodes_.others_wait())) {
          if (!lost_peers) lost_peers = Clock::now();
          if (end->caused_by_peer && options_.nnodes > 1 && seconds_since(*lost_peers) < kOtherNodes) continue;
          if (options_.nnodes > 1 && !end->text.empty())
            end->text = "node " + std::to_string(options_.node_rank) + ": " + end->text;
          if (end->code != Exit::again || !end->text.empty()) nodes_.report(*end);
          return *end;
        }
        if (over) return {};
      } catch (const UserError& gone) {  // the rendezvous endpoint
        return {gone.code(), gone.what()};
      }
    }
  }

  const LaunchOptions options_;
  const RankForks forks_;  // first: what the others open is not the ranks'
  const std::unique_ptr<const RunLock> lock_ = options_.run.empty() || options_.node_rank > 0
                                                   ? nullptr
                                                   : std::make_unique<const RunLock>(options_.run);
  Nodes nodes_;
  std::string fault_;  // reason for the restart
};

}  // namespace

LaunchOptions by_environment(LaunchOptions options) {
  const auto per_node = env::text("PET_NPROC_PER_NODE");  // a number, or auto, gpu, cpu: as without it
  const bool words = per_node && (*per_node == "auto" || *per_node == "gpu" || *per_node == "cpu");
  if (options.nproc == 0 && !words) options.nproc = env::number("PET_NPROC_PER_NODE").value_or(0);
  if (options.max_restarts < 0) options.max_restarts = env::number("PET_MAX_RESTARTS").value_or(-1);
  const bool told = options.nnodes == 1 || (options.nnodes > 1 && options.node_rank >= 0 && !options.endpoint.empty());
  const Said said = told ? Said() : said_by_whoever_started_this();
  if (options.nnodes == 0 && said.nnodes == 0 && !said.by.empty())
    env::refuse(env::describe(said.by.c_str()) + ", and nothing says how many machines the run has",
                "--nnodes N, the completions of the Job; --nnodes 1 where each pod is a run of its own");
  if (options.nnodes == 0) options.nnodes = std::max(1, said.nnodes);
  if (options.min_nodes == 0 && said.nnodes == options.nnodes) options.min_nodes = said.least;
  if (options.nnodes > 1 && !told) {
    if (options.node_rank < 0) options.node_rank = said.node_rank;
    if (options.endpoint.empty()) options.endpoint = said.endpoint.empty() ? master() : said.endpoint;
    const std::string of = said.by + " tells of " + std::to_string(options.nnodes) + " machines, and ";
    if (options.node_rank < 0 && !said.by.empty()) env::refuse(of + env::describe(said.rank_name.c_str()), said.hint);
    if (options.endpoint.empty() && !said.by.empty())
      env::refuse(of + env::describe(said.place_name.c_str()), said.hint);
    if (!said.by.empty())
      log::info("launch: machine " + std::to_string(options.node_rank) + " of " + std::to_string(options.nnodes) +
                " by " + said.by + ", rendezvous at " + options.endpoint);
  }
  options.node_rank = std::max(0, options.node_rank);
  return options;
}

int launch(const LaunchOptions& options, const std::vector<std::string>& arguments, const RankProgram& program) {
  if (options.nproc < 1 || options.nnodes < 1 || options.node_rank < 0 || options.node_rank >= options.nnodes)
    throw UserError(Exit::usage, "launch",
                    "-n " + std::to_string(options.nproc) + ", --nnodes " + std::to_string(options.nnodes) +
                        ", --node-rank " + std::to_string(options.node_rank) + " contradict each other",
                    "ranks and nodes count from 1, node ranks from 0");
  if (options.min_nodes > options.nnodes)
    throw UserError(
        Exit::usage, "launch",
        "--min-nodes " + std::to_string(options.min_nodes) + " is more than --nnodes " + std::to_string(options.nnodes),
        "--nnodes is the number of nodes at the start");
  if (options.nnodes > 1 && options.endpoint.empty())
    throw UserError(Exit::usage, "launch",
                    "--nnodes " + std::to_string(options.nnodes) + " needs a rendezvous endpoint",
                    "add --rdzv-endpoint HOST:PORT of node 0");
  const Endpoint endpoint = parse_endpoint(options.endpoint);
  require_room(options.nproc);
  count_stop_signals();
  return Launcher(options, arguments, program, endpoint).run();
}

}  // namespace tessera::comm
