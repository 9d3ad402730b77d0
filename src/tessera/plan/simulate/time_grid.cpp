#include "tessera/plan/simulate/time_grid.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"

namespace tessera::plan {

double TimeGrid::at(const std::string& kind, const std::vector<double>& sizes) const {
  check_internal(sizes.size() == axes.size() && seconds.contains(kind), "plan.profile", "no times of " + kind);
  const std::vector<double>& times = seconds.at(kind);
  std::vector<size_t> below(axes.size());  // index of the point below
  std::vector<double> part(axes.size());   // of the way to the next point, on a logarithmic scale
  double beyond = 1;
  for (size_t a = 0; a < axes.size(); ++a) {
    const std::vector<double>& axis = axes[a];
    const double size = std::clamp(sizes[a], axis.front(), axis.back());
    beyond *= sizes[a] / size;
    if (axis.size() == 1) continue;
    const auto next = std::upper_bound(axis.begin() + 1, axis.end() - 1, size);
    below[a] = static_cast<size_t>(next - axis.begin()) - 1;
    part[a] = std::log(size / axis[below[a]]) / std::log(*next / axis[below[a]]);
  }
  double sum = 0;
  for (size_t corner = 0; corner < size_t{1} << axes.size(); ++corner) {
    double weight = 1;
    size_t index = 0;
    for (size_t a = 0; a < axes.size(); ++a) {
      const bool upper = corner >> a & 1;
      weight *= upper ? part[a] : 1 - part[a];
      index = index * axes[a].size() + std::min(below[a] + upper, axes[a].size() - 1);
    }
    if (weight != 0) sum += weight * std::log(times[index]);
  }
  return beyond * std::exp(sum);
}

}  // namespace tessera::plan
