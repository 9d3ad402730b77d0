#include "tessera/plan/simulate/libraries.h"

#include <algorithm>
#include <map>

#include "tessera/base/target.h"
#include "tessera/plan/simulate/reserve.h"
#include "tessera/plan/token_shares.h"

namespace tessera::plan {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// What an empty context takes: 426 MiB with LibTorch 2.10 for CUDA 13 on sm_89 (unsloth-zoo#1053), 484 MiB with NCCL loaded on
// sm_86 (nccl#2366); it grows with the number of multiprocessors. [E]
constexpr int64_t kContext = 520 * kMiB;
// Kernels are loaded when they first run: cuBLAS's, the flash attention's, LibTorch's and ours; with the memory that threads
// of those with spilled registers have. [E]
constexpr int64_t kKernels = 256 * kMiB;

/// What a communicator takes for each other rank that it exchanges with, and for each neighbour on its rings.
struct LinkBytes {
  int64_t peer, neighbour;
};
// Over NVLink the first exchange of eight H100 took 3.28 GB (nccl#1685: 32 channels a peer, of each a buffer of 10 MiB, for three
// protocols, and one of 2 MiB): 447 MiB for each of seven. Rings: 24 channels of the same buffers. [E]
constexpr LinkBytes kNvlink = {447 * kMiB, 24 * 12 * kMiB};
// Over PCIe two channels a peer (nccl-tests#307, nccl#1706). [E]
constexpr LinkBytes kPcie = {2 * 12 * kMiB, 2 * 12 * kMiB};
constexpr double kSlowestNvlink = 100e9;  // bytes/s of a ring, which PCIe does not reach
// Exchanges with other nodes share one buffer in each communicator (nccl#2363, #2366). [E]
constexpr int64_t kNetwork = 512 * kMiB;

/// The ranks of each communicator of rank 0. Each purpose has its own; a group of one has none.
std::map<std::string, std::vector<int>> communicators(const Mesh& mesh) {
  std::map<std::string, std::vector<int>> all;
  const auto make = [&](const std::string& purpose, const std::vector<Axis>& axes) {
    std::string name = purpose;
    for (const Axis axis : axes)
      if (mesh[axis] > 1) name += ":" + std::string(axis_name(axis));
    if (std::vector<int> members = mesh.group(0, axes); members.size() > 1) all[name] = std::move(members);
  };
  std::vector<Axis> over_tp = kShardAxes;
  over_tp.push_back(Axis::tp);
  if (mesh.shard_size() > 1)
    for (const auto* axes : {&kShardAxes, &const_cast<const std::vector<Axis>&>(over_tp)})
      make("gather", *axes), make("reduce", *axes);
  make("reduce_outer", {Axis::dp_replicate});
  // Parallel::connect()
  make("sequence", {Axis::sp});
  for (const char* purpose : {"ring", "blocks"}) make(purpose, {Axis::cp});
  for (const char* purpose : {"tensor", "norms"}) make(purpose, {Axis::tp});
  for (const char* purpose : {"reach", "states"}) make(purpose, {Axis::cp, Axis::sp}), make(purpose, kSequenceAxes);
  for (const char* purpose : {"tokens", "sums"}) make(purpose, kSequenceAxes);
  // stages: with the next and the one before, activations and gradients
  make("results", {Axis::pp});
  const int stages = mesh[Axis::pp], stride = mesh.world() / std::max(1, stages);
  for (int next = 1; next <= std::min(2, stages - 1); ++next)
    for (const char* purpose : {"activations", "gradients"}) all[purpose + std::to_string(next)] = {0, next * stride};
  return all;
}

std::string count_text(int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

int64_t bytes_of(const std::vector<LibraryBytes>& lines) {
  int64_t sum = 0;
  for (const LibraryBytes& line : lines) sum += line.bytes;
  return sum;
}

std::vector<LibraryBytes> workspaces(const Profile& profile, int threads) {
  if (profile.target.empty()) return {};
  return {{"cuBLAS", threads * target(profile.target, "plan.profile").cublas_workspace,
           "workspace of " + count_text(threads, "thread") + " that computes, on " + profile.target}};
}

std::vector<LibraryBytes> beside_plan(const Profile& profile, const Mesh& mesh) {
  if (profile.target.empty()) return {};
  std::vector<LibraryBytes> lines = {{"CUDA context", kContext, "of the driver [E]"},
                                     {"kernels", kKernels, "of libraries and ours, once they have run [E]"}};
  const LinkBytes& link = profile.link.gather >= kSlowestNvlink ? kNvlink : kPcie;
  const int node = profile.devices > 0 ? profile.devices : mesh.world();
  int64_t bytes = 0, count = 0;
  for (const auto& [name, members] : communicators(mesh)) {
    const int64_t near = std::ranges::count_if(members, [&](int rank) { return rank > 0 && rank < node; });
    const bool far = near + 1 < static_cast<int64_t>(members.size());
    bytes += near * link.peer + (far ? kNetwork : 0);
    if (name.starts_with("gather")) bytes += std::min<int64_t>(2, near + far) * link.neighbour;
    ++count;
  }
  if (count > 0) lines.push_back({"NCCL", bytes, "buffers of " + count_text(count, "communicator") + " [E]"});
  return lines;
}

int64_t default_budget(const Profile& profile, const Mesh& mesh) {
  const int64_t memory = profile.device.memory;
  return std::min(without_reserve(memory), without_gaps(memory - bytes_of(beside_plan(profile, mesh))));
}

int64_t driver_bytes(const Profile& profile, const Mesh& mesh, int64_t budget) {
  return with_gaps(budget) + bytes_of(beside_plan(profile, mesh));
}

}  // namespace tessera::plan
