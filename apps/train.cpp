#include "commands.h"
#include "foreign.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/train/trainer.h"

namespace tessera::apps {

Command train_command() {
  Command c;
  c.name = "train";
  c.summary =
      "Trains from a recipe; started again, it resumes.\nIt resumes from the newest complete checkpoint, on any number of ranks.";
  c.usage = "train RECIPE [--trace-schedule FILE] [--table.key VALUE ...]";
  c.example = "tessera launch -n 2 train recipes/wan-tiny_demo_cpu.toml --train.lr 5e-4";
  c.recipe_keys = true;
  c.foreign = training_flags();
  c.flags = {{"--trace-schedule", "FILE", "write the executed instructions, with times"},
             {"--strict", "", "stop at the first faulty row of the data set"}};
  c.run = [](const Arguments& arguments) {
    recipe::Overrides overrides = arguments.overrides;
    if (arguments.has("--strict")) overrides.emplace_back("data.strict", "true");
    return train::train(look_over(recipe_from(arguments, overrides).recipe), {arguments.value("--trace-schedule")});
  };
  return c;
}

}  // namespace tessera::apps
