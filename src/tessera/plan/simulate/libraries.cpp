#include "tessera/plan/simulate/libraries.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/device_messages.h"
#include "tessera/base/target.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// What an empty context takes: 426 MiB with LibTorch 2.10 for CUDA 13 on sm_89 (unsloth-zoo#1053), 484 MiB with NCCL loaded on
// sm_86 (nccl#2366); it grows with the number of multiprocessors. [E]
constexpr int64_t kContext = 520 * kMiB;
// Kernels are loaded when they first run: cuBLAS's, the flash attention's, LibTorch's and ours; with the memory that threads
// of those with spilled registers have. [E]
constexpr int64_t kKernels = 256 * kMiB;

/// What a communicator takes by its channels: buffers for three protocols, 10 MiB, and one of 2 MiB, of which the library says no
/// more.
struct LinkBytes {
  int peer_channels, ring_channels;
  int64_t channel;
  int64_t peer(int most) const { return (most > 0 ? std::min(most, peer_channels) : peer_channels) * channel; }
  int64_t neighbour(int most) const { return (most > 0 ? std::min(most, ring_channels) : ring_channels) * channel; }
};
// Over NVLink the first exchange of eight H100 took 3.28 GB (nccl#1685: 32 channels a peer): 447 MiB for each of seven. Rings:
// 24 channels of the same buffers. [E]
constexpr LinkBytes kNvlink = {32, 24, 14 * kMiB};
// Over PCIe two channels a peer (nccl-tests#307, nccl#1706). [E]
constexpr LinkBytes kPcie = {2, 2, 12 * kMiB};
constexpr double kSlowestNvlink = 100e9;  // bytes/s of a ring, which PCIe does not reach
// Exchanges with other nodes share one buffer in each communicator (nccl#2363, #2366). [E]
constexpr int64_t kNetwork = 512 * kMiB;

struct OfPurpose {
  std::string purpose;
  std::vector<int> members;
};

/// Those of buffers that are sharded where the mesh shards, for what ranks of tp cut and for what each of them has.
std::vector<DeviceGroup> usual_buffer_groups(const Mesh& mesh) {
  Plan plan;
  plan.mesh = mesh;
  std::vector<DeviceGroup> all;
  for (const bool over_tp : {false, true}) {
    Buffer buffer;
    buffer.over_tp = over_tp, buffer.shards = mesh.shard_size();
    for (const DeviceGroup& group : buffer_groups(plan, buffer)) all.push_back(group);
  }
  return all;
}

std::vector<DeviceGroup> groups_of(const Connected& run) {
  if (!run.model) {
    std::vector<DeviceGroup> all = usual_buffer_groups(run.mesh);
    std::ranges::move(run.of_units ? *run.of_units : any_unit_groups(run.mesh), std::back_inserter(all));
    return all;
  }
  std::vector<DeviceGroup> all = unit_groups(*run.model, run.mesh);
  const UnitSizes sizes(*run.model, *run.plan, /*rank=*/0);
  for (int u = 0; u < static_cast<int>(run.model->units.size()); ++u)
    for (const Buffer& buffer : sizes.layout(u).buffers)
      for (const DeviceGroup& group : buffer_groups(*run.plan, buffer))
        if (std::ranges::find(all, group) == all.end()) all.push_back(group);
  return all;
}

/// The communicators of rank 0: each purpose has its own; a group of one has none.
std::vector<OfPurpose> communicators(const Connected& run) {
  const Mesh& mesh = run.mesh;
  std::vector<OfPurpose> all;
  const auto make = [&](const std::string& purpose, const std::vector<Axis>& axes) {
    const std::vector<int> members = mesh.group(0, axes);
    const auto same = [&](const OfPurpose& other) { return other.purpose == purpose && other.members == members; };
    if (members.size() > 1 && std::ranges::none_of(all, same)) all.push_back({purpose, members});
  };
  for (const DeviceGroup& group : groups_of(run)) make(group.purpose, group.axes);
  // stages: with the next and the one before, activations and gradients
  make("results", {Axis::pp});
  const int stages = mesh[Axis::pp], stride = mesh.world() / std::max(1, stages);
  for (int next = 1; next <= std::min(2, stages - 1); ++next)
    for (const char* purpose : {"activations", "gradients"}) all.push_back({purpose, {0, next * stride}});
  return all;
}

