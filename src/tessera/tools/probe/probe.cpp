#include "tessera/tools/probe/probe.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/target.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/device.h"
#include "tessera/tools/probe/clock.h"
#include "tessera/tools/probe/engine_times.h"
#include "tessera/tools/probe/rates.h"
#include "tessera/tools/probe/signatures.h"
#include "tessera/tools/probe/sizes.h"

namespace tessera::tools {

namespace {

/// Its target, where plans can be made for it.
std::string known_target(const device::Properties& gpu) {
  if (std::ranges::any_of(targets(), [&](const Target& known) { return known.name == gpu.chip; })) return gpu.chip;
  log::warn("probe: plans are made for no chip like this (" + (gpu.chip.empty() ? gpu.name : gpu.chip) +
            "): the profile has no target, and plans by it are measured as on a CPU");
  return "";
}

/// What the profile is of: this machine, or the GPUs that its ranks compute on.
plan::Profile described(const ProbeOptions& options, const comm::Rendezvous& place) {
  plan::Profile p;
  p.name = options.name;
  p.machine = job::computing_machine();
  p.source = "measured by tessera probe: " + std::to_string(place.world) + " ranks at once, ";
  p.host_memory = options.host_memory;
  if (p.host_memory == 0) p.host_memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const device::Backend* gpu = device::used();
  if (gpu) {
    const device::Properties properties = gpu->properties(device::here().index());
    p.devices = place.local_world;
    p.device.memory = properties.bytes;
    p.target = known_target(properties);
    p.source += p.machine + " at " + plan::this_machine();
  } else {
    p.source += std::to_string(at::get_num_threads()) + " threads each";
  }
  if (options.small) p.source += "; with small sizes, which say nothing of training";
  return p;
}

}  // namespace

plan::Profile probe(const ProbeOptions& options) {
  constexpr double kWarmUp = 2.5;  // seconds
  const comm::Rendezvous place = comm::rendezvous_from_env();
  engine::Meter::install();  // what operators return lies where it does in a step
  job::choose_device(options.device, place);
  if (device::used() && place.local_world > device::used()->count())
    throw UserError(Exit::usage, "probe",
                    std::to_string(place.local_world) + " ranks share a GPU: each measures the others",
                    "start one for each GPU: tessera launch probe");
  job::reserve_device(place, /*budget=*/0);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);  // as the engine's backward
  Mesh mesh;
  mesh[Axis::dp_shard] = place.world;
  comm::Comm comm(place, mesh, 300);
  job::check_devices(comm);
  const Ranks ranks = {.mean =
                           [&](double mine) {
                             double sum = 0;
                             comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
                             for (const auto& row : all.all_gather_doubles({mine})) sum += row[0];
                             return sum / place.world;
                           },
                       .meet = [&] { comm.barrier(); }};
  const Sizes& sizes = sizes_of(device::used(), options.small);
  const std::unique_ptr<Clock> clock = clock_of(device::used(), ranks, options.seconds, sizes.ahead);

  plan::Profile p = described(options, place);
  clock->warm_up(product_call(sizes.beside, sizes.types.front().type), options.small ? 0 : kWarmUp);
  measure_rates(p.device, *clock, sizes);
  measure_signatures(p.device, *clock, sizes);
  measure_copies(p, *clock, sizes, place.world);
  measure_disk(p, *clock, options.folder, place.rank, place.world);
  if (place.world > 1) measure_collectives(p, comm, *clock, sizes);
  measure_engine(p, comm, place.rank, place.world, sizes);
  return p;
}

}  // namespace tessera::tools
