#pragma once
// Counts signals that ask a launcher to end, and those that ask for a checkpoint; loops that wait poll the counts.
//
//   count_stop_signals();
//   if (signals_seen() > 0) ranks.signal(last_signal());
#include <csignal>

namespace tessera::comm {

/// Each stops a run behind its step, with a checkpoint: of a person (INT, TERM), a terminal that closes (HUP) and batch
/// systems (USR1 of Slurm and SGE, XCPU of LSF and SGE, PWR of machines that lose their power).
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU, SIGPWR};
/// Saves a checkpoint behind its step, and the run goes on.
inline constexpr int kSaveSignal = SIGUSR2;

/// Installs the handlers.
void count_stop_signals();
/// Takes them away, in a process that is no launcher. It ignores kSaveSignal: it has nothing to save yet.
void forget_stop_signals();
int signals_seen();
/// Number of the last signal; 0 if none has arrived.
int last_signal();
/// How often a checkpoint was asked for.
int saves_seen();

}  // namespace tessera::comm
