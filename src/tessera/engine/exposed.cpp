#include "tessera/engine/exposed.h"

#include <algorithm>
#include <utility>

namespace tessera::engine {

namespace {

/// The counter for waiting on the lane; null for lanes that compute, on the device or on the host.
double* share_of(Exposed& exposed, plan::Lane lane) {
  switch (lane) {
    case plan::Lane::gather:
    case plan::Lane::reduce:
    case plan::Lane::control:
      return &exposed.comm;
    case plan::Lane::h2d:
    case plan::Lane::d2h:
    case plan::Lane::disk:
      return &exposed.copy;
    case plan::Lane::send_next:
    case plan::Lane::recv_prev:
    case plan::Lane::send_prev:
    case plan::Lane::recv_next:
      return &exposed.stages;
    default:
      return nullptr;
  }
}

}  // namespace

std::vector<double> waited_for(const std::vector<plan::Instruction>& list,
                               const std::vector<std::array<double, 2>>& times) {
  std::vector<double> waited(list.size());
  const int count = static_cast<int>(list.size());
  std::vector<int> before(list.size(), -1);  // on the same lane
  std::array<int, plan::kLaneCount> newest;
  newest.fill(-1);
  for (int i = 0; i < count; ++i) before[i] = std::exchange(newest[static_cast<size_t>(list[i].lane)], i);
  const auto later = [&](int a, int b) { return a < 0 || (b >= 0 && times[b][1] > times[a][1]) ? b : a; };
  const auto last_of = [&](const plan::Waits& wait, int found) {
    for (int w : wait) found = later(found, w);
    return found;
  };
  // Each link of the chain counts from when it could begin: the time that a gather waits for the disk counts as the
  // disk's.
  const auto blame = [&](int i, double from, double to) {
    while (i >= 0 && to > from) {
      const int earlier = last_of(list[i].wait, before[i]);
      const double begin = earlier < 0 ? from : std::clamp(times[earlier][1], from, to);
      waited[i] += to - begin;
      to = begin, i = earlier;
    }
  };
  double computed = 0;
  for (int i = 0; i < count; ++i) {
    if (list[i].lane != plan::Lane::compute) continue;
    const int awaited = last_of(list[i].wait, -1);
    if (awaited >= 0) blame(awaited, computed, std::min(times[awaited][1], times[i][0]));
    computed = times[i][1];
  }
  int end = -1;  // the step ends with its last instruction, on whichever lane
  for (int i = 0; i < count; ++i) end = later(end, i);
  if (end >= 0) blame(end, computed, times[end][1]);
  return waited;
}

Exposed exposed_time(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times,
                     const std::vector<double>& waited) {
  Exposed exposed;
  double ready = 0;  // when the compute lane could begin its next instruction
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].lane != plan::Lane::compute) continue;
    for (const int awaited : list[i].wait) ready = std::max(ready, times[static_cast<size_t>(awaited)][1]);
    exposed.dispatch += std::max(0.0, times[i][0] - ready);
    ready = times[i][1];
  }
  for (size_t i = 0; i < list.size(); ++i)
    if (double* share = share_of(exposed, list[i].lane)) *share += waited[i];
  return exposed;
}

}  // namespace tessera::engine
