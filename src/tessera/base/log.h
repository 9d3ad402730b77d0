#pragma once
// Lines to the user's terminal (stderr), prefixed with the rank when there are several, and the line of progress that stays
// below them in a terminal.
//
//   log::status("step 7/100");   // of a terminal: drawn over the last one
//   log::info("step 7: saved");  // stands above it
//   log::keep_status();          // it becomes a line like any other
//
// [Note: nobody waits for a reader] Whoever reads the log may stop reading it, by Ctrl-S or as a pager that was left open, and
// a rank that waited for that would stop all others. What the system does not take at once is kept, up to a bound, and
// comes with a later line; what does not fit is left out, and the log says how many lines that were.
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
/// Before a process ends: what is kept is written, as long as somebody takes it.
void flush();

}  // namespace tessera::log
