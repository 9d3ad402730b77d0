// The rendezvous store's frames: what a client sends to a store that serves, and what either end takes off a buffer.
#include <memory>

#include "comm/raw_connection.h"
#include "fuzz/readers.h"
#include "tessera/base/check.h"
#include "tessera/comm/store_server.h"

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

/// One that the store has admitted.
class Connection : public testing::RawConnection {
 public:
  explicit Connection(int port) : RawConnection(port) {
    const std::string hello = read(comm::wire::kHello);
    check_internal(hello.size() == comm::wire::kHello, "fuzz", "the store does not greet");
    const std::string mine(comm::wire::kNonce, 'n'), theirs = hello.substr(comm::wire::kMagic.size() + 1);
    send(std::string(comm::wire::kMagic) + mine +
         std::string(bytes_of(comm::wire::proof("", comm::wire::End::client, theirs, mine))));
    check_internal(read(comm::wire::kAnswer).size() == comm::wire::kAnswer, "fuzz", "the store admits nobody");
  }
  void read_all() const {
    while (!read(1 << 16).empty()) {
    }
  }
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
