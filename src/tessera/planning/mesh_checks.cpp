#include "tessera/planning/mesh_checks.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/net/adapters.h"

namespace tessera::planning {

Mesh fill_mesh(Mesh mesh, int world) {
  const int fixed = mesh.world();
  if (mesh[Axis::dp_shard] == 1 && world % fixed == 0) mesh[Axis::dp_shard] = world / fixed;
  if (mesh.world() != world)
    throw UserError(Exit::usage, "mesh",
                    "the mesh " + mesh.to_string() + " has " + std::to_string(mesh.world()) + " ranks, " +
                        std::to_string(world) + " were started",
                    "start as many with tessera launch -n, or change [mesh]");
  return mesh;
}

namespace {

/// Greatest common divisor of the widths that tensor parallelism shards; 1 for a model without sharded linears.
int64_t cut_widths(const net::Denoiser& model) {
  int64_t divisor = 0;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params)
      if (param.split != plan::Split::none)
        divisor = std::gcd(divisor, param.shape[param.split == plan::Split::column_parallel ? 0 : 1]);
  return std::max<int64_t>(divisor, 1);
}

/// The matrices of a LoKr are cut where whole rows or columns of its blocks are a rank's.
void check_factors(const Mesh& mesh, const net::Denoiser& model) {
  const int64_t tp = mesh[Axis::tp];
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) {
      if (param.split == plan::Split::none || !net::is_adapter_parameter(param.name)) continue;
      const int64_t width = param.shape[param.split == plan::Split::column_parallel ? 0 : 1];
      if (width % tp == 0) continue;
      throw UserError(Exit::usage, "mesh",
                      "tp = " + std::to_string(tp) + " cuts " + param.name + " into parts of its " +
                          std::to_string(width) + (param.split == plan::Split::column_parallel ? " rows" : " columns") +
                          ", which are not equal",
                      "use sp or cp in place of tp, or a lora.factor that tp divides");
    }
}

}  // namespace

plan::LayoutBounds layout_bounds(const net::Denoiser& model, const std::array<int64_t, 4>& latent) {
  plan::LayoutBounds bounds;
  bounds.heads = model.heads();
  bounds.features = cut_widths(model);
  bounds.units = static_cast<int>(model.units().size());
  bounds.tokens = latent[0] > 0 ? model.token_count(latent) : 0;
  return bounds;
}

void check_mesh(const Mesh& mesh, const net::Denoiser& model, const std::array<int64_t, 4>& latent) {
  check_factors(mesh, model);
  if (const auto conflict = plan::conflict(mesh, layout_bounds(model, latent)))
    throw UserError(Exit::usage, "mesh", conflict->found, conflict->hint);
}

}  // namespace tessera::planning