/// Of the unit with most: parts in double, and what they become in fp32, for each round and buffer. Prodigy's totals, eight bytes
/// for some thousand elements, are left out.
int64_t update_sums(const Connected& run) {
  const int rounds = row(run.plan->states.optimizer).rounds;
  if (rounds == 0) return 0;
  const UnitSizes sizes(*run.model, *run.plan, /*rank=*/0);
  int64_t most = 0;
  for (size_t u = 0; u < run.model->units.size(); ++u) {
    if (run.plan->units[u].update_on == Tier::host) continue;
    int64_t values = 0;
    for (int round = 0; round < rounds; ++round)
      for (const Buffer& buffer : sizes.layout(static_cast<int>(u)).buffers)
        values += round_up(sums(*run.plan, run.model->units[u], buffer, round), int64_t{2});
    most = std::max(most, values * int64_t{sizeof(double) + sizeof(float)});
  }
  return most;
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

std::vector<LibraryBytes> workspaces(const Profile& profile, int threads, bool deterministic) {
  if (profile.target.empty()) return {};
  const Target& chip = target(profile.target, "plan.profile");
  const std::string setting = cublas_setting(chip, deterministic);
  return {{"cuBLAS", threads * cublas_workspace(chip, setting),
           "workspace of " + count_text(threads, "thread") + " that computes, " + setting + " on " + profile.target}};
}

namespace {
constexpr int64_t kMostOnTheirWay = 128 * kMiB;
}

/// The one that the compute lane takes, and the next; a batch may not fit behind the others at the end of the ring.
int64_t bytes_on_their_way(int64_t batch, int64_t micros) {
  constexpr int64_t kSlack = 64 << 10;
  return std::min(std::min(micros, int64_t{2}) * batch + kSlack, kMostOnTheirWay);
}

std::vector<LibraryBytes> beside_plan(const Profile& profile, const Connected& run) {
  if (profile.target.empty()) return {};
  std::vector<LibraryBytes> lines = {{"CUDA context", kContext, "of the driver [E]"},
                                     {"kernels", kKernels, "of libraries and ours, once they have run [E]"}};
  lines.push_back({"batches on their way",
                   run.model ? bytes_on_their_way(run.model->inputs + run.model->targets, run.plan->accumulation())
                             : kMostOnTheirWay,
                   "inputs and targets, which come while others compute"});
  if (run.model)
    if (const int64_t bytes = update_sums(run); bytes > 0)
      lines.push_back({"update sums", bytes, "by rows and columns, of the unit with most"});
  const LinkBytes& link = profile.link.gather >= kSlowestNvlink ? kNvlink : kPcie;
  const int node = profile.devices > 0 ? profile.devices : run.mesh.world();
  int64_t bytes = 0, count = 0;
  for (const auto& [purpose, members] : communicators(run)) {
    const int size = static_cast<int>(members.size());
    const DeviceMessages messages = device_messages(purpose);
    const auto near = [&](const std::vector<int>& peers) {
      return std::ranges::count_if(peers, [&](int i) { return members[static_cast<size_t>(i)] < node; });
    };
    bytes += near(messages.peers_of(0, size)) * link.peer(messages.channels);
    if (messages.rings) bytes += std::min(2, size - 1) * link.neighbour(messages.channels);
    if (members.back() >= node) bytes += kNetwork;
    ++count;
  }
  if (count > 0) lines.push_back({"NCCL", bytes, "buffers of " + count_text(count, "communicator") + " [E]"});
  return lines;
}

int64_t default_budget(const Profile& profile, const Connected& run) {
  const int64_t memory = profile.device.memory;
  return std::min(without_reserve(memory), without_gaps(memory - bytes_of(beside_plan(profile, run))));
}

int64_t driver_bytes(const Profile& profile, const Connected& run, int64_t budget) {
  return with_gaps(budget) + bytes_of(beside_plan(profile, run));
}

}  // namespace tessera::plan
