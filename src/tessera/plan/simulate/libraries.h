#pragma once
// Memory of a GPU that libraries take: workspaces, which lie among the tensors and count within plan.budget, and what the
// driver and NCCL take beside them. None of a profile without a target. Numbers marked [E] are estimates, as a profile's are.
//
//   const Profile node = find_profile("h200");
//   bytes_of(workspaces(node, 1));                // within the budget: 32 MiB
//   bytes_of(beside_plan(node, {model, plan}));   // beside it
//   default_budget(node, {mesh, groups});         // what is left for a plan of a model that sends by these groups
//
// Default device budget of a rank. It leaves a reserve, because plans do not include the driver's context, communication
// buffers (libraries.h) and what lies between tensors.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/plan/device_groups.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/simulate/profile.h"

namespace tessera::plan {

struct LibraryBytes {
  std::string name;  ///< "cuBLAS"
  int64_t bytes;
  std::string note;
};
int64_t bytes_of(const std::vector<LibraryBytes>& lines);

/// `threads`: that compute on the device, each with a handle of its own. `deterministic`: run.deterministic.
std::vector<LibraryBytes> workspaces(const Profile& profile, int threads, bool deterministic = false);

/// What a run connects. Before there is a plan: what a model may use with every unit sharded, or with none where the mesh does
/// not shard. `of_units`: unit_groups() of the model, where it is known.
struct Connected {
  Mesh mesh;
  std::optional<std::vector<DeviceGroup>> of_units = {};
  const ModelSpec* model = nullptr;
  const Plan* plan = nullptr;
  Connected(const Mesh& mesh) : mesh(mesh) {}  // NOLINT: a mesh is what is known first
  Connected(const Mesh& mesh, std::vector<DeviceGroup> of_units) : mesh(mesh), of_units(std::move(of_units)) {}
  Connected(const ModelSpec& model, const Plan& plan) : mesh(plan.mesh), model(&model), plan(&plan) {}
};

/// Memory of the driver through which micro-batches come to the device while others compute (engine/slice.h): of so
/// many in a step, each with `batch` bytes of inputs and targets. One that is larger comes by the compute lane.
int64_t bytes_on_their_way(int64_t batch, int64_t micros);

/// Of the rank with most in a run whose ranks fill one node after the other.
std::vector<LibraryBytes> beside_plan(const Profile& profile, const Connected& run);

/// Device bytes of a rank that can be planned: without_reserve() of the device, less where what lies beside the plan takes more
/// than that reserve.
int64_t default_budget(const Profile& profile, const Connected& run);

/// What the driver then says that the rank uses (NVML): the block that a run reserves for `budget` bytes, and what lies beside.
int64_t driver_bytes(const Profile& profile, const Connected& run, int64_t budget);

/// Bytes to use of a device with `memory` bytes: 3 GiB and 3 % stay free, or a tenth on small devices.
inline int64_t without_reserve(int64_t memory) {
  return memory - std::min(memory / 10, (int64_t{3} << 30) + memory / 100 * 3);
}

inline constexpr int64_t kGapsOf = 32, kLeastGaps = int64_t{64} << 20;

/// The block that a run takes from a GPU's driver for `planned` bytes: what lies between tensors is at most 3 % of them, and
/// somewhat more of few.
inline int64_t with_gaps(int64_t planned) { return planned + planned / kGapsOf + kLeastGaps; }

/// Bytes that can be planned of such a block.
inline int64_t without_gaps(int64_t block) { return (block - kLeastGaps) / (kGapsOf + 1) * kGapsOf; }

}  // namespace tessera::plan
