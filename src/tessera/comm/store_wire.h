#pragma once
// What passes between the two ends of the rendezvous store. Internal to the room. [Note: the rendezvous store] is in
// store.h.
//
//   std::string bytes = wire::frame(Op::set, {"rank 3", "10.0.0.7"});
//   while (auto message = wire::take(buffer)) ...        // throws wire::Malformed
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/sha256.h"

namespace tessera::comm::wire {

inline constexpr std::string_view kMagic = "tessera store 1\n";
inline constexpr size_t kNonce = 32;
/// magic, whether a token is needed (0 or 1), the server's nonce
inline constexpr size_t kHello = kMagic.size() + 1 + kNonce;
/// magic, the client's nonce, its proof
inline constexpr size_t kProof = kMagic.size() + kNonce + sizeof(Digest);
/// whether the client is admitted (0 or 1), the server's proof
inline constexpr size_t kAnswer = 1 + sizeof(Digest);

/// Who proves: the ends' proofs differ, so that none can be sent back as one's own.
enum class End { client, server };
Digest proof(std::string_view token, End end, std::string_view server_nonce, std::string_view client_nonce);
std::string nonce();  ///< kNonce random bytes

enum class Op : uint8_t { set, get, compare_set, add, erase, check, count, wait };
enum class Status : uint8_t { ok, absent, refused };

struct Message {
  uint8_t head = 0;  ///< Op of a request, Status of an answer
  std::vector<std::string> parts;
};
/// Larger frames, and those that contradict themselves, end the connection.
inline constexpr size_t kLargestFrame = 16 << 20;
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string frame(uint8_t head, const std::vector<std::string>& parts);
inline std::string frame(Op op, const std::vector<std::string>& parts) {
  return frame(static_cast<uint8_t>(op), parts);
}
inline std::string frame(Status status, const std::vector<std::string>& parts) {
  return frame(static_cast<uint8_t>(status), parts);
}
/// Takes the first frame off the buffer; empty while it is not whole.
std::optional<Message> take(std::string& buffer);

}  // namespace tessera::comm::wire
