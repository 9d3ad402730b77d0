// What a step makes of the devices: FLOPs counted by shape and rank, and the rate that they are held against.
#include "tessera/train/step_report.h"

#include <gtest/gtest.h>

#include "tessera/engine/signatures.h"
#include "tessera/models/registry.h"

namespace tessera::train {
namespace {

constexpr const char* kConfig =
    R"({"dim": 64, "num_heads": 2, "num_layers": 4, "ffn_dim": 192, "in_dim": 16, "out_dim": 16, "freq_dim": 32,
        "text_dim": 48, "text_len": 8})";

plan::Plan plan_of(const Mesh& mesh) {
  plan::Plan plan;
  plan.mesh = mesh;
  plan.units.resize(6);  // stem, blocks, head
  return plan;
}

double of_all_ranks(ModelFlops& flops, const Mesh& mesh) {
  double sum = 0;
  for (int rank = 0; rank < mesh.world(); ++rank) sum += flops.of_sample({16, 2, 8, 6}, plan_of(mesh), rank);
  return sum;
}

TEST(Utilisation, FlopsOfAModelAreThreeTimesItsForwardButForGradientsOfItsInputs) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  ModelFlops flops(*model);
  const net::Batch batch = model->pack({model->blank({16, 2, 8, 6})});
  double forward = 0;
  const plan::WorkTable work = engine::count_work(model->units(), batch);
  for (const auto& unit : model->units()) forward += work.at(unit->spec().kind).forward_flops();
  const double counted = flops.of_sample({16, 2, 8, 6}, plan_of(Mesh{}), 0);
  EXPECT_LE(counted, 3 * forward * (1 + 1e-9));
  EXPECT_GT(counted, 2.9 * forward);
}

TEST(Utilisation, AttentionGrowsWithTheSquareOfALongerClip) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  ModelFlops flops(*model);
  const plan::Plan plan = plan_of(Mesh{});
  const double one = flops.of_sample({16, 2, 8, 6}, plan, 0), two = flops.of_sample({16, 4, 8, 6}, plan, 0),
               four = flops.of_sample({16, 8, 8, 6}, plan, 0);
  EXPECT_GT(four - two, 2 * (two - one)) << "counted by shape, not by token";
}

TEST(Utilisation, RanksThatShareASampleShareItsFlops) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  ModelFlops flops(*model);
  const double whole = of_all_ranks(flops, Mesh{});
  for (const Axis axis : {Axis::cp, Axis::sp, Axis::tp, Axis::pp}) {
    Mesh mesh;
    mesh[axis] = 2;
    EXPECT_NEAR(of_all_ranks(flops, mesh), whole, 1e-9 * whole) << axis_name(axis);
  }
  Mesh data;
  data[Axis::dp_shard] = 2;
  EXPECT_DOUBLE_EQ(of_all_ranks(flops, data), 2 * whole) << "each a sample of its own";
}

plan::Machine machine(double flops) {
  plan::Machine machine;
  machine.profile.name = "mine";
  machine.profile.device.gemm = {{"fp32", {flops, 0}}};
  return machine;
}

TEST(Utilisation, ThePeakIsTheProfilesRateOfTheDtype) {
  EXPECT_EQ(peak_flops(machine(10e9), false, 4), 10e9) << "measured with the threads that a rank has";
  EXPECT_EQ(peak_flops(machine(10e9), true, 4), 10e9);
  plan::Machine bf16 = machine(10e9);
  bf16.dtype = "bf16";
  EXPECT_FALSE(peak_flops(bf16, false, 4)) << "no rate of the dtype";
}

TEST(Utilisation, TheStandInProfileHasTheRateOfAThreadAndNoneOfAGpu) {
  const double thread = plan::find_profile("cpu").device.gemm.at("fp32").top;
  EXPECT_EQ(peak_flops(plan::Machine{}, false, 4), 4 * thread);
  EXPECT_FALSE(peak_flops(plan::Machine{}, true, 4));
}

}  // namespace
}  // namespace tessera::train
