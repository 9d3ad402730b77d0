#pragma once
// The ranks of a run as one of them sees them: its place, the mesh, its connections, and what all do together between
// steps.
//
//   Ranks ranks(place, recipe.mesh, recipe.fault.timeout);
//   if (ranks.of_first(missing)) ...                                              // rank 0 has looked
//   ranks.first_acts(step, "writing a sample", "waiting for a sample", [&] { write(); });
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/prepare/pace.h"
#include "tessera/train/rank_watch.h"

namespace tessera::train {

/// The mesh of a run that may continue with fewer ranks than its recipe names (tessera launch --min-nodes).
/// fill_mesh(asked, place.world) when all ranks are there. Else the mesh of all ranks with fewer samples at once: the
/// other axes keep their sizes, dp_shard shrinks, and where that does not go dp_replicate does. The global batch and so
/// the curve stay. Throws UserError (usage) when the ranks that are left cannot hold one copy of the other axes.
Mesh elastic_mesh(const Mesh& asked, const comm::Rendezvous& place);

class Ranks {
 public:
  /// Connects to the others. `timeout`: fault.timeout.
  Ranks(const comm::Rendezvous& place, const Mesh& asked, double timeout);

  const comm::Rendezvous place;
  const Mesh mesh;
  RankWatch watch;
  comm::Comm comm;

  int rank() const { return place.rank; }
  /// It does what is done once.
  bool first() const { return place.rank == 0; }
  comm::Group& all() { return comm.group("control", {kAllAxes.begin(), kAllAxes.end()}); }
  /// Row r: what rank r gave. All ranks together, as all that follows.
  std::vector<std::vector<double>> gather(const std::vector<double>& own) { return all().all_gather_doubles(own); }
  /// What rank 0 has, on every rank.
  bool of_first(bool own) { return gather({own ? 1. : 0.})[0][0] > 0; }
  std::string of_first(std::string own);

  /// Between steps a rank may write, decode or encode for longer than fault.timeout: the others wait for it in barriers
  /// of the pace, the last of them here.
  void wait_for_slowest(const std::function<void(prepare::Pace&)>& act);
  /// A barrier of the pace; the launcher is told that this rank waits.
  void meet(prepare::Pace& pace);
  /// Rank 0 acts and the others wait for it. What each is said to do meanwhile: `doing`, `waiting`.
  void first_acts(int64_t step, const std::string& doing, const std::string& waiting, const std::function<void()>& act);

 private:
  const double timeout_;
};

}  // namespace tessera::train
