#include "look_over.h"

#include <cstdlib>

#include "tessera/base/log.h"
#include "tessera/comm/world.h"
#include "tessera/train/recipe_checks.h"
#include "tessera/train/sampling.h"
#include "tessera/train/sources.h"

namespace tessera::apps {

train::Recipe look_over(train::Recipe recipe, int world) {
  const Mesh mesh = world == 0 ? recipe.mesh : train::fill_mesh(recipe.mesh, world);
  train::check_sources(recipe);
  for (const std::string& words : train::without_effect(recipe, mesh)) log::warn(words);
  return recipe;
}

train::Recipe look_over(train::Recipe recipe) {
  const comm::Rendezvous place = comm::Rendezvous::from_env();
  log::set_rank(place.rank, place.world);
  if (std::getenv("TESSERA_STORE") || place.rank > 0) return recipe;  // the launcher did, or rank 0 does
  return look_over(std::move(recipe), place.world);
}

}  // namespace tessera::apps
