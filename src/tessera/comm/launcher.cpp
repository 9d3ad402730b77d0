#include "tessera/comm/launcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
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
    throw UserError(Exit::usage, "launch", "--rdzv-endpoint " + text + ": expected HOST:PORT", "for example 10.0.0.1:29500");
  return endpoint;
}

struct Rank {
  int rank = 0;
  pid_t pid = -1;
  bool ended = false;
  int status = 0;
  uint64_t beats = 0;
  Clock::time_point heard = Clock::now();
};

/// An exit code that says something of its own; 5 may be the echo of another rank's death.
bool blames_itself(int status) {
  if (!WIFEXITED(status)) return false;
  const int code = WEXITSTATUS(status);
  return code != 0 && code != static_cast<int>(Exit::rank_lost);
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
    int forwarded = 0;
    for (;;) {
      reap();
      if (forwarded < signals_seen) {
        forwarded = signals_seen;
        signal_all(forwarded == 1 ? static_cast<int>(last_signal) : SIGKILL);
      }
      if (all_ended()) return settle();
      if (const int code = verdict(); code >= 0) {
        end_all();
        return code;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  void start(int local) {
    Rank rank;
    rank.rank = options_.node_rank * options_.nproc + local;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    std::vector<std::pair<std::string, std::string>> variables = {
        {"RANK", std::to_string(rank.rank)},
        {"WORLD_SIZE", std::to_string(options_.nproc * options_.nnodes)},
        {"LOCAL_RANK", std::to_string(local)},
        {"LOCAL_WORLD_SIZE", std::to_string(options_.nproc)},
        {"MASTER_ADDR", endpoint_.host},
        {"MASTER_PORT", std::to_string(endpoint_.port)},
        {"TESSERA_STORE", "launcher"},
        {"TESSERA_STATUS", board_.path()}};
    if (!std::getenv("OMP_NUM_THREADS")) variables.emplace_back("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options_.nproc)));
    // Everything is made before the fork: between fork and exec only calls that are safe there.
    std::vector<std::string> environment;
    for (char** e = environ; *e; ++e) {
      const std::string text = *e;
      const std::string name = text.substr(0, text.find('='));
      bool ours = false;
      for (const auto& [key, value] : variables) ours = ours || key == name;
      if (!ours) environment.push_back(text);
    }
    for (const auto& [key, value] : variables) environment.push_back(key + "=" + value);
    std::vector<char*> env, argv;
    for (auto& text : environment) env.push_back(text.data());
    env.push_back(nullptr);
    std::string self = "/proc/self/exe";
    char path[4096];
    const ssize_t length = readlink(self.c_str(), path, sizeof path - 1);
    std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
    std::vector<std::string> words = arguments_;
    words.insert(words.begin(), program);
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    const pid_t parent = getpid();
    rank.pid = fork();
    if (rank.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // the launcher died in between
      execve(program.c_str(), argv.data(), env.data());
      _exit(127);
    }
    if (rank.pid < 0) throw UserError(Exit::internal, "launch", std::string("fork: ") + std::strerror(errno));
    ranks_.push_back(rank);
  }

  void reap() {
    for (auto& rank : ranks_) {
      if (rank.ended) continue;
      int status = 0;
      if (waitpid(rank.pid, &status, WNOHANG) == rank.pid) {
        rank.ended = true;
        rank.status = status;
        if (first_failure_ == nullptr && status != 0) first_failure_ = &rank, failed_at_ = Clock::now();
        continue;
      }
      const auto heard = board_.read(static_cast<int>(&rank - ranks_.data()));
      if (heard.beats != rank.beats) rank.beats = heard.beats, rank.heard = Clock::now();
    }
  }

  /// The exit code once it is clear what happened; -1 while it is not.
  int verdict() {
    for (auto& rank : ranks_) {
      if (rank.ended && WIFSIGNALED(rank.status)) {
        log::error(name(rank) + " was killed by signal " + std::to_string(WTERMSIG(rank.status)) + " (" + strsignal(WTERMSIG(rank.status)) + ")" + where(rank));
        return static_cast<int>(Exit::rank_lost);
      }
    }
    for (auto& rank : ranks_) {
      if (!rank.ended || !blames_itself(rank.status)) continue;
      const int code = WEXITSTATUS(rank.status);
      if (code == static_cast<int>(Exit::again) && seconds_since(failed_at_) < 10) return -1;  // the others are on their way
      if (code != static_cast<int>(Exit::again)) log::error(name(rank) + " ended with code " + std::to_string(code) + where(rank));
      return code;
    }
    // A rank that lost its peers may be the first to fall silent; its peers get a moment to show who was first.
    if (first_failure_ && seconds_since(failed_at_) > 1.5) {
      log::error(name(*first_failure_) + " lost its peers" + where(*first_failure_));
      return static_cast<int>(Exit::rank_lost);
    }
    for (auto& rank : ranks_) {
      if (rank.ended || rank.beats == 0 || seconds_since(rank.heard) < options_.timeout) continue;
      log::error(name(rank) + " has not answered for " + std::to_string(static_cast<int>(options_.timeout)) + " s (fault.timeout): stopped or hung" + where(rank));
      return static_cast<int>(Exit::rank_lost);
    }
    return -1;
  }

  int settle() {
    for (const auto& rank : ranks_)
      if (rank.status != 0) {
        const int code = verdict();
        return code >= 0 ? code : WIFEXITED(rank.status) ? WEXITSTATUS(rank.status) : static_cast<int>(Exit::rank_lost);
      }
    return 0;
  }

  std::string name(const Rank& rank) const { return "rank " + std::to_string(rank.rank); }
  std::string where(const Rank& rank) const {
    const auto status = board_.read(static_cast<int>(&rank - ranks_.data()));
    if (status.text.empty()) return " before the first step";
    return " at step " + std::to_string(status.step) + ", " + status.text;
  }

  bool all_ended() const {
    for (const auto& rank : ranks_)
      if (!rank.ended) return false;
    return true;
  }

  void signal_all(int number) {
    for (const auto& rank : ranks_)
      if (!rank.ended) kill(rank.pid, number);
  }

  void end_all() {
    signal_all(SIGTERM);
    const auto start = Clock::now();
    while (!all_ended() && seconds_since(start) < 0.5) {
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
  Rank* first_failure_ = nullptr;
  Clock::time_point failed_at_;
};

}  // namespace

int launch(const LaunchOptions& options, const std::vector<std::string>& arguments) {
  if (options.nproc < 1 || options.nnodes < 1 || options.node_rank < 0 || options.node_rank >= options.nnodes)
    throw UserError(Exit::usage, "launch", "-n " + std::to_string(options.nproc) + ", --nnodes " + std::to_string(options.nnodes) + ", --node-rank " +
                    std::to_string(options.node_rank) + " do not go together", "ranks and nodes count from 1, node ranks from 0");
  if (options.nnodes > 1 && options.endpoint.empty())
    throw UserError(Exit::usage, "launch", "--nnodes " + std::to_string(options.nnodes) + " needs a meeting point", "add --rdzv-endpoint HOST:PORT of node 0");
  return Launcher(options, arguments).run();
}

}  // namespace tessera::comm
