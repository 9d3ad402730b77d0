#include "tessera/report/top.h"

#include "commands.h"
#include "tessera/report/run_folder.h"

namespace tessera::apps {

Command top_command() {
  Command c;
  c.name = "top";
  c.summary =
      "Shows a run live in the terminal: steps, memory, lanes.\nWithout RUN it is the newest one below this folder.";
  c.usage = "top [RUN] [--once]";
  c.example = "tessera top runs/demo/run";
  c.flags = {{"--once", "", "print one screen and exit, as in a pipe"}};
  c.run = [](const Arguments& arguments) {
    const std::filesystem::path run =
        arguments.words.empty() ? report::newest_run(".") : std::filesystem::path(arguments.only_word("run folder"));
    return report::top(run, {.once = arguments.has("--once")});
  };
  return c;
}

}  // namespace tessera::apps
