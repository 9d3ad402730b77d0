#include "tessera/comm/store_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "tessera/base/limits.h"
#include "tessera/comm/patience.h"
#include "tessera/comm/token.h"

namespace tessera::comm::wire {

namespace {

void put(std::string& bytes, size_t number) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift);
}

size_t number_at(std::string_view bytes, size_t at) {
  size_t number = 0;
  for (size_t i = 0; i < 4; ++i) number |= size_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  return number;
}

}  // namespace

Digest proof(std::string_view token, End end, std::string_view server_nonce, std::string_view client_nonce) {
  std::string text(end == End::client ? "tessera client" : "tessera server");
  return hmac_sha256(token, text.append(server_nonce).append(client_nonce));
}

std::string nonce() { return random_bytes(kNonce); }

std::string frame(uint8_t head, const std::vector<std::string>& parts) {
  std::string body(1, static_cast<char>(head));
  for (const std::string& part : parts) {
    put(body, part.size());
    body += part;
  }
  if (body.size() > kLargestFrame + kRelayedMore)
    throw Malformed("a text of " + std::to_string(body.size()) + " bytes");
  std::string bytes;
  put(bytes, body.size());
  return bytes + body;
}

std::optional<Message> take(std::string& buffer) {
  if (buffer.size() < 4) return std::nullopt;
  const size_t size = number_at(buffer, 0);
  if (size < 1 || size > kLargestFrame + kRelayedMore) throw Malformed("a frame of " + std::to_string(size) + " bytes");
  if (buffer.size() < 4 + size) return std::nullopt;
  const std::string_view body(buffer.data() + 4, size);
  Message message;
  message.head = static_cast<uint8_t>(body[0]);
  for (size_t at = 1; at < size;) {
    if (size - at < 4) throw Malformed("a frame that ends within a number");
    const size_t length = number_at(body, at);
    at += 4;
    if (length > size - at) throw Malformed("a part that is longer than its frame");
    message.parts.emplace_back(body.substr(at, length));
    at += length;
  }
  buffer.erase(0, 4 + size);
  return message;
}

}  // namespace tessera::comm::wire

