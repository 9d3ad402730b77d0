#include "tessera/tools/probe/probe.h"

#include <cstdio>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/job/assumed.h"
#include "tessera/planning/run_plan.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::apps {

namespace {

/// Shapes of the products of a recipe's step, under the plan that it gets here.
std::vector<ops::ProductShape> products_of(recipe::Recipe recipe) {
  for (const std::string& line : {job::assume_released(recipe), job::settle_compute(recipe)})
    if (!line.empty()) log::info("probe: " + line);
  const job::Job job = job::make_job(recipe);
  const std::vector<recipe::RunPart> parts = recipe::run_parts(recipe);
  return planning::product_shapes(parts, job, recipe.mesh, std::vector<int>(parts.size(), 1));
}

int run_probe(const Arguments& arguments) {
  if (!arguments.words.empty())
    throw UserError(Exit::usage, "probe", "'" + arguments.words.front() + "' is one word too many",
                    "tessera probe --out FILE");
  if (arguments.has("--show")) {
    std::fputs(plan::find_profile(arguments.value("--show")).to_toml().c_str(), stdout);
    return 0;
  }
  tools::ProbeOptions options;
  options.name = arguments.value("--name", options.name);
  options.folder = arguments.value("--folder", options.folder);
  options.seconds = arguments.number("--seconds", options.seconds);
  options.device = arguments.value("--device", options.device);
  options.small = arguments.has("--small");
  if (arguments.has("--host-memory"))
    options.host_memory = parse_bytes(arguments.value("--host-memory"), "--host-memory");
  if (arguments.has("--recipe"))
    options.products = [recipe = recipe::load_recipe(arguments.value("--recipe"), {})] { return products_of(recipe); };
  const bool first = comm::rendezvous_from_env().rank == 0;
  if (first && arguments.has("--out")) {  // what cannot be written is told before minutes of measuring
    const checkpoint::DurableFile taken_away_again(arguments.value("--out"), 0);
  }
  const plan::Profile profile = tools::probe(options);
  if (!first) return 0;
  if (arguments.has("--out"))
    checkpoint::write_text(arguments.value("--out"), profile.to_toml());
  else
    std::fputs(profile.to_toml().c_str(), stdout);
  return 0;
}

}  // namespace

Command probe_command() {
  Command c;
  c.name = "probe";
  c.summary =
      "Measures this machine or its GPUs into a file for plan.profile.\nUnder tessera launch it measures the collectives between ranks as well.";
  c.usage =
      "probe [--device cpu|cuda|auto] [--out FILE] [--name NAME] [--folder DIR] [--seconds S] [--host-memory SIZE] [--recipe FILE] [--small] | probe --show NAME|FILE";
  c.example = "tessera launch -n 2 probe --out machine.toml";
  c.flags = {{"--device", "cpu|cuda|auto", "what to measure, as run.device [auto]"},
             {"--out", "FILE", "write the profile to FILE instead of printing it"},
             {"--name", "NAME", "name of the profile"},
             {"--folder", "DIR", "folder on the disk to measure [current folder]"},
             {"--seconds", "S", "spent on each measurement, about [0.4]"},
             {"--host-memory", "SIZE", "memory of the machine, where its system shows less than there is"},
             {"--recipe", "FILE", "choose an algorithm for each product of its step on a GPU"},
             {"--small", "", "a dry run: small sizes, whose rates say nothing of training"},
             {"--show", "NAME|FILE", "print a shipped profile or check a file; no measuring"}};
  c.run = run_probe;
  return c;
}

}  // namespace tessera::apps
