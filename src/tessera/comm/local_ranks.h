#pragma once
// The ranks that a launcher started on its machine in one attempt: processes, exits and diagnosis.
//
//   LocalRanks ranks(start, forks);
//   while (!(end = ranks.verdict(0)) && !ranks.over()) ranks.look(false), sleep();
//   ranks.end_all();                                     // leaves no process in any case
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/comm/heartbeat.h"
#include "tessera/comm/machine.h"
#include "tessera/comm/rank_process.h"

namespace tessera::comm {

/// The position of this machine's ranks in the run, and the attempt.
struct RanksStart {
  int ranks = 1;       ///< on this machine
  int first_rank = 0;  ///< global rank of the first
  int world = 1;
  bool bind = false;  ///< each to its share of the processors
  std::string host;   ///< host of the store
  int port = 0;
  std::string token;    ///< opens the store; empty: it is open
  std::string relay;    ///< by which they reach it (StoreAccess); empty: they connect to it
  int attempt = 0;      ///< number of earlier restarts
  int asked_world = 1;  ///< requested number of ranks; more than `world` if nodes are missing
  std::string locked;   ///< the run's folder, where the launcher holds its lock
  std::string run;      ///< the run's folder; empty: the ranks do not train
  double timeout = 60;  ///< fault.timeout
};

/// How an attempt ended, as the launcher reports it.
struct Verdict {
  Exit code = Exit::done;
  std::string text;             ///< empty: nothing to report
  bool caused_by_peer = false;  ///< a rank lost its peers: the cause may be on another machine
};

class LocalRanks {
 public:
  /// Forks a process for each rank; this process has one thread. Throws UserError if no process can be created.
  LocalRanks(const RanksStart& start, const RankForks& forks);
  ~LocalRanks();  ///< end_all()
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  /// Checks which ranks ended, stopped or beat. `suspended`: this launcher itself was suspended, so no rank counts as
  /// silent.
  void look(bool suspended);
  bool over() const { return ended_.size() == ranks_.size(); }
  /// The diagnosis, once it is clear. `others_wait`: seconds that a rank of another machine has been in a collective.
  std::optional<Verdict> verdict(double others_wait);
  /// Longest time in seconds that a rank has been in one collective.
  double longest_wait() const;
  /// What the ranks wait for, "; rank 0 waits for it in ..."; empty if none waits.
  std::string describe_waits(int lost) const;

  /// Forwards a signal. After the first the ranks write a checkpoint; a second ends them at once.
  void signal(int number);
  /// Has the ranks write a checkpoint and go on.
  void save();
  /// Asks all ranks to end, and kills those that have not after half a second.
  void end_all();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int rank = 0;
    pid_t pid = -1;
    bool ended = false, stopped = false;
    int status = 0;
    uint64_t beats = 0;
    Clock::time_point last_beat = Clock::now();
  };

  RankVariables variables(int local) const;
  std::vector<int> processors_of(int local) const;
  void fork_rank(int local, const RankForks& forks);
  void signal_all(int number);
  int local(const Rank& rank) const { return rank.rank - start_.first_rank; }
  std::string name(const Rank& rank) const { return "rank " + std::to_string(rank.rank); }
  std::string where(const Rank& rank) const { return board_.read(local(rank)).where(); }
  std::string timeout_text(int timeouts = 1) const;
  Verdict stopped_at_once() const;
  std::string killed_by(int signal) const;
  std::string planned_host() const;
  std::optional<Verdict> killed();
  std::optional<Verdict> failed() const;
  std::optional<Verdict> silent() const;
  std::optional<Verdict> stuck(double others_wait) const;

  const RanksStart start_;
  const std::vector<int> processors_;  // of this machine's ranks; empty: they are not bound
  StatusBoard board_;
  const MemoryKills memory_kills_;
  std::vector<Rank> ranks_;
  std::vector<const Rank*> ended_;              // in order of their exits
  std::optional<Clock::time_point> failed_at_;  // time of the first failure
  int forwarded_ = 0, signals_ = 0;             // the first forwarded signal, and the number of signals
};

}  // namespace tessera::comm