namespace tessera::comm {

namespace {

using wire::Op;
using wire::Status;

constexpr size_t kStrangers = 128;           // connections that have proved nothing, at a time
constexpr double kProof = 10;                // seconds that one of them has
constexpr double kCrowded = 0.5;             // seconds that it has while others wait
constexpr size_t kLargestStore = 1ul << 30;  // bytes
constexpr size_t kUnread = 64ul << 20;       // bytes that a client may leave unread
constexpr int kTick = 50;                    // milliseconds

void watch(int epoll, int how, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll, how, fd, &event);
}

std::string text_of(const sockaddr_storage& peer, socklen_t size) {
  char text[NI_MAXHOST] = "an unknown address";
  getnameinfo(reinterpret_cast<const sockaddr*>(&peer), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace

std::string StoreServer::refused() const {
  const std::lock_guard hold(refused_lock_);
  return refused_;
}

StoreServer::StoreServer(Listener listener, std::string token, int upwards)
    : listener_(listener),
      token_(std::move(token)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  up_.fd = upwards, up_.admitted = true;
  if (epoll_ < 0 || stop_ < 0) {
    const std::string why = std::strerror(errno) + limit_behind(errno);
    close_all();
    throw std::runtime_error(why);
  }
  watch(epoll_, EPOLL_CTL_ADD, listener_.fd, EPOLLIN);
  watch(epoll_, EPOLL_CTL_ADD, stop_, EPOLLIN);
  if (up_.fd >= 0) watch(epoll_, EPOLL_CTL_ADD, up_.fd, EPOLLIN);
  try {
    resume();
  } catch (...) {
    close_all();
    throw;
  }
}

void StoreServer::resume() {
  sigset_t all, before;  // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw std::runtime_error(std::string("no thread for it: ") + error.what() + limit_behind(error.code().value()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void StoreServer::pause() {
  if (!thread_.joinable()) return;
  uint64_t count = 1;
  while (::write(stop_, &count, sizeof count) < 0 && errno == EINTR) {
  }
  thread_.join();
  while (::read(stop_, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

StoreServer::~StoreServer() {
  pause();
  for (const auto& [fd, connection] : connections_) ::close(fd);
  close_all();
}

void StoreServer::close_all() {
  for (const int fd : {epoll_, stop_, listener_.fd, up_.fd})
    if (fd >= 0) ::close(fd);
}

void StoreServer::serve() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = epoll_wait(epoll_, events.data(), events.size(), strangers_ > 0 || !listens_ ? kTick : -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == stop_) return;
      if (fd == listener_.fd) continue;  // last: descriptors of this round are not used again within it
      if (fd == up_.fd) {
        if (!pass_down()) lose_upwards();
        continue;
      }
      const auto found = connections_.find(fd);
      if (found == connections_.end()) continue;  // dropped in this round
      if (!read(found->second) || !write(found->second)) drop(fd);
    }
    drop_strangers();
    if (up_.fd >= 0 && !write(up_)) lose_upwards();
    if (listener_.fd < 0) continue;
    listen(true);
    accept_all();
  }
}

/// What the server above has answered goes to whoever asked; false when the connection is over.
bool StoreServer::pass_down() {
  std::array<char, 65536> buffer;
  const ssize_t got = ::recv(up_.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  up_.in.append(buffer.data(), static_cast<size_t>(got));
  try {
    while (auto answer = wire::take(up_.in)) {
      if (answer->parts.empty()) return false;
      const auto client = clients_.find(answer->parts.front());
      if (client == clients_.end()) continue;  // it did not wait for that
      answer->parts.erase(answer->parts.begin());
      Connection& asked = connections_.at(client->second);
      if (answer->head != static_cast<uint8_t>(Status::dropped)) asked.out += wire::frame(answer->head, answer->parts);
      if (answer->head == static_cast<uint8_t>(Status::dropped) || !write(asked)) drop(asked.fd);
    }
  } catch (const wire::Malformed&) {
    return false;
  }
  return true;
}

/// The clients see the end that this server saw, and nobody comes any more.
void StoreServer::lose_upwards() {
  ::close(std::exchange(up_.fd, -1));
  ::close(std::exchange(listener_.fd, -1));
  while (!connections_.empty()) drop(connections_.begin()->first);
}

void StoreServer::listen(bool on) {
  if (on == listens_) return;
  listens_ = on;
  watch(epoll_, EPOLL_CTL_MOD, listener_.fd, on ? uint32_t{EPOLLIN} : 0);
}

/// Drops the stranger that came first, if it had its time.
bool StoreServer::make_room() {
  int oldest = -1;
  for (const auto& [fd, connection] : connections_)
    if (!connection.admitted && (oldest < 0 || connection.since < connections_.at(oldest).since)) oldest = fd;
  if (oldest < 0 || seconds_since(connections_.at(oldest).since) < kCrowded) return false;
  drop(oldest);
  return true;
}

void StoreServer::accept_all() {
  for (;;) {
    if (strangers_ >= kStrangers && !make_room()) return listen(false);  // the others wait in the kernel's queue
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const int fd = accept4(listener_.fd, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && !make_room()) listen(false);  // no descriptors are left
      return;
    }
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    Connection& connection = connections_[fd];
    connection.fd = fd;
    connection.peer = text_of(peer, size);
    connection.nonce = wire::nonce();
    connection.out = std::string(wire::kMagic) + (token_.empty() ? '\0' : '\1') + connection.nonce;
    ++strangers_;
    watch(epoll_, EPOLL_CTL_ADD, fd, EPOLLIN);
    if (!write(connection)) drop(fd);
  }
}

void StoreServer::drop(int fd) {
  Connection& connection = connections_.at(fd);
  if (!connection.admitted) --strangers_;
  if (clients_.erase(connection.name) > 0 && up_.fd >= 0) up_.out += wire::frame(Op::left, {connection.name});
  connections_.erase(fd);
  std::erase_if(waiting_, [fd](const auto& entry) { return entry.second.fd == fd; });
  ::close(fd);
}

/// A relay's client has gone, or waits no more.
void StoreServer::forget(int fd, const std::string& client) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second == Waiter{fd, client}; });
  connections_.at(fd).awaits.erase(client);
}

