#include "tessera/comm/launcher.h"

#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/environment.h"
#include "tessera/comm/local_ranks.h"
#include "tessera/comm/machine.h"
#include "tessera/comm/patience.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/run_lock.h"
#include "tessera/comm/stop_signals.h"
#include "tessera/comm/token.h"

namespace tessera::comm {

namespace {

constexpr double kBeat = 0.5;         // seconds between the launchers' heartbeats
constexpr double kGoneSeconds = 3;    // seconds after which a silent launcher counts as gone if its ranks are gone too
constexpr double kRejoinSeconds = 5;  // seconds for the remaining nodes to rejoin, if fewer nodes may continue
constexpr double kLeaveSeconds = 5;   // seconds that node 0 waits for the others to acknowledge the end
constexpr double kAnswerSeconds = 5;  // seconds beyond fault.timeout after which a silent store is gone
constexpr char kSeparator = '\x1f';   // separates texts in one value

void wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

std::string this_process() {
  char name[256] = {};
  const bool known = gethostname(name, sizeof name - 1) == 0;
  return "process " + std::to_string(getpid()) + " of " + (known ? name : "an unknown host");
}

/// What another launcher wrote, in parts. Strangers may write there too: what has not its form is refused.
class Parts {
 public:
  explicit Parts(const std::string& text) : text_(text) {
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, kSeparator);) parts_.push_back(part);
  }
  const std::string& at(size_t part) const {
    if (part >= parts_.size()) fail();
    return parts_[part];
  }
  template <class Number>
  Number number(size_t part) const {
    const std::string& text = at(part);
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail();
    return value;
  }
  /// Of a launcher that ends: never success, which each launcher sees by its own ranks.
  Exit code() const {
    const auto code = static_cast<Exit>(number<int>(0));
    if (code == Exit::done) fail();
    return code;
  }

 private:
  [[noreturn]] void fail() const {
    throw UserError(Exit::rank_lost, "launch",
                    "the rendezvous endpoint holds " + shown(text_) + ", which no launcher of this program writes",
                    "something else writes there: choose another --rdzv-endpoint HOST:PORT");
  }
  std::string text_;
  std::vector<std::string> parts_;
};

Parts split(const std::string& text) { return Parts(text); }

std::string numbers(const std::vector<int>& list) {
  std::string text;
  for (int n : list) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

}  // namespace

Nodes::Nodes(const LaunchOptions& options, std::string host, int port)
    : options_(options), host_(std::move(host)), port_(port), me_(this_process()) {
  access_.token = token_from_env();
  const bool by_folder =
      !alone() && access_.token.empty() && !options_.run.empty() && shared_between_nodes(options_.run, host_);
  if (leads() && options_.nproc * options_.nnodes > 1) {
    token_ = !access_.token.empty() ? access_.token
             : alone()              ? random_token()
             : by_folder            ? make_token(options_.run)
                                    : "";
    if (token_.empty()) warn_of_open_store(host_);
    store_ = std::make_unique<HostedStore>(host_, port_, token_);
    port_ = store_->port();
    access_.token = token_;
  } else if (by_folder) {
    access_.run = options_.run;
  }
  if (!alone()) connect();
}

Nodes::~Nodes() = default;

/// [Note: one connection a machine] in store.h
void Nodes::connect() {
  const double patience = start_seconds(options_.timeout);
  StoreAccess access = access_;
  link_.reset(), relay_.reset();
  if (!leads()) relay_ = StoreRelay::open(host_, port_, access, patience, StoreRelay::own_name());
  if (relay_) access = {.token = relay_->token(), .relay = relay_->name()};
  link_ = std::make_unique<StoreLink>(host_, port_, access, options_.timeout + kAnswerSeconds, patience);
  link_->meanwhile(meanwhile_);
  token_ = link_->token();
}

void Nodes::pause() {
  if (store_) store_->pause();
  if (relay_) relay_->pause();
}

