#pragma once
// Signals that ask a launcher to end (SIGINT, SIGTERM, SIGHUP, SIGUSR1). They are counted; whoever waits looks at the count.
//
//   count_stop_signals();
//   if (signals_seen() > 0) ranks.signal(last_signal());

namespace tessera::comm {

/// Installs the handlers.
void count_stop_signals();
int signals_seen();
/// The number of the last one; 0: none has come.
int last_signal();

}  // namespace tessera::comm
