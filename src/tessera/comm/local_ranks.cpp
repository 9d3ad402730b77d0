#include "tessera/comm/local_ranks.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/limits.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/comm/machine.h"
#include "tessera/comm/patience.h"
#include "tessera/comm/run_lock.h"
#include "tessera/comm/stop_signals.h"
#include "tessera/comm/token.h"

namespace tessera::comm {

namespace {

constexpr double kCauseSeconds = 1.5;    // seconds in which the rank that caused other ranks' errors is identified
constexpr double kBeatSeconds = 0.6;     // seconds in which a running rank beats several times
constexpr double kArrivalSeconds = 0.4;  // seconds in which other ranks reach the collective that misses the lost rank

std::string signal_name(int number) { return "signal " + std::to_string(number) + " (" + strsignal(number) + ")"; }

/// A rank's exit status as an exit code of the program. `forwarded`: the signal that the launcher forwarded, or 0. A
/// rank that died of it had nothing to save yet.
Exit exit_of(int status, int forwarded) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == forwarded ? Exit::again : Exit::rank_lost;
  switch (const auto code = static_cast<Exit>(WEXITSTATUS(status))) {
    case Exit::done:
    case Exit::comparison:
    case Exit::usage:
    case Exit::input:
    case Exit::no_fit:
    case Exit::rank_lost:
    case Exit::not_finite:
    case Exit::disk:
    case Exit::memory:
    case Exit::internal:
    case Exit::again:
      return code;
  }
  return Exit::internal;
}

}  // namespace

LocalRanks::LocalRanks(const RanksStart& start, const RankForks& forks)
    : start_(start), processors_(start.bind ? own_processors() : std::vector<int>()), board_(start.ranks) {
  ranks_.reserve(static_cast<size_t>(start_.ranks));
  try {
    for (int i = 0; i < start_.ranks; ++i) fork_rank(i, forks);
  } catch (...) {
    end_all();
    throw;
  }
}

LocalRanks::~LocalRanks() { end_all(); }

RankVariables LocalRanks::variables(int local) const {
  RankVariables list = {{"RANK", std::to_string(start_.first_rank + local)},
                        {"WORLD_SIZE", std::to_string(start_.world)},
                        {"LOCAL_RANK", std::to_string(local)},
                        {"LOCAL_WORLD_SIZE", std::to_string(start_.ranks)},
                        {"MASTER_ADDR", start_.host},
                        {"MASTER_PORT", std::to_string(start_.port)},
                        {"TORCHELASTIC_RESTART_COUNT", std::to_string(start_.attempt)},
                        {"TESSERA_STORE", "launcher"},
                        {kRelayVariable, start_.relay},
                        {"TESSERA_ASKED_WORLD", std::to_string(start_.asked_world)},
                        {RunLock::kVariable, start_.locked},
                        {"TESSERA_STATUS", board_.path()}};
  if (!start_.token.empty()) list.emplace_back(kTokenVariable, start_.token);
  return list;
}

/// What the rank is bound to; empty: to nothing, as when the user asks for more threads than its share has processors.
std::vector<int> LocalRanks::processors_of(int local) const {
  const char* asked = std::getenv("OMP_NUM_THREADS");
  const std::vector<int> share = share_of(processors_, local, start_.ranks);
  return asked && std::atoi(asked) > static_cast<int>(share.size()) ? std::vector<int>() : share;
}

void LocalRanks::fork_rank(int local, const RankForks& forks) {
  const std::vector<int> bound = processors_of(local);
  const size_t all = bound.empty() ? std::thread::hardware_concurrency() : processors_.size();
  const int equal = std::max(1, static_cast<int>(all) / start_.ranks);
  Rank rank;
  rank.rank = start_.first_rank + local;
  rank.pid = forks.fork(variables(local), std::getenv("OMP_NUM_THREADS") ? 0 : equal, bound);
  if (rank.pid < 0)
    throw UserError(Exit::memory, "launch",
                    std::string("a rank cannot be started: ") + std::strerror(errno) + limit_behind(errno),
                    "raise that limit, or end some processes");
  ranks_.push_back(rank);
}

