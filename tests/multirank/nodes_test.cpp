// Several launchers as several machines: in network namespaces of their own where that is permitted, and side by side.
// Machines that die, come back, or stay away.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "processes.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::string free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return std::to_string(ntohs(address.sin_port));
}

/// Strangers on a port of this machine, until it goes: they send what is no greeting, a proof without the token, and the
/// old store's way to end a run, and hold connections without a word.
class Strangers {
 public:
  explicit Strangers(const std::string& port) : port_(std::stoi(port)), thread_([this] { annoy(); }) {}
  ~Strangers() {
    stop_ = true;
    thread_.join();
  }
  int connections() const { return connections_; }

 private:
  void annoy() {
    const std::string magic = "tessera store 1\n";
    const std::vector<std::string> words = {
        "GET / HTTP/1.1\r\n\r\n",
        std::string(4096, '\0'),
        magic + std::string(64, 'p'),
        magic.substr(0, 7),
        "",
        std::string("\0\x3c\x85\xf7\x3c\1\x0d\0\0\0\0\0\0\0launch0/fault\x0b\0\0\0\0\0\0\0", 35) +
            "0\x1f"
            "all done."};
    std::vector<int> held;
    for (size_t i = 0; !stop_; sleep_seconds(0.01), ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<in_port_t>(port_));
      const bool there = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
      const std::string& said = words[i % words.size()];
      if (there) ::send(fd, said.data(), said.size(), MSG_NOSIGNAL);
      connections_ += there;
      held.push_back(fd);
      if (held.size() > 200) close(held.front()), held.erase(held.begin());
    }
    for (const int fd : held) close(fd);
  }
  const int port_;
  std::atomic<bool> stop_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

/// A launcher, its log, and every process that it was seen to have.
class Node {
 public:
  Node(std::vector<std::string> argv, std::string log, std::map<std::string, std::string> environment = {})
      : log_(std::move(log)) {
    environment.insert({"OMP_NUM_THREADS", "1"});
    launcher_ = start_program(argv, log_, environment);
  }
  ~Node() {
    if (code_ < 0) kill(launcher_, SIGKILL), wait_program(launcher_, 10);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// The launcher's code, -1 when it is still there after so many seconds.
  int wait(double timeout) {
    for (double waited = 0; code_ < 0 && waited < timeout; waited += 0.05) {
      look();
      code_ = wait_program(launcher_, 0.05);
    }
    if (code_ >= 0) {
      EXPECT_TRUE(gone(ranks_, 3)) << "a rank outlived its launcher\n" << output();
    }
    return code_;
  }
  void kill_launcher() {
    look();
    kill(launcher_, SIGKILL);
  }
  pid_t launcher() const { return launcher_; }
  std::string output() const { return text_of(log_); }
  bool says(const std::string& words, double within = 30) {
    for (double waited = 0; waited < within; waited += 0.05, sleep_seconds(0.05)) {
      look();
      if (output().find(words) != std::string::npos) return true;
    }
    ADD_FAILURE() << "missing: " << words << "\n" << output();
    return false;
  }

 private:
  void look() {
    for (pid_t pid : children(launcher_))
      if (std::ranges::find(ranks_, pid) == ranks_.end()) ranks_.push_back(pid);
  }
  const std::string log_;
  pid_t launcher_ = -1;
  std::vector<pid_t> ranks_;
  int code_ = -1;
};

class Nodes : public ::testing::Test {
 protected:
  /// Launcher `node` of `nodes` with a rank each. `flags` of launch, `more` of train.
  std::unique_ptr<Node> start(int node, int nodes, std::vector<std::string> flags, std::vector<std::string> more,
                              const std::string& drill = "rank=99,do=kill") {
    std::vector<std::string> argv = {
        TESSERA_BINARY,       "launch",          "--nnodes",          std::to_string(nodes), "--node-rank",
        std::to_string(node), "--rdzv-endpoint", "127.0.0.1:" + port_};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), {"train", run_.recipe()});
    argv.insert(argv.end(), more.begin(), more.end());
    const std::string log =
        (run_.folder() / ("node" + std::to_string(node) + "-" + std::to_string(++started_))).string();
    return std::make_unique<Node>(argv, log, std::map<std::string, std::string>{{"TESSERA_DRILL", drill}});
  }
  /// Waits for the checkpoint of a step.
  void await_step(const std::string& run, int step) {
    char name[32];
    std::snprintf(name, sizeof name, "step-%06d", step);
    for (double waited = 0;
         waited < 40 && !fs::exists(fs::path(run_.out(run)) / "checkpoints" / name / "manifest.json"); waited += 0.05)
      sleep_seconds(0.05);
  }
  void expect_same_curve(const std::string& a, const std::string& b, double relative) {
    const auto one = run_.metrics(a), two = run_.metrics(b);
    ASSERT_EQ(one.size(), two.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i]["step"], two[i]["step"]);
      EXPECT_NEAR(one[i]["loss"].get<double>(), two[i]["loss"].get<double>(), relative * one[i]["loss"].get<double>())
          << "step " << i + 1;
    }
  }

  const TinyRun run_{"nodes"};
  const std::string port_ = free_port();
  int started_ = 0;
};

