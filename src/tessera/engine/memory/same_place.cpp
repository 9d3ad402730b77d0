#include "tessera/engine/memory/same_place.h"

#include <algorithm>

namespace tessera::engine {

namespace {
thread_local int64_t place = -1;
}  // namespace

SamePlace::SamePlace(comm::Comm& comm, int64_t bytes) {
  if (!comm.by_device()) return;
  comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  for (int64_t from = 0;;) {
    std::vector<double> found;
    for (const auto& row : all.all_gather_doubles({static_cast<double>(free_place(bytes, from))}))
      found.push_back(row[0]);
    const auto [least, most] = std::ranges::minmax(found);
    if (least < 0) return;
    from = static_cast<int64_t>(most);
    if (least != most) continue;
    place = from;
    return;
  }
}
SamePlace::~SamePlace() { place = -1; }
int64_t SamePlace::wanted() { return place; }

}  // namespace tessera::engine
