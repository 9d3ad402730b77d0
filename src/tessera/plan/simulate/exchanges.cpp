#include "tessera/plan/simulate/exchanges.h"

#include <algorithm>

namespace tessera::plan {

std::vector<double> exposed(const std::vector<Exchange>& exchanges) {
  std::vector<double> open(exchanges.size()), ends(exchanges.size());
  std::vector<size_t> under_way;  // begun and not awaited, in order
  double waited = 0, lane = 0;    // seconds of waits so far; when the lane has sent what it was given
  const auto wait = [&](size_t i) {
    open[i] = std::max(0.0, ends[i] - (exchanges[i].awaited + waited));
    waited += open[i];
  };
  const auto wait_until = [&](double place) {
    size_t done = 0;
    for (; done < under_way.size() && exchanges[under_way[done]].awaited <= place; ++done) wait(under_way[done]);
    under_way.erase(under_way.begin(), under_way.begin() + static_cast<std::ptrdiff_t>(done));
  };
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const Exchange& e = exchanges[i];
    wait_until(e.begun);
    const double now = e.begun + waited;
    if (e.awaited <= e.begun && under_way.empty()) {
      open[i] = e.seconds, waited += e.seconds;
      lane = std::max(lane, now + e.seconds);
      continue;
    }
    ends[i] = std::max(lane, now) + e.seconds;
    lane = ends[i];
    under_way.push_back(i);
  }
  for (const size_t i : under_way) wait(i);
  return open;
}

}  // namespace tessera::plan