void StoreServer::drop_strangers() {
  if (strangers_ == 0) return;
  std::vector<int> late;
  for (const auto& [fd, connection] : connections_)
    if (!connection.admitted && seconds_since(connection.since) > kProof) late.push_back(fd);
  for (const int fd : late) drop(fd);
}

/// Takes what has come and acts on it; false when the connection is over.
bool StoreServer::read(Connection& connection) {
  std::array<char, 65536> buffer;
  const ssize_t got = ::recv(connection.fd, buffer.data(), buffer.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.in.append(buffer.data(), static_cast<size_t>(got));
  if (!connection.admitted) return admit(connection);
  try {
    take_requests(connection);
  } catch (const wire::Malformed&) {
    return false;
  }
  return true;
}

void StoreServer::take_requests(Connection& connection) {
  while (auto request = wire::take(connection.in)) {
    if (up_.fd >= 0) {
      if (connection.name.empty()) {
        connection.name = std::to_string(++named_);
        clients_.emplace(connection.name, connection.fd);
      }
      request->parts.insert(request->parts.begin(),
                            {connection.name, std::string(1, static_cast<char>(request->head))});
      up_.out += wire::frame(Op::relayed, request->parts);
    } else if (request->head == static_cast<uint8_t>(Op::relayed) || request->head == static_cast<uint8_t>(Op::left)) {
      take_relayed(connection, std::move(*request));
    } else {
      perform(connection, "", *request);
    }
  }
}

/// A client that speaks wrongly costs the relay that client alone.
void StoreServer::take_relayed(Connection& connection, wire::Message request) {
  auto& parts = request.parts;
  const bool left = request.head == static_cast<uint8_t>(Op::left);
  if (parts.size() < (left ? 1 : 2) || parts[0].empty() || (!left && parts[1].size() != 1))
    throw wire::Malformed("a request of nobody");
  const std::string client = parts[0];
  if (left) return forget(connection.fd, client);
  const wire::Message own{static_cast<uint8_t>(parts[1][0]), {parts.begin() + 2, parts.end()}};
  try {
    perform(connection, client, own);
  } catch (const wire::Malformed&) {
    forget(connection.fd, client);
    connection.out += wire::frame(Status::dropped, {client});
  }
}

bool StoreServer::admit(Connection& connection) {
  const std::string& in = connection.in;
  const size_t known = std::min(in.size(), wire::kMagic.size());
  if (in.compare(0, known, wire::kMagic, 0, known) != 0 || in.size() > wire::kProof) return false;
  if (in.size() < wire::kProof) return true;
  const std::string theirs = in.substr(wire::kMagic.size(), wire::kNonce);
  Digest given{};
  std::memcpy(given.data(), in.data() + wire::kMagic.size() + wire::kNonce, given.size());
  if (!same_digest(given, wire::proof(token_, wire::End::client, connection.nonce, theirs))) {
    connection.out += std::string(wire::kAnswer, '\0');
    write(connection);
    const std::lock_guard hold(refused_lock_);
    if (refused_.empty()) refused_ = connection.peer;
    return false;
  }
  const Digest mine = wire::proof(token_, wire::End::server, connection.nonce, theirs);
  connection.out += '\1';
  connection.out += bytes_of(mine);
  connection.admitted = true;
  connection.in.clear();
  --strangers_;
  return true;
}

/// Sends what can be sent without waiting; false when the connection is over.
bool StoreServer::write(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = ::send(connection.fd, connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent < 0) break;
    connection.out.erase(0, static_cast<size_t>(sent));
  }
  const bool writes = !connection.out.empty();
  if (writes != connection.writes) watch(epoll_, EPOLL_CTL_MOD, connection.fd, writes ? EPOLLIN | EPOLLOUT : EPOLLIN);
  connection.writes = writes;
  return connection.out.size() <= kUnread;
}

namespace {

/// For a connection itself, or for a relay's client of this name.
std::string framed_for(const std::string& client, wire::Message answer) {
  if (!client.empty()) answer.parts.insert(answer.parts.begin(), client);
  return wire::frame(answer.head, answer.parts);
}

wire::Message message(Status status, std::vector<std::string> parts = {}) {
  return {static_cast<uint8_t>(status), std::move(parts)};
}

}  // namespace

