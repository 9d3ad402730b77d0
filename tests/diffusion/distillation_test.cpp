// The losses of a student that a teacher trains, against their definitions by differences.
#include "tessera/diffusion/distillation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/check.h"

namespace tessera::diffusion {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

class Distillation : public ::testing::Test {
 protected:
  Tensor normals(at::IntArrayRef shape) { return at::randn(shape, generator_, at::kDouble); }

 private:
  at::Generator generator_ = at::detail::createCPUGenerator(17);
};

TEST_F(Distillation, ACallMovesAsItsDifferences) {
  const Tensor x = normals({2, 3}), dx = normals({2, 3});
  const auto network = [](const Tensor& z, double time) { return at::sin(z) * std::cos(3 * time); };
  for (const double norm : {1000.0, 300.0})
    for (const double sigma : {0.5, 1.0})
      for (const double t : {0.04, 0.7, 1.2, 1.5708}) {
        const TrigFlow flow{sigma, norm};
        const double dt = 0.8;
        const auto f = [&](double by) {
          const FlowCall call = flow.call(x + by * dx * sigma, t + by * dt);
          return call.output(network(call.z, call.time));
        };
        const FlowCall call = flow.call(x, t);
        const FlowMove move = flow.move(call, dx, dt);
        const Tensor u = network(call.z, call.time), du = at::cos(call.z) * std::cos(3 * call.time) * move.z -
                                                          3 * std::sin(3 * call.time) * at::sin(call.z) * move.time;
        const Tensor differences = (f(1e-6) - f(-1e-6)) / 2e-6;
        EXPECT_LE((move.output(du, u) - differences).abs().max().item<double>(), 1e-7) << t;
      }
}

TEST_F(Distillation, WholeTimestepsStandStill) {
  const TrigFlow flow{0.5, 1};
  const FlowCall call = flow.call(normals({2}), 0.7);
  EXPECT_EQ(call.time, std::trunc(1000 * call.s));
  EXPECT_EQ(flow.move(call, normals({2}), 1).time, 0);
}

TEST_F(Distillation, CleanLatentsComeBackFromTheirVelocity) {
  const TrigFlow flow{0.5, 1000};
  const Tensor x0 = normals({4}), noise = normals({4});
  const double t = 0.9;
  const Tensor f = (-std::sin(t) * x0 + std::cos(t) * 0.5 * noise) / 0.5;  // dx_t / dt over sigma_d
  EXPECT_LE((flow.clean(flow.noisy(x0, noise, t), f, t) - x0).abs().max().item<double>(), 1e-14);
}

TEST_F(Distillation, TheConsistencyLossHasTheGradientsOfItsDefinition) {
  const TrigFlow flow{0.5, 1000};
  std::vector<ConsistencySample> samples;
  for (const double t : {0.3, 1.4})
    samples.push_back({t, normals({2, 3}), normals({2, 3}), normals({2, 3}), normals({2, 3}), t - 0.7});
  const ConsistencyLoss made = consistency_loss(flow, samples, 0.6);
  const auto loss = [&](size_t which, const Tensor& df, double dlogvar) {  // what is constant stays
    double sum = 0;
    for (size_t s = 0; s < samples.size(); ++s) {
      const Tensor off = (s == which ? df : at::zeros({2, 3}, at::kDouble)) - made.g[s];
      const double logvar = samples[s].logvar + (s == which ? dlogvar : 0);
      sum += (flow.weight(samples[s].t) * std::exp(-logvar) * off.square() + logvar).mean().item<double>() / 2;
    }
    return sum;
  };
  EXPECT_NEAR(made.loss, loss(0, at::zeros({2, 3}, at::kDouble), 0), 1e-12);
  for (size_t s = 0; s < samples.size(); ++s) {
    const Tensor direction = normals({2, 3});
    EXPECT_NEAR((loss(s, 1e-6 * direction, 0) - loss(s, -1e-6 * direction, 0)) / 2e-6,
                (made.at_f[s] * direction).sum().item<double>(), 1e-8);
    EXPECT_NEAR((loss(s, at::zeros({2, 3}, at::kDouble), 1e-6) - loss(s, at::zeros({2, 3}, at::kDouble), -1e-6)) / 2e-6,
                made.at_logvar[s], 1e-8);
    const double norm = made.g[s].norm().item<double>();
    EXPECT_TRUE(norm < 1 && norm > 0.5) << norm;  // |g| / (|g| + 0.1)
  }
}

/// With the singular vectors that power iteration goes to, so that differences hold what follows them too.
std::map<std::string, Tensor> settled(std::map<std::string, Tensor> values) {
  const std::string end = ".weight_orig";
  std::map<std::string, Tensor> result = values;
  for (const auto& [name, weight] : values) {
    if (!name.ends_with(end)) continue;
    const auto [u, s, vh] = at::linalg_svd(weight.detach().flatten(1), /*full_matrices=*/false);
    const std::string at = name.substr(0, name.size() - end.size());
    result[at + ".weight_u"] = u.select(1, 0).contiguous(), result[at + ".weight_v"] = vh.select(0, 0).contiguous();
  }
  return result;
}

/// Two heads on features of five channels.
std::map<std::string, Tensor> drawn_heads(const std::function<Tensor(at::IntArrayRef)>& normals) {
  std::map<std::string, Tensor> values;
  for (const std::string head : {"heads.0.", "heads.1."})
    for (const auto& [name, out, kernel] :
         {std::tuple{"main.0.0", 5, 1}, std::tuple{"main.1.fn.0", 5, 9}, std::tuple{"cls", 1, 1}}) {
      const std::string at = head + name;
      values[at + ".weight_orig"] = normals({out, 5, kernel}), values[at + ".bias"] = normals({out});
      if (out == 1) continue;
      const std::string norm = at.substr(0, at.size() - 1) + "1";
      values[norm + ".weight"] = normals({5}), values[norm + ".bias"] = normals({5});
    }
  return settled(values);
}

TEST_F(Distillation, HeadsLearnByTheGradientsOfTheirLosses) {
  const auto draw = [&](at::IntArrayRef shape) { return normals(shape); };
  const Tensors fake = {draw({3, 5, 7}), draw({3, 5, 7})}, real = {draw({2, 5, 7}), draw({2, 5, 7})};
  for (const AdversarialRule rule : {AdversarialRule{true, 0}, AdversarialRule{false, 0}, AdversarialRule{true, 0.3}}) {
    const std::map<std::string, Tensor> drawn = drawn_heads(draw);
    Discriminator heads(drawn);
    const auto loss = [&](const std::string& name, const Tensor& moved) {
      std::map<std::string, Tensor> values = drawn;
      values[name] = values.at(name) + moved;
      Discriminator other(settled(values));
      return discriminator_loss(other, fake, real, rule).loss;
    };
    const AdversarialLoss made = discriminator_loss(heads, fake, real, rule);
    EXPECT_GT(made.loss, 0);
    for (const char* name : {"heads.0.main.0.0.weight_orig", "heads.1.main.1.fn.0.weight_orig",
                             "heads.0.main.1.fn.1.weight", "heads.1.cls.weight_orig", "heads.0.cls.bias"}) {
      const Tensor direction = draw(drawn.at(name).sizes());
      EXPECT_NEAR((loss(name, 1e-5 * direction) - loss(name, -1e-5 * direction)) / 2e-5,
                  (made.gradients.at(name) * direction).sum().item<double>(), 2e-5)
          << name;
    }
  }
}

TEST_F(Distillation, TheStudentIsToldTheGradientAtTheFeatures) {
  const auto draw = [&](at::IntArrayRef shape) { return normals(shape); };
  Tensors features = {draw({2, 5, 3}), draw({2, 5, 3})};  // fewer tokens than the convolution reaches
  Discriminator heads(drawn_heads(draw));
  for (const bool hinge : {true, false}) {
    const JudgedLoss told = generator_loss(heads, features, {hinge, 0});
    const Tensor direction = draw({2, 5, 3});
    const auto loss = [&](double by) {
      return generator_loss(heads, {features[0], features[1] + by * direction}, {hinge, 0}).loss;
    };
    EXPECT_NEAR((loss(1e-6) - loss(-1e-6)) / 2e-6, (told.at_features[1] * direction).sum().item<double>(), 1e-7);
  }
}

TEST_F(Distillation, ABatchThatIsNoMultipleOfItsGroupsIsRefused) {
  const auto draw = [&](at::IntArrayRef shape) { return normals(shape); };
  Discriminator heads(drawn_heads(draw));
  EXPECT_THROW(heads.logits_of_head(0, draw({9, 5, 7}), false), UserError);  // two groups
  EXPECT_EQ(heads.logits_of_head(0, draw({10, 5, 7}), false).sizes(), at::IntArrayRef({10, 7}));
}

TEST_F(Distillation, MatchingMovesWhatTheMaskCounts) {
  const Tensor x = normals({2, 3}), fake = normals({2, 3}), real = normals({2, 3});
  const MatchingLoss all = matching_loss(x, fake, real, {});
  EXPECT_LE((all.d - (fake - real) / (x - real).abs().mean()).abs().max().item<double>(), 1e-14);
  EXPECT_NEAR(all.loss, 0.5 * all.d.square().mean().item<double>(), 1e-14);
  EXPECT_LE((all.at_x - all.d / 6).abs().max().item<double>(), 1e-14);
  const Tensor mask = at::tensor({1.0, 0.0, 0.0}).expand({2, 3});
  const MatchingLoss part = matching_loss(x, fake, real, mask);
  EXPECT_LE((part.at_x - all.d * mask / 2).abs().max().item<double>(), 1e-14);
  EXPECT_THROW(matching_loss(x, fake, real, at::zeros({2, 3})), UserError);
}

TEST_F(Distillation, ExitsAreDrawnAlikeAndByTheStepAlone) {
  constexpr int64_t kSteps = 4, kDraws = 4000;
  std::vector<int> counts(kSteps, 0);
  for (int64_t step = 1; step <= kDraws; ++step) {
    const int64_t exit = drawn_exit(7, step, kSteps);
    ASSERT_TRUE(exit >= 0 && exit < kSteps);
    ASSERT_EQ(exit, drawn_exit(7, step, kSteps));
    ++counts[static_cast<size_t>(exit)];
  }
  for (const int count : counts) EXPECT_NEAR(count, kDraws / kSteps, 120);
  EXPECT_EQ(drawn_exit(7, 3, 1), 0);
}

TEST_F(Distillation, SigmasAreTheNearestOfTheTable) {
  const std::vector<double> sigmas = shifted_sigmas(7);
  ASSERT_EQ(sigmas.size(), 1000u);
  EXPECT_EQ(sigmas[0], 1);
  EXPECT_NEAR(nearest_sigma(sigmas, 0), 7 * 0.001 / (1 + 6 * 0.001), 1e-15);
  for (const double t : {1000.0, 960.0, 500.0, 20.0}) EXPECT_LE(std::abs(1000 * nearest_sigma(sigmas, t) - t), 4) << t;
}

TEST(PathRegression, HasTheGradientOfTheErrorAtTheEnds) {
  at::manual_seed(5);
  const auto drawn = [] { return at::randn({2, 5, 2, 3}, at::kDouble); };
  const std::vector<Tensor> path = {drawn(), drawn(), drawn()};
  const std::vector<double> sigmas = {1, 0.8, 0};
  // Chunks of 2, 1 and 2 frames, of which the second is at its end.
  const PathRegression found = path_regression(path, sigmas, {0, 2, 3}, {1, 2, 0});
  const Tensor u = drawn().requires_grad_();
  const Tensor sigma = at::tensor({0.8, 0.8, 0.0, 1.0, 1.0}, at::kDouble).view({1, 5, 1, 1});
  const Tensor end = found.x - sigma * u, counted = at::tensor({0, 1, 3, 4}, at::kLong);
  (end - path[2]).index_select(1, counted).square().mean().backward();
  const Tensor ours = found.share * 2 * sigma.square() * (u - found.target) / u.numel();
  EXPECT_LT((ours - u.grad()).abs().max().item<double>(), 1e-14);
  EXPECT_TRUE(at::equal(found.x.narrow(1, 0, 2), path[1].narrow(1, 0, 2)));
  EXPECT_TRUE(at::equal(found.x.narrow(1, 2, 1), path[2].narrow(1, 2, 1)));
  EXPECT_EQ(found.sigmas, (std::vector<double>{0.8, 0.8, 0, 1, 1}));
  EXPECT_EQ(path_regression(path, sigmas, {0}, {2}).share, 0) << "nothing to learn";
}

}  // namespace
}  // namespace tessera::diffusion
