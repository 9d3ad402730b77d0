#include "tessera/comm/launch/nodes.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/launch/stop_signals.h"
#include "tessera/comm/patience.h"
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

void Nodes::connect() {
  link_ = std::make_unique<StoreLink>(host_, port_, access_, options_.timeout + kAnswerSeconds,
                                      start_seconds(options_.timeout));
  link_->meanwhile(meanwhile_);
  token_ = link_->token();
}

void Nodes::pause() {
  if (store_) store_->pause();
}

void Nodes::resume() {
  if (store_) store_->resume();
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

void Nodes::listen() {
  others_wait_ = 0;
  for (auto& [node, peer] : peers_) {
    if (node == options_.node_rank) continue;
    const std::string beat = link_->get("beat/" + std::to_string(node)).value_or("");
    if (beat.empty()) continue;
    if (beat != peer.beat) {
      peer.beat = beat;
      peer.at = Clock::now();
    }
    others_wait_ = std::max(others_wait_, split(beat).number<double>(1));
  }
}

std::optional<Verdict> Nodes::poll(double wait, bool lost_peers) {
  if (alone() || seconds_since(beaten_) < kBeat) return std::nullopt;
  beat(wait);
  listen();
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

}  // namespace tessera::comm
