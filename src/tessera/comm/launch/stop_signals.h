#pragma once
// Counts signals that ask a launcher to end (SIGINT, SIGTERM, SIGHUP, SIGUSR1); loops that wait poll the count.
//
//   count_stop_signals();
//   if (signals_seen() > 0) ranks.signal(last_signal());

namespace tessera::comm {

/// Installs the handlers.
void count_stop_signals();
/// Takes them away, in a process that is no launcher.
void forget_stop_signals();
int signals_seen();
/// Number of the last signal; 0 if none has arrived.
int last_signal();

}  // namespace tessera::comm
