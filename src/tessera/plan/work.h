#pragma once
// What a unit's forward does, by kind of operator: what the cost model turns into seconds. Pure data; the engine counts
// it by running each kind of unit once on meta tensors (engine/work.h), or it is given for a network known by sizes.
//
//   WorkTable work = {{"block", {.products = {2.0 * T * d * d}, .attention = {{"self_attn", 4.0 * T * T * d}}}}};
#include <map>
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

struct UnitWork {
  std::vector<double> products = {};             ///< FLOPs of each matrix product
  std::map<std::string, double> attention = {};  ///< FLOPs by site
  double streamed = 0;                           ///< bytes that all other operators read and write
  int operators = 0;                             ///< how many those are
  double backward_products = 2;  ///< products of a backward for each of the forward; 1 where the weights are frozen
  /// Collectives inside the unit that nothing hides (tensor parallelism), bytes this rank sends in one forward; its
  /// backward sends the same again.
  std::vector<Comm> comm = {};
};

using WorkTable = std::map<std::string, UnitWork>;  ///< by UnitSpec::kind

}  // namespace tessera::plan
