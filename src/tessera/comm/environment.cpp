#include "tessera/comm/environment.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "tessera/base/check.h"

namespace tessera::comm::env {

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

std::optional<int> number(const char* name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  int result = 0;
  const char* last = value->data() + value->size();
  const auto [end, error] = std::from_chars(value->data(), last, result);
  if (error != std::errc() || end != last || result < 0) refuse(std::string(name) + "=" + *value + " is not a number");
  return result;
}

std::string describe(const char* name) {
  const auto value = text(name);
  return std::string(name) + (value ? " is " + *value : " is not set");
}

void refuse(const std::string& what, const std::string& hint) {
  throw UserError(Exit::usage, "comm.rendezvous", what, hint);
}

int master_port() {
  const int port = number("MASTER_PORT").value_or(0);
  if (port > 65535) refuse("MASTER_PORT=" + std::to_string(port) + " is no port");
  return port;
}

int port_of(std::string_view job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return 10000 + static_cast<int>(hash % 20000);
}

}  // namespace tessera::comm::env
