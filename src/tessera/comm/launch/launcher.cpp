#include "tessera/comm/launch/launcher.h"

#include <charconv>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/comm/launch/local_ranks.h"
#include "tessera/comm/launch/machine.h"
#include "tessera/comm/launch/nodes.h"
#include "tessera/comm/launch/stop_signals.h"
#include "tessera/comm/patience.h"
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
