// Whole small models in the plain context (net/plain_context.h), on the device beside the CPU.
#include "multirank/families.h"
#include "same_bits.h"
#include "tessera/net/plain_context.h"

namespace tessera::testing {

namespace {

class FamiliesOnDevice : public ::testing::TestWithParam<const char*> {};

Tensor values(std::vector<int64_t> sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}

/// Two samples of different shapes.
net::Batch batch_of(const net::Denoiser& model, at::Device device) {
  std::vector<net::Sample> samples;
  for (const int64_t frames : {1, 3}) {
    net::Sample sample = model.blank({model.in_channels(), frames, 4, 2 + 2 * frames});
    sample.x = values(sample.x.sizes().vec(), 2);
    sample.context = values({model.context_length() - frames + 1, model.context_dim()}, 3);
    sample.t = 100.0 + 200.0 * static_cast<double>(frames);
    samples.push_back(std::move(sample));
  }
  net::Batch batch = model.pack(samples);
  for (Tensor& t : batch.inputs) t = t.to(device);
  batch.tokens.change_tables([&](const Tensor& t) { return t.to(device); });
  return batch;
}

/// The prediction and the gradient of every weight.
std::map<std::string, Tensor> run(const net::Denoiser& model, at::Device device) {
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const Tensor w = at::empty(param.shape, at::kFloat);
      draw_weights(model, 5, param, 0, w.numel(), w.mutable_data_ptr<float>());
      weights[param.name] = w.to(device).requires_grad_();
    }
  const Tensor y = net::run_plain(model.units(), weights, batch_of(model, device));
  y.backward(values(y.sizes().vec(), 4).to(device));
  std::map<std::string, Tensor> out = {{"", y}};
  for (const auto& [name, w] : weights) out[name] = w.grad();
  return out;
}

TEST_P(FamiliesOnDevice, HaveTheBitsOfTheCpu) {
  simulated_device();
  for (uint64_t seed = 1; seed < 4; ++seed) {
    Random random(seed);
    const auto model = family_of(GetParam()).model(random, {});
    const auto expected = run(*model, at::kCPU), found = run(*model, at::kPrivateUse1);
    ASSERT_GT(expected.size(), 10);
    for (const auto& [name, value] : expected)
      expect_same_bits(found.at(name), value, name.empty() ? "prediction" : "gradient of " + name);
  }
}

INSTANTIATE_TEST_SUITE_P(, FamiliesOnDevice, ::testing::Values("wan", "toy"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace

}  // namespace tessera::testing