TEST_F(Nodes, ARankLostOnOneEndsAllAndIsNamedByAll) {
  ASSERT_EQ(run_.tessera({"prepare", run_.recipe()}).code, 0);
  for (const auto& [act, words] : {std::pair("kill", "node 1: rank 1 was killed by signal 9 (Killed) at step 2"),
                                   {"hang", "node 1: rank 1 has made no progress for 3 s (fault.timeout)"}}) {
    SCOPED_TRACE(act);
    fs::remove_all(run_.out());
    const std::vector<std::string> more = {"--fault.timeout", "3", "--run.steps", "4"};
    const std::string drill = std::string("rank=1,step=2,op=reduce,do=") + act;
    const auto first = start(0, 2, {}, more, drill), second = start(1, 2, {}, more, drill);
    EXPECT_EQ(first->wait(60), 5) << first->output();
    EXPECT_EQ(second->wait(20), 5) << second->output();
    EXPECT_TRUE(first->says(words, 0.1));
    EXPECT_TRUE(second->says(words, 0.1));
  }
}

TEST_F(Nodes, AMistakeHasItsCodeOnAll) {
  const auto first = start(0, 2, {}, {"--train.lr", "1e30"}), second = start(1, 2, {}, {"--train.lr", "1e30"});
  EXPECT_EQ(first->wait(60), 6) << first->output();
  EXPECT_EQ(second->wait(20), 6) << second->output();
}

TEST_F(Nodes, TheRunGoesOnWithoutANodeThatIsGone) {
  ASSERT_EQ(run_.train(1, "whole", {"--run.steps", "8"}).code, 0);
  const std::vector<std::string> flags = {"--max-restarts", "2", "--min-nodes", "1"},
                                 more = {"--run.out", run_.out("fewer"), "--run.steps", "8", "--checkpoint.every",
                                         "1",         "--mesh",          "dp_shard=2"};
  const std::string slow = "rank=0,op=loss,do=0.1";
  const auto first = start(0, 2, flags, more, slow), second = start(1, 2, flags, more, slow);
  await_step("fewer", 2);
  second->kill_launcher();
  EXPECT_EQ(second->wait(10), 128 + SIGKILL);
  EXPECT_EQ(first->wait(60), 0) << first->output();
  EXPECT_TRUE(first->says("node 1 is gone: its launcher", 0.1));
  EXPECT_TRUE(first->says("continuing with 1 of 2 nodes, without node 1", 0.1));
  const auto steps = run_.metrics("fewer");
  EXPECT_EQ(steps.front()["ranks"].size(), 2u);
  EXPECT_EQ(steps.back()["ranks"].size(), 1u);
  expect_same_curve("whole", "fewer", 1e-5);
  ASSERT_EQ(run_.metrics("fewer", "fault").size(), 1u);
  EXPECT_NE(run_.metrics("fewer", "fault")[0]["text"].get<std::string>().find("node 1"), std::string::npos);
}

