#pragma once
// The launchers of a run, one for each machine ("node"): they rendezvous before the ranks start, exchange heartbeats
// while they run, and agree on who continues after a failure. Node 0 hosts the store and decides membership.
//
//   Nodes nodes(options, host, port);
//   Nodes::Round round = nodes.rendezvous();             // before the first start and before every restart
//   if (auto verdict = nodes.poll(longest_wait, false)) ... // several times a second: another node's failure
//   nodes.report({Exit::rank_lost, "rank 3 was killed ..."});
//   nodes.leave();
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/local_ranks.h"
#include "tessera/comm/rank_process.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

/// Ranks, machines and time-outs.
struct LaunchOptions {
  int nproc = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string endpoint;  ///< HOST:PORT of the store, hosted by node 0's launcher; empty: this machine, a free port
  double timeout = 60;   ///< seconds without a heartbeat after which a rank counts as lost
  bool bind = false;     ///< each rank to its share of the processors: [Note: bound ranks]
  /// how often ranks are restarted after one is lost (exit code 5; other failures would repeat)
  int max_restarts = 0;
  std::string run;    ///< folder of the run that is trained, locked by node 0's launcher; empty: none
  int min_nodes = 0;  ///< smallest number of machines with which the run continues if others are missing; 0: all
};

class Nodes {
 public:
  /// Hosts the store (node 0) or waits for it. Throws UserError: rank_lost if nobody answers within
  /// start_seconds(options.timeout), usage if it cannot be hosted.
  Nodes(const LaunchOptions& options, std::string host, int port);
  ~Nodes();

  const std::string& host() const { return host_; }
  int port() const { return port_; }
  const std::string& token() const { return token_; }  ///< for the ranks; empty: the store is open
  /// By which the ranks of this machine reach the store; empty: they connect to it.
  std::string relay() const { return relay_ ? relay_->name() : ""; }

  struct Round {
    int number = 0;
    std::vector<int> nodes = {};  ///< member nodes, in the order of their ranks
    int place = 0;                ///< index of this node among them
  };
  /// Waits for the launchers of the next round; a node that another launcher has been until now first waits until that one
  /// is silent. Throws UserError: rank_lost naming nodes that do not join, usage if launchers were started with different
  /// counts, again after a signal.
  Round rendezvous();

  /// Sends a heartbeat and returns a failure reported elsewhere since rendezvous(). `wait`: seconds that a rank of this
  /// node has been in one collective. `lost_peers`: a rank of this node lost another; a launcher silent for three
  /// seconds is then gone and not merely slow. Throws UserError (rank_lost) if the store is gone, or does not answer
  /// for options.timeout and 5 seconds.
  std::optional<Verdict> poll(double wait, bool lost_peers);
  /// Longest time in seconds that a rank of another node has been in one collective.
  double others_wait() const { return others_wait_; }

  /// Between the two the store answers nobody, and this process has no thread but the caller's: ranks may be forked.
  void pause();
  void resume();

  /// Called several times a second while a call of poll() waits for the store.
  void meanwhile(std::function<void()> act);
  /// This launcher was stopped and goes on: what it did not hear in that time is no silence of the others.
  void woke();

  /// Reports a failure to the other nodes. The first report counts.
  void report(const Verdict& verdict);
  /// Last call of a launcher: node 0 stays until the others have seen the end.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::string beat;
    Clock::time_point at = Clock::now();
  };

  bool alone() const { return options_.nnodes == 1; }
  bool leads() const { return options_.node_rank == 0; }
  std::string key(const std::string& what, int node = -1) const;
  std::string settings() const;
  void connect();
  void beat(double wait);
  void listen(double wait);
  void listen_to_all(double wait);
  bool hear(int node, Peer& peer);
  Round lead();
  Round follow();
  void take_place();
  void await_silence(const std::string& holder);
  void join();
  void check_refused();
  [[noreturn]] void refuse(Exit code, const std::string& what);
  Round round_of(const std::string& list) const;

  const LaunchOptions options_;
  const std::string host_;
  int port_;
  const std::string me_;
  StoreAccess access_;
  std::string token_;
  std::function<void()> meanwhile_;
  std::unique_ptr<HostedStore> store_;
  std::unique_ptr<StoreRelay> relay_;  // on the other nodes
  std::unique_ptr<StoreLink> link_;
  Round round_{.number = -1};
  std::map<int, Peer> peers_;  // by node
  int64_t beats_ = 0;
  double others_wait_ = 0;
  bool told_refused_ = false;  // that a process has another token
  Clock::time_point beaten_{};
};

// Starts the ranks of this machine and watches them: names a lost rank, ends the others, leaves no process behind, and
// restarts them if allowed, also without machines that are gone.
//
//   int code = launch({.nproc = 2}, {"train", "recipe.toml"}, run_rank);
//   const LaunchOptions options = by_environment({.nproc = 0, .nnodes = 0, .node_rank = -1, .max_restarts = -1});

/// Fills in what flags leave open, 0 ranks or nodes, node rank -1, restarts -1 and no endpoint, by the variables of what
/// started this launcher: torchrun's PET_* (Kubeflow), SkyPilot's, mpirun's or srun's of one process a machine, or the
/// index of a Kubernetes job's pod. What nobody says stays open (ranks, restarts) or becomes that of one machine. Throws
/// UserError (usage) naming variables that are missing or contradict each other.
LaunchOptions by_environment(LaunchOptions options);

/// Runs `program` with `arguments` in nproc processes, forks of this one ([Note: ranks are forked]). Returns the exit code
/// of the first rank on any machine that failed by itself; 5 for a rank that was killed or went silent, or a lost machine;
/// 75 after a signal that all ranks answered with a checkpoint, or a second one that left an earlier checkpoint.
int launch(const LaunchOptions& options, const std::vector<std::string>& arguments, const RankProgram& program);

}  // namespace tessera::comm
