// The launcher: who is blamed, with which code, how soon, and that no process is left behind.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "processes.h"
#include "program.h"
#include "small_memory.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> launch_words(int ranks, std::vector<std::string> words, const std::string& timeout = "60",
                                      std::vector<std::string> nodes = {"1", "0", "-"}) {
  std::vector<std::string> argv = {COMM_WORKER, "launch", std::to_string(ranks)};
  argv.insert(argv.end(), nodes.begin(), nodes.end());
  argv.push_back(timeout);
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

/// A socket that holds a port of this machine.
class HeldPort {
 public:
  HeldPort() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~HeldPort() { close(socket_); }
  std::string port() const { return std::to_string(port_); }

 private:
  int socket_, port_ = 0;
};

std::string free_port() { return HeldPort().port(); }

/// A launcher with ranks that take steps until told to stop.
class Steps {
 public:
  explicit Steps(int ranks, const std::string& how = "", const std::string& timeout = "60") {
    std::string pattern = (fs::temp_directory_path() / "tessera-launch-XXXXXX").string();
    close(mkstemp(pattern.data()));
    log_ = pattern;
    launcher_ = start_program(launch_words(ranks, {"steps", how}, timeout), log_, {{"OMP_NUM_THREADS", "1"}});
    const auto ready = [&] {
      size_t count = 0;
      const std::string text = output();
      for (size_t at = 0; (at = text.find("ready\n", at)) != std::string::npos; ++at) ++count;
      return count >= static_cast<size_t>(ranks);
    };
    for (int i = 0; i < 1500 && !ready(); ++i) sleep_seconds(0.02);
    EXPECT_TRUE(ready()) << output();
    ranks_ = children(launcher_);
    EXPECT_EQ(ranks_.size(), static_cast<size_t>(ranks));
  }
  ~Steps() {
    for (pid_t pid : ranks_) kill(pid, SIGKILL);
    fs::remove(log_);
  }

  pid_t launcher() const { return launcher_; }
  pid_t rank(int i) const { return ranks_.at(static_cast<size_t>(i)); }
  std::string output() const { return text_of(log_); }
  /// The launcher's code; fails when a rank is left.
  int wait(double timeout) {
    const auto start = std::chrono::steady_clock::now();
    const int code = wait_program(launcher_, timeout);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_TRUE(gone(ranks_, 2)) << "a rank outlived its launcher";
    return code;
  }
  double seconds() const { return seconds_; }

 private:
  std::string log_;
  pid_t launcher_ = -1;
  std::vector<pid_t> ranks_;
  double seconds_ = 0;
};

TEST(Launcher, RanksBeginAsAProgramOfTheirOwnDoes) {
  const Result r = run_program(launch_words(3, {"begins_afresh"}), {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(r.code, 0) << r.output;
  for (const std::string text : {"the launcher, ", "rank 0 began afresh, ", "rank 1 ", "rank 2 "}) {
    const size_t at = r.output.find(text);
    ASSERT_NE(at, std::string::npos) << text << " in " << r.output;
    EXPECT_EQ(r.output.find(text, at + 1), std::string::npos) << r.output;
  }
}

TEST(Launcher, NamesAKilledRankAndWhereItWasWithinFiveSeconds) {
  for (int victim : {0, 1}) {
    Steps run(3);
    kill(run.rank(victim), SIGKILL);
    EXPECT_EQ(run.wait(20), 5);
    EXPECT_LT(run.seconds(), 5);
    const std::string expected =
        "rank " + std::to_string(victim) + " was killed by signal 9 (Killed) at step 13, forward blocks.3";
    EXPECT_NE(run.output().find(expected), std::string::npos) << run.output();
  }
}

TEST(Launcher, NamesAStoppedRankWithinTheTimeoutAndFiveSeconds) {
  Steps run(2, "", "2");
  kill(run.rank(1), SIGSTOP);
  EXPECT_EQ(run.wait(20), 5);
  EXPECT_GT(run.seconds(), 1.5);
  EXPECT_LT(run.seconds(), 7);
  EXPECT_NE(
      run.output().find("rank 1 has not answered for 2 s (fault.timeout): it is stopped at step 13, forward blocks.3"),
      std::string::npos)
      << run.output();
}

/// Stops all, the last rank first: the others wait for it in a collective meanwhile. Longer than any of their time-outs.
void pause_and_wake(std::vector<pid_t> processes, double seconds) {
  for (auto pid = processes.rbegin(); pid != processes.rend(); ++pid) kill(*pid, SIGSTOP), sleep_seconds(0.3);
  sleep_seconds(seconds);
  for (const pid_t pid : processes) kill(pid, SIGCONT);
  sleep_seconds(1);
}

TEST(Launcher, AWholeJobThatWasStoppedGoesOnWhenItIsWoken) {
  Steps run(2, "", "8");
  pause_and_wake({run.launcher(), run.rank(0), run.rank(1)}, 12);
  kill(run.launcher(), SIGTERM);
  EXPECT_EQ(run.wait(60), 75) << run.output();
  EXPECT_EQ(run.output().find("fault.timeout"), std::string::npos) << run.output();
}

TEST(Launcher, NamesAStoppedRankThatHasNoHeartbeat) {
  Steps run(2, "no-heartbeat", "2");
  kill(run.rank(0), SIGSTOP);
  EXPECT_EQ(run.wait(20), 5);
  EXPECT_LT(run.seconds(), 7);
  EXPECT_NE(run.output().find("rank 0 has not answered for 2 s"), std::string::npos) << run.output();
}

TEST(Launcher, ForgivesAShortStopAndItsOwn) {
  Steps run(2, "", "2");
  kill(run.rank(1), SIGSTOP);
  sleep_seconds(0.7);
  kill(run.rank(1), SIGCONT);
  for (pid_t pid : {run.launcher(), run.rank(0), run.rank(1)}) kill(pid, SIGSTOP);  // Ctrl-Z
  sleep_seconds(2.5);
  for (pid_t pid : {run.launcher(), run.rank(0), run.rank(1)}) kill(pid, SIGCONT);
  EXPECT_EQ(wait_program(run.launcher(), 3), -1) << run.output();
  kill(run.launcher(), SIGTERM);
  EXPECT_EQ(run.wait(20), 75) << run.output();
}

TEST(Launcher, TakesItsRanksWithItWhenKilled) {
  Steps run(3, "deaf");
  kill(run.launcher(), SIGKILL);
  EXPECT_EQ(run.wait(20), 128 + SIGKILL);
}

/// The processors that a process may run on.
std::set<int> processors_of(pid_t pid) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  EXPECT_EQ(sched_getaffinity(pid, sizeof allowed, &allowed), 0);
  std::set<int> found;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed)) found.insert(i);
  return found;
}

