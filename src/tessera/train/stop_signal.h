#pragma once
// Handles signals that stop a run (comm/stop_signals.h): after the current step with a complete checkpoint, or at
// once before the first step; and the one after which a run saves and goes on.
//
//   watch_stop_signals(place);                           // a run that prepares, plans or loads ends with code 75
//   stop_behind_steps(out);                              // from here on it is asked
//   step_took(12.5), save_took(34);                      // for the words of a signal, and of the next start
//   if (asking_signal() != 0) ...                        // the step's ranks agree on it (step_report.h)
//
// Under our launcher a second SIGINT is the launcher's affair: a terminal sends each to all of its processes, and the
// launcher passes it on. A rank without one ends at once by a second SIGINT.
//
// Who asks for the end may not wait for it: a pod is killed when its grace period is over. So rank 0 says at the signal how
// long a step and a checkpoint take, and writes it to RUN/.stopping, which goes when the checkpoint is there. Where the next
// start still finds it the time did not suffice, and untold_stop() says how long it takes.
#include <filesystem>
#include <string>

#include "tessera/comm/rendezvous.h"

namespace tessera::train {

/// A SIGHUP that is ignored (nohup) stays ignored. Rank 0 prints a message when the run is stopped at once.
void watch_stop_signals(const comm::Rendezvous& place);
/// `run`: RUN, in which rank 0 notes what it was asked for; empty: another rank.
void stop_behind_steps(const std::filesystem::path& run);
void step_took(double seconds);
void save_took(double seconds);
/// The stop is done: a checkpoint is there, or cannot be.
void stop_done(const std::filesystem::path& run);
/// That the start before was asked to end and did not get to its checkpoint; empty: it did, or was not asked.
std::string untold_stop(const std::filesystem::path& run);
/// The number of the one that asks for the end; else comm::kSaveSignal if it came since the last call; 0: none did.
int asking_signal();
std::string signal_name(int number);  ///< "SIGTERM"
/// The newest complete checkpoint, which is named when the run ends at once.
void name_checkpoint(const std::string& folder);

}  // namespace tessera::train
