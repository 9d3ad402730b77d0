#include "tessera/comm/store.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/store_server.h"
#include "tessera/comm/token.h"

namespace tessera::comm {

namespace {

constexpr double kGreeting = 10;  // seconds in which the host greets; a busy machine may take some

std::string seconds_text(double seconds) { return std::to_string(std::lround(seconds)) + " s"; }

}  // namespace

StoreClient::StoreClient(const std::string& host, int port, StoreAccess access, double patience)
    : host_(host), port_(port), access_(std::move(access)) {
  const std::string place = "the rendezvous endpoint " + place_text(host, port);
  std::optional<Patience> left(patience);
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
    const double before = std::max(left->left(), 0.1);
    const auto began = std::chrono::steady_clock::now();
    fd_ = reach(before);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (took > kPause) left.emplace(std::max(before - took, kGreeting));  // nobody looked at it meanwhile
    meanwhile_ = [&left] { left->left(); };
    const int yes = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    token_ = access_.token;
    if (token_.empty() && !access_.run.empty()) token_ = read_token(access_.run);
    std::string last, wrong;
    try {
      wrong = greet(token_, std::clamp(left->left(), 0.1, kGreeting));
      if (wrong.empty()) {
        meanwhile_ = nullptr;
        return;
      }
    } catch (const StoreGone& gone) {
      last = gone.what();
    }
    close();
    // A token in RUN may appear late, on a file system that is slow to tell.
    const bool fixed = !access_.token.empty() || access_.run.empty();
    if (!wrong.empty() && (fixed || left->over()))
      throw UserError(
          Exit::usage, "comm", place + " " + wrong,
          std::string("set ") + kTokenVariable + " to the same on all nodes (openssl rand -hex 32 prints one)");
    if (left->over())
      throw UserError(Exit::rank_lost, "comm",
                      place + " accepts connections but does not answer as a run does, within " +
                          seconds_text(patience) + " (" + last + ")",
                      "see whether node 0 runs there and not another program, or choose another port");
  }
}

StoreClient::~StoreClient() { close(); }

int StoreClient::reach(double seconds) const {
  if (access_.relay.empty()) return connect_to(host_, port_, seconds);
  for (Patience patience(seconds);; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    const int fd = connect_here(access_.relay);
    if (fd >= 0) return fd;
    if (errno == EAGAIN && !patience.over()) continue;  // many come at once
    throw UserError(Exit::rank_lost, "comm",
                    "the rendezvous endpoint " + place_text(host_, port_) +
                        " cannot be reached: the process of this machine that relays to it is gone (" +
                        std::strerror(errno) + ")",
                    "see the messages of this machine's launcher, or of its first rank");
  }
}

std::unique_ptr<StoreClient> StoreClient::another(double patience) const {
  return std::make_unique<StoreClient>(host_, port_, access_, patience);
}

/// Empty when this process is admitted, else what is wrong with its token.
std::string StoreClient::greet(const std::string& token, double seconds) {
  Patience patience(seconds);
  const std::string hello = receive(wire::kHello, patience);
  if (!hello.starts_with(wire::kMagic)) throw StoreGone("it does not speak this program's protocol");
  const bool closed = hello[wire::kMagic.size()] != 0;
  const std::string theirs = hello.substr(wire::kMagic.size() + 1), mine = wire::nonce();
  if (closed && token.empty()) {
    // The host tells its user who came without one; a token in RUN may only be late.
    const Digest none = wire::proof(token, wire::End::client, theirs, mine);
    if (access_.run.empty()) send_all(std::string(wire::kMagic) + mine + std::string(bytes_of(none)), patience);
    return "asks for a token, which this process does not have";
  }
  if (!closed && !token.empty()) return "asks for no token, and this process has one: its host was started without";
  const Digest proof = wire::proof(token, wire::End::client, theirs, mine);
  send_all(std::string(wire::kMagic) + mine + std::string(bytes_of(proof)), patience);
  const std::string answer = receive(wire::kAnswer, patience);
  const Digest expected = wire::proof(token, wire::End::server, theirs, mine);
  Digest given{};
  std::memcpy(given.data(), answer.data() + 1, given.size());
  if (answer[0] == 1 && same_digest(given, expected)) return {};
  return answer[0] == 1 ? "does not know the token of this process" : "knows another token than this process has";
}

