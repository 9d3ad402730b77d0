#pragma once
// Measures the time that the engine adds to the operators and transfers of a step. It trains a small model for a few
// steps under short plans, and writes the excess over the cost model's prediction into the profile.
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
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/ops/products.h"
#include "tessera/plan/simulate/profile.h"
#include "tessera/tools/probe/clock.h"
#include "tessera/tools/probe/sizes.h"

namespace tessera::tools {

/// Every rank of `comm`, whose mesh is dp_shard over all, calls it with the same profile and gets the same.
void measure_engine(plan::Profile& profile, comm::Comm& comm, int rank, int world, const Sizes& sizes);

// Rates of a machine's operators, each by the line through few and many: what plans take where no signature is near.
//
//   measure_rates(profile.device, *clock, sizes);

/// Fills gemm, attention, attention_backward, stream, bandwidth (the optimiser) and norm.
void measure_rates(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes);

/// A product that computes: for Clock::warm_up() and beside().
Call product_call(const ProductSize& size, at::ScalarType type);

// Rates of what moves bytes: copies between device and host, the disk, collectives among the ranks; alone and beside compute.
//
//   measure_copies(profile, *clock, sizes, ranks);
//   measure_disk(profile, *clock, folder, rank, ranks);
//   measure_collectives(profile, comm, *clock, sizes);

/// Fills host_link and copy_steal, copy_beside; of a device also host_link_back and both_ways; and host_bandwidth, of `ranks` ranks
/// of this machine.
void measure_copies(plan::Profile& profile, Clock& clock, const Sizes& sizes, int ranks);

/// Fills disk, disk_read and disk_write: large writes, made durable, and reads past the page cache; `ranks` share the disk.
/// Throws UserError (disk) when `folder` cannot be written.
void measure_disk(plan::Profile& profile, Clock& clock, const std::string& folder, int rank, int ranks);

/// Fills link, steal and beside. Every rank of `comm`, whose mesh is dp_shard over all of its several ranks, calls it.
void measure_collectives(plan::Profile& profile, comm::Comm& comm, Clock& clock, const Sizes& sizes);

// Measures what this machine does, into a profile that plan.profile takes: products, attention, the operators between
// them, memory, copies, disk, what the engine adds (engine_times.h) and, under a launcher, collectives among the ranks, alone and
// beside compute.
//
//   tessera launch -n 2 probe --out machine.toml
//
// All ranks measure at the same time, because they will compute at the same time. A minute and a half at most.
//
// | file | what it is |
// | clock.h | by what calls are timed: the clock of a CPU, or events of a device |
// | sizes.h | what is timed: sizes of the models that the machine trains |
// | signatures.h, rates.h, transfers.h, engine_times.h | the measurements, which know neither |

struct ProbeOptions {
  std::string name = "probed";
  std::string folder = ".";     ///< where the disk is measured
  double seconds = 0.4;         ///< spent on each measurement, about
  std::string device = "auto";  ///< as run.device
  int64_t host_memory = 0;      ///< bytes of the machine; 0: what its system shows, which of some virtual ones grows
  /// Shapes of products of which algorithms are measured, asked for when the device is chosen; empty: none.
  std::function<std::vector<ops::ProductShape>()> products = {};
  bool small = false;  ///< a dry run: sizes that take no time, whose rates say nothing of training
};

/// Joins the ranks of the environment. Every rank returns the same profile: means over ranks.
/// Throws UserError: (disk) when `folder` cannot be written, (usage) as job::choose_device.
plan::Profile probe(const ProbeOptions& options);

}  // namespace tessera::tools