TEST_F(Nodes, ANodeThatComesBackIsTakenIn) {
  ASSERT_EQ(run_.train(2, "whole", {"--run.steps", "6"}).code, 0);
  const std::vector<std::string> flags = {"--max-restarts", "1"},
                                 more = {"--run.out", run_.out("again"), "--run.steps", "6", "--checkpoint.every", "1"};
  const std::string slow = "rank=0,op=loss,do=0.1";
  const auto first = start(0, 2, flags, more, slow);
  auto second = start(1, 2, flags, more, slow);
  await_step("again", 2);
  second->kill_launcher();
  EXPECT_EQ(second->wait(10), 128 + SIGKILL);
  second = start(1, 2, flags, more, slow);
  EXPECT_EQ(first->wait(60), 0) << first->output();
  EXPECT_EQ(second->wait(20), 0) << second->output();
  EXPECT_EQ(run_.metrics("again").back()["ranks"].size(), 2u);
  expect_same_curve("whole", "again", 0);
}

/// Words of a newcomer, which the node that it wants to be does not hear of.
const char* const kWaits = "waits until that one's heartbeat has stopped";

TEST_F(Nodes, ASecondStartOfANodeWaitsAndChangesNothing) {
  ASSERT_EQ(run_.train(3, "whole", {"--run.steps", "30"}).code, 0);
  const std::vector<std::string> more = {"--run.out", run_.out("watched"),  "--run.steps",
                                         "30",        "--checkpoint.every", "1"};
  const std::string slow = "rank=0,op=loss,do=0.1";
  const auto first = start(0, 3, {}, more, slow), second = start(1, 3, {}, more, slow);
  // Before the run has begun, while it runs, and of each node.
  sleep_seconds(1);
  const auto early = start(1, 3, {}, more);
  EXPECT_TRUE(early->says("node 1 is there already, 'process " + std::to_string(second->launcher()), 30));
  EXPECT_TRUE(early->says(kWaits, 0.1));
  const auto third = start(2, 3, {}, more, slow);
  await_step("watched", 2);
  const auto again = start(2, 3, {}, more), zero = start(0, 3, {}, more);
  EXPECT_TRUE(again->says("node 2 is there already, 'process " + std::to_string(third->launcher()), 30));
  EXPECT_EQ(zero->wait(30), 2) << zero->output();
  kill(early->launcher(), SIGINT);
  EXPECT_EQ(early->wait(20), 75) << early->output();
  EXPECT_EQ(first->wait(60), 0) << first->output();
  EXPECT_EQ(second->wait(20), 0) << second->output();
  EXPECT_EQ(third->wait(20), 0) << third->output();
  EXPECT_EQ(again->wait(20), 5) << again->output();
  EXPECT_TRUE(again->says("to the end, and this launcher waited for its place", 0.1));
  expect_same_curve("whole", "watched", 0);
}

TEST_F(Nodes, ANewcomerTakesThePlaceOfAPredecessorThatDies) {
  ASSERT_EQ(run_.train(2, "whole", {"--run.steps", "12"}).code, 0);
  const std::vector<std::string> flags = {"--max-restarts", "1"},
                                 more = {"--run.out", run_.out("again"),    "--run.steps",
                                         "12",        "--checkpoint.every", "1"};
  const std::string slow = "rank=0,op=loss,do=0.1";
  const auto first = start(0, 2, flags, more, slow), second = start(1, 2, flags, more, slow);
  await_step("again", 1);
  const auto newcomer = start(1, 2, flags, more, slow);
  EXPECT_TRUE(newcomer->says(kWaits));
  second->kill_launcher();
  EXPECT_EQ(second->wait(10), 128 + SIGKILL);
  EXPECT_EQ(first->wait(60), 0) << first->output();
  EXPECT_EQ(newcomer->wait(20), 0) << newcomer->output();
  EXPECT_TRUE(newcomer->says("is silent, so this launcher takes its place", 0.1));
  EXPECT_EQ(run_.metrics("again").back()["ranks"].size(), 2u);
  expect_same_curve("whole", "again", 0);
}

