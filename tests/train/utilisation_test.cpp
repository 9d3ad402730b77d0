#include "tessera/train/utilisation.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

plan::ModelSpec model() {
  plan::ModelSpec spec;
  spec.tokens = 100;
  spec.units.resize(2);
  for (auto& unit : spec.units) unit.cost.forward_flops = 1e9, unit.cost.backward_flops = 2e9;
  return spec;
}

plan::Machine machine(double flops) {
  plan::Machine machine;
  machine.profile.name = "mine";
  machine.profile.device.gemm = {{"fp32", {flops, 0}}};
  return machine;
}

TEST(Utilisation, IsModelFlopsOverWhatAllDevicesCanDo) {
  // 6 GFLOP a hundred tokens, 400 tokens in 2 s: 12 GFLOP/s of 4 x 10.
  const auto mfu = model_flops_utilisation(model(), machine(10e9), 400, 2.0, 4);
  ASSERT_TRUE(mfu.has_value());
  EXPECT_DOUBLE_EQ(*mfu, 0.3);
}

TEST(Utilisation, IsNotToldWhereNoRateIsKnown) {
  EXPECT_FALSE(model_flops_utilisation(model(), plan::Machine{}, 400, 2.0, 4)) << "the stand-in profile";
  plan::Machine bf16 = machine(10e9);
  bf16.dtype = "bf16";
  EXPECT_FALSE(model_flops_utilisation(model(), bf16, 400, 2.0, 4)) << "no rate of the dtype";
}

}  // namespace
}  // namespace tessera::train
