// A training sample's draws: each from a stream of its own, by seed, step and place; and what a micro-batch is compared with.
#include "tessera/diffusion/training_sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tessera/base/random.h"
#include "tessera/diffusion/flow_matching.h"
#include "tessera/plan/token_shares.h"

namespace tessera::diffusion {
namespace {

CleanSample clean(int64_t frames = 2) { return {at::full({3, frames, 2, 2}, 0.5), at::ones({5, 4})}; }

TEST(TrainingSamples, HaveNoiseOfTheirOwnByTheSeedTheStepAndThePlace) {
  NoiseSettings settings;
  const auto noise = [&](uint64_t seed, int64_t step, int64_t place) {
    settings.seed = seed;
    return noised(settings, {}, clean(), step, place).velocity + 0.5;  // velocity: noise - latent
  };
  const at::Tensor first = noise(1, 2, 3);
  EXPECT_TRUE(at::equal(first, noise(1, 2, 3)));
  for (const at::Tensor& other : {noise(2, 2, 3), noise(1, 3, 3), noise(1, 2, 4), noise(1, 0, 3)})
    EXPECT_GT((first - other).abs().min().item<double>(), 1e-6);
  EXPECT_NEAR(at::cat({first, noise(1, 5, 3), noise(1, 6, 3), noise(1, 7, 3)}).square().mean().item<double>(), 1, 0.4);
}

TEST(TrainingSamples, DropCaptionsAndBeginCleanByTheirSharesAndNotTogether) {
  constexpr int kDrawn = 4000;
  for (const auto& [captions, images] : {std::pair(0.3, 0.3), {0.2, 0.7}, {0.0, 0.25}, {0.6, 0.0}}) {
    NoiseSettings settings{.seed = 5, .image_share = images, .caption_dropout = captions};
    settings.null_context = at::zeros({5, 4});
    net::Conditions takes;
    takes.clean_first = true;
    double dropped = 0, begun = 0, both = 0;
    for (int64_t place = 0; place < kDrawn; ++place) {
      const TrainingSample sample = noised(settings, takes, clean(), 1, place);
      const bool drop = sample.input.context.sum().item<double>() == 0,
                 begin = sample.input.extra.contains("image_latent");
      dropped += drop, begun += begin, both += drop && begin;
    }
    EXPECT_NEAR(dropped / kDrawn, captions, 0.03);
    EXPECT_NEAR(begun / kDrawn, images, 0.03);
    EXPECT_NEAR(both / kDrawn, captions * images, 0.03) << "neither draw says anything of the other";
  }
}

TEST(TrainingSamples, LogitNormalDrawsOfAWindowHaveTheirMeanAndScale) {
  const auto below = [](double u, const Options& o) {
    return 0.5 * std::erfc(-(std::log(u / (1 - u)) - o.mean) / o.scale / std::sqrt(2.0));
  };
  for (const double mean : {-1.0, 0.0, 0.8})
    for (const double scale : {0.5, 1.5}) {
      Options options{.timesteps = Timesteps::logit_normal, .mean = mean, .scale = scale, .window = {0.3, 0.9}};
      constexpr int kDrawn = 4000;
      for (const double q : {0.45, 0.6, 0.75}) {
        double found = 0;
        for (int64_t i = 0; i < kDrawn; ++i) found += draw(options, 3, i, 0).sigma < q;
        const double share = (below(q, options) - below(0.3, options)) / (below(0.9, options) - below(0.3, options));
        EXPECT_NEAR(found / kDrawn, share, 0.03) << mean << ", " << scale << ", " << q;
      }
    }
}

/// A token for each latent value, whose prediction the test makes.
class Rows final : public net::Denoiser {
 public:
  Rows() : Denoiser({.channels = 1, .context_dim = 1, .context_length = 1}) {}
  net::Batch pack(const std::vector<net::Sample>& samples) const override {
    net::Batch batch;
    std::vector<at::Tensor> rows;
    batch.tokens.offsets = {0};
    for (const net::Sample& sample : samples) {
      rows.push_back(pack_target(sample.x));
      batch.tokens.offsets.push_back(batch.tokens.offsets.back() + rows.back().size(0));
    }
    batch.inputs = {at::cat(rows)};
    return batch;
  }
  net::Sample blank(const std::array<int64_t, 4>&) const override { return {}; }
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(const std::vector<at::Tensor>&, const net::Batch&,
                                                                    const std::vector<net::Sample>&) const override {
    return {};
  }
  std::vector<at::Tensor> unpack(const at::Tensor&, const net::Batch&) const override { return {}; }
  at::Tensor pack_target(const at::Tensor& target) const override { return target.reshape({-1, 1}).contiguous(); }
  int64_t token_count(const std::array<int64_t, 4>& latent) const override {
    return latent[0] * latent[1] * latent[2] * latent[3];
  }
  std::string foreign_name(const std::string& name, const std::string&) const override { return name; }
  void initialise(const plan::ParamSpec&, uint64_t, int64_t, int64_t, float*) const override {}
  std::string config_json() const override { return "{}"; }
};

at::Tensor normals(int64_t count, uint64_t index) {
  const at::Tensor values = at::empty({count});
  RandomKey(9, Purpose::test, index).normal(values.mutable_data_ptr<float>(), 0, static_cast<size_t>(count));
  return values;
}

/// Four samples of other sizes in two micro-batches, on ranks that share the tokens of each: the loss, and what a gate learns
/// from, are those of one rank.
TEST(FlowMatchingObjective, OfRanksThatShareTokensIsThatOfOneSampleBySampleAndMicroBatchByMicroBatch) {
  const Rows model;
  const std::vector<int64_t> sizes = {5, 9, 4, 7};
  TrainingSamples samples;
  for (size_t s = 0; s < sizes.size(); ++s) {
    TrainingSample sample;
    sample.input.x = at::zeros({1, 1, 1, sizes[s]});
    sample.velocity = normals(sizes[s], s).view({1, 1, 1, sizes[s]});
    sample.index = static_cast<int64_t>(s);
    samples[static_cast<int64_t>(s)] = std::make_shared<const TrainingSample>(sample);
  }
  const std::vector<double> weights = {0.5, 2, 1.5, 0.25};
  // what every sample is predicted as
  const auto predicted = [&](size_t s) { return normals(sizes[s], 100 + s).view({-1, 1}); };
  double expected = 0;
  std::vector<double> by_weight;
  for (size_t s = 0; s < sizes.size(); ++s) {
    const at::Tensor off = predicted(s).flatten() - samples[static_cast<int64_t>(s)]->velocity.flatten();
    expected += off.square().mean().item<double>() / 4;
    by_weight.push_back((off * predicted(s).flatten()).sum().item<double>() * 2 / static_cast<double>(sizes[s]) / 4);
  }
  for (const char* mesh : {"single", "cp=2", "sp=3", "cp=2,tp=2"}) {
    plan::Plan plan;
    plan.mesh = Mesh::parse(mesh);
    plan.global_batch = 4, plan.micro_batch = 2;
    plan.units.resize(1);
    double loss = 0;
    std::vector<double> gate(4, 0), expected_gate = by_weight;
    std::vector<at::Tensor> gradients;
    for (const int64_t size : sizes) gradients.push_back(at::zeros({size, 1}));
    for (int rank = 0; rank < plan.mesh.world(); ++rank) {
      FlowMatching objective(model, rank);
      objective.begin({.plan = &plan, .samples = &samples, .places = {0, 1, 2, 3}, .step = 1, .weighed = true});
      for (int micro = 0; micro < 2; ++micro) {
        net::Batch batch = objective.batch(micro);
        const plan::TokenRange here = plan::token_share(batch.tokens.total(), plan.mesh, rank);
        batch.tokens.begin = here.begin, batch.tokens.end = here.end;
        const auto first = static_cast<size_t>(2 * micro);
        const at::Tensor whole = at::cat({predicted(first), predicted(first + 1)});
        const at::Tensor gradient = objective.gradient(whole.slice(0, here.begin, here.end).contiguous(), batch, micro);
        at::Tensor all = at::zeros_like(whole);
        all.slice(0, here.begin, here.end).copy_(gradient);
        gradients[first] += all.slice(0, 0, sizes[first]);
        gradients[first + 1] += all.slice(0, sizes[first]);
      }
      const at::Tensor numbers = objective.numbers();
      if (numbers.defined() && numbers.numel() > 0)
        objective.read({numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())});
      else
        objective.read({});
      loss += objective.loss();
      for (size_t s = 0; s < 4; ++s) gate[s] += objective.by_weight()[s];
    }
    EXPECT_NEAR(loss, expected, 1e-5) << mesh;
    for (size_t s = 0; s < sizes.size(); ++s) {
      const at::Tensor off = predicted(s).flatten() - samples[static_cast<int64_t>(s)]->velocity.flatten();
      EXPECT_TRUE(at::allclose(gradients[s].flatten(), off * (2.0 / static_cast<double>(sizes[s]) / 4), 1e-5, 1e-6))
          << mesh << ", sample " << s;
      EXPECT_NEAR(gate[s], expected_gate[s], 1e-4) << mesh << ", sample " << s;
    }
  }
}

}  // namespace
}  // namespace tessera::diffusion
