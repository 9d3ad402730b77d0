#pragma once
// Measured times by signature: the seconds of a call at each point of a grid of its sizes, by kind of call.
//
//   TimeGrid grid{.axes = {{16, 256}, {512}, {512}}, .seconds = {{"forward", {40e-6, 500e-6}}}};
//   grid.at("forward", {64, 512, 1024});      // between the points, and beyond them at the rate of the nearest
#include <map>
#include <string>
#include <vector>

namespace tessera::plan {

struct TimeGrid {
  std::vector<std::vector<double>> axes = {};               ///< sizes above zero, ascending
  std::map<std::string, std::vector<double>> seconds = {};  ///< one a point, the last axis runs fastest
  bool empty() const { return seconds.empty(); }
  /// Seconds of a call of these sizes, one for each axis: times are powers of sizes between neighbouring points, and grow
  /// with each size beyond the first and last. `kind` must be known.
  double at(const std::string& kind, const std::vector<double>& sizes) const;
  bool operator==(const TimeGrid&) const = default;
};

}  // namespace tessera::plan
