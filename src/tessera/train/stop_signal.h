#pragma once
// SIGINT and SIGTERM ask a run to stop behind its step, with a whole checkpoint.
//
//   watch_stop_signals();
//   if (stop_signal() != 0) ...                          // the step's ranks agree on it (step_report.h)
namespace tessera::train {

void watch_stop_signals();
int stop_signal();  ///< the number of the one that came; 0: none did

}  // namespace tessera::train
