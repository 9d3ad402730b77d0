// The loss that a gate learns from, where the predictions are: the host waits for nothing before it reads the numbers.
#include "multirank/families.h"
#include "same_bits.h"
#include "tessera/diffusion/flow_matching.h"
#include "tessera/ops/kernels.h"
#include "timeline.h"

namespace tessera::testing {

namespace {

Tensor values(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}

/// Two samples behind a gate that gives their predictions weights, in one micro-batch.
struct Gated {
  explicit Gated(bool soft) {
    Random random(1);
    model = family_of("wan").model(random, {});
    plan.global_batch = plan.micro_batch = 2;
    plan.units.resize(model->units().size());
    for (int64_t place = 0; place < 2; ++place) {
      diffusion::TrainingSample sample;
      sample.input = model->blank({model->in_channels(), 1 + place, 4, 4});
      sample.velocity = values(sample.input.x.sizes(), 10 + static_cast<uint64_t>(place));
      sample.weight = 0.5 + static_cast<double>(place);
      samples[place] = std::make_shared<const diffusion::TrainingSample>(std::move(sample));
    }
    pass = {.plan = &plan, .samples = &samples, .places = {0, 1}, .gradient_scale = 4, .weighed = true};
    if (soft) pass.weights = {0.25, 0.75};
  }

  struct Found {
    Tensor gradient;
    double loss = 0;
    std::vector<double> by_weight;
    int64_t numbers = 0;  ///< that the host reads for all of it
    HostCounts counts;    ///< until the numbers are read
  };
  Found run(at::Device device) {
    diffusion::FlowMatching objective(*model, /*rank=*/0);
    std::map<int64_t, Tensor> sums;
    diffusion::PassData data = pass;
    const bool soft = !data.weights.empty();
    if (soft) data.sums = &sums;
    objective.begin(std::move(data));
    const net::Batch batch = objective.batch(0);
    for (Tensor* target : objective.compared(0)) *target = target->to(device);
    const int64_t width = model->pack_target(samples.at(0)->velocity).size(1);
    const Tensor prediction = values({batch.tokens.total(), width}, 20).to(device);
    for (size_t s = 0; soft && s < 2; ++s) {
      const auto [first, last] = batch.predictions_of(s);
      sums[static_cast<int64_t>(s)] = values({last - first, width}, 30 + s).to(device);
    }
    (void)timeline().take_counts();
    Found found;
    found.gradient = objective.gradient(prediction, batch, 0);
    const Tensor numbers = objective.numbers();
    found.counts = timeline().take_counts();
    std::vector<double> read;
    if (numbers.defined()) {
      const Tensor here = numbers.cpu();
      read.assign(here.const_data_ptr<double>(), here.const_data_ptr<double>() + here.numel());
      found.numbers = numbers.numel();
    }
    objective.read(read);
    found.loss = objective.loss(), found.by_weight = objective.by_weight();
    return found;
  }

  std::unique_ptr<net::Denoiser> model;
  plan::Plan plan;
  diffusion::TrainingSamples samples;
  diffusion::PassData pass;
};

class GateLoss : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, GateLoss, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "soft" : "hard"); });

TEST_P(GateLoss, IsComputedOnTheDeviceWithoutAWaitOfTheHost) {
  simulated_device();
  Gated gated(GetParam());
  const Gated::Found expected = gated.run(at::kCPU), found = gated.run(at::kPrivateUse1);
  EXPECT_EQ(found.counts.waits, 0);
  EXPECT_EQ(found.counts.bytes_back, 0);
  EXPECT_EQ(found.numbers, 4);
  EXPECT_EQ(expected.numbers, 4) << "on a CPU they are read as late";
  EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss);
  const Tensor gradient = found.gradient.cpu();
  EXPECT_TRUE(at::allclose(gradient, expected.gradient, 1e-5, 1e-9));
  ASSERT_EQ(found.by_weight.size(), 2);
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_NE(expected.by_weight[s], 0);
    EXPECT_NEAR(found.by_weight[s], expected.by_weight[s], 1e-5 * std::abs(expected.by_weight[s])) << "sample " << s;
  }
}

}  // namespace

}  // namespace tessera::testing
