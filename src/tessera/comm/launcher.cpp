#include "tessera/comm/launcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/comm/heartbeat.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

namespace {

using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t signals_seen = 0;
volatile std::sig_atomic_t last_signal = 0;
void on_signal(int number) {
  last_signal = number;
  signals_seen = signals_seen + 1;
}

constexpr double kEcho = 1.5;  // seconds

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

struct Endpoint {
  std::string host = "127.0.0.1";
  int port = 0;
};

Endpoint parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  if (text.empty()) return endpoint;
  const size_t colon = text.rfind(':');
  endpoint.host = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (error != std::errc() || end != port.data() + port.size() || endpoint.port < 1 || endpoint.port > 65535)
    throw UserError(Exit::usage, "launch", "--rdzv-endpoint " + text + ": expected HOST:PORT",
                    "for example 10.0.0.1:29500");
  return endpoint;
}

struct Rank {
  int rank = 0;
  pid_t pid = -1;
  bool ended = false, stopped = false;
  int status = 0;
  uint64_t beats = 0;
  Clock::time_point heard = Clock::now();
};

std::string signal_name(int number) { return "signal " + std::to_string(number) + " (" + strsignal(number) + ")"; }

/// A rank's end as a code of the contract. `forwarded` is the signal that the launcher passed on, 0 without: a rank
/// that died of it had not begun anything it would have had to save.
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

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const std::vector<std::string>& arguments)
      : options_(options), arguments_(arguments), endpoint_(parse_endpoint(options.endpoint)), board_(options.nproc) {
    if (options_.node_rank == 0 && options_.nproc * options_.nnodes > 1) {
      store_ = std::make_unique<HostedStore>(endpoint_.host, endpoint_.port);
      endpoint_.port = store_->port();
    }
  }

  int run() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    ranks_.reserve(static_cast<size_t>(options_.nproc));
    for (int local = 0; local < options_.nproc; ++local) start(local);
    for (auto looked = Clock::now();; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      // A launcher that was itself suspended (Ctrl-Z, a closed laptop) must not take the gap for its ranks' silence.
      const bool suspended = seconds_since(looked) > 1;
      looked = Clock::now();
      reap(suspended);
      pass_on_signals();
      const bool over = ended_.size() == ranks_.size();
      if (const auto code = verdict(over)) {
        end_all();
        return static_cast<int>(*code);
      }
      if (over) return static_cast<int>(Exit::done);
    }
  }

 private:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  Variables variables(int local) const {
    Variables list = {{"RANK", std::to_string(options_.node_rank * options_.nproc + local)},
                      {"WORLD_SIZE", std::to_string(options_.nproc * options_.nnodes)},
                      {"LOCAL_RANK", std::to_string(local)},
                      {"LOCAL_WORLD_SIZE", std::to_string(options_.nproc)},
                      {"MASTER_ADDR", endpoint_.host},
                      {"MASTER_PORT", std::to_string(endpoint_.port)},
                      {"TESSERA_STORE", "launcher"},
                      {"TESSERA_STATUS", board_.path()}};
    const auto unless_set = [&](const char* variable, const std::string& value) {
      if (!std::getenv(variable)) list.emplace_back(variable, value);
    };
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    unless_set("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options_.nproc)));
    unless_set("TORCH_CPP_LOG_LEVEL", "ERROR");  // sockets that close in a cascade are no news
    return list;
  }

  static std::vector<std::string> environment(const Variables& variables) {
    std::vector<std::string> list;
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      const std::string key = text.substr(0, text.find('='));
      const bool ours = std::any_of(variables.begin(), variables.end(), [&](const auto& v) { return v.first == key; });
      if (!ours) list.push_back(text);
    }
    for (const auto& [key, value] : variables) list.push_back(key + "=" + value);
    return list;
  }

  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (auto& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  }

  void start(int local) {
    // Everything is made before the fork: between fork and exec only calls that are safe there.
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> words = {program}, settings = environment(variables(local));
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    const std::vector<char*> argv = pointers(words), env = pointers(settings);
    Rank rank;
    rank.rank = options_.node_rank * options_.nproc + local;
    const pid_t parent = getpid();
    rank.pid = fork();
    if (rank.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);                  // the launcher died in between
      execve("/proc/self/exe", argv.data(), env.data());  // also when the file was replaced by a new build
      _exit(127);
    }
    if (rank.pid < 0)
      throw UserError(Exit::internal, "launch", std::string("fork: ") + std::strerror(errno), "end some processes");
    ranks_.push_back(rank);
  }

  void reap(bool forgive_silence = false) {
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
      // Until the first beat (LibTorch loads, or the command has no heartbeat) a rank is heard while it is not stopped.
      const uint64_t beats = board_.read(local(rank)).beats;
      if (beats != rank.beats || (beats == 0 && !rank.stopped) || forgive_silence) rank.heard = Clock::now();
      rank.beats = beats;
    }
  }

  /// The first signal lets the ranks write a checkpoint, the second ends them at once.
  void pass_on_signals() {
    if (passed_on_ == signals_seen) return;
    passed_on_ = signals_seen;
    if (!forwarded_) forwarded_ = last_signal;
    signal_all(passed_on_ == 1 ? forwarded_ : SIGKILL);
  }

  /// The exit once it is clear what happened, told to the user; nothing while it is not. `over`: no rank is left.
  std::optional<Exit> verdict(bool over) {
    if (passed_on_ > 1) {
      log::error("stopped at once by a second signal; the last whole checkpoint stands");
      return Exit::rank_lost;
    }
    // Killed ranks first: survivors' sockets close and they fail too, sometimes before the launcher sees the first.
    for (const Rank* rank : ended_)
      if (WIFSIGNALED(rank->status) && WTERMSIG(rank->status) != forwarded_) {
        log::error(name(*rank) + " was killed by " + signal_name(WTERMSIG(rank->status)) + where(*rank));
        return Exit::rank_lost;
      }
    bool asked = false;
    for (const Rank* rank : ended_) {
      const Exit code = exit_of(rank->status, forwarded_);
      asked = asked || code == Exit::again;
      if (code == Exit::done || code == Exit::rank_lost || code == Exit::again) continue;
      log::error(name(*rank) + " ended with code " + std::to_string(WEXITSTATUS(rank->status)) + where(*rank));
      return code;
    }
    const double since_failure = failed_at_ ? seconds_since(*failed_at_) : 0;
    // The others are on their way; one may still be writing the checkpoint.
    if (asked && (over || since_failure > options_.timeout)) return Exit::again;
    // Code 5 may be the echo of another rank's death, which gets a moment to show.
    if (failed_at_ && !asked && (over || since_failure > kEcho)) {
      const auto lost = std::find_if(ended_.begin(), ended_.end(), [](const Rank* rank) { return rank->status != 0; });
      log::error(name(**lost) + " lost its peers" + where(**lost));
      return Exit::rank_lost;
    }
    for (const auto& rank : ranks_) {
      if (rank.ended || seconds_since(rank.heard) < options_.timeout) continue;
      log::error(name(rank) + " has not answered for " + std::to_string(std::lround(options_.timeout)) +
                 " s (fault.timeout): " + (rank.stopped ? "it is stopped" : "it is stopped or hangs") + where(rank));
      return Exit::rank_lost;
    }
    return std::nullopt;
  }

  std::string name(const Rank& rank) const { return "rank " + std::to_string(rank.rank); }
  std::string where(const Rank& rank) const {
    const auto status = board_.read(local(rank));
    if (status.text.empty()) return " before the first step";
    return " at step " + std::to_string(status.step) + ", " + status.text;
  }

  int local(const Rank& rank) const { return static_cast<int>(&rank - ranks_.data()); }

  void signal_all(int number) {
    for (const auto& rank : ranks_)
      if (!rank.ended) kill(rank.pid, number);
  }

  void end_all() {
    signal_all(SIGTERM);
    const auto start = Clock::now();
    while (ended_.size() < ranks_.size() && seconds_since(start) < 0.5) {
      reap();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    signal_all(SIGKILL);
    for (auto& rank : ranks_)
      if (!rank.ended) waitpid(rank.pid, &rank.status, 0);
  }

  const LaunchOptions options_;
  const std::vector<std::string> arguments_;
  Endpoint endpoint_;
  StatusBoard board_;
  std::unique_ptr<HostedStore> store_;
  std::vector<Rank> ranks_;
  std::vector<const Rank*> ended_;              // in the order of their ends
  std::optional<Clock::time_point> failed_at_;  // when the first of them failed
  int passed_on_ = 0, forwarded_ = 0;           // signals answered so far, and the first of them
};

}  // namespace

int launch(const LaunchOptions& options, const std::vector<std::string>& arguments) {
  if (options.nproc < 1 || options.nnodes < 1 || options.node_rank < 0 || options.node_rank >= options.nnodes)
    throw UserError(Exit::usage, "launch",
                    "-n " + std::to_string(options.nproc) + ", --nnodes " + std::to_string(options.nnodes) +
                        ", --node-rank " + std::to_string(options.node_rank) + " do not go together",
                    "ranks and nodes count from 1, node ranks from 0");
  if (options.nnodes > 1 && options.endpoint.empty())
    throw UserError(Exit::usage, "launch", "--nnodes " + std::to_string(options.nnodes) + " needs a meeting point",
                    "add --rdzv-endpoint HOST:PORT of node 0");
  return Launcher(options, arguments).run();
}

}  // namespace tessera::comm
