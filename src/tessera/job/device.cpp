#include "tessera/job/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/device/driver_watch.h"
#include "tessera/device/open.h"
#include "tessera/engine/store/meter.h"
#include "tessera/engine/store/node_parts.h"
#include "tessera/ops/products.h"
#include "tessera/plan/simulate/libraries.h"

namespace tessera::job {

namespace {

bool shares() {
  const char* value = std::getenv("TESSERA_SHARE_GPU");
  return value && *value && std::string_view(value) != "0";
}

/// The GPU of a rank among the `count` that it sees.
int index_of(const comm::Rendezvous& place, int count) {
  if (place.local_rank < count || shares()) return place.local_rank % count;
  if (count == 1) return 0;  // each rank sees its own; check_devices() finds those that do not
  throw UserError(Exit::usage, "run.device",
                  "rank " + std::to_string(place.rank) + " is number " + std::to_string(place.local_rank) +
                      " on its machine, which shows " + std::to_string(count) + " GPUs",
                  "start as many ranks as there are GPUs, or set TESSERA_SHARE_GPU=1 to let ranks share them");
}

/// TESSERA_NCCL=0: neither its messages nor its memory are used.
bool without_nccl() {
  const char* wanted = std::getenv("TESSERA_NCCL");
  return wanted && std::string_view(wanted) == "0";
}

std::atomic<bool> computes = false;  // choose_device() was called

bool is_too_old(const std::string& chip) { return chip.starts_with("sm_") && std::atoi(chip.c_str() + 3) < 80; }

}  // namespace

std::string plan_target(const plan::Profile& profile) {
  constexpr const char* kMost = "sm_90";  // of chips by which a machine's profile does not say, none takes more
  if (const device::Backend* gpu = device::used())
    return gpu->type != c10::DeviceType::CUDA ? "" : profile.target.empty() ? kMost : profile.target;
  return computes ? "" : profile.target;
}

std::string computing_machine() {
  if (!device::used()) return plan::this_machine();
  const device::Properties gpu = device::used()->properties(device::here().index());
  return gpu.name + (gpu.chip.empty() ? "" : " (" + gpu.chip + ")");
}

void choose_device(std::string_view wanted, const comm::Rendezvous& place) {
  computes = true;
  if (wanted == "cpu") return;
  const device::Opened& opened = device::open();
  if (!opened.table) {
    if (wanted == "cuda")
      throw UserError(Exit::usage, "run.device", "\"cuda\": " + opened.absence,
                      "set run.device = \"cpu\" or \"auto\" to train on the CPU");
    return;
  }
  const int index = index_of(place, opened.table->count());
  if (const device::Properties gpu = opened.table->properties(index); is_too_old(gpu.chip)) {
    const std::string why = gpu.name + " is of " + gpu.chip +
                            ": LibTorch 2.11 or our kernels have no code for GPUs older than sm_80 (A100, RTX 30)";
    if (wanted == "cuda")
      throw UserError(Exit::usage, "run.device", "\"cuda\": " + why, "set run.device = \"cpu\" to train on the CPU");
    log::warn("run.device: " + why + "; the CPU computes");
    return;
  }
  device::use(*opened.table, index);
  engine::Meter::use_device(*opened.table);
  device::watch_driver();
}

int64_t reserve_device(const comm::Rendezvous& place, int64_t budget, int64_t beside) {
  if (!device::used()) return budget;
  const device::Backend& gpu = *device::used();
  const int count = gpu.count();
  const device::Properties properties = gpu.properties(device::here().index());
  const int64_t sharers = shares() ? div_up(place.local_world, count) : 1;
  const int64_t reserve = plan::without_reserve(properties.bytes) / sharers;
  const int64_t room = beside > 0 ? properties.bytes / sharers - beside : reserve;  // for one block
  const int64_t usable = beside > 0 ? std::min(reserve, plan::without_gaps(room)) : reserve;
  if (usable <= 0)
    throw UserError(
        Exit::no_fit, "run.device",
        properties.name + " gives a rank " + format_bytes(properties.bytes / sharers) + ", but " +
            format_bytes(beside) + " lie beside the plan: the driver, kernels and buffers of NCCL",
        "use a GPU with more memory; if the ranks are of one node, measure it with all of them (tessera launch "
        "-n RANKS probe), as links to other nodes take more");
  if (budget > usable)
    throw UserError(Exit::usage, "plan.budget",
                    format_bytes(budget) + " are more than " + properties.name + " gives a rank: " +
                        format_bytes(properties.bytes) + ", of which " + format_bytes(usable) + " can be planned",
                    "leave plan.budget out, or set at most " + format_bytes(usable));
  const int64_t planned = budget > 0 ? budget : usable;
  engine::Meter::reserve(std::min(room, plan::with_gaps(planned)),
                         /*lent=*/place.world > 1 && sharers == 1 && !without_nccl());
  log::info("run.device: " + properties.name + ", " + format_bytes(planned) + " of its " +
            format_bytes(properties.bytes) + " for the plan");
  if (place.world == 1 && count > 1)
    log::info("run.device: this machine shows " + std::to_string(count) +
              " GPUs and one rank was started; tessera launch starts a rank for each");
  return planned;
}

void check_devices(comm::Comm& comm) {
  comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  const device::Backend* gpu = device::used();
  // as two halves of a hash, which doubles hold exactly
  const uint64_t id = gpu ? hash_text(gpu->properties(device::here().index()).uuid) : 0;
  const auto rows = all.all_gather_doubles({static_cast<double>(id >> 32), static_cast<double>(id & 0xFFFFFFFFu)});
  bool shared = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool on_gpu = rows[i][0] != 0 || rows[i][1] != 0, first = rows[0][0] != 0 || rows[0][1] != 0;
    if (on_gpu != first)
      throw UserError(Exit::usage, "run.device",
                      "rank " + std::to_string(i) + " computes on " + (on_gpu ? "a GPU" : "the CPU") + ", rank 0 on " +
                          (first ? "a GPU" : "the CPU"),
                      "set run.device = \"cuda\" to see why a rank has none, or \"cpu\"");
    if (!on_gpu) continue;
    for (size_t j = 0; j < i; ++j) {
      if (rows[i] != rows[j]) continue;
      shared = true;
      if (!shares())
        throw UserError(
            Exit::usage, "run.device",
            "ranks " + std::to_string(j) + " and " + std::to_string(i) + " have the same GPU",
            "start one rank for each GPU; or set TESSERA_SHARE_GPU=1, then they share it, each with a part of "
            "its memory");
    }
  }
  if (!gpu || rows.size() == 1) return;
  std::string against;
  if (without_nccl()) against = "TESSERA_NCCL is 0";
  if (shared) against = "ranks share a GPU (TESSERA_SHARE_GPU)";
  const auto linking = comm.use_device_links(against);
  if (!linking.warning.empty() && all.rank() == 0) log::warn(linking.warning);
  if (!linking.used && all.rank() == 0)
    log::info("no NCCL between GPUs: " + linking.how + "; Gloo sends copies in host memory");
}

