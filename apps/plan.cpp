#include <cstdio>
#include <fstream>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/plan/rules.h"
#include "tessera/train/planning.h"
#include "tessera/train/prepare.h"

namespace tessera::apps {

namespace {

int check_file(const std::string& path) {
  std::ifstream in(path);
  check_input(in.good(), "plan.check", path + ": cannot be opened",
              "give a file that plan --schedule or train --trace-schedule wrote");
  const auto violations = plan::check(in);
  for (const auto& violation : violations) std::printf("%s: %s\n", path.c_str(), plan::to_string(violation).c_str());
  if (violations.empty()) std::printf("%s: all rules hold\n", path.c_str());
  return static_cast<int>(violations.empty() ? Exit::done : Exit::comparison);
}

int run(const Arguments& arguments) {
  if (arguments.has("--check")) return check_file(arguments.value("--check"));
  const train::Recipe recipe = train::load_recipe(arguments.only_word("recipe"), arguments.overrides);
  engine::Meter::install();
  const train::Job job = train::make_job(recipe);
  const int prompts =
      recipe.sample.every > 0
          ? static_cast<int>(train::sample_prompts(recipe, recipe.sample.prompts.empty() ? train::read_items(recipe)
                                                                                         : std::vector<data::Item>{})
                                 .size())
          : 0;
  const train::Planned planned = train::make_plan(train::plan_request(recipe, job, recipe.mesh, prompts));
  const std::string text = arguments.has("--json") ? train::plan_json(planned) : train::plan_text(planned);
  std::fputs(text.c_str(), stdout);
  if (arguments.has("--write")) {
    std::ofstream out(arguments.value("--write"));
    out << planned.plan().to_toml(planned.unit_names());
    if (!out.flush()) throw UserError(Exit::disk, "plan", arguments.value("--write") + ": cannot be written");
  }
  if (!planned.choice.fits) throw UserError(Exit::no_fit, "plan", planned.choice.advice);
  if (arguments.has("--schedule")) train::write_schedule(planned, arguments.value("--schedule"));
  return 0;
}

}  // namespace

Command plan_command() {
  Command c;
  c.name = "plan";
  c.summary = "Says before the run what fits and what every rank will do; checks a schedule.";
  c.usage = "plan RECIPE [--json] [--schedule FILE] [--write FILE] [--mesh ...] | plan --check FILE";
  c.example = "tessera plan recipes/wan-tiny_demo_cpu.toml --mesh dp_shard=2 --plan.budget 200MiB";
  c.recipe_keys = true;
  c.flags = {{"--json", "", "the plan as JSON"},
             {"--schedule", "FILE", "write the instructions of all ranks and steps"},
             {"--write", "FILE", "write the plan as TOML, to edit and use as plan.file"},
             {"--check", "FILE", "apply the rules to a schedule and refuse naming the line"}};
  c.run = run;
  return c;
}

}  // namespace tessera::apps
