#pragma once
// What the engine adds to the operators and transfers of a step. It trains a small model for a few steps under short plans;
// what an instruction then takes beside what the cost model says by the profile as measured so far goes into that profile.
//
//   measure_engine(profile, comm, rank, world, sizes);     // starts, waits, wake, device.kept_write and kept_read
//
// [Note: what the engine adds]
//   starts       of each kind of instruction: its graph, its context, the hand-over to lanes. Of a forward and a backward what
//                a line through few and many rows has at none
//   kept_*       the slope of that line: bytes of the graph that a forward writes and a backward reads; none of a device, whose
//                operators are measured on memory that no cache holds
//   waits        of each collective inside a unit, by purpose, from one plan for each axis whose ranks share tokens. What an
//                instruction takes too long is divided evenly among its collectives
//   wake         from the end of what a lane waits for to the begin of its next instruction, while no other lane of the rank
//                runs: a thread that wakes beside one shares the processor with it
// All are means over steps and ranks: most waits are far below their mean, and a step has the sum of them. Starts are medians
// over instructions. An instruction's prediction is its time in the simulated step, beside the same transfers.
#include "tessera/comm/comm.h"
#include "tessera/plan/simulate/profile.h"
#include "tessera/tools/probe/sizes.h"

namespace tessera::tools {

/// Every rank of `comm`, whose mesh is dp_shard over all, calls it with the same profile and gets the same.
void measure_engine(plan::Profile& profile, comm::Comm& comm, int rank, int world, const Sizes& sizes);

}  // namespace tessera::tools
