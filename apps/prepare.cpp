#include "tessera/prepare/prepare.h"
#include "commands.h"
#include "foreign.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/data/cache_search.h"
#include "tessera/job/assumed.h"
#include "tessera/job/device.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/run_plan.h"
#include "tessera/prepare/stage_data.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/sample/sampling.h"

namespace tessera::apps {

namespace {

/// Removes what the data of no stage uses. Not where rows were left out: their entries may only wait for a disk.
void prune(const recipe::Recipe& recipe, const std::vector<prepare::StageData>& stages) {
  if (recipe.data.online()) return log::info("prepare: --prune: this recipe caches nothing, there are no entries");
  std::set<data::Path> used;
  int64_t problems = 0;
  for (const prepare::StageData& stage : stages) {
    used.merge(stage.samples->cache_files());
    problems += stage.samples->problems();
  }
  if (problems > 0)
    return log::warn("prepare: --prune: nothing was removed, because " + std::to_string(problems) +
                     " rows were left out, and their entries may be good; mend or remove these rows");
  const data::Removed removed = data::remove_unused(recipe.data.cache, used);
  log::info("prepare: --prune: removed " + std::to_string(removed.entries) +
            " entries that this recipe does not use (" + format_bytes(removed.bytes) + "), kept " +
            std::to_string(used.size()));
}

}  // namespace

Command prepare_command() {
  Command c;
  c.name = "prepare";
  c.summary =
      "Encodes clips and captions into the cache.\nIt encodes only what is missing, so it can be stopped and started again.";
  c.usage = "prepare RECIPE [--table.key VALUE ...]";
  c.example = "tessera launch -n 2 prepare recipes/wan-tiny_demo_cpu.toml";
  c.recipe_keys = true;
  c.foreign = training_flags();
  c.flags = {
      {"--rebuild", "", "encode stale entries again (damaged ones always are)"},
      {"--strict", "", "stop at the first faulty row of the data set"},
      {"--trust", "",
       "do not check content: use entries whose clips have another size or time, and do not read the bytes of entries"},
      {"--prune", "", "remove entries that no clip or caption of the data set uses"}};
  c.run = [](const Arguments& arguments) {
    recipe::Overrides overrides = arguments.overrides;
    if (arguments.has("--strict")) overrides.emplace_back("data.strict", "true");
    recipe::Recipe recipe = look_over(recipe_from(arguments, overrides).recipe);
    engine::Meter::install();
    const comm::Rendezvous place = comm::rendezvous_from_env();
    log::set_rank(place.rank, place.world);
    job::choose_device(recipe.run.device, place);
    if (const std::string line = job::settle_compute(recipe); !line.empty()) log::info("prepare: " + line);
    recipe.plan.budget = job::reserve_device(place, recipe.plan.budget);
    const Mesh mesh = planning::fill_mesh(recipe.mesh, place.world);
    comm::Comm comm(place, mesh, recipe.fault.timeout);
    job::check_devices(comm);
    const job::Job job = job::make_job(recipe);
    job::check_weights(recipe, job);
    const auto room = [&] { planning::require_prepare(recipe::run_parts(recipe), job, mesh); };
    const std::vector<prepare::StageData> stages = prepare::prepare_parts(recipe, job, mesh, comm, place.rank,
                                                                          {.rebuild = arguments.has("--rebuild"),
                                                                           .verify = true,
                                                                           .prompts = false,
                                                                           .null_caption = false,
                                                                           .trust = arguments.has("--trust"),
                                                                           .before_encoding = room,
                                                                           .tolerant = true});
    const prepare::PreparedData* before = nullptr;
    for (const prepare::StageData& stage : stages) {
      const prepare::PreparedData& data = *stage.samples;
      if (&data == before) continue;  // nothing new since the stage before
      before = &data;
      const std::string who =
          stages.size() == 1 ? "prepare: " : "prepare, from step " + std::to_string(stage.first_step) + ": ";
      log::info(who + std::to_string(data.size()) + " samples ready " +
                (recipe.data.online() ? "to be encoded in the steps that use them" : "in " + recipe.data.cache));
      if (data.problems() > recipe.data.allow_bad)
        log::info(who + "`tessera train` refuses to leave out " + std::to_string(data.problems()) +
                  " rows unless data.allow_bad says so");
    }
    comm.barrier();  // no rank reads or writes entries any more
    if (arguments.has("--prune") && place.rank == 0) prune(recipe, stages);
    comm.barrier();
    return 0;
  };
  return c;
}

}  // namespace tessera::apps
