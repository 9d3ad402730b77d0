#pragma once
// The address where ranks and launchers meet: is someone there, and by which address of this machine is it reached.
//
//   await_listener("10.0.0.1", 29500, 70);           // returns as soon as a connection is accepted
//   address_towards("10.0.0.1", 29500);              // "10.0.0.7": what others can reach this machine by
#include <string>

namespace tessera::comm {

/// Seconds that ranks and launchers wait for each other before anything runs: `timeout` (fault.timeout) and 10, and no
/// less than 30, because loading LibTorch on a busy machine may take longer than a short time-out.
double start_seconds(double timeout);

/// Waits until something listens there. Throws UserError (rank_lost) naming the address, the last answer and the
/// seconds; (usage) after 10 seconds for a host name that cannot be looked up.
void await_listener(const std::string& host, int port, double seconds);

/// The address that a connection to the host would have at this end; "127.0.0.1" when there is no way to it.
std::string address_towards(const std::string& host, int port);

}  // namespace tessera::comm
