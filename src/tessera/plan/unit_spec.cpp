#include "tessera/plan/unit_spec.h"

#include "tessera/base/check.h"

namespace tessera::plan {

int64_t ParamSpec::numel() const {
  int64_t product = 1;
  for (int64_t n : shape) product *= n;
  return product;
}

int64_t ModelSpec::numel() const {
  int64_t sum = 0;
  for (const auto& unit : units)
    for (const auto& param : unit.params) sum += param.numel();
  return sum;
}

FlatLayout flat_layout(const UnitSpec& unit, int shards) {
  FlatLayout layout;
  layout.shards = shards;
  int64_t at = 0;
  for (const auto& param : unit.params) {
    layout.start.push_back(at);
    at = round_up(at + param.numel(), kFlatAlign);
  }
  layout.shard = round_up(div_up(at, shards), kFlatAlign);
  layout.total = layout.shard * shards;
  return layout;
}

}  // namespace tessera::plan
