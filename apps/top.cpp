#include "tessera/report/top.h"

#include "commands.h"

namespace tessera::apps {

Command top_command() {
  Command c;
  c.name = "top";
  c.summary = "Shows a run live in the terminal: steps, memory, lanes.";
  c.usage = "top RUN [--once]";
  c.example = "tessera top runs/demo/run";
  c.flags = {{"--once", "", "print one screen and exit, as in a pipe"}};
  c.run = [](const Arguments& arguments) {
    return report::top(arguments.only_word("run folder"), {.once = arguments.has("--once")});
  };
  return c;
}

}  // namespace tessera::apps
