#include "tessera/plan/simulate/work.h"

#include <numeric>

namespace tessera::plan {

namespace {

double sum(const std::vector<double>& flops) { return std::accumulate(flops.begin(), flops.end(), 0.0); }

double attention_flops(const UnitWork& work) {
  double flops = 0;
  for (const auto& [site, of_site] : work.attention) flops += of_site;
  return flops;
}

}  // namespace

void UnitWork::add_product(double flops, bool trained) {
  products.push_back(flops);
  input_grads.push_back(flops);
  if (trained) weight_grads.push_back(flops);
}

double UnitWork::forward_flops() const { return sum(products) + attention_flops(*this); }

double UnitWork::backward_flops() const {
  return backward ? sum(input_grads) + sum(weight_grads) + 2 * attention_flops(*this) : 0;
}

}  // namespace tessera::plan