void place_host_memory(comm::Comm& comm, int64_t host_bytes, const std::string& sysfs) {
  if (!device::used()) return;
  const std::vector<engine::NumaNode> nodes = engine::numa_nodes(sysfs);
  const auto near = engine::near_node(device::used()->properties(device::here().index()).pci, sysfs);
  const engine::NodeShare own = engine::node_share(nodes, near, host_bytes);
  std::vector<double> row = {static_cast<double>(own.machine), static_cast<double>(own.node),
                             static_cast<double>(own.bytes)};
  for (size_t node = 0; node < engine::kMostNodes; ++node)
    for (const int64_t value : {own.free[node], own.room[node], int64_t{own.distance[node]}})
      row.push_back(static_cast<double>(value));
  comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  std::vector<engine::NodeShare> ranks;
  for (const auto& values : all.all_gather_doubles(row)) {
    engine::NodeShare& rank = ranks.emplace_back();
    rank.machine = static_cast<int64_t>(values[0]), rank.node = static_cast<int>(values[1]);
    rank.bytes = static_cast<int64_t>(values[2]);
    for (size_t node = 0; node < engine::kMostNodes; ++node) {
      rank.free[node] = static_cast<int64_t>(values[3 + 3 * node]);
      rank.room[node] = static_cast<int64_t>(values[4 + 3 * node]);
      rank.distance[node] = static_cast<int>(values[5 + 3 * node]);
    }
  }
  const std::vector<engine::NodeParts> parts = engine::place_on_nodes(ranks);
  const engine::NodeText text = engine::describe(ranks, parts);
  if (!text.shortage.empty())
    throw UserError(Exit::memory, "engine.host", text.shortage,
                    "lower plan.host_budget, offload less (activations = \"recompute\"), or end what uses that memory");
  engine::set_node_parts(parts[static_cast<size_t>(all.rank())], nodes);
  if (all.rank() != 0) return;
  if (!text.near.empty()) log::info("host memory of offloaded tensors: " + text.near);
  for (const std::string& warning : text.far) log::warn(warning);
}

