#include "tessera/train/elastic.h"

#include <numeric>

#include "tessera/base/check.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/sample/sampling.h"

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

}  // namespace tessera::train
