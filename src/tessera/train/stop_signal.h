#pragma once
// Handles signals that stop a run (comm/launch/stop_signals.h): after the current step with a complete checkpoint, or at
// once before the first step; and the one after which a run saves and goes on.
//
//   watch_stop_signals(place);                           // a run that prepares, plans or loads ends with code 75
//   stop_behind_steps();                                 // from here on it is asked
//   if (asking_signal() != 0) ...                        // the step's ranks agree on it (step_report.h)
//
// Under our launcher a second SIGINT is the launcher's affair: a terminal sends each to all of its processes, and the
// launcher passes it on. A rank without one ends at once by a second SIGINT.
#include <string>

#include "tessera/comm/rendezvous.h"

namespace tessera::train {

/// A SIGHUP that is ignored (nohup) stays ignored. Rank 0 prints a message when the run is stopped at once.
void watch_stop_signals(const comm::Rendezvous& place);
void stop_behind_steps();
/// The number of the one that asks for the end; else comm::kSaveSignal if it came since the last call; 0: none did.
int asking_signal();
std::string signal_name(int number);  ///< "SIGTERM"
/// The newest complete checkpoint, which is named when the run ends at once.
void name_checkpoint(const std::string& folder);

}  // namespace tessera::train