namespace {

/// Why the profile's algorithms cannot be used here; empty: they can.
std::string against_algorithms(const plan::Profile& profile) {
  const device::Backend& gpu = *device::used();
  if (profile.machine != computing_machine())
    return "they were measured on " + (profile.machine.empty() ? "a machine that it does not name" : profile.machine) +
           ", this is " + computing_machine();
  const std::string library = gpu.products ? gpu.products->version() : "";
  if (library.empty()) return "this device has no library of products whose algorithms can be chosen";
  if (library != profile.algorithms.library)
    return "they are of " + profile.algorithms.library + ", this is " + library + ", which cannot read them";
  for (const auto& [product, text] : profile.algorithms.chosen)
    if (!ops::algorithm_of(text)) return "that of " + product + " is not 128 digits of 0 to f: " + text.substr(0, 40);
  return "";
}

}  // namespace

void use_algorithms(const plan::Profile& profile, comm::Comm& comm) {
  ops::use_algorithms({});
  std::string why, text;
  if (device::used() && !profile.algorithms.chosen.empty()) {
    why = against_algorithms(profile);
    for (const auto& [product, algorithm] : profile.algorithms.chosen) text += product + " " + algorithm + "\n";
    if (!why.empty()) text = why;
  }
  comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  // as two halves of a hash, which doubles hold exactly
  const uint64_t id = hash_text(text);
  const auto rows = all.all_gather_doubles({static_cast<double>(id >> 32), static_cast<double>(id & 0xFFFFFFFFu)});
  const bool alike = std::ranges::all_of(rows, [&](const auto& row) { return row == rows.front(); });
  if (!alike && why.empty()) why = "ranks have different ones, or other libraries";
  if (!why.empty() && all.rank() == 0)
    log::warn("plan.profile: the algorithms of products in profile " + profile.name + " are not used: " + why +
              "; LibTorch chooses. tessera probe --recipe measures them here");
  if (!why.empty() || text.empty() || !alike) return;
  ops::ProductAlgorithms algorithms;
  for (const auto& [product, words] : profile.algorithms.chosen) algorithms[product] = *ops::algorithm_of(words);
  if (all.rank() == 0)
    log::info("products of " + std::to_string(algorithms.size()) +
              " shapes are computed by the algorithms of profile " + profile.name + " (" + profile.algorithms.library +
              "), others as LibTorch chooses");
  ops::use_algorithms(std::move(algorithms));
}

}  // namespace tessera::job
