#pragma once
// The ranks that a launcher started on its machine, once: their processes, their ends, and what became of them.
//
//   LocalRanks ranks(start, {"train", "recipe.toml"});
//   while (!(end = ranks.verdict(0)) && !ranks.over()) ranks.look(false), sleep();
//   ranks.end_all();                                     // whatever happened, none is left
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/comm/heartbeat.h"

namespace tessera::comm {

/// Where a set of ranks stands in the run.
struct RanksStart {
  int ranks = 1;       ///< of this machine
  int first_rank = 0;  ///< of the world
  int world = 1;
  std::string host;  ///< of the store
  int port = 0;
  int attempt = 0;      ///< restarts before
  int asked_world = 1;  ///< ranks that were asked for; more than `world` when nodes are missing
  std::string fault;    ///< why there is a restart; empty in the first attempt
  std::string locked;   ///< the run's folder, where the launcher holds its lock
  double timeout = 60;  ///< fault.timeout
};

/// How a set of ranks ended, as the launcher says it.
struct Verdict {
  Exit code = Exit::done;
  std::string text;   ///< empty: nothing to say
  bool echo = false;  ///< a rank lost its peers: another machine may know why
};

class LocalRanks {
 public:
  /// Starts this executable with `arguments` once for each rank. Throws UserError when no process can be made.
  LocalRanks(const RanksStart& start, const std::vector<std::string>& arguments);
  ~LocalRanks();  ///< end_all()
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  /// Sees who ended, stopped or beat. `suspended`: this launcher did not run for a while, so nobody counts as silent.
  void look(bool suspended);
  bool over() const { return ended_.size() == ranks_.size(); }
  /// What happened, once it is clear. `others_wait`: seconds that a rank of another machine has been in a collective.
  std::optional<Verdict> verdict(double others_wait);
  /// Seconds that a rank has been in one collective.
  double longest_wait() const;
  /// What the ranks wait for, "; rank 0 waits for it in ..."; empty when none waits.
  std::string who_waits(int lost) const;

  /// Passes a signal on. The first lets the ranks write a checkpoint; after a second none is left.
  void signal(int number);
  /// Asks all to end, and kills who has not after half a second.
  void end_all();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int rank = 0;
    pid_t pid = -1;
    bool ended = false, stopped = false;
    int status = 0;
    uint64_t beats = 0;
    Clock::time_point heard = Clock::now();
  };

  std::vector<std::pair<std::string, std::string>> variables(int local) const;
  void fork_rank(int local, const std::vector<std::string>& arguments);
  void signal_all(int number);
  int local(const Rank& rank) const { return rank.rank - start_.first_rank; }
  std::string name(const Rank& rank) const { return "rank " + std::to_string(rank.rank); }
  std::string where(const Rank& rank) const { return board_.read(local(rank)).where(); }
  std::string timeout_text() const;
  std::optional<Verdict> killed();
  std::optional<Verdict> failed() const;
  std::optional<Verdict> silent() const;
  std::optional<Verdict> stuck(double others_wait) const;

  const RanksStart start_;
  StatusBoard board_;
  std::vector<Rank> ranks_;
  std::vector<const Rank*> ended_;              // in the order of their ends
  std::optional<Clock::time_point> failed_at_;  // when the first of them failed
  int forwarded_ = 0, signals_ = 0;             // the first signal passed on, and how many
};

}  // namespace tessera::comm