TEST(Launcher, BindsEachRankToItsShareOfTheProcessors) {
  const std::set<int> all = processors_of(0);
  if (all.size() < 2) GTEST_SKIP() << "one processor cannot be shared";
  Steps run(2);
  const std::set<int> first = processors_of(run.rank(0)), second = processors_of(run.rank(1));
  EXPECT_EQ(first.size(), all.size() / 2);
  EXPECT_EQ(second.size(), all.size() - first.size());
  std::set<int> both = first;
  both.insert(second.begin(), second.end());
  EXPECT_EQ(both, all) << "and no processor has two ranks";
  kill(run.launcher(), SIGTERM);
  EXPECT_EQ(run.wait(20), 75) << run.output();
}

TEST(Launcher, PassesASignalOnAndEndsWith75) {
  for (int signal : {SIGINT, SIGTERM}) {
    Steps run(2);
    kill(run.launcher(), signal);
    EXPECT_EQ(run.wait(20), 75) << run.output();
  }
}

TEST(Launcher, PassesTheSignalsOfBatchSystemsOnOnce) {
  for (int signal : {SIGUSR1, SIGXCPU, SIGPWR, SIGHUP}) {
    SCOPED_TRACE(signal);
    Steps run(2);
    for (int i = 0; i < 3; ++i) kill(run.launcher(), signal), sleep_seconds(0.05);  // they repeat theirs
    EXPECT_EQ(run.wait(20), 75) << run.output();
  }
}

TEST(Launcher, EndsAtOnceAfterASecondSignal) {
  Steps run(2, "deaf");
  kill(run.launcher(), SIGTERM);
  sleep_seconds(0.3);
  kill(run.launcher(), SIGTERM);
  EXPECT_EQ(run.wait(20), 5);
  EXPECT_LT(run.seconds(), 3);
  EXPECT_NE(run.output().find("second signal"), std::string::npos) << run.output();
}

TEST(Launcher, GivesTheCodeOfTheRankThatFailedFirst) {
  for (int code : {1, 2, 3, 4, 6, 7, 8, 70, 75}) {
    const Result r = run_program(launch_words(2, {"leave", std::to_string(code), "1"}, "3"));
    EXPECT_EQ(r.code, code) << r.output;
    if (code != 75)
      EXPECT_NE(r.output.find("rank 1 ended with code " + std::to_string(code)), std::string::npos) << r.output;
  }
}