void StoreServer::perform(Connection& connection, const std::string& client, const wire::Message& request) {
  ++served_;
  if (connection.awaits.contains(client)) throw wire::Malformed("a client asks one thing at a time");
  if (request.head == static_cast<uint8_t>(Op::wait)) return wait(connection, client, request.parts);
  connection.out += framed_for(client, answer(request));
}

void StoreServer::wait(Connection& connection, const std::string& client, std::vector<std::string> keys) {
  const auto missed = std::ranges::find_if(keys, [&](const auto& key) { return !values_.contains(key); });
  if (missed == keys.end()) {
    connection.out += framed_for(client, message(Status::ok));
    return;
  }
  waiting_.emplace(*missed, Waiter{connection.fd, client});
  connection.awaits[client] = std::move(keys);
}

wire::Message StoreServer::answer(const wire::Message& request) {
  struct Row {
    Op op;
    size_t parts;
  };
  constexpr Row kRows[] = {{Op::set, 2}, {Op::get, 1},   {Op::compare_set, 3},
                           {Op::add, 2}, {Op::erase, 1}, {Op::count, 0}};
  const auto op = static_cast<Op>(request.head);
  const auto& parts = request.parts;
  if (op == Op::check) return message(all_set(parts) ? Status::ok : Status::absent);
  const auto row = std::ranges::find(kRows, op, &Row::op);
  if (row == std::end(kRows) || parts.size() != row->parts) throw wire::Malformed("an unknown request");
  const auto found = parts.empty() ? values_.end() : values_.find(parts[0]);
  const bool known = found != values_.end();
  switch (op) {
    case Op::get:
      return known ? message(Status::ok, {found->second}) : message(Status::absent);
    case Op::set:
      return store(parts[0], parts[1]);
    case Op::compare_set:
      if (known ? found->second == parts[1] : parts[1].empty()) return store(parts[0], parts[2]);
      return message(Status::ok, {known ? found->second : parts[1]});
    case Op::add: {
      int64_t sum = 0, more = 0;
      if (known) std::from_chars(found->second.data(), found->second.data() + found->second.size(), sum);
      std::from_chars(parts[1].data(), parts[1].data() + parts[1].size(), more);
      if (__builtin_add_overflow(sum, more, &sum)) throw wire::Malformed("a sum beyond 64 bits");
      return store(parts[0], std::to_string(sum));
    }
    case Op::erase:
      if (known) bytes_ -= found->first.size() + found->second.size(), values_.erase(found);
      return message(known ? Status::ok : Status::absent);
    default:
      return message(Status::ok, {std::to_string(values_.size())});
  }
}

/// Sets the key and answers with its value.
wire::Message StoreServer::store(const std::string& key, const std::string& value) {
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const size_t after = bytes_ - before + key.size() + value.size();
  if (after > kLargestStore) return message(Status::refused);
  bytes_ = after;
  values_.insert_or_assign(key, value);
  wake(key);
  return message(Status::ok, {value});
}

/// Answers those that waited for this key alone; the others wait for the next that they miss.
void StoreServer::wake(const std::string& key) {
  std::vector<Waiter> waiters;
  const auto [first, last] = waiting_.equal_range(key);
  for (auto at = first; at != last; ++at) waiters.push_back(at->second);
  waiting_.erase(first, last);
  for (const Waiter& waiter : waiters) {
    Connection& connection = connections_.at(waiter.fd);
    const auto awaited = connection.awaits.find(waiter.client);
    const auto missed = std::ranges::find_if(awaited->second, [&](const auto& k) { return !values_.contains(k); });
    if (missed != awaited->second.end()) {
      waiting_.emplace(*missed, waiter);
      continue;
    }
    connection.awaits.erase(awaited);
    connection.out += framed_for(waiter.client, message(Status::ok));
    write(connection);  // one that is over shows itself when it is read
  }
}

bool StoreServer::all_set(const std::vector<std::string>& keys) const {
  return std::ranges::all_of(keys, [&](const auto& key) { return values_.contains(key); });
}

}  // namespace tessera::comm
