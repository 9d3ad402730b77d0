#pragma once
// The device that a process computes on.
//
//   job::choose_device(recipe.run.device, place);                         // before the first tensor
//   comm::Comm comm(...);
//   job::check_devices(comm);
//   recipe.plan.budget = job::reserve_device(place, recipe.plan.budget);  // before the first tensor on the device
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/comm/comm.h"
#include "tessera/plan/simulate/profile.h"

namespace tessera::job {

/// Takes what run.device asks for: "cpu", "cuda", or "auto", which takes a GPU where there is one that can be used and says
/// so. "cuda" without one is an error with the reason (UserError, Exit::usage), never a run on the CPU. A rank takes the GPU
/// of its number on its machine, or the one that it sees (srun --gpus-per-task=1).
void choose_device(std::string_view wanted, const comm::Rendezvous& place);

/// Reserves the chosen GPU's memory: all that it has, less what stays free for libraries, or `budget` bytes (plan.budget) if
/// that is not 0. Returns the bytes that a plan may use: `budget`, or of a GPU what was reserved. TESSERA_SHARE_GPU=1 lets the
/// ranks of a machine share GPUs; each then has its part. `beside`: bytes that the driver and NCCL will take
/// (planning::beside_plan()); 0: not known.
int64_t reserve_device(const comm::Rendezvous& place, int64_t budget, int64_t beside = 0);

/// The target that plans of this process are measured for (base/target.h): that of `profile` where it only plans; else that
/// of the device that choose_device() took, empty for a CPU.
std::string plan_target(const plan::Profile& profile);

/// What this process computes on, as a profile names what it was measured on: "NVIDIA H100 80GB HBM3 (sm_90)", or of a CPU
/// plan::this_machine().
std::string computing_machine();

/// Throws UserError (usage) on every rank if two ranks have the same GPU and TESSERA_SHARE_GPU is not set, or if some ranks
/// compute on GPUs and others do not.
void check_devices(comm::Comm& comm);

/// Decides on which NUMA nodes the host memory of ranks lies: near their GPUs, and what has no room there on the next node that
/// has (engine/store/node_parts.h). Rank 0 says how much lies where, and warns of what lies far. Throws UserError (memory) on
/// every rank if all nodes of a machine together are short. All ranks together, before any of it is taken. `host_bytes`: of
/// this rank's. Does nothing on CPU ranks. `sysfs`: where the system says what hangs where.
void place_host_memory(comm::Comm& comm, int64_t host_bytes, const std::string& sysfs = "/sys");

/// Products are computed by the algorithms of the profile from here on ([Note: algorithms of products] in ops/products.h), if
/// all ranks have the same ones and each the chip and library for which they were measured. Warns where they cannot be used.
void use_algorithms(const plan::Profile& profile, comm::Comm& comm);

}  // namespace tessera::job