bool may_lower_its_score() {
  const auto to = [](int change) {
    int score = 0;
    std::ifstream("/proc/self/oom_score_adj") >> score;
    return (std::ofstream("/proc/self/oom_score_adj") << score + change << std::flush).good();
  };
  const bool may = to(-1);
  if (may) to(1);
  return may;
}

TEST(Launcher, IsSparedByTheMemoryKillerWhichFindsRanksFirst) {
  Steps run(2);
  const auto score = [](pid_t pid) { return std::stoi(text_of("/proc/" + std::to_string(pid) + "/oom_score_adj")); };
  const int own = score(getpid()), least = may_lower_its_score() ? -1000 : own;
  EXPECT_EQ(score(run.launcher()), least);
  for (const int rank : {0, 1}) EXPECT_EQ(score(run.rank(rank)), std::min(1000, own + 100));
  kill(run.launcher(), SIGTERM);
  EXPECT_EQ(run.wait(20), 75) << run.output();
}

TEST(Launcher, NamesTheMemoryKillerOfTheKernel) {
  const SmallMemory memory(int64_t{400} << 20);
  if (!memory.made()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
  std::string command = "echo $$ > " + memory.procs() + " && exec";
  for (const std::string& word : launch_words(2, {"devour", "1"})) command += " " + word;
  const Result r = run_program({"/bin/sh", "-c", command}, {{"OMP_NUM_THREADS", "1"}, {"TESSERA_TEST_EXEC", "1"}});
  EXPECT_EQ(r.code, 5) << r.output;
  // rank 0 may follow while the pages of rank 1 are still being freed
  for (const char* words : {" was killed by signal 9 (Killed)", "the kernel's memory killer ended it",
                            "its cgroup has a limit of 400.00 MiB"})
    EXPECT_NE(r.output.find(words), std::string::npos) << words << " in " << r.output;
}

TEST(Launcher, DoesNotBlameTheMemoryKillerForOtherKills) {
  Steps run(2);
  kill(run.rank(1), SIGKILL);
  EXPECT_EQ(run.wait(20), 5);
  EXPECT_EQ(run.output().find("memory killer"), std::string::npos) << run.output();
}

TEST(Launcher, TakesAnUnknownCodeForAFaultOfOurs) {
  const Result r = run_program(launch_words(2, {"leave", "99", "0"}));
  EXPECT_EQ(r.code, 70) << r.output;
}

/// Both ranks end with 5 at nearly the same time: which was first is not always to be seen from outside.
TEST(Launcher, SaysThatARankLostItsPeersWhenNoneFailedByItself) {
  const Result r = run_program(launch_words(2, {"leave", "5", "1"}));
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("lost its peers"), std::string::npos) << r.output;
}

TEST(Launcher, SaysWhichPortIsTaken) {
  const HeldPort held;
  const Result r = run_program(launch_words(2, {"collectives"}, "60", {"1", "0", "127.0.0.1:" + held.port()}));
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("port " + held.port() + " is taken"), std::string::npos) << r.output;
}

TEST(Launcher, SaysWhatAnEndpointLooksLike) {
  for (const char* endpoint :
       {"nowhere", "host:", "host:70000", "host:port", ":29500", "[fd00::1]", "[fd00::1:29500", "[]:29500"}) {
    const Result r = run_program(launch_words(2, {"collectives"}, "60", {"1", "0", endpoint}));
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find("expected HOST:PORT"), std::string::npos) << r.output;
  }
}