void StoreClient::ready(short events, Patience& patience) {
  for (;;) {
    pollfd waiting{fd_, events, 0};
    if (poll(&waiting, 1, 100) > 0) return;
    if (meanwhile_) meanwhile_();
    if (patience.over()) throw StoreGone("no answer within " + seconds_text(patience.seconds()));
  }
}

void StoreClient::send_all(std::string_view bytes, Patience& patience) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      ready(POLLOUT, patience);
    } else if (errno != EINTR) {
      throw StoreGone(std::strerror(errno));
    }
  }
}

std::string StoreClient::receive(Patience& patience) {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) return {buffer.data(), static_cast<size_t>(got)};
    if (got == 0) throw StoreGone("it closed the connection");
    if (errno == EAGAIN) {
      ready(POLLIN, patience);
    } else if (errno != EINTR) {
      throw StoreGone(std::strerror(errno));
    }
  }
}

std::string StoreClient::receive(size_t bytes, Patience& patience) {
  while (received_.size() < bytes) {
    received_ += receive(patience);
    const size_t known = std::min(received_.size(), wire::kMagic.size());
    if (bytes == wire::kHello && received_.compare(0, known, wire::kMagic, 0, known) != 0) break;
    if (patience.over()) throw StoreGone("it greets too slowly");
  }
  const std::string taken = received_.substr(0, bytes);
  received_.erase(0, bytes);
  return taken;
}

wire::Message StoreClient::call(wire::Op op, const std::vector<std::string>& parts, double seconds) {
  const std::lock_guard hold(lock_);
  if (fd_ < 0) throw StoreGone("its connection was lost before");
  Patience patience(seconds);
  try {
    send_all(wire::frame(op, parts), patience);
    for (;;) {
      if (auto answer = wire::take(received_)) {
        if (answer->head == static_cast<uint8_t>(wire::Status::refused))
          throw StoreGone("it refused a text: it is full");
        return *answer;
      }
      received_ += receive(patience);
    }
  } catch (const wire::Malformed& error) {
    close();
    throw StoreGone(std::string("it sent ") + error.what());
  } catch (...) {  // the answer may still come, and would be taken for that of the next call
    close();
    throw;
  }
}

void StoreClient::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  received_.clear();
}

namespace {

const std::string& value_of(const wire::Message& answer) {
  if (answer.parts.size() != 1)
    throw StoreGone("it sent an answer of " + std::to_string(answer.parts.size()) + " parts");
  return answer.parts[0];
}

bool is_ok(const wire::Message& answer) { return answer.head == static_cast<uint8_t>(wire::Status::ok); }

int64_t number_of(const wire::Message& answer) {
  const std::string& text = value_of(answer);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) throw StoreGone("it sent no number");
  return number;
}

}  // namespace

void StoreClient::set(const std::string& key, const std::string& value) { call(wire::Op::set, {key, value}, answer_); }

std::optional<std::string> StoreClient::get(const std::string& key) {
  const wire::Message answer = call(wire::Op::get, {key}, answer_);
  return is_ok(answer) ? std::optional(value_of(answer)) : std::nullopt;
}

std::string StoreClient::compare_set(const std::string& key, const std::string& expected, const std::string& value) {
  return value_of(call(wire::Op::compare_set, {key, expected, value}, answer_));
}

int64_t StoreClient::add(const std::string& key, int64_t value) {
  return number_of(call(wire::Op::add, {key, std::to_string(value)}, answer_));
}

