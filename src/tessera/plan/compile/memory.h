#pragma once
// The memory curve of a schedule: the live bytes at each instruction. Pure arithmetic over measured footprints.
//
//   MemoryCurve curve = memory_curve(spec, plan, schedule, rank);
//   curve.peak; curve.at;                    // bytes, and the instruction with the highest live bytes
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

struct MemoryParts {
  int64_t parameters = 0, gradients = 0, states = 0, slots = 0, activations = 0, temporaries = 0;
  int64_t total() const { return parameters + gradients + states + slots + activations + temporaries; }
};

struct MemoryCurve {
  int64_t peak = 0;
  int at = -1;                ///< index of the instruction at the peak
  std::string at_name;        ///< "backward blocks.3"
  MemoryParts by_part;        ///< at the peak
  int64_t persistent = 0;     ///< shards of parameters, gradients and states on the device
  MemoryParts host;           ///< on the host: shards; as slots, offloaded buffers and staging for the disk
  int64_t spared = 0;         ///< host bytes less than with frozen weights of its own, which ranks of a machine share
  MemoryParts nvme;           ///< on disk: shards and offloaded activations
  std::vector<int64_t> live;  ///< peak bytes during each instruction
};

/// Memory of a GPU by way of which a swap of experts moves the bytes of buffers, a piece at a time.
inline constexpr int64_t kSwapPiece = int64_t{16} << 20;
/// Bytes of it that a rank has through the run; 0: experts keep their tiers. They are among the slots.
inline int64_t swap_piece(const ModelSpec& model, const Plan& plan) {
  return plan.experts > 1 && plan.idle != Tier::device ? model.swap_piece : 0;
}

/// `arena`, `host_arena`: bytes of slots. Pass the largest over all schedules of the run, because arenas are allocated
/// once (0: this schedule's).
MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank,
                         int64_t arena = 0, int64_t host_arena = 0);

}  // namespace tessera::plan
