#include <charconv>
#include <filesystem>

#include "commands.h"
#include "foreign.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/sample/sampling.h"

namespace tessera::apps {

namespace {

int64_t seed(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw UserError(Exit::usage, "sample", "--seed " + text + ": expected a whole number");
  return value;
}

int run_sample(const Arguments& arguments) {
  recipe::Overrides overrides = arguments.overrides;
  if (arguments.has("--negative")) overrides.emplace_back("sample.negative_prompt", arguments.value("--negative"));
  sample::SampleOptions options;
  options.weights = checkpoint::found_at(arguments.value("--weights"));
  options.loras = sample::parse_loras(arguments.value("--lora"));
  options.strengths = sample::parse_strengths(arguments.value("--strengths"));
  if (!options.strengths.empty() && options.loras.empty())
    throw UserError(Exit::usage, "sample", "--strengths are those of LoRAs, and none is given", "add --lora FILE");
  check_input(options.weights.empty() || std::filesystem::exists(options.weights), "sample",
              "--weights " + options.weights + ": no such file or folder",
              "give a model folder or a checkpoint, or leave --weights out for the run's newest checkpoint" +
                  checkpoint::fetched_by(options.weights));
  options.prompts = arguments.values("--prompt");
  for (const auto& text : arguments.values("--seed")) options.seeds.push_back(seed(text));
  options.out = arguments.value("--out");
  constexpr double kMostTimes = 32;
  const double times = arguments.number("--enlarge", 1);
  if (times < 1 || times > kMostTimes || times != static_cast<int>(times))
    throw UserError(Exit::usage, "sample", "--enlarge " + arguments.value("--enlarge") + ": expected 1 to 32");
  options.enlarge = static_cast<int>(times);
  if (arguments.has("--format")) options.format = data::parse_clip_format(arguments.value("--format"));
  Translated given = recipe_from(arguments, overrides);
  if (!arguments.foreign.empty()) {  // generate.py's: weights and file are named by other options
    if (options.weights.empty()) options.weights = given.recipe.model.path;
    if (options.out.empty()) options.out = given.translation.file;
  }
  return sample::sample(std::move(given.recipe), options);
}

}  // namespace

Command sample_command() {
  Command c;
  c.name = "sample";
  c.summary = "Generates videos and pictures from trained weights.";
  c.usage =
      "sample RECIPE [--weights DIR] [--lora FILE:STRENGTH,...] [--strengths S,...] [--prompt TEXT ...] [--negative TEXT] [--seed N ...] [--out FILE|DIR] "
      "[--format F] [--enlarge N] [--table.key VALUE ...]";
  c.example = "tessera sample runs/demo/run/recipe.toml --prompt \"two bikes\" --out a.gif";
  c.recipe_keys = true;
  c.foreign = foreign_flags(tools::generate_line());
  c.flags = {{"--weights", "DIR", "exported model or checkpoint [the newest checkpoint]"},
             {"--lora", "FILE:0.8,...", "LoRA files of any program, added to model.path or --weights"},
             {"--strengths", "0,0.5,1", "one grid: a column with the LoRAs at each strength, a row for each clip"},
             {"--prompt", "TEXT", "prompt; may be repeated [sample.prompts]"},
             {"--negative", "TEXT", "negative prompt; needs sample.guidance above 1"},
             {"--seed", "N", "seed; repeated, a video for each [sample.seed]"},
             {"--out", "FILE|DIR", "an .mp4 or .gif, a .png of a picture, or a folder [RUN/samples]"},
             {"--format", "mp4|gif|png|frames", "frames: a folder of images for each video"},
             {"--enlarge", "N", "write each pixel as a square of N x N, to look at samples of small models"}};
  c.run = run_sample;
  return c;
}

}  // namespace tessera::apps
