#pragma once
// Lines to the user's terminal (stderr), prefixed with the rank when there are several, and the line of progress that stays
// below them in a terminal.
//
//   log::status("step 7/100");   // of a terminal: drawn over the last one
//   log::info("step 7: saved");  // stands above it
//   log::keep_status();          // it becomes a line like any other
#include <string_view>

namespace tessera::log {

void set_rank(int rank, int world);  ///< rank 0 prints info; every rank prints warnings and errors
void info(std::string_view text);    ///< rank 0 only
void warn(std::string_view text);
void error(std::string_view text);

/// Whether stderr is a terminal, in which a line can be drawn over.
bool in_terminal();
/// Draws `line`, which is narrower than the terminal, in the place of the last one; empty: takes that away.
void status(std::string_view line);
/// What was drawn stays as it is.
void keep_status();

}  // namespace tessera::log
