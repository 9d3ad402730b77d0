#include "tessera/comm/world.h"

#include "tessera/comm/environment.h"
#include "tessera/comm/mpi.h"
#include "tessera/comm/slurm.h"

namespace tessera::comm {

namespace {

/// Variables of torchrun, which our launcher sets too.
Rendezvous from_torchrun() {
  Rendezvous place;
  place.world = env::number("WORLD_SIZE").value_or(1);
  const auto rank = env::number("RANK");
  if (!rank && place.world > 1) env::refuse(env::describe("WORLD_SIZE") + " and RANK is not set");
  place.rank = rank.value_or(0);
  if (place.rank >= place.world) env::refuse(env::describe("WORLD_SIZE") + " and " + env::describe("RANK"));
  place.local_rank = env::number("LOCAL_RANK").value_or(place.rank);
  place.local_world = env::number("LOCAL_WORLD_SIZE").value_or(place.world);
  if (place.local_world > place.world || place.local_rank >= place.local_world)
    env::refuse(env::describe("LOCAL_RANK") + ", " + env::describe("LOCAL_WORLD_SIZE") + " and " +
                env::describe("WORLD_SIZE"));
  place.port = env::master_port();
  if (const auto host = env::text("MASTER_ADDR"))
    place.host = *host;
  else if (place.local_world < place.world)
    env::refuse("MASTER_ADDR is not set and " + std::to_string(place.world - place.local_world) +
                " of the ranks are on other machines");
  if (!place.single() && place.port == 0) env::refuse("MASTER_PORT is not set");
  place.store_is_hosted =
      env::text("TESSERA_STORE") == "launcher" || env::text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  place.attempt = env::number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  place.asked_world = env::number("TESSERA_ASKED_WORLD").value_or(0);
  return place;
}

}  // namespace

// A launcher inside an allocation determines its ranks, so torchrun's variables come first. mpirun starts its helpers
// with srun, whose variables its ranks inherit, so mpirun comes before Slurm.
Rendezvous rendezvous_from_env() {
  if (env::text("RANK")) return from_torchrun();
  auto place = from_mpi();
  if (!place) place = from_slurm();
  if (!place) return from_torchrun();
  // Batch scripts often export WORLD_SIZE for programs that need it.
  if (const auto world = env::number("WORLD_SIZE"); world && *world != place->world)
    env::refuse(env::describe("WORLD_SIZE") + ", but the variables of mpirun or Slurm say " +
                    std::to_string(place->world) + " ranks",
                "leave WORLD_SIZE unset");
  return *place;
}

}  // namespace tessera::comm