TEST_F(Nodes, ANodeThatDiedBeforeAllHadComeIsTakenOver) {
  const std::vector<std::string> more = {"--run.out", run_.out("late"), "--run.steps", "2"};
  const auto first = start(0, 3, {}, more), dead = start(1, 3, {}, more);
  sleep_seconds(2);
  dead->kill_launcher();
  EXPECT_EQ(dead->wait(10), 128 + SIGKILL);
  const auto second = start(1, 3, {}, more), third = start(2, 3, {}, more);
  EXPECT_EQ(first->wait(90), 0) << first->output();
  EXPECT_EQ(second->wait(20), 0) << second->output();
  EXPECT_EQ(third->wait(20), 0) << third->output();
}

TEST_F(Nodes, AnEndpointOfIPv6IsWrittenInBrackets) {
  ASSERT_EQ(run_.train(2, "four", {"--run.steps", "3"}).code, 0);
  const std::string endpoint = "[::1]:" + port_;
  const auto begin = [&](int node) {
    return std::make_unique<Node>(
        std::vector<std::string>{TESSERA_BINARY, "launch", "--nnodes", "2", "--node-rank", std::to_string(node),
                                 "--rdzv-endpoint", endpoint, "train", run_.recipe(), "--run.out", run_.out("six"),
                                 "--run.steps", "3"},
        (run_.folder() / ("six" + std::to_string(node))).string(),
        std::map<std::string, std::string>{{"TESSERA_SHARED_MEMORY", "0"}});
  };
  const auto first = begin(0), second = begin(1);
  EXPECT_EQ(first->wait(60), 0) << first->output();
  EXPECT_EQ(second->wait(20), 0) << second->output();
  expect_same_curve("four", "six", 0);
  const auto lonely = std::make_unique<Node>(
      std::vector<std::string>{TESSERA_BINARY, "launch", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint",
                               endpoint, "train", run_.recipe(), "--fault.timeout", "1"},
      (run_.folder() / "lonely").string());
  EXPECT_EQ(lonely->wait(60), 5);
  EXPECT_TRUE(lonely->says("the rendezvous endpoint " + endpoint + " did not answer", 0.1));
}

TEST_F(Nodes, WithoutNodeZeroTheOthersEndAndSayWhy) {
  ASSERT_EQ(run_.tessera({"prepare", run_.recipe()}).code, 0);
  const std::vector<std::string> more = {"--run.steps", "100000", "--checkpoint.every", "1"};
  const auto first = start(0, 2, {}, more), second = start(1, 2, {}, more);
  await_step("run", 2);
  first->kill_launcher();
  EXPECT_EQ(first->wait(10), 128 + SIGKILL);
  EXPECT_EQ(second->wait(20), 5) << second->output();
  EXPECT_TRUE(second->says("the rendezvous endpoint 127.0.0.1:" + port_ + " is gone: node 0's launcher ended", 0.1));
}

TEST_F(Nodes, ASignalToOneEndsAllWithAWholeCheckpoint) {
  ASSERT_EQ(run_.tessera({"prepare", run_.recipe()}).code, 0);
  const std::vector<std::string> more = {"--run.steps", "100000", "--checkpoint.every", "5"};
  const auto first = start(0, 2, {"--max-restarts", "2"}, more), second = start(1, 2, {"--max-restarts", "2"}, more);
  await_step("run", 5);
  kill(second->launcher(), SIGTERM);
  EXPECT_EQ(second->wait(30), 75) << second->output();
  EXPECT_EQ(first->wait(30), 75) << first->output();
}

