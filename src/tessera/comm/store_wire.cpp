#include "tessera/comm/store_wire.h"

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
  if (body.size() > kLargestFrame) throw Malformed("a text of " + std::to_string(body.size()) + " bytes");
  std::string bytes;
  put(bytes, body.size());
  return bytes + body;
}

std::optional<Message> take(std::string& buffer) {
  if (buffer.size() < 4) return std::nullopt;
  const size_t size = number_at(buffer, 0);
  if (size < 1 || size > kLargestFrame) throw Malformed("a frame of " + std::to_string(size) + " bytes");
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
