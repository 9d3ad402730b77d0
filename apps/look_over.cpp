#include "look_over.h"

#include <cstdlib>

#include "tessera/base/log.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/job/given_checks.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/recipe/recipe_file.h"
#include "tessera/sample/sampling.h"

namespace tessera::apps {

recipe::Recipe look_over(recipe::Recipe recipe, int world, job::Missing missing) {
  const Mesh mesh = world == 0 ? recipe.mesh : planning::fill_mesh(recipe.mesh, world);
  job::check_sources(recipe, missing);
  for (const std::string& words : job::without_effect(recipe, mesh)) log::warn(words);
  return recipe;
}

recipe::Recipe look_over(recipe::Recipe recipe) {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  log::set_rank(place.rank, place.world);
  if (std::getenv("TESSERA_STORE") || place.rank > 0) return recipe;  // the launcher did, or rank 0 does
  return look_over(std::move(recipe), place.world);
}

}  // namespace tessera::apps
