#include "tessera/prepare/prepare.h"
#include "commands.h"
#include "foreign.h"
#include "look_over.h"
#include "tessera/base/log.h"
#include "tessera/comm/world.h"
#include "tessera/job/device.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/prepare/stage_data.h"
#include "tessera/recipe/load_recipe.h"
#include "tessera/sample/sampling.h"

namespace tessera::apps {

Command prepare_command() {
  Command c;
  c.name = "prepare";
  c.summary =
      "Encodes clips and captions into the cache.\nIt encodes only what is missing, so it can be stopped and started again.";
  c.usage = "prepare RECIPE [--table.key VALUE ...]";
  c.example = "tessera launch -n 2 prepare recipes/wan-tiny_demo_cpu.toml";
  c.recipe_keys = true;
  c.foreign = training_flags();
  c.flags = {{"--rebuild", "", "encode stale entries again (damaged ones always are)"},
             {"--strict", "", "stop at the first faulty row of the data set"}};
  c.run = [](const Arguments& arguments) {
    recipe::Overrides overrides = arguments.overrides;
    if (arguments.has("--strict")) overrides.emplace_back("data.strict", "true");
    recipe::Recipe recipe = look_over(recipe_from(arguments, overrides).recipe);
    engine::Meter::install();
    const comm::Rendezvous place = comm::rendezvous_from_env();
    log::set_rank(place.rank, place.world);
    recipe.plan.budget = job::choose_device(recipe.run.device, place, recipe.plan.budget);
    const Mesh mesh = planning::fill_mesh(recipe.mesh, place.world);
    comm::Comm comm(place, mesh, recipe.fault.timeout);
    job::check_devices(comm);
    const job::Job job = job::make_job(recipe);
    job::check_weights(recipe, job);
    const std::vector<prepare::StageData> stages = prepare::prepare_parts(recipe, job, mesh, comm, place.rank,
                                                                          {.rebuild = arguments.has("--rebuild"),
                                                                           .verify = true,
                                                                           .prompts = false,
                                                                           .null_caption = false,
                                                                           .tolerant = true});
    const prepare::PreparedData* before = nullptr;
    for (const prepare::StageData& stage : stages) {
      const prepare::PreparedData& data = *stage.samples;
      if (&data == before) continue;  // nothing new since the stage before
      before = &data;
      const std::string who =
          stages.size() == 1 ? "prepare: " : "prepare, from step " + std::to_string(stage.first_step) + ": ";
      log::info(who + std::to_string(data.size()) + " samples ready " +
                (recipe.data.online() ? "to be encoded when they come" : "in " + recipe.data.cache));
      if (data.problems() > recipe.data.allow_bad)
        log::info(who + "`tessera train` refuses to leave out " + std::to_string(data.problems()) +
                  " rows unless data.allow_bad says so");
    }
    comm.barrier();
    return 0;
  };
  return c;
}

}  // namespace tessera::apps
