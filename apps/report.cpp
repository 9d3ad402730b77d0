#include <cstdio>
#include <filesystem>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/report/run_report.h"

namespace tessera::apps {

namespace {

int run_report(const Arguments& arguments) {
  const std::vector<std::filesystem::path> runs(arguments.words.begin(), arguments.words.end());
  if (runs.empty())
    throw UserError(Exit::usage, "report", "no run folder given", "tessera " + arguments.command->usage);
  std::filesystem::path file = arguments.value("--out");
  if (file.empty()) {
    if (runs.size() > 1)
      throw UserError(Exit::usage, "report", "a page of several runs needs a place", "add --out FILE.html");
    file = runs.front() / "report.html";
  }
  report::write_run_report(runs, file);
  std::printf("%s\n", file.string().c_str());
  return 0;
}

}  // namespace

Command report_command() {
  Command c;
  c.name = "report";
  c.summary = "Writes report.html of a run, or one page that compares several.";
  c.usage = "report RUN [RUN ...] [--out FILE]";
  c.example = "tessera report runs/a runs/b --out compare.html";
  c.flags = {{"--out", "FILE", "the page [RUN/report.html]"}};
  c.run = run_report;
  return c;
}

}  // namespace tessera::apps
