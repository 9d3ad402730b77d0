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
  std::vector<double> input_grads = {};          ///< of each in the backward that makes the gradient of an input
  std::vector<double> weight_grads = {};         ///< of each that makes the gradient of a weight: frozen ones have none
  std::map<std::string, double> attention = {};  ///< FLOPs by site
  std::map<std::string, double> results = {};    ///< FLOPs of those products whose result a recompute may keep, by site
  double streamed = 0;                           ///< bytes that all other operators read and write
  int operators = 0;                             ///< how many those are
  bool backward = true;                          ///< it has one: it is trained, or something before it is
  /// Collectives inside the unit, bytes this rank sends in one forward and in one backward. Those of kind "ring" travel
  /// behind the self-attention, nothing hides the others. What the engine runs is in the schedule instead.
  std::vector<Comm> comm = {}, backward_comm = {};

  /// A product whose weight is trained or frozen, forward and backward.
  void add_product(double flops, bool trained);
  double forward_flops() const;
  /// What training needs; a backward of attention counts twice its forward, what it computes again is not counted.
  double backward_flops() const;
};

using WorkTable = std::map<std::string, UnitWork>;  ///< by UnitSpec::kind

}  // namespace tessera::plan
