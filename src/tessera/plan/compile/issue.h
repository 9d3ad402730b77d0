#pragma once
// The order in which a rank gives messages between devices to their streams.
//
//   for (const int i : issue_order(schedule)) ...
//   const std::string stuck = issue_deadlock({{&schedule_of_rank_0, issue_order(schedule_of_rank_0)}, ...});
//
// [Note: one order of issue] Kernels of NCCL wait on the GPU for the other members. Two communicators whose messages ranks
// begin in different orders wait for each other where a GPU cannot run both at once (NVIDIA/nccl#195, #1174). So the
// instructions of a schedule that send between devices are issued in the order of the list, over all lanes: each after the one
// before it in the list was issued, which costs the host a moment and the device nothing. An instruction that has several
// messages (tp, sp and cp inside a unit) issues all of them in its turn, those of the ring as well. The ranks of a group
// have the same list, and what an instruction waits for is before it, so the order is one for all and cannot block itself.
// Messages between stages keep their place in the list too. Neighbours have different lists, and the receives of a stage
// may be before sends that its neighbour waits for: each direction has its own communicator and stream, and receives of a
// few multiprocessors run beside everything else. issue_deadlock() shows that this, too, comes to its end: for all ranks of a
// mesh, on GPUs that begin the messages strictly in the order of issue (NCCL_LAUNCH_ORDER_IMPLICIT=1).
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// Whether the instruction gives messages to the device's communicators. What ranks tell each other as numbers of the host
/// goes by Gloo.
bool sends_on_device(const Instruction& in);
/// Indices of these instructions, in the order of issue.
std::vector<int> issue_order(const Schedule& schedule);

/// [Note: side by side] A rank without a sample of an expert in a micro-batch computes nothing in it, but takes part in its
/// gathers and reductions. So passes of two experts (train/gate_schedule.h) may share the time of their last micro-batches,
/// where no rank has a sample in both: their lists are merged by the visits of units, gathers before what is computed and
/// reductions behind it. Some ranks compute the one's units while others compute the other's. Gathers and reductions are
/// the same in the lists of all ranks, and so is their place: all ranks come to one order of them. Collectives inside units
/// are of ranks that share samples, whose lists are alike. What is before the last micro-batch goes before, one list after
/// the other; the two exchanges at `norm` and then the updates come behind.
struct SideBySide {
  size_t list = 0;
  int index = 0;
};
/// The order in which a rank issues the lists of training passes, all of them. Of one it is that of the list. `prefetch`: of the
/// plan.
std::vector<SideBySide> issued_side_by_side(const std::vector<const Schedule*>& lists, int prefetch);
/// The lists as one, in this order, as if each had an arena of its own.
Schedule joined_side_by_side(const std::vector<const Schedule*>& lists, int prefetch);

/// What a rank's host does: the order in which it issues, by default issue_order().
struct IssuedList {
  const Schedule* schedule;
  std::vector<int> order;
};
/// Executes the lists of all ranks (one schedule of each, of the same phase) on devices that have room for one message of a
/// group at a time, and one of each lane between stages: a message begins when the one issued before it, on whatever
/// stream, has begun (of groups: is done), when its stream has done what it was given before, and when all that it waits
/// for is done; it ends when all members have begun it. Text that names what each rank waits for if they do not come to the
/// end; empty: they do.
std::string issue_deadlock(const std::vector<IssuedList>& ranks);

}  // namespace tessera::plan