void Nodes::resume() {
  if (store_) store_->resume();
  if (relay_) relay_->resume();
}

void Nodes::meanwhile(std::function<void()> act) {
  meanwhile_ = std::move(act);
  if (link_) link_->meanwhile(meanwhile_);
}

void Nodes::woke() {
  for (auto& [node, peer] : peers_) peer.at = Clock::now();
}

std::string Nodes::key(const std::string& what, int node) const {
  return std::to_string(round_.number) + "/" + what + (node < 0 ? "" : "/" + std::to_string(node));
}

std::string Nodes::settings() const {
  return "-n " + std::to_string(options_.nproc) + " --nnodes " + std::to_string(options_.nnodes) + " --max-restarts " +
         std::to_string(options_.max_restarts) + " --min-nodes " + std::to_string(options_.min_nodes);
}

/// Ends the rendezvous for all nodes. The first reason counts, whichever node gave it.
void Nodes::refuse(Exit code, const std::string& what) {
  const auto parts = split(link_->claim("refused", std::to_string(static_cast<int>(code)) + kSeparator + what));
  // The store ends with node 0's launcher.
  if (leads()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto agreed = parts.code();
  throw UserError(agreed, "launch", parts.at(1),
                  agreed == Exit::usage ? "give every launcher the same counts, and a --node-rank of its own"
                                        : "are all launchers started, and do they know the same --rdzv-endpoint?");
}

void Nodes::check_refused() {
  if (link_->get("refused")) refuse(Exit::usage, "");
  if (signals_seen() > 0)
    throw UserError(Exit::again, "launch", "stopped by a signal while waiting for the other nodes", "start again");
}

Nodes::Round Nodes::rendezvous() {
  if (alone()) return round_ = {round_.number + 1, {0}, 0};
  try {
    if (!leads() && link_) link_->get("round");
  } catch (const UserError&) {  // node 0's launcher is gone; a new one may replace it
    connect();
    round_.number = -1;
  }
  round_ = leads() ? lead() : follow();
  peers_.clear();
  for (int node : round_.nodes) peers_[node];
  others_wait_ = 0;
  return round_;
}

/// Becomes this node. A second start of it must not end a run that is well: it waits for its predecessor's end.
void Nodes::take_place() {
  const std::string place = "place/" + std::to_string(options_.node_rank);
  for (std::string holder = link_->claim(place, me_); holder != me_; holder = link_->claim(place, me_, holder))
    await_silence(holder);
}

/// Until the process that is this node has sent no heartbeat for fault.timeout; a few seconds suffice where the others have
/// lost it already, or it has not begun to run ranks.
void Nodes::await_silence(const std::string& holder) {
  const std::string node = std::to_string(options_.node_rank);
  log::warn("node " + node + " is there already, " + shown(holder) + ": this launcher, " + me_ +
            ", waits until that one's heartbeat has stopped. Ctrl-C ends this launcher alone");
  try {
    std::string last;
    for (std::optional<Patience> silence;; wait_a_moment()) {
      check_refused();
      const std::string beat = link_->get("beat/" + node).value_or("");
      if (beat != last || !silence) last = beat, silence.emplace(options_.timeout + 2 * kBeat);
      const std::string round = link_->get("round").value_or("0");
      const bool runs =
          link_->get(round + "/join/" + node) && link_->get(round + "/go") && !link_->get(round + "/fault");
      const double silent = silence->seconds() - silence->left();
      if (silent >= (runs ? silence->seconds() : std::min(kGoneSeconds, silence->seconds()))) break;
    }
  } catch (const UserError& error) {
    if (error.code() != Exit::rank_lost) throw;
    throw UserError(Exit::rank_lost, "launch",
                    "node " + node + " was " + shown(holder) +
                        " to the end, and this launcher waited for its place: " + error.what());
  }
  log::info("node " + node + ": " + shown(holder) + " is silent, so this launcher takes its place");
}

/// Registers this node for the round.
void Nodes::join() { link_->set(key("join", options_.node_rank), settings() + kSeparator + me_); }

Nodes::Round Nodes::lead() {
  ++round_.number;
  link_->set("round", std::to_string(round_.number));
  join();
  const bool fewer = options_.min_nodes > 0 && options_.min_nodes < options_.nnodes;
  const double patience = fewer && round_.number > 0 ? kRejoinSeconds : start_seconds(options_.timeout);
  std::map<int, Peer> heard;
  constexpr auto kNever = Clock::time_point::max();
  Clock::time_point complete = kNever;  // since when all are here
  for (Patience left(patience);; wait_a_moment()) {
    beat(0);
    check_refused();
    std::vector<int> here, missing;
    for (int node = 0; node < options_.nnodes; ++node) {
      const auto joined = link_->get(key("join", node));
      (joined && (node == 0 || hear(node, heard[node])) ? here : missing).push_back(node);
      if (joined && split(*joined).at(0) != settings())
        refuse(Exit::usage, "node " + std::to_string(node) + " was started with " + split(*joined).at(0) +
                                ", node 0 with " + settings());
    }
    const bool late = left.over();
    const bool enough = fewer && static_cast<int>(here.size()) >= options_.min_nodes;
    const std::string refused = store_->refused();
    if (!refused.empty() && !std::exchange(told_refused_, true))
      log::warn("a process at " + refused + " was refused: it knows another token than this run's, or none. Give all " +
                "nodes the same " + kTokenVariable);
    if (late && !missing.empty() && !enough)
      refuse(
          Exit::rank_lost,
          "node " + numbers(missing) + " did not join within " + std::to_string(std::lround(patience)) + " s" +
              (refused.empty() ? "" : "; a process at " + refused + " knows another token than this run's, or none"));
    if (!missing.empty()) complete = kNever;
    if (missing.empty() && complete == kNever) complete = Clock::now();
    // One may have died while it waited for the last to come: all are heard of once more.
    const bool all = complete != kNever &&
                     std::ranges::all_of(here, [&](int node) { return node == 0 || heard[node].at > complete; });
    if (!all && !late) continue;
    if (!missing.empty())
      log::warn("continuing with " + std::to_string(here.size()) + " of " + std::to_string(options_.nnodes) +
                " nodes, without node " + numbers(missing));
    std::string list;
    for (int node : here) list += std::to_string(node) + " ";
    link_->set(key("go"), list);
    return round_of(list);
  }
}

Nodes::Round Nodes::follow() {
  const int last = round_.number;
  take_place();
  const double patience = start_seconds(options_.timeout) + kRejoinSeconds;
  bool joined = false;
  for (Patience left(patience);; wait_a_moment()) {
    beat(0);
    check_refused();
    const int number = split(link_->get("round").value_or("-1")).number<int>(0);
    if (number > last && number != round_.number) {
      round_.number = number;
      joined = !link_->get(key("go"));  // a round that began without this node is not for it
      if (joined) join();
    }
    if (const auto list = joined ? link_->get(key("go")) : std::nullopt) {
      const Round round = round_of(*list);
      const bool mine = link_->get("place/" + std::to_string(options_.node_rank)) == me_;  // unless it slept for long
      if (mine && round.place < static_cast<int>(round.nodes.size())) return round;
      joined = false;
    }
    if (left.over())
      throw UserError(Exit::rank_lost, "launch",
                      "node " + std::to_string(options_.node_rank) + " was not admitted within " +
                          std::to_string(std::lround(patience)) +
                          " s: node 0 has not started the round, or runs without it",
                      "see the output of node 0's launcher; a node that returns is admitted at the next restart");
  }
}

Nodes::Round Nodes::round_of(const std::string& list) const {
  Round round{round_.number, {}, 0};
  std::istringstream in(list);
  for (int node; in >> node;) round.nodes.push_back(node);
  round.place = static_cast<int>(std::ranges::find(round.nodes, options_.node_rank) - round.nodes.begin());
  return round;
}

void Nodes::beat(double wait) {
  if (seconds_since(beaten_) < kBeat) return;
  beaten_ = Clock::now();
  link_->set("beat/" + std::to_string(options_.node_rank),
             std::to_string(++beats_) + kSeparator + std::to_string(wait) + kSeparator + me_);
}

/// Whether a node sends heartbeats: one that is about to begin has a few seconds for the first.
bool Nodes::hear(int node, Peer& peer) {
  const std::string beat = link_->get("beat/" + std::to_string(node)).value_or("");
  if (beat != peer.beat) peer = {beat, Clock::now()};
  return seconds_since(peer.at) < kGoneSeconds;
}

/// Node 0 listens to all and says how long the two that wait longest have waited; the others read that.
void Nodes::listen(double wait) {
  if (leads()) return listen_to_all(wait);
  others_wait_ = 0;
  const std::string said = link_->get(key("waits")).value_or("");
  if (said.empty()) return;
  const Parts waits = split(said);
  others_wait_ = waits.number<double>(waits.number<int>(0) == options_.node_rank ? 3 : 1);
}

void Nodes::listen_to_all(double wait) {
  struct Wait {
    int node = -1;
    double seconds = 0;
  };
  Wait longest{options_.node_rank, wait}, second;
  others_wait_ = 0;
  for (auto& [node, peer] : peers_) {
    if (node == options_.node_rank) continue;
    const std::string beat = link_->get("beat/" + std::to_string(node)).value_or("");
    if (beat.empty()) continue;
    if (beat != peer.beat) {
      peer.beat = beat;
      peer.at = Clock::now();
    }
    const Wait its{node, split(beat).number<double>(1)};
    others_wait_ = std::max(others_wait_, its.seconds);
    if (its.seconds > longest.seconds)
      second = std::exchange(longest, its);
    else if (its.seconds > second.seconds)
      second = its;
  }
  std::string said;
  for (const Wait& one : {longest, second})
    said += std::to_string(one.node) + kSeparator + std::to_string(one.seconds) + kSeparator;
  link_->set(key("waits"), said);
}

std::optional<Verdict> Nodes::poll(double wait, bool lost_peers) {
  if (alone() || seconds_since(beaten_) < kBeat) return std::nullopt;
  beat(wait);
  listen(wait);
  if (const auto fault = link_->get(key("fault"))) {
    const auto parts = split(*fault);
    return Verdict{parts.code(), parts.at(1)};
  }
  if (!leads()) return std::nullopt;
  for (const auto& [node, peer] : peers_) {
    const double limit = lost_peers ? std::min(kGoneSeconds, options_.timeout) : options_.timeout;
    if (node == 0 || seconds_since(peer.at) < limit || link_->get(key("left", node))) continue;
    const std::string who = peer.beat.empty() ? "" : " (" + split(peer.beat).at(2) + ")";
    return Verdict{Exit::rank_lost, "node " + std::to_string(node) + " is gone: its launcher" + who +
                                        " has not sent a heartbeat for " + std::to_string(std::lround(limit)) + " s"};
  }
  return std::nullopt;
}

void Nodes::report(const Verdict& verdict) {
  if (alone()) return;
  try {
    link_->claim(key("fault"), std::to_string(static_cast<int>(verdict.code)) + kSeparator + verdict.text);
  } catch (const UserError&) {  // the rendezvous endpoint is gone: no node is left to notify
  }
}

void Nodes::leave() {
  if (alone() || round_.number < 0) return;
  try {
    link_->set(key("left", options_.node_rank), "1");
    const auto all_left = [&] {
      return std::ranges::all_of(round_.nodes, [&](int node) { return link_->get(key("left", node)).has_value(); });
    };
    for (const auto start = Clock::now(); leads() && !all_left() && seconds_since(start) < kLeaveSeconds;)
      wait_a_moment();
  } catch (const UserError&) {  // no node is left
  }
}

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
    start.relay = nodes_.relay();
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