TEST(Launcher, JoinsRanksOfTwoLaunchers) {
  const std::string endpoint = "127.0.0.1:" + free_port(),
                    log = (fs::temp_directory_path() / ("tessera-node-" + std::to_string(getpid()))).string();
  const pid_t second =
      start_program(launch_words(2, {"collectives"}, "60", {"2", "1", endpoint}), log, {{"OMP_NUM_THREADS", "1"}});
  const Result first =
      run_program(launch_words(2, {"collectives"}, "60", {"2", "0", endpoint}), {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(wait_program(second, 20), 0) << text_of(log);
  fs::remove(log);
}

/// TCP connections of a process that are open, of those that end at another process.
int connections(pid_t pid) {
  std::set<std::string> own;
  for (const auto& fd : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    own.insert(fs::read_symlink(fd, gone).string());
  }
  int count = 0;
  for (const std::string& line : lines_of("/proc/" + std::to_string(pid) + "/net/tcp")) {
    std::istringstream words(line);
    std::vector<std::string> row(std::istream_iterator<std::string>(words), {});
    count += row.size() > 9 && row[3] == "01" && own.contains("socket:[" + row[9] + "]");
  }
  return count;
}

/// What ranks tell each other between the steps goes by the first rank of each machine, and what they ask the store by its
/// launcher: node 0 is connected with machines, not with their ranks.
TEST(Launcher, RanksOfSeveralMachinesHaveFewConnections) {
  constexpr int kMachines = 4, kRanks = 4;
  const std::string endpoint = "127.0.0.1:" + free_port(),
                    log = (fs::temp_directory_path() / ("tessera-few-" + std::to_string(getpid()))).string();
  std::vector<pid_t> launchers;
  for (int node = 0; node < kMachines; ++node)
    launchers.push_back(start_program(
        launch_words(kRanks, {"steps"}, "60", {std::to_string(kMachines), std::to_string(node), endpoint}),
        log + std::to_string(node), {{"OMP_NUM_THREADS", "1"}}));
  const auto ready = [&] { return text_of(log + "0").find("ready\nready\nready\nready\n") != std::string::npos; };
  for (int i = 0; i < 3000 && !ready(); ++i) sleep_seconds(0.02);
  EXPECT_TRUE(ready()) << text_of(log + "0");
  for (int node = 0; node < kMachines; ++node) {
    const pid_t launcher = launchers[static_cast<size_t>(node)];
    const bool hosts = node == 0;
    // The host has one of each other machine, and those of its own ranks and itself.
    EXPECT_EQ(connections(launcher), hosts ? kMachines - 1 + kRanks + 2 : 1) << "launcher " << node;
    const std::vector<pid_t> ranks = children(launcher);
    ASSERT_EQ(ranks.size(), static_cast<size_t>(kRanks));
    for (int i = 0; i < kRanks; ++i)
      EXPECT_EQ(connections(ranks[static_cast<size_t>(i)]), (hosts ? 1 : 0) + (i == 0 ? kMachines - 1 : 0))
          << "rank " << i << " of node " << node;
  }
  kill(launchers[1], SIGTERM);
  for (int node = 0; node < kMachines; ++node) {
    EXPECT_EQ(wait_program(launchers[static_cast<size_t>(node)], 60), 75) << text_of(log + std::to_string(node));
    fs::remove(log + std::to_string(node));
  }
}

TEST(Ranks, MeetWithoutALauncherByTorchrunsVariables) {
  const std::string port = free_port();
  const auto variables = [&](const std::string& rank) {
    return std::map<std::string, std::string>{{"RANK", rank},
                                              {"WORLD_SIZE", "2"},
                                              {"LOCAL_RANK", rank},
                                              {"LOCAL_WORLD_SIZE", "2"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", port},
                                              {"OMP_NUM_THREADS", "1"}};
  };
  const std::string log = (fs::temp_directory_path() / ("tessera-rank-" + std::to_string(getpid()))).string();
  const pid_t other = start_program({COMM_WORKER, "collectives"}, log, variables("1"));
  const Result r = run_program({COMM_WORKER, "collectives"}, variables("0"));
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(wait_program(other, 20), 0) << text_of(log);
  fs::remove(log);
}

/// Two ranks under these variables; `%` in a value stands for the rank.
void expect_ranks_meet(const std::map<std::string, std::string>& variables) {
  const auto of_rank = [&](const std::string& rank) {
    auto filled = variables;
    for (auto& [name, value] : filled)
      if (value == "%") value = rank;
    filled["OMP_NUM_THREADS"] = "1";
    return filled;
  };
  const std::string log = (fs::temp_directory_path() / ("tessera-rank-" + std::to_string(getpid()))).string();
  const pid_t other = start_program({COMM_WORKER, "collectives"}, log, of_rank("1"));
  const Result r = run_program({COMM_WORKER, "collectives"}, of_rank("0"));
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(wait_program(other, 20), 0) << text_of(log);
  fs::remove(log);
}

/// As under srun and `scontrol suspend`: nobody but the ranks themselves could count the time.
TEST(Ranks, ThatWereAllStoppedGoOnWhenTheyAreWoken) {
  const std::string port = free_port();
  std::vector<std::string> logs;
  std::vector<pid_t> ranks;
  for (const char* rank : {"0", "1"}) {
    logs.push_back((fs::temp_directory_path() / ("tessera-paused-" + std::to_string(getpid()) + "-" + rank)).string());
    ranks.push_back(start_program({COMM_WORKER, "steps", "no-heartbeat", "0"}, logs.back(),  // collectives take 10 s
                                  {{"SLURM_PROCID", rank},
                                   {"SLURM_LOCALID", rank},
                                   {"SLURM_NTASKS", "2"},
                                   {"SLURM_NNODES", "1"},
                                   {"SLURM_JOB_ID", "7"},
                                   {"MASTER_PORT", port},
                                   {"OMP_NUM_THREADS", "1"}}));
  }
  for (int i = 0; i < 3000 && text_of(logs[0]).find("ready") == std::string::npos; ++i) sleep_seconds(0.02);
  ASSERT_NE(text_of(logs[0]).find("ready"), std::string::npos) << text_of(logs[0]);
  pause_and_wake(ranks, 14);
  for (const pid_t rank : ranks) kill(rank, SIGTERM);
  for (size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_EQ(wait_program(ranks[i], 60), 75) << text_of(logs[i]);
    fs::remove(logs[i]);
  }
}

TEST(Ranks, MeetBySlurmsVariables) {
  expect_ranks_meet({{"SLURM_PROCID", "%"},
                     {"SLURM_LOCALID", "%"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_NODELIST", "localhost"},
                     {"SLURM_JOB_ID", std::to_string(getpid())}});
  expect_ranks_meet({{"SLURM_PROCID", "%"},  // two nodes, both of them this machine
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", "%"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_NNODES", "2"},
                     {"SLURM_TASKS_PER_NODE", "1(x2)"},
                     {"SLURM_NODELIST", "localhost,other"},
                     {"SLURM_JOB_ID", std::to_string(getpid())}});
}

TEST(Ranks, MeetByMpirunsVariables) {
  expect_ranks_meet({{"OMPI_COMM_WORLD_RANK", "%"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "%"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", "prterun-" + std::to_string(getpid()) + "@1"}});
}

/// The second launcher has one rank less.
TEST(Launcher, NamesLaunchersThatDisagree) {
  const std::string endpoint = "127.0.0.1:" + free_port(),
                    log = (fs::temp_directory_path() / ("tessera-node-" + std::to_string(getpid()))).string();
  std::vector<pid_t> launchers;
  for (int node = 0; node < 2; ++node)
    launchers.push_back(
        start_program(launch_words(2 - node, {"collectives"}, "3", {"2", std::to_string(node), endpoint}),
                      log + std::to_string(node), {{"OMP_NUM_THREADS", "1"}}));
  std::string said;
  bool refused = false;
  for (int node = 0; node < 2; ++node) {
    refused = wait_program(launchers[static_cast<size_t>(node)], 40) == 2 || refused;
    said += text_of(log + std::to_string(node));
    fs::remove(log + std::to_string(node));
  }
  EXPECT_TRUE(refused) << said;
  EXPECT_NE(said.find("node 1 was started with -n 1 --nnodes 2"), std::string::npos) << said;
}

/// Node 0 says so while it waits, and when it gives up.
TEST(Launcher, TellsThatAProcessCameWithAnotherTokenOrWithout) {
  struct Pair {
    std::string token, endpoint = "127.0.0.1:" + free_port(), log = {};
    pid_t zero = -1;
  };
  std::vector<Pair> pairs = {{""}, {"a token of somebody else"}};
  for (Pair& pair : pairs) {
    pair.log =
        (fs::temp_directory_path() / ("tessera-token-" + std::to_string(getpid()) + "-" + pair.endpoint)).string();
    pair.zero = start_program(launch_words(1, {"collectives"}, "3", {"2", "0", pair.endpoint}), pair.log,
                              {{"OMP_NUM_THREADS", "1"}, {"TESSERA_TOKEN", "a token for two nodes"}});
  }
  for (const Pair& pair : pairs) {
    const Result one = run_program(launch_words(1, {"collectives"}, "3", {"2", "1", pair.endpoint}),
                                   {{"OMP_NUM_THREADS", "1"}, {"TESSERA_TOKEN", pair.token}});
    EXPECT_EQ(one.code, 2) << one.output;
  }
  for (const Pair& pair : pairs) {
    EXPECT_EQ(wait_program(pair.zero, 60), 5) << text_of(pair.log);
    const std::string said = text_of(pair.log);
    for (const char* words : {"a process at 127.0.0.1 was refused: it knows another token than this run's, or none",
                              "node 1 did not join within 30 s; a process at 127.0.0.1 knows another token"})
      EXPECT_NE(said.find(words), std::string::npos) << said;
    fs::remove(pair.log);
  }
}

TEST(Ranks, SayWhichPortIsTakenWhenRankZeroHostsTheStore) {
  const HeldPort held;
  const Result r =
      run_program({COMM_WORKER, "collectives"}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", held.port()}});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("port " + held.port() + " is taken"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