TEST_F(Nodes, StrangersNeitherEndNorChangeARun) {
  ASSERT_EQ(run_.train(2, "alone", {"--run.steps", "8"}).code, 0);
  const std::vector<std::string> more = {"--run.out", run_.out("watched"), "--run.steps", "8"};
  const Strangers strangers(port_);
  const auto first = start(0, 2, {}, more), second = start(1, 2, {}, more);
  EXPECT_EQ(first->wait(120), 0) << first->output();
  EXPECT_EQ(second->wait(60), 0) << second->output();
  EXPECT_GT(strangers.connections(), 20);
  expect_same_curve("alone", "watched", 0);
  // What the two nodes proved to each other is theirs alone, and printed nowhere.
  const fs::path token = fs::path(run_.out("watched")) / ".token";
  ASSERT_TRUE(fs::is_regular_file(token));
  EXPECT_EQ(fs::status(token).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const std::string secret = text_of(token).substr(0, 64);
  ASSERT_EQ(secret.size(), 64u);
  for (const auto& item : fs::recursive_directory_iterator(run_.folder())) {
    if (!item.is_regular_file() || item.path() == token) continue;
    EXPECT_EQ(text_of(item.path()).find(secret), std::string::npos) << item.path();
  }
  EXPECT_EQ(first->output().find("has no token"), std::string::npos) << first->output();
}

TEST_F(Nodes, TheTokenOfTheEnvironmentHasToBeTheSame) {
  const std::string token = "a token for two nodes", other = "a token of somebody else";
  const auto begin = [&](int node, const std::string& of_node) {
    setenv("TESSERA_TOKEN", of_node.c_str(), 1);
    auto started = start(node, 2, {}, {"--run.out", run_.out("by-token"), "--run.steps", "2"});
    unsetenv("TESSERA_TOKEN");
    return started;
  };
  const auto first = begin(0, token), wrong = begin(1, other);
  EXPECT_EQ(wrong->wait(120), 2) << wrong->output();
  EXPECT_TRUE(wrong->says("knows another token than this process has", 0.1));
  EXPECT_TRUE(first->says("a process at 127.0.0.1 was refused: it knows another token than this run's, or none", 10));
  const auto second = begin(1, token);
  EXPECT_EQ(second->wait(120), 0) << second->output();
  EXPECT_EQ(first->wait(60), 0) << first->output();
  for (const auto* node : {&first, &wrong, &second}) {
    EXPECT_EQ((*node)->output().find(token), std::string::npos);
    EXPECT_EQ((*node)->output().find(other), std::string::npos);
  }
}

/// A port that accepts connections, by the kernel alone, and stays silent.
class SilentPort {
 public:
  SilentPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 64), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() { close(fd_); }
  std::string port() const { return std::to_string(port_); }
  /// How many connections the kernel has taken.
  int connections() const {
    int count = 0;
    for (int fd; (fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ++count) close(fd);
    return count;
  }

 private:
  int fd_, port_ = 0;
};

TEST_F(Nodes, ASilentRendezvousIsNamedByRanksAndLaunchers) {
  const SilentPort silent;
  std::map<std::string, std::string> rank = {{"RANK", "1"},
                                             {"WORLD_SIZE", "2"},
                                             {"LOCAL_RANK", "1"},
                                             {"LOCAL_WORLD_SIZE", "2"},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", silent.port()}};
  const std::vector<std::string> train = {"train", run_.recipe(), "--fault.timeout", "1"};
  const auto with = [&](std::vector<std::string> argv) {
    argv.insert(argv.begin(), TESSERA_BINARY);
    argv.insert(argv.end(), train.begin(), train.end());
    return argv;
  };
  Node of_rank(with({}), (run_.folder() / "rank").string(), rank);
  rank["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  Node of_torchrun(with({}), (run_.folder() / "torchrun").string(), rank);
  Node launcher(with({"launch", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "127.0.0.1:" + silent.port()}),
                (run_.folder() / "launcher").string());
  const std::string place = "127.0.0.1:" + silent.port();
  for (auto& [node, words] :
       {std::pair(&of_rank, "the rendezvous endpoint " + place + " accepts connections but does not"),
        std::pair(&of_torchrun, "could not reach the store at " + place),
        std::pair(&launcher, "the rendezvous endpoint " + place + " accepts connections but does")}) {
    EXPECT_EQ(node->wait(180), 5) << node->output();
    EXPECT_TRUE(node->says(words, 0.1));
    if (node != &of_torchrun) EXPECT_TRUE(node->says("within 30 s", 0.1));
  }
  // In 30 s a rank or launcher asks three times, for 10 s each, and once more: the bound holds, whatever the clock says.
  EXPECT_LE(silent.connections(), 12);
}

/// Two network namespaces joined by a cable; each has an address and a loopback of its own, as two machines have.
class TwoHosts : public Nodes {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      const Result made = run_program({"/bin/sh", "-c", "ip netns add " + space(i)});
      if (made.code != 0) GTEST_SKIP() << "network namespaces are not permitted here: " << made.output;
      made_ = i + 1;
    }
    shell("ip link add eth9 netns " + space(0) + " type veth peer name eth9 netns " + space(1));
    for (int i = 0; i < 2; ++i)
      shell("ip -n " + space(i) + " addr add " + address(i) + "/24 dev eth9 && ip -n " + space(i) +
            " link set eth9 up && ip -n " + space(i) + " link set lo up");
  }
  void TearDown() override {
    for (int i = 0; i < made_; ++i) shell("ip netns del " + space(i));
  }
  static void shell(const std::string& command) {
    const Result r = run_program({"/bin/sh", "-c", command});
    ASSERT_EQ(r.code, 0) << command << "\n" << r.output;
  }
  static std::string space(int i) { return "tessera-" + std::to_string(getpid()) + "-" + std::to_string(i); }
  static std::string address(int i) { return "10.213.7." + std::to_string(i + 1); }
  static std::vector<std::string> inside(int i, std::vector<std::string> argv) {
    argv.insert(argv.begin(), {"/bin/sh", "-c", "exec ip netns exec \"$0\" \"$@\"", space(i)});
    return argv;
  }
  /// Bytes that came over the cable.
  static int64_t received(int i) {
    const Result r = run_program(inside(i, {"cat", "/sys/class/net/eth9/statistics/rx_bytes"}));
    return std::atoll(r.output.c_str());
  }
  std::vector<std::string> launcher(int i, const std::string& endpoint, std::vector<std::string> more) const {
    std::vector<std::string> argv = {TESSERA_BINARY,    "launch", "-n",          "2",
                                     "--nnodes",        "2",      "--node-rank", std::to_string(i),
                                     "--rdzv-endpoint", endpoint, "train",       run_.recipe()};
    argv.insert(argv.end(), more.begin(), more.end());
    return inside(i, argv);
  }

 private:
  int made_ = 0;
};

TEST_F(TwoHosts, TrainAsOneMachineDoes) {
  ASSERT_EQ(run_.train(4, "one").code, 0);
  const std::vector<std::string> more = {"--run.out", run_.out("two")};
  const std::string endpoint = address(0) + ":29511";
  Node first(launcher(0, endpoint, more), (run_.folder() / "first").string()),
      second(launcher(1, endpoint, more), (run_.folder() / "second").string());
  EXPECT_EQ(first.wait(90), 0) << first.output();
  EXPECT_EQ(second.wait(20), 0) << second.output();
  EXPECT_TRUE(
      first.says("the rendezvous at " + address(0) + " has no token: whoever reaches it can end this run", 0.1));
  expect_same_curve("one", "two", 0);
  double sent = 0;  // a rank sends three shards, two of them to the other host, and there are two ranks a host
  for (const auto& step : run_.metrics("two"))
    sent += step["ranks"][0]["sent_bytes"]["dp_shard"].get<double>() * 2 / 3 * 2;
  EXPECT_GT(static_cast<double>(received(0)), sent);
}

TEST_F(TwoHosts, ANodeThatIsCutOffFromNodeZeroEnds) {
  ASSERT_EQ(run_.tessera({"prepare", run_.recipe()}).code, 0);
  const std::vector<std::string> more = {"--run.steps", "100000", "--checkpoint.every", "1", "--fault.timeout", "3"};
  const std::string endpoint = address(0) + ":29513";
  setenv("TESSERA_TOKEN", "a token for two hosts", 1);
  Node first(launcher(0, endpoint, more), (run_.folder() / "first").string()),
      second(launcher(1, endpoint, more), (run_.folder() / "second").string());
  unsetenv("TESSERA_TOKEN");
  await_step("run", 2);
  shell("ip -n " + space(0) + " link set eth9 down");
  EXPECT_EQ(second.wait(120), 5) << second.output();
  EXPECT_EQ(first.wait(120), 5) << first.output();
  // The bound is told: 3 s of fault.timeout and 5 s. A time measured here would be that of a busy machine.
  EXPECT_TRUE(second.says("the rendezvous endpoint " + endpoint + " is gone", 0.1));
  EXPECT_TRUE(second.says("(no answer within 8 s)", 0.1));
  EXPECT_EQ(first.output().find("has no token"), std::string::npos) << first.output();
}

/// What a starter sets for the rank of host % (of two, a rank each).
struct Starter {
  const char* name;
  std::map<std::string, std::string> variables;
};

TEST_F(TwoHosts, MeetByTheVariablesOfWhoeverStartedTheRanks) {
  const std::string host = address(0);
  const Starter starters[] = {
      {"torchrun",
       {{"RANK", "%"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "1"},
        {"MASTER_ADDR", host},
        {"MASTER_PORT", "29512"}}},
      {"slurm",
       {{"SLURM_PROCID", "%"},
        {"SLURM_NODEID", "%"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_NNODES", "2"},
        {"SLURM_TASKS_PER_NODE", "1(x2)"},
        {"SLURM_NODELIST", host + ",10.213.7.2"},
        {"SLURM_JOB_ID", "77"}}},
      {"mpirun",
       {{"OMPI_COMM_WORLD_RANK", "%"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
        {"OMPI_MCA_orte_hnp_uri", "12.0;tcp://" + host + ":41"}}},
  };
  ASSERT_EQ(run_.train(2, "one", {"--run.steps", "3"}).code, 0);
  for (const Starter& starter : starters) {
    SCOPED_TRACE(starter.name);
    std::vector<std::unique_ptr<Node>> ranks;
    for (int i = 0; i < 2; ++i) {
      auto variables = starter.variables;
      for (auto& [name, value] : variables)
        if (value == "%") value = std::to_string(i);
      ranks.push_back(std::make_unique<Node>(
          inside(i, {TESSERA_BINARY, "train", run_.recipe(), "--run.out", run_.out(starter.name), "--run.steps", "3"}),
          (run_.folder() / (starter.name + std::to_string(i))).string(), variables));
    }
    for (auto& rank : ranks) EXPECT_EQ(rank->wait(60), 0) << rank->output();
    expect_same_curve("one", starter.name, 0);
  }
}

TEST_F(TwoHosts, AnAddressOfNobodyFailsWithinTheStatedTimeNamingIt) {
  const auto start = std::chrono::steady_clock::now();
  Node lonely(launcher(1, "10.213.7.99:29511", {"--fault.timeout", "1"}), (run_.folder() / "lonely").string());
  EXPECT_EQ(lonely.wait(60), 5) << lonely.output();
  EXPECT_TRUE(lonely.says("the rendezvous endpoint 10.213.7.99:29511 did not answer within 30 s", 0.1));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 40);
}

}  // namespace
}  // namespace tessera::testing