void LocalRanks::look(bool suspended) {
  if (suspended) board_.woke();
  for (auto& rank : ranks_) {
    if (rank.ended) continue;
    for (int status = 0; waitpid(rank.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == rank.pid;) {
      rank.stopped = WIFSTOPPED(status);
      if (rank.stopped || WIFCONTINUED(status)) continue;
      rank.ended = true;
      rank.status = status;
      ended_.push_back(&rank);
      if (status != 0 && !failed_at_) failed_at_ = Clock::now();
      break;
    }
    // Until its first beat (LibTorch is loading, or the command sends no heartbeat) a rank counts as alive if it is not
    // stopped.
    const uint64_t beats = board_.read(local(rank)).beats;
    if (beats != rank.beats || (beats == 0 && !rank.stopped) || suspended) rank.last_beat = Clock::now();
    rank.beats = beats;
  }
}

std::optional<Verdict> LocalRanks::verdict(double others_wait) {
  if (signals_ > 1) return stopped_at_once();
  // Killed ranks first: the survivors' sockets close and they fail too, sometimes before the launcher sees the first.
  if (auto found = killed()) return found;
  if (auto found = failed()) return found;
  if (auto found = silent()) return found;
  return stuck(others_wait);
}

Verdict LocalRanks::stopped_at_once() const {
  const std::string text = "stopped at once by a second signal";
  if (start_.run.empty()) return {Exit::rank_lost, text};
  const std::filesystem::path folder = std::filesystem::path(start_.run) / "checkpoints";
  std::error_code none;
  std::filesystem::remove(stop_note(start_.run), none);  // nobody waits for that checkpoint any more
  const auto newest = checkpoint::latest(folder);
  if (!newest) return {Exit::rank_lost, text + ": there is no complete checkpoint in " + folder.string()};
  return {Exit::again,
          text + ": the last complete checkpoint is " + newest->string() + ", and the next start goes on from it"};
}

std::optional<Verdict> LocalRanks::killed() {
  for (const Rank* rank : ended_) {
    if (!WIFSIGNALED(rank->status) || WTERMSIG(rank->status) == forwarded_) continue;
    const auto others_wait = [&] {
      return std::ranges::all_of(ranks_, [&](const Rank& other) {
        return other.ended || board_.read(local(other)).longest_wait() != nullptr;
      });
    };
    for (const auto start = Clock::now(); !others_wait() && seconds_since(start) < kArrivalSeconds; look(true))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return Verdict{Exit::rank_lost, name(*rank) + " was killed by " + signal_name(WTERMSIG(rank->status)) +
                                        where(*rank) + killed_by(WTERMSIG(rank->status)) + describe_waits(rank->rank)};
  }
  return std::nullopt;
}

/// Whether the kernel's memory killer was it, with what the plan counted on.
std::string LocalRanks::killed_by(int signal) const {
  if (signal != SIGKILL || !memory_kills_.any()) return "";
  return ": the kernel's memory killer ended it" + memory_kills_.limit() + planned_host();
}

/// Of the run's plan, which rank 0 has written: another machine may not see it.
std::string LocalRanks::planned_host() const {
  const std::filesystem::path file = std::filesystem::path(start_.run) / "plan.json";
  constexpr int64_t kMost = int64_t{64} << 20;
  std::error_code none;
  if (start_.run.empty() || !std::filesystem::is_regular_file(file, none)) return "";
  try {
    const nlohmann::json plan = json_or_nothing(read_foreign(file, kMost, "launch"));
    if (!plan.is_object()) return "";
    const int64_t bytes = JsonFields(plan, file.string()).object("host").whole("peak_bytes");
    return "; the plan counts " + format_bytes(bytes) + " of host memory for a rank, " +
           format_bytes(bytes * start_.ranks) + " for the " + std::to_string(start_.ranks) +
           " of this machine, beside what the program itself takes: lower plan.host_budget, or run fewer ranks here";
  } catch (const UserError&) {  // of no help then
    return "";
  }
}

std::optional<Verdict> LocalRanks::failed() const {
  bool asked = false;
  for (const Rank* rank : ended_) {
    const Exit code = exit_of(rank->status, forwarded_);
    asked = asked || code == Exit::again;
    if (code == Exit::done || code == Exit::rank_lost || code == Exit::again) continue;
    return Verdict{code, name(*rank) + " ended with code " + std::to_string(WEXITSTATUS(rank->status)) + where(*rank)};
  }
  for (const Rank* rank : ended_)
    if (const std::string why = board_.read(local(*rank)).failure; !why.empty())
      return Verdict{Exit::rank_lost, name(*rank) + " was lost: " + why};
  const double since_failure = failed_at_ ? seconds_since(*failed_at_) : 0;
  // The others are ending; one may still be writing the checkpoint.
  if (asked && (over() || since_failure > start_.timeout)) return Verdict{Exit::again, ""};
  // Code 5 may be a consequence of another rank's death, which gets a moment to show.
  if (!failed_at_ || asked || (!over() && since_failure <= kCauseSeconds)) return std::nullopt;
  const auto lost = std::ranges::find_if(ended_, [](const Rank* rank) { return rank->status != 0; });
  return Verdict{Exit::rank_lost, name(**lost) + " lost its peers" + where(**lost) + describe_waits((*lost)->rank),
                 true};
}

std::string LocalRanks::timeout_text(int timeouts) const {
  return " for " + std::to_string(std::lround(timeouts * start_.timeout)) + " s (" +
         (timeouts > 1 ? std::to_string(timeouts) + " times " : "") + "fault.timeout)";
}

std::optional<Verdict> LocalRanks::silent() const {
  for (const auto& rank : ranks_)
    if (!rank.ended && seconds_since(rank.last_beat) >= start_.timeout)
      return Verdict{Exit::rank_lost, name(rank) + " has not answered" + timeout_text() + ": " +
                                          (rank.stopped ? "it is stopped" : "it is stopped or hangs") + where(rank) +
                                          describe_waits(rank.rank)};
  return std::nullopt;
}

/// A rank that beats but makes no progress while others wait for it in a collective. A rank inside a collective more
/// likely waits itself, so it is suspected last, and kCauseSeconds later: a rank looks at its device five times a
/// second, and what it has been at for longest may have begun to count after the wait of the others.
std::optional<Verdict> LocalRanks::stuck(double others_wait) const {
  if (std::max(others_wait, longest_wait()) < start_.timeout) return std::nullopt;
  for (const bool waits : {false, true}) {
    const Rank* worst = nullptr;
    double longest = start_.timeout + (waits ? kCauseSeconds : 0);
    int timeouts = 1;
    for (const auto& rank : ranks_) {
      const auto status = board_.read(local(rank));
      const auto* work = rank.ended ? nullptr : status.longest_work();
      if (!work || work->seconds / work->timeouts < longest || (status.longest_wait() != nullptr) != waits) continue;
      worst = &rank, longest = work->seconds / work->timeouts, timeouts = work->timeouts;
    }
    if (worst && seconds_since(worst->last_beat) > kBeatSeconds)
      return std::nullopt;  // it is about to be reported as silent
    if (worst)
      return Verdict{Exit::rank_lost, name(*worst) + " has made no progress" + timeout_text(timeouts) +
                                          ": it is slow or hangs" + where(*worst) + describe_waits(worst->rank)};
  }
  return std::nullopt;
}

double LocalRanks::longest_wait() const {
  double longest = 0;
  for (const auto& rank : ranks_) {
    const auto status = board_.read(local(rank));
    if (const auto* wait = rank.ended ? nullptr : status.longest_wait()) longest = std::max(longest, wait->waits);
  }
  return longest;
}

std::string LocalRanks::describe_waits(int lost) const {
  // Ranks that wait in the same place share one sentence: nobody reads thousands of lines.
  std::vector<std::pair<std::string, std::vector<int>>> places;
  for (const auto& rank : ranks_) {
    const auto status = board_.read(local(rank));
    const auto* wait = rank.rank == lost ? nullptr : status.longest_wait();
    if (!wait) continue;
    const std::string place = "in " + wait->text + " of step " + std::to_string(wait->step);
    auto found = std::ranges::find(places, place, &decltype(places)::value_type::first);
    if (found == places.end()) found = places.insert(places.end(), {place, {}});
    found->second.push_back(rank.rank);
  }
  std::string words;
  for (const auto& [place, waiting] : places) {
    words += waiting.size() == 1 ? "; rank " : "; ranks ";
    for (size_t i = 0; i < waiting.size() && i < 8; ++i) words += (i ? ", " : "") + std::to_string(waiting[i]);
    if (waiting.size() > 8) words += " and " + std::to_string(waiting.size() - 8) + " more";
    words += (waiting.size() == 1 ? " waits " : " wait ") + place;
  }
  return words;
}

void LocalRanks::signal_all(int number) {
  for (const auto& rank : ranks_)
    if (!rank.ended) kill(rank.pid, number);
}

void LocalRanks::signal(int number) {
  if (++signals_ == 1) forwarded_ = number;
  signal_all(signals_ == 1 ? number : SIGKILL);
}

void LocalRanks::save() { signal_all(kSaveSignal); }

void LocalRanks::end_all() {
  // Ranks that fail for the same reason print it themselves. What has not ended by then waits for a rank that is gone.
  constexpr double kOwnEnd = 0.5;
  for (const auto start = Clock::now(); !over() && seconds_since(start) < kOwnEnd; look(true))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  signal_all(SIGKILL);
  for (auto& rank : ranks_)
    if (!rank.ended) {
      waitpid(rank.pid, &rank.status, 0);
      rank.ended = true;
      ended_.push_back(&rank);
    }
}

}  // namespace tessera::comm
