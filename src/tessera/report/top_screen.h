#pragma once
// The screen of `tessera top` as lines of text: what a run does, drawn for a terminal of some size.
//
//   for (const std::string& line : top_screen(RunFolder("runs/a"), {.width = 100, .utf8 = true})) puts(line.c_str());
#include <string>
#include <vector>

#include "tessera/report/run_folder.h"
#include "tessera/report/terminal_text.h"

namespace tessera::report {

/// No line is wider than style.width, and there are at most style.height of them (0: no limit): what there is no room
/// for is counted in a line. Steps, loss and memory come first.
std::vector<std::string> top_screen(const RunFolder& run, const TerminalStyle& style);

}  // namespace tessera::report
