#pragma once
// Times of a machine's operators by signature: products and attention on grids of sizes, the others by kind, on normally
// distributed data.
//
//   measure_signatures(profile.device, *clock, sizes);
#include "tessera/ops/products.h"
#include "tessera/ops/row_index.h"
#include "tessera/plan/attention.h"
#include "tessera/plan/simulate/profile.h"
#include "tessera/tools/probe/clock.h"
#include "tessera/tools/probe/sizes.h"

namespace tessera::tools {

/// Fills products, attentions, operators and dispatch.
void measure_signatures(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes);

/// Of each shape the fastest algorithm that the device's library offers, each measured once, kept with its library's name. Nothing
/// where the device has no such library; a shape that the library does not serve is left out. All ranks choose the same.
plan::ProductChoices measure_algorithms(Clock& clock, const std::vector<ops::ProductShape>& shapes);

/// The name of a dtype in a profile, and of a kernel of attention: "bf16", "bf16_cudnn".
std::string rates_of(at::ScalarType type, plan::Attention kernel = plan::Attention::flash);
/// The kernels of attention that are timed here.
std::vector<plan::Attention> kernels_of(at::ScalarType type);
/// The rate through two points: seconds = (work + half) / top.
plan::Rate line(double small_work, double small_seconds, double large_work, double large_seconds);

/// All rows use the one row of a table.
ops::RowIndex one_row_of(int64_t rows);

/// Seconds of a forward with a graph, and of its backward.
struct Both {
  double forward, backward;
};
/// `share` as Clock::seconds.
Both time_both(Clock& clock, double share, const std::function<at::Tensor()>& forward,
               const std::vector<at::Tensor>& leaves);

}  // namespace tessera::tools
