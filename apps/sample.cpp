#include "commands.h"
#include "tessera/train/sampling.h"

namespace tessera::apps {

Command sample_command() {
  Command c;
  c.name = "sample";
  c.summary = "Makes videos from trained weights.";
  c.usage = "sample RECIPE [--weights DIR] [--prompt TEXT ...] [--out FILE|DIR] [--table.key VALUE ...]";
  c.example = "tessera sample runs/demo/run/recipe.toml --prompt \"bikes on a street\" --out bikes.mp4";
  c.recipe_keys = true;
  c.flags = {{"--weights", "DIR", "an exported model, or a checkpoint; default: the run's newest checkpoint"},
             {"--prompt", "TEXT", "what to show; may be given several times; default: the recipe's prompts"},
             {"--out", "FILE|DIR", "an .mp4, or a folder for several; default: the run's samples/"}};
  c.run = [](const Arguments& arguments) {
    return train::sample(train::load_recipe(arguments.only_word("recipe"), arguments.overrides),
                         {arguments.value("--weights"), arguments.values("--prompt"), arguments.value("--out")});
  };
  return c;
}

}  // namespace tessera::apps
