#include "tessera/tools/import/import.h"

#include <charconv>
#include <cstdio>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/file.h"

namespace tessera::apps {

namespace {

int ranks_of(const Arguments& arguments) {
  const std::string text = arguments.value("--ranks", "0");
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || (arguments.has("--ranks") && ranks < 1))
    throw UserError(Exit::usage, "import", "--ranks " + text + ": expected a whole number, at least 1");
  return ranks;
}

int run(const Arguments& arguments) {
  if (arguments.has("--table")) {
    std::fputs(tools::import_table().c_str(), stdout);
    return 0;
  }
  tools::ImportContext context;
  context.ranks = ranks_of(arguments);
  if (arguments.has("--from") && !arguments.words.empty())
    throw UserError(Exit::usage, "import", "a file and --from",
                    "give one of them: tessera " + arguments.command->usage);
  const tools::Translation translation = arguments.has("--from")
                                             ? tools::import_command(arguments.value("--from"), context)
                                             : tools::import_file(arguments.only_word("file"), context);
  const std::string text = translation.to_toml(), out = arguments.value("--out");
  if (out.empty())
    std::fputs(text.c_str(), stdout);
  else
    checkpoint::write_text(out, text);
  for (const auto& refused : translation.refused) log::warn("import: " + refused.option + " refused: " + refused.why);
  if (!out.empty())
    log::info("import: " + out + ": " + std::to_string(translation.settings.size()) + " keys, " +
              std::to_string(translation.implied.size()) + " options without a key, " +
              std::to_string(translation.refused.size()) + " refused");
  return 0;
}

}  // namespace

Command import_command() {
  Command c;
  c.name = "import";
  c.summary = "Makes a recipe of another trainer's configuration or command, and says what became of every option.";
  c.usage = "import FILE|--from COMMAND [-o FILE] [--ranks N]";
  c.example =
      "tessera import --from \"accelerate launch --num_processes 8 train.py --dataset_base_path D --lora_base_model "
      "dit\"";
  c.flags = {{"--from", "COMMAND", "a command line, with its launcher: DiffSynth, musubi-tuner, diffusion-pipe, Wan"},
             {"--out", "FILE", "write the recipe there; default: print it", "-o"},
             {"--ranks", "N", "ranks that will run, for the global batch; default: what the command starts"},
             {"--table", "", "print what maps to what: docs/coming-from.md"}};
  c.run = run;
  return c;
}

}  // namespace tessera::apps
