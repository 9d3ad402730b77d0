#pragma once
// Every operator with its reference, as data: the tests run over this table.
#include "tessera/ops/ops.h"

namespace tessera::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// The weights an operator reads, with a gradient buffer for each, and its unit's anchor.
struct Sites {
  std::vector<ops::WeightSite> sites;
  Tensor anchor;
  ops::WeightSite& operator[](size_t i) { return sites[i]; }
};

struct Operator {
  std::string name;
  Tensors inputs;     ///< differentiable
  Tensors weights;    ///< the values of its sites
  Tensors constants;  ///< cos, sin, rows, ids ...
  std::function<Tensor(const Tensors& inputs, Sites& sites, const Tensors& constants)> fast;
  std::function<Tensor(const Tensors& inputs, const Tensors& weights, const Tensors& constants)> reference;
};

/// All operators on odd sizes, several modulation rows and samples of uneven length.
std::vector<Operator> all_operators();

}  // namespace tessera::testing
