#pragma once
// The matrix products of linears that a thread has run, on meta tensors too: what is computed while ranks exchange
// something is measured by their difference.
//
//   const ProductFlops before = product_flops();
//   ...
//   const double between = product_flops().results - before.results;

namespace tessera::ops {

/// FLOPs (2 for each multiply-add); never decrease.
struct ProductFlops {
  double results = 0;       ///< of results and of gradients of inputs
  double weight_grads = 0;  ///< of gradients of weights
};

/// The calling thread's.
ProductFlops& product_flops();

}  // namespace tessera::ops
