#pragma once
// The meshes that so many ranks can have, and the fastest of them.
//
//   const auto found = search_layouts({.world = 128, .node = 8, .heads = 40, .features = 1280, .units = 42, .tokens =
//   T},
//                                     input, [&](const Mesh& mesh) { return Measured{model_of(mesh), machine}; });
//   found.front().mesh; found.front().choice.seconds;
//
// [Note: the search for layouts] What is looked for is how many ranks share a sample (pp x cp x sp x tp) and how. Few
// are tried first, then twice as many, as long as that is faster or nothing fits; each mesh with the first plan that
// fits, its shards within a node where they fit there. The fastest few are then planned as `choose` does, with all ways
// of sharding. Left out: sp x tp beyond a node, whose exchanges nothing hides, and more dp ranks than samples, of which
// some idle.
#include <functional>
#include <vector>

#include "tessera/plan/search/planner.h"

namespace tessera::plan {

struct LayoutBounds {
  int world = 1;         ///< ranks
  int node = 0;          ///< of them on a node; 0: all
  int64_t heads = 1;     ///< sp x tp divides them
  int64_t features = 1;  ///< tp divides them; 1: the model says of no linear how it is cut
  int units = 1;         ///< pp is at most their number
  int64_t tokens = 0;    ///< of a sample: cp x sp x tp ranks share them; 0: left to others
};

/// Why a mesh cannot be, with the nearest values that can; empty when it can.
struct Conflict {
  std::string found;  ///< "sp = 3 does not divide the model's 40 heads"
  std::string hint;   ///< "use sp = 2 or sp = 4: ..."
};
std::optional<Conflict> conflict(const Mesh& mesh, const LayoutBounds& bounds);

/// Ways of `world` ranks to share samples: dp_replicate is 1, dp_shard what is left. Fewer ranks a sample first.
std::vector<Mesh> sample_sharings(const LayoutBounds& bounds, int64_t global_batch);
/// The mesh with its dp ranks sharded within a node, over four nodes and over all, where these differ.
std::vector<Mesh> shardings(const Mesh& mesh, int node);

/// A model as ranks of a mesh see it: what their tensors take and what they compute.
struct Measured {
  ModelSpec model;
  Machine machine;
};
struct Layout {
  Mesh mesh;
  Choice choice;
  bool planned = false;  ///< with all of the planner; else by the first plan that fits
};
/// All that were tried: those that fit first, the fastest first. `finalists`: how many ways of sharing a sample are
/// planned in full.
std::vector<Layout> search_layouts(const LayoutBounds& bounds, const PlannerInput& input,
                                   const std::function<Measured(const Mesh&)>& measure, int finalists = 2);

}  // namespace tessera::plan
