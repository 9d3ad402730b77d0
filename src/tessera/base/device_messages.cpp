#include "tessera/base/device_messages.h"

#include <algorithm>

namespace tessera {

namespace {

/// Of messages of at most a few MiB, which no bandwidth is for.
constexpr int kFewChannels = 4;

constexpr std::string_view kGathers[] = {"gather", "gather_outer"};
constexpr std::string_view kSums[] = {"reduce", "reduce_outer", "reduce_whole", "sums"};
/// Sums of norms, states of linear attention, the rows that a convolution reaches, values of a step.
constexpr std::string_view kSmall[] = {"norms", "states", "reach", "tokens", "sums", "results"};

bool is_of(std::string_view purpose, const auto& purposes) {
  return std::ranges::find(purposes, purpose) != std::end(purposes);
}

}  // namespace

std::vector<int> DeviceMessages::peers_of(int index, int size) const {
  std::vector<int> found;
  const int before = (index + size - 1) % size, after = (index + 1) % size;
  for (int i = 0; i < size; ++i)
    if (i != index && (peers == Peers::all || (peers == Peers::neighbours && (i == before || i == after))))
      found.push_back(i);
  return found;
}

DeviceMessages device_messages(std::string_view purpose, bool library_sums) {
  DeviceMessages messages;
  if (is_of(purpose, kGathers) || (library_sums && is_of(purpose, kSums)))
    messages = {DeviceMessages::Peers::none, /*rings=*/true};
  else if (purpose == "ring")
    messages.peers = DeviceMessages::Peers::neighbours;
  if (is_of(purpose, kSmall)) messages.channels = kFewChannels;
  return messages;
}

}  // namespace tessera
