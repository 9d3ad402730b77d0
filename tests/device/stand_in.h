#pragma once
// NCCL for the simulated device, between processes of one machine: the table of device/communicators.h. Messages are files in
// the temporary folder, written and read when the stream comes to them; from the first communicator on all streams but a
// device's first work late (timeline.h), so the host does not wait for the others, as on a GPU.
//
// What each rank issues is compared. Two ranks that share several communicators have to issue the messages that both take part
// in in one order; the first one that differs is an error that names both, because GPUs might wait for each other for ever.
// Messages between stages (activations, gradients) are compared within their communicator alone: [Note: one order of issue].
// Sizes are compared too, and where in their windows collectives' tensors lie. A member whose process has ended is named.
#include <set>
#include <string>
#include <vector>

#include "tessera/device/backend.h"
#include "tessera/device/communicators.h"

namespace tessera::testing {

const device::Communicators& stand_in_communicators();

/// A library of products with eight algorithms a shape, which differ in the time that they take: what the tests tell it, and
/// what it was asked. TESSERA_SIMULATED_PRODUCTS is its version.
const device::ProductLibrary& stand_in_products();
struct ProductsAsked {
  std::string version = "stand-in 1.0.0";
  uint64_t fastest = 6;              ///< of the algorithms 1 to 8
  std::set<uint64_t> refused = {};   ///< algorithms that it takes no more
  int most = 0;                      ///< that the last caller wanted
  std::vector<uint64_t> algorithms;  ///< by which it multiplied, one after the other
};
ProductsAsked& products_asked();

/// Ranks that are threads of one process: who the calling one is, from here on.
void become_rank(const std::string& name);

}  // namespace tessera::testing
