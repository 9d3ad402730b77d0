// A program that has this file computes on the simulated device where its recipe asks for a GPU.
#include "simulated.h"
#include "tessera/device/open.h"

namespace tessera::testing {
namespace {

[[maybe_unused]] const bool offered = (device::offer(simulated_device()), true);

}  // namespace
}  // namespace tessera::testing
