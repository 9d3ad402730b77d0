#pragma once
// The layouts of a model's units under a plan, and the bytes of their states on one rank. Equal units share them: a search
// asks for those of forty blocks thousands of times.
//
//   const UnitSizes sizes(model, plan, rank);
//   sizes.layout(u).grad_shard; sizes.state_bytes(u);
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/whole_matrices.h"

namespace tessera::plan {

class UnitSizes {
 public:
  UnitSizes(const ModelSpec& model, const Plan& plan, int rank);
  /// Of a pass that trains nothing: no unit has a gradient.
  UnitSizes frozen() &&;
  const UnitLayout& layout(int unit) const { return known_[of_[static_cast<size_t>(unit)]].layout; }
  int64_t state_bytes(int unit) const { return known_[of_[static_cast<size_t>(unit)]].state_bytes; }
  /// By buffer; empty for optimisers that update no whole matrices.
  const std::vector<MatrixParts>& matrices(int unit) const { return known_[of_[static_cast<size_t>(unit)]].matrices; }

 private:
  struct Known {
    int unit;  ///< the first that has them
    UnitLayout layout;
    int64_t state_bytes;
    std::vector<MatrixParts> matrices;
  };
  std::vector<Known> known_;
  std::vector<size_t> of_;  ///< by unit
};

}  // namespace tessera::plan
