#pragma once
// `tessera top RUN`: the run's screen in a terminal, drawn again each second.
//
//   return top("runs/a", {.once = false});
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/report/run_folder.h"
#include "tessera/report/terminal_text.h"

namespace tessera::report {

struct TopOptions {
  bool once = false;  ///< print one screen and return
};

/// Until q or Ctrl-C; the terminal is then as it was. Where there is no terminal that can be drawn on (a pipe,
/// TERM=dumb) it prints one screen. Returns the exit code. Throws UserError (input) when `run` is no run.
int top(const std::filesystem::path& run, const TopOptions& options);

// The screen of `tessera top` as lines of text: what a run does, drawn for a terminal of some size.
//
//   for (const std::string& line : top_screen(RunFolder("runs/a"), {.width = 100, .utf8 = true})) puts(line.c_str());

/// No line is wider than style.width, and there are at most style.height of them (0: no limit): what there is no room
/// for is counted in a line. Steps, loss and memory come first.
std::vector<std::string> top_screen(const RunFolder& run, const TerminalStyle& style);

}  // namespace tessera::report
