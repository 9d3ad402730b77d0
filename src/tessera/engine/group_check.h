#pragma once
// Before a group's first collective its members compare the collectives that they will run: two that disagree would
// wait for each other until the time-out, without a reason in the log.
//
//   check_groups(comm, {&schedules.train, &schedules.sample, &schedules.checkpoint});
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/plan/schedule.h"

namespace tessera::engine {

/// All ranks call it together. Every rank hashes, for each group it is in, the collectives of its schedules in order
/// (kind, unit, bytes), and compares the hashes with the other members'. Throws UserError (usage), with the same
/// message on every rank, for the first group whose members differ: it names the group, two ranks, and the first
/// collective that differs.
void check_groups(comm::Comm& comm, const std::vector<const plan::Schedule*>& schedules);

}  // namespace tessera::engine
