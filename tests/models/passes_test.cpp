// Passes over a denoiser beside its own: in forward mode, and up to some of its blocks.
#include "tessera/net/passes.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::net {
namespace {

using at::Tensor;

Tensor normals(at::IntArrayRef shape, uint64_t index) {
  const Tensor values = at::empty(shape, at::kFloat);
  RandomKey(11, Purpose::test, index).normal(values.mutable_data_ptr<float>(), 0, static_cast<size_t>(values.numel()));
  return values;
}

WeightMap weights_of(const Denoiser& model) {
  WeightMap weights;
  uint64_t index = 100;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params)
      weights[param.name] = (normals(param.shape, ++index) * 0.3).to(at::kDouble);
  return weights;
}

Batch in_double(Batch batch) {
  for (Tensor& input : batch.inputs) input = input.to(at::kDouble);
  return batch;
}

std::vector<Sample> samples_of(const Denoiser& model) {
  std::vector<Sample> samples;
  for (const int64_t side : {4, 6}) {
    Sample sample = model.blank({model.in_channels(), 1, side, 4});
    sample.x = normals(sample.x.sizes(), static_cast<uint64_t>(side));
    sample.context = normals({3, model.context_dim()}, 20);
    sample.t = 100.0 * static_cast<double>(side);
    samples.push_back(std::move(sample));
  }
  return samples;
}

TEST(Passes, ForwardModeIsTheDifferenceOfDisplacedCalls) {
  const at::NoGradGuard no_graph;
  for (const char* preset : {"sana-tiny", "sana-tiny-norms", "sana-tiny-sprint", "wan-tiny", "wan-tiny-i2v",
                             "wan-tiny-ti2v", "opensora2-tiny", "opensora2-tiny-guided", "hunyuan-tiny"}) {
    SCOPED_TRACE(preset);
    const auto model = models::make_denoiser({.preset = preset});
    const WeightMap weights = weights_of(*model);
    const std::vector<Sample> samples = samples_of(*model);
    std::vector<Direction> directions;
    for (size_t s = 0; s < samples.size(); ++s)
      directions.push_back({normals(samples[s].x.sizes(), 30 + s), s == 0 ? 2.0 : -1.5});
    const Batch moving = in_double(pack_moving(*model, samples, directions)), still = model->pack(samples);
    const size_t count = still.inputs.size();
    std::vector<size_t> moved;  // of the inputs: their tangents stand behind all of them
    const auto tangents = model->pack_directions(still, directions);
    for (size_t i = 0; i < tangents.size(); ++i)
      if (tangents[i].defined()) moved.push_back(i);
    ASSERT_EQ(moved.size(), 2u) << "patches and the sinusoid of time";
    ASSERT_EQ(moving.inputs.size(), count + 2);
    const auto packed = [&](double by) {
      std::vector<Sample> all = samples;
      for (size_t s = 0; s < all.size(); ++s)
        all[s].x = samples[s].x + by * directions[s].x, all[s].t += by * directions[s].t;
      return in_double(model->pack(all));
    };
    for (size_t i = 0; i < 2; ++i)
      EXPECT_LE(((packed(1e-2).inputs[moved[i]] - packed(-1e-2).inputs[moved[i]]) / 2e-2 - moving.inputs[count + i])
                    .abs()
                    .max()
                    .item<double>(),
                1e-2)
          << "input " << moved[i];
    const auto displaced = [&](double by) {
      Batch batch = moving;
      for (size_t i = 0; i < 2; ++i) batch.inputs[moved[i]] = moving.inputs[moved[i]] + by * moving.inputs[count + i];
      batch.inputs.resize(count);
      return run_plain(model->units(), weights, batch);
    };
    const auto halves = run_plain(forward_mode(*model), weights, moving).chunk(2, 1);
    const Tensor differences = (displaced(1e-6) - displaced(-1e-6)) / 2e-6, value = displaced(0);
    const double scale = differences.abs().max().item<double>();
    EXPECT_GT(scale, 1e-3);
    EXPECT_LE((halves[0] - value).abs().max().item<double>(), 1e-10 * value.abs().max().item<double>());
    EXPECT_LE((halves[1] - differences).abs().max().item<double>(), 1e-4 * scale);
  }
}

TEST(Passes, AFamilyWithoutForwardModeIsRefused) {
  for (const char* preset : {"wan-tiny-fun-control", "wan-tiny-fun-camera"})
    EXPECT_THROW(forward_mode(*models::make_denoiser({.preset = preset})), UserError) << preset;
}

TEST(Passes, FeaturesAreWhatTheirBlocksReturn) {
  const at::NoGradGuard no_graph;
  const auto model = models::make_denoiser({.preset = "sana-tiny-norms"});
  const WeightMap weights = weights_of(*model);
  const Batch batch = in_double(model->pack(samples_of(*model)));
  std::vector<Tensor> streams;
  Flow flow{batch.inputs, {}};
  for (const auto& unit : model->units()) {
    PlainContext ctx(weights, unit->prefix(), batch.tokens);
    Flow out = unit->forward(ctx, flow);
    flow.stream = out.stream;
    if (!out.cond.empty()) flow.cond = out.cond;
    streams.push_back(flow.stream[0]);
  }
  EXPECT_TRUE(at::equal(run_plain(up_to_blocks(*model, {0, 1}), weights, batch), at::cat({streams[1], streams[2]}, 1)));
  EXPECT_TRUE(at::equal(run_plain(up_to_blocks(*model, {1}), weights, batch), streams[2]));
  const auto units = up_to_blocks(*model, {0});
  EXPECT_EQ(units.size(), 2u) << "what stands behind the last block is not run";
  EXPECT_TRUE(at::equal(run_plain(units, weights, batch), streams[1]));
  EXPECT_THROW(up_to_blocks(*model, {2}), UserError);
  EXPECT_THROW(up_to_blocks(*model, {}), UserError);
}

}  // namespace
}  // namespace tessera::net
