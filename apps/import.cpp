#include "tessera/tools/import/import.h"

#include <charconv>
#include <cstdio>
#include <filesystem>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
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

/// A written recipe ends its first line with a sum of the lines below it, which tells whether it was edited since.
std::string with_sum(const std::string& text) {
  const size_t line = text.find('\n');
  char sum[32];
  std::snprintf(sum, sizeof sum, " [%016llx]", static_cast<unsigned long long>(hash_text(text.substr(line + 1))));
  return text.substr(0, line) + sum + text.substr(line);
}
bool is_unedited(const std::string& text) {
  const size_t line = text.find('\n'), sum = text.rfind(" [", line);
  return line != text.npos && sum != text.npos && text == with_sum(text.substr(0, sum) + text.substr(line));
}

void write_recipe(const std::string& out, const std::string& text, bool force) {
  if (!force && std::filesystem::is_regular_file(out) && !is_unedited(checkpoint::read_text(out)))
    throw UserError(Exit::usage, "import", out + " is there, and is not as import wrote it: edits would be lost",
                    "give another name to -o, or --force to replace it");
  checkpoint::write_text(out, with_sum(text));
}

int run_import(const Arguments& arguments) {
  if (arguments.has("--table")) {
    const std::string program = arguments.words.empty() ? "" : arguments.only_word("program");
    std::fputs(tools::import_table(program).c_str(), stdout);
    return 0;
  }
  tools::ImportContext context;
  context.ranks = ranks_of(arguments);
  if (arguments.has("--from") && !arguments.words.empty())
    throw UserError(Exit::usage, "import", "a file and --from",
                    "give one of them: tessera " + arguments.command->usage);
  tools::Translation translation = arguments.has("--from") ? tools::import_command(arguments.value("--from"), context)
                                                           : tools::import_file(arguments.only_word("file"), context);
  const std::string out = arguments.value("--out");
  if (!out.empty()) tools::put_instruction_beside(translation, out);
  const std::string text = translation.to_toml();
  if (out.empty()) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);  // the log is another stream: its lines come after the recipe's
  } else {
    write_recipe(out, text, arguments.has("--force"));
  }
  for (const auto& warned : translation.warned) log::warn("import: " + warned.option + ": " + warned.why);
  for (const auto& refused : translation.refused) log::warn("import: " + refused.option + " refused: " + refused.why);
  for (const auto& mistake : translation.mistakes) log::warn("import: " + mistake.option + ": " + mistake.why);
  if (!out.empty())
    log::info(
        "import: " + out + ": " + std::to_string(translation.settings.size()) + " keys, " +
        std::to_string(translation.implied.size()) + " options without a key, " +
        std::to_string(translation.refused.size()) + " refused" +
        (translation.mistakes.empty() ? "" : ", " + std::to_string(translation.mistakes.size()) + " to be mended"));
  if (translation.mistakes.empty() || arguments.has("--force")) return 0;
  log::warn("import: " + std::to_string(translation.mistakes.size()) +
            " to be mended, see above; tessera import --table lists all options; --force takes the recipe as it is");
  return static_cast<int>(Exit::usage);
}

}  // namespace

Command import_command() {
  Command c;
  c.name = "import";
  c.summary =
      "Converts another trainer's configuration or command to a recipe.\nIt reports every option: converted, not needed, or refused with the reason.";
  c.usage = "import FILE|--from COMMAND|--table [PROGRAM] [-o FILE] [--ranks N] [--force]";
  c.example = "tessera import ds_config.json -o recipe.toml";
  c.flags = {
      {"--from", "COMMAND", "command line of DiffSynth, musubi-tuner, diffusion-pipe, Sana or Wan, with its launcher"},
      {"--out", "FILE", "write the recipe to FILE instead of printing it", "-o"},
      {"--force", "", "end with 0 in spite of unknown options, and replace an edited recipe"},
      {"--ranks", "N", "ranks, for the global batch [those the command starts]"},
      {"--table", "", "print every option of PROGRAM, or of all, and its key"}};
  c.run = run_import;
  return c;
}

}  // namespace tessera::apps
