#include "tessera/train/prepare.h"
#include "commands.h"
#include "tessera/base/log.h"
#include "tessera/train/sampling.h"

namespace tessera::apps {

Command prepare_command() {
  Command c;
  c.name = "prepare";
  c.summary = "Encodes clips and captions into the cache; only what is missing, so a killed one goes on.";
  c.usage = "prepare RECIPE [--table.key VALUE ...]";
  c.example = "tessera launch -n 2 prepare recipes/wan-tiny_demo_cpu.toml";
  c.recipe_keys = true;
  c.flags = {{"--rebuild", "", "make entries anew that are stale or damaged"},
             {"--strict", "", "stop at the first faulty row (data.strict)"}};
  c.run = [](const Arguments& arguments) {
    train::Overrides overrides = arguments.overrides;
    if (arguments.has("--strict")) overrides.emplace_back("data.strict", "true");
    const train::Recipe recipe = train::load_recipe(arguments.only_word("recipe"), overrides);
    engine::Meter::install();
    const comm::Rendezvous place = comm::Rendezvous::from_env();
    log::set_rank(place.rank, place.world);
    const Mesh mesh = train::fill_mesh(recipe.mesh, place.world);
    comm::Comm comm(place, mesh, recipe.fault.timeout);
    const train::Job job = train::make_job(recipe);
    const train::PreparedData data =
        train::prepare(recipe, job, mesh, comm, place.rank, {.rebuild = arguments.has("--rebuild"), .tolerant = true});
    log::info("prepare: " + std::to_string(data.size()) + " samples ready " +
              (recipe.data.online() ? "to be encoded when they come" : "in " + recipe.data.cache));
    if (data.problems() > recipe.data.allow_bad)
      log::info("prepare: `tessera train` refuses to leave out " + std::to_string(data.problems()) +
                " rows unless data.allow_bad says so");
    comm.barrier();
    return 0;
  };
  return c;
}

}  // namespace tessera::apps
