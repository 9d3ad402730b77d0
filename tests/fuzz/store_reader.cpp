// The rendezvous store's frames: what a client sends to a store that serves, and what either end takes off a buffer.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "fuzz/readers.h"
#include "tessera/base/check.h"
#include "tessera/comm/store_server.h"
#include "tessera/comm/store_wire.h"

namespace tessera::fuzz {

namespace {

using comm::wire::frame;
using comm::wire::Op;

/// Either end's own part: frames are those that they were made of, or Malformed.
void take_frames(std::string buffer) {
  try {
    for (std::string before = buffer; auto message = comm::wire::take(buffer); before = buffer)
      check_internal(frame(message->head, message->parts) + buffer == before, "fuzz",
                     "a frame is not that of its parts");
  } catch (const comm::wire::Malformed&) {
  }
}

class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<in_port_t>(port));
    check_internal(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "fuzz", "no connection");
    const std::string hello = read(comm::wire::kHello);
    check_internal(hello.size() == comm::wire::kHello, "fuzz", "the store does not greet");
    const std::string mine(comm::wire::kNonce, 'n'), theirs = hello.substr(comm::wire::kMagic.size() + 1);
    send(std::string(comm::wire::kMagic) + mine +
         std::string(bytes_of(comm::wire::proof("", comm::wire::End::client, theirs, mine))));
    check_internal(read(comm::wire::kAnswer).size() == comm::wire::kAnswer, "fuzz", "the store admits nobody");
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;

  void send(const std::string& bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void end() const { shutdown(fd_, SHUT_WR); }
  std::string read(size_t bytes) const {
    std::string text(bytes, '\0');
    size_t have = 0;
    for (pollfd waiting{fd_, POLLIN, 0}; have < bytes && poll(&waiting, 1, 20'000) == 1;) {
      const ssize_t got = recv(fd_, text.data() + have, bytes - have, 0);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    return text.substr(0, have);
  }
  void read_all() const {
    while (!read(1 << 16).empty()) {
    }
  }

 private:
  const int fd_;
};

struct Host {
  comm::Listener listener = *comm::listen_at("127.0.0.1", 0);
  comm::StoreServer server{listener, ""};
  Connection other{listener.port};
};

/// Whatever one client sends, another is answered.
void serve(const std::string& bytes, const std::string&) {
  take_frames(bytes);
  static std::unique_ptr<Host> host;
  static int served = 0;
  if (served++ % 2000 == 0) host.reset(), host = std::make_unique<Host>();  // what it stores is not kept for ever
  {
    const Connection client(host->listener.port);
    client.send(bytes);
    client.end();
    client.read_all();
  }
  host->other.send(frame(Op::set, {"mine", "value"}));
  const std::string expected = frame(comm::wire::Status::ok, {"value"});
  check_internal(host->other.read(expected.size()) == expected, "fuzz", "the store no longer answers");
}

}  // namespace

std::vector<Reader> store_readers() {
  std::string all;
  const std::vector<std::string> words = {frame(Op::set, {"key", "1"}),
                                          frame(Op::get, {"key"}),
                                          frame(Op::compare_set, {"key", "1", "2"}),
                                          frame(Op::add, {"key", "3"}),
                                          frame(Op::erase, {"key"}),
                                          frame(Op::check, {"key", "other"}),
                                          frame(Op::add, {"key", "9223372036854775807"}),
                                          frame(Op::count, {}),
                                          frame(Op::wait, {"key", "other"})};
  for (const std::string& word : words) all += word;
  return {{"store", serve, ".bin", {all}, words}};
}

}  // namespace tessera::fuzz
