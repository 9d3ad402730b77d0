#include "tessera/train/ranks.h"

#include <numeric>

#include "tessera/base/check.h"
#include "tessera/planning/mesh_checks.h"

namespace tessera::train {

Mesh elastic_mesh(const Mesh& asked, const comm::Rendezvous& place) {
  if (place.asked_world <= place.world) return planning::fill_mesh(asked, place.world);
  Mesh mesh = planning::fill_mesh(asked, place.asked_world);
  const int model = mesh.world() / mesh.dp_size();  // ranks of one copy, as far as samples go
  if (place.world % model != 0)
    throw UserError(Exit::usage, "mesh",
                    std::to_string(place.world) + " of " + std::to_string(place.asked_world) +
                        " ranks are left, and mesh " + mesh.to_string() + " needs a multiple of " +
                        std::to_string(model),
                    "start the missing nodes, or choose pp, cp, sp and tp that fit one node");
  const int dp = place.world / model;
  mesh[Axis::dp_replicate] = std::gcd(mesh[Axis::dp_replicate], dp);
  mesh[Axis::dp_shard] = dp / mesh[Axis::dp_replicate];
  return mesh;
}

Ranks::Ranks(const comm::Rendezvous& place, const Mesh& asked, double timeout)
    : place(place), mesh(elastic_mesh(asked, place)), watch(place), comm(place, mesh, timeout), timeout_(timeout) {
  watch.follow(comm);
}

std::string Ranks::of_first(std::string own) {
  own.resize(static_cast<size_t>(gather({static_cast<double>(own.size())})[0][0]));
  all().broadcast(at::from_blob(own.data(), {static_cast<int64_t>(own.size())}, at::kChar), 0);
  return own;
}

void Ranks::wait_for_slowest(const std::function<void(prepare::Pace&)>& act) {
  // Our launcher, where there is one, names such a rank before the pace does.
  const prepare::Pace::Seconds longest(RankWatch::kSlowWork * timeout_ + 10);
  prepare::Pace pace(comm, mesh, {}, prepare::Pace::kTold, longest);
  try {
    pace.run([&] {
      act(pace);
      meet(pace);
    });
  } catch (const UserError&) {
    if (!pace.failed_elsewhere()) throw;
    throw UserError(Exit::rank_lost, "ranks", "another rank failed while this one waited for it",
                    "see that rank's message");
  }
}

void Ranks::meet(prepare::Pace& pace) {
  all().waits(true);
  try {
    pace.barrier();
  } catch (...) {
    all().waits(false);
    throw;
  }
  all().waits(false);
}

void Ranks::first_acts(int64_t step, const std::string& doing, const std::string& waiting,
                       const std::function<void()>& act) {
  wait_for_slowest([&](prepare::Pace&) {
    watch.phase(step, first() ? doing : waiting, RankWatch::kSlowWork);
    if (first()) act();
  });
}

}  // namespace tessera::train
