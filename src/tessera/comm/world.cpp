#include "tessera/comm/world.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tessera/base/check.h"

namespace tessera::comm {

namespace {

constexpr const char* kHint = "start ranks with tessera launch or torchrun";

int number(const char* name, int absent) {
  const char* text = std::getenv(name);
  if (!text || !*text) return absent;
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end || value < 0)
    throw UserError(Exit::usage, "comm.rendezvous", std::string(name) + "=" + text + " is not a number", kHint);
  return value;
}

bool is(const char* name, std::string_view value) {
  const char* text = std::getenv(name);
  return text && value == text;
}

}  // namespace

Rendezvous Rendezvous::from_env() {
  Rendezvous place;
  place.world = number("WORLD_SIZE", 1);
  place.rank = number("RANK", place.world > 1 ? -1 : 0);
  if (place.rank < 0 || place.rank >= place.world)
    throw UserError(Exit::usage, "comm.rendezvous",
                    "WORLD_SIZE is " + std::to_string(place.world) + " and RANK is " +
                        (place.rank < 0 ? "not set" : std::to_string(place.rank)),
                    kHint);
  place.local_rank = number("LOCAL_RANK", place.rank);
  place.local_world = number("LOCAL_WORLD_SIZE", place.world);
  if (const char* host = std::getenv("MASTER_ADDR")) place.host = host;
  place.port = number("MASTER_PORT", 0);
  if (place.world > 1 && (place.port == 0 || place.port > 65535))
    throw UserError(
        Exit::usage, "comm.rendezvous",
        place.port == 0 ? "MASTER_PORT is not set" : "MASTER_PORT=" + std::to_string(place.port) + " is no port",
        kHint);
  place.store_is_hosted = is("TESSERA_STORE", "launcher") || is("TORCHELASTIC_USE_AGENT_STORE", "True");
  place.attempt = number("TORCHELASTIC_RESTART_COUNT", 0);
  return place;
}

}  // namespace tessera::comm
