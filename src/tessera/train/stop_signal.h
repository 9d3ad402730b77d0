#pragma once
// Handles signals that stop a run (SIGINT, SIGTERM, SIGHUP, SIGUSR1): after the current step with a complete checkpoint,
// or at once before the first step.
//
//   watch_stop_signals(rank == 0);                       // a run that prepares, plans or loads ends with code 75
//   stop_behind_steps();                                 // from here on it is asked
//   if (stop_signal() != 0) ...                          // the step's ranks agree on it (step_report.h)
#include <string>

namespace tessera::train {

/// A SIGHUP that is ignored (nohup) stays ignored. `prints`: this rank prints a message when the run is stopped before
/// the first step.
void watch_stop_signals(bool prints);
void stop_behind_steps();
int stop_signal();                    ///< the number of the one that came; 0: none did
std::string signal_name(int number);  ///< "SIGTERM"

}  // namespace tessera::train