bool StoreClient::erase(const std::string& key) { return is_ok(call(wire::Op::erase, {key}, answer_)); }

bool StoreClient::check(const std::vector<std::string>& keys) { return is_ok(call(wire::Op::check, keys, answer_)); }

int64_t StoreClient::count() { return number_of(call(wire::Op::count, {}, answer_)); }

void StoreClient::wait(const std::vector<std::string>& keys, double seconds) { call(wire::Op::wait, keys, seconds); }

class HostedStore::Server : public StoreServer {
 public:
  using StoreServer::StoreServer;
};

HostedStore::HostedStore(const std::string& host, int port, const std::string& token) {
  try {
    if (is_loopback(host) && !has_route(host))
      throw UserError(Exit::usage, "comm",
                      "processes of this machine cannot reach " + host + " (" + std::strerror(errno) +
                          "): the loopback interface of this machine or container is down",
                      "ip link set lo up, or give the container a network with a loopback");
    const auto here = listen_at(host, port);
    const Listener listener = here ? *here : listen_everywhere(port);
    port_ = listener.port;
    server_ = std::make_unique<Server>(listener, token);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = error.what();
    if (why.find("in use") != std::string::npos)
      throw UserError(Exit::usage, "comm", "port " + std::to_string(port) + " is taken",
                      "choose another with --rdzv-endpoint HOST:PORT or MASTER_PORT");
    throw UserError(Exit::usage, "comm",
                    "cannot host the rendezvous endpoint " + place_text(host, port) + " (" + why + ")",
                    "set --rdzv-endpoint to an address of node 0's machine");
  }
}
HostedStore::~HostedStore() = default;

std::string HostedStore::refused() const { return server_->refused(); }
int64_t HostedStore::served() const { return server_->served(); }

void HostedStore::pause() { server_->pause(); }

namespace {

void go_on(StoreServer& server) {
  try {
    server.resume();
  } catch (const std::runtime_error& error) {
    throw UserError(Exit::memory, "comm", std::string("the rendezvous endpoint cannot go on: ") + error.what(),
                    "raise that limit, or end some processes");
  }
}

}  // namespace

void HostedStore::resume() { go_on(*server_); }

void StoreRelay::resume() { go_on(server_); }

std::string StoreRelay::own_name() { return "tessera " + random_token(); }

std::unique_ptr<StoreRelay> StoreRelay::open(const std::string& host, int port, const StoreAccess& access,
                                             double patience, const std::string& name) {
  StoreClient store(host, port, access, patience);
  try {
    return std::unique_ptr<StoreRelay>(new StoreRelay(listen_here(name), store, name));
  } catch (const std::runtime_error&) {
    return nullptr;
  }
}

namespace {

template <class Act>
auto reach(const std::string& place, Act act) {
  try {
    return act();
  } catch (const StoreGone& error) {
    throw UserError(Exit::rank_lost, "launch",
                    "the rendezvous endpoint " + place + " is gone: node 0's launcher ended or cannot be reached (" +
                        error.what() + ")",
                    "start the command again on every node; it resumes from the last checkpoint");
  }
}

/// Launchers and ranks have keys of their own.
std::string of_launchers(const std::string& key) { return "launch/" + key; }

}  // namespace

StoreLink::StoreLink(const std::string& host, int port, const StoreAccess& access, double answer, double patience)
    : place_(place_text(host, port)), client_(host, port, access, patience) {
  client_.answer_within(answer);
}

void StoreLink::set(const std::string& key, const std::string& value) {
  reach(place_, [&] { client_.set(of_launchers(key), value); });
}

std::optional<std::string> StoreLink::get(const std::string& key) {
  return reach(place_, [&] { return client_.get(of_launchers(key)); });
}

std::string StoreLink::claim(const std::string& key, const std::string& value, const std::string& before) {
  return reach(place_, [&] { return client_.compare_set(of_launchers(key), before, value); });
}

}  // namespace tessera::comm
