#pragma once
// The mesh of a run that continues with fewer ranks than its recipe names (tessera launch --min-nodes).
//
//   Mesh mesh = elastic_mesh(recipe.mesh, place);       // dp_shard = 8 of 8 ranks; 4 when half of them are gone
#include "tessera/base/mesh.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::train {

/// fill_mesh(asked, place.world) when all ranks are there. Else the mesh of all ranks with fewer samples at once: the
/// other axes keep their sizes, dp_shard shrinks, and where that does not go dp_replicate does. The global batch and so
/// the curve stay. Throws UserError (usage) when the ranks that are left cannot hold one copy of the other axes.
Mesh elastic_mesh(const Mesh& asked, const comm::Rendezvous& place);

}  // namespace tessera::train
