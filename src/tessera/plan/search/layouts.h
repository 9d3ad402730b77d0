#pragma once
// The meshes that a number of ranks allows, and the fastest of them.
//
//   const auto found = search_layouts(
//       {.world = 128, .node = 8, .heads = 40, .features = 1280, .units = 42, .tokens = T}, input,
//       [&](const Mesh& mesh) { return OnMesh{{model_of(mesh), machine}, budget_of(mesh), host_budget}; });
//   found.front().mesh; found.front().choice.seconds;
//
// [Note: the search for layouts] The search decides how many ranks share a sample (pp x cp x sp x tp) and how. It tries
// few ranks first, then twice as many, while that is faster or nothing fits, and then more on each axis of the fastest.
// Each mesh takes the first plan that fits, with shards within a node if they fit there. The fastest few meshes are then
// planned in full by `choose`, with all degrees of sharding, and beside them the fastest of each degree of each axis that
// these lack, as long as that may be faster: at most six. Excluded: sp x tp across nodes, whose exchanges are not
// overlapped, and more dp ranks than samples.
#include <functional>
#include <vector>

#include "tessera/plan/search/planner.h"

namespace tessera::plan {

struct LayoutBounds {
  int world = 1;         ///< ranks
  int node = 0;          ///< ranks on a node; 0: all
  int64_t heads = 1;     ///< sp x tp must divide it
  int64_t features = 1;  ///< tp must divide it; 1: the model declares no sharded linears
  int units = 1;         ///< upper bound of pp
  int64_t tokens = 0;    ///< of a sample, upper bound of cp x sp x tp; 0: checked elsewhere
};

/// Why a mesh is impossible, with the nearest possible values; empty if it is possible.
struct Conflict {
  std::string found;  ///< "sp = 3 does not divide the model's 40 heads"
  std::string hint;   ///< "use sp = 2 or sp = 4: ..."
};
std::optional<Conflict> conflict(const Mesh& mesh, const LayoutBounds& bounds);

/// Meshes of `world` ranks by how they share samples, with dp_replicate 1 and dp_shard the rest. Fewest ranks a sample
/// first.
std::vector<Mesh> sample_sharings(const LayoutBounds& bounds, int64_t global_batch);
/// The mesh with its dp ranks sharded within one node, over four nodes and over all, where these differ.
std::vector<Mesh> shardings(const Mesh& mesh, int node);

/// A model as seen by the ranks of a mesh: its memory and its work.
struct Measured {
  ModelSpec model;
  Machine machine;
};
/// A mesh's ranks: what they see, and the memory that each of them has.
struct OnMesh {
  Measured measured;
  int64_t budget = 0, host_budget = 0;  ///< as in PlannerInput
};
struct Layout {
  Mesh mesh;
  Choice choice;
  bool planned = false;  ///< by the full planner; else by the first plan that fits
};
/// All meshes that were tried: those that fit first, fastest first. The budgets of `input` are not read. `finalists`:
/// number of ways of sharing a sample that are planned in full for their own time, before those of other degrees.
std::vector<Layout> search_layouts(const LayoutBounds& bounds, const PlannerInput& input,
                                   const std::function<OnMesh(const Mesh&)>& on_mesh, int finalists = 2);

}  // namespace tessera::plan
