#include "tessera/tools/probe/probe.h"

#include <cstdio>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::apps {

namespace {

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
  const plan::Profile profile = tools::probe(options);
  if (comm::rendezvous_from_env().rank != 0) return 0;
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
      "probe [--device cpu|cuda|auto] [--out FILE] [--name NAME] [--folder DIR] [--seconds S] [--host-memory SIZE] [--small] | probe --show NAME|FILE";
  c.example = "tessera launch -n 2 probe --out machine.toml";
  c.flags = {{"--device", "cpu|cuda|auto", "what to measure, as run.device [auto]"},
             {"--out", "FILE", "write the profile to FILE instead of printing it"},
             {"--name", "NAME", "name of the profile"},
             {"--folder", "DIR", "folder on the disk to measure [current folder]"},
             {"--seconds", "S", "spent on each measurement, about [0.4]"},
             {"--host-memory", "SIZE", "memory of the machine, where its system shows less than there is"},
             {"--small", "", "a dry run: small sizes, whose rates say nothing of training"},
             {"--show", "NAME|FILE", "print a shipped profile or check a file; no measuring"}};
  c.run = run_probe;
  return c;
}

}  // namespace tessera::apps
