#pragma once
// `tessera top RUN`: the run's screen in a terminal, drawn again each second.
//
//   return top("runs/a", {.once = false});
#include <filesystem>

namespace tessera::report {

struct TopOptions {
  bool once = false;  ///< print one screen and return
};

/// Until q or Ctrl-C; the terminal is then as it was. Where there is no terminal that can be drawn on (a pipe,
/// TERM=dumb) it prints one screen. Returns the exit code. Throws UserError (input) when `run` is no run.
int top(const std::filesystem::path& run, const TopOptions& options);

}  // namespace tessera::report
