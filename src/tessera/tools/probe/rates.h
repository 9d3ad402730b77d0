#pragma once
// Rates of a machine's operators, each by the line through few and many: what plans take where no signature is near.
//
//   measure_rates(profile.device, *clock, sizes);
#include <string>

#include "tessera/comm/comm.h"
#include "tessera/plan/simulate/profile.h"
#include "tessera/tools/probe/clock.h"
#include "tessera/tools/probe/sizes.h"

namespace tessera::tools {

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

}  // namespace tessera::tools
