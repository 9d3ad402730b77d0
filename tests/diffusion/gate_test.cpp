#include "tessera/diffusion/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tessera/torch_headers.h"

namespace tessera::diffusion {
namespace {

constexpr size_t kExperts = 3;
constexpr int64_t kText = 5;

/// With logits that differ, and a temperature that is not 1.
Gate decided() {
  Gate gate({.experts = kExperts, .text = kText, .temperature = 0.7, .seed = 4});
  for (float& value : gate.values()) value *= 8;
  gate.values().back() = std::log(0.7F);
  return gate;
}

std::vector<float> some_inputs(double t) {
  const std::vector<float> context = {1, 2, 3, -4, 0.5, 0, 1, 0.25, 2, 1};
  return gate_inputs(t, context, 2, kText);
}

TEST(GateInputs, AreTheTimestepsWavesAndTheMeanOfTheTextAtOneSize) {
  const std::vector<float> inputs = some_inputs(500);
  ASSERT_EQ(static_cast<int64_t>(inputs.size()), kGateTimes + kText);
  EXPECT_FLOAT_EQ(inputs[0], static_cast<float>(std::cos(500.0)));
  EXPECT_FLOAT_EQ(inputs[kGateTimes / 2], static_cast<float>(std::sin(500.0)));
  double squares = 0;
  for (int64_t i = kGateTimes; i < kGateTimes + kText; ++i) squares += double{inputs[i]} * inputs[i];
  EXPECT_NEAR(squares / kText, 1, 1e-6);
  EXPECT_GT(inputs[kGateTimes], 0);
  EXPECT_FLOAT_EQ(inputs[kGateTimes + 1] / inputs[kGateTimes], 3);
  const std::vector<float> silent = gate_inputs(500, std::vector<float>(kText, 0.0F), 1, kText);
  EXPECT_EQ(silent.back(), 0.0F) << "a text of zeros has no direction, and no NaN";
}

TEST(Gate, BeginsWithoutAnOpinionAndLetsNoiseChoose) {
  const Gate gate({.experts = 4, .text = kText, .seed = 1});
  EXPECT_EQ(gate.temperature(), 1);
  std::vector<int> chosen(4, 0);
  for (uint64_t place = 0; place < 4000; ++place) {
    const RandomKey noise(1, Purpose::expert, 1, place);
    ++chosen[gate.ask(some_inputs(500), &noise).chosen];
  }
  for (const int count : chosen) EXPECT_NEAR(count, 1000, 200);
  EXPECT_GT(gate.ask(some_inputs(500)).entropy(), 0.97 * std::log(4));
}

TEST(Gate, ChoosesAsOftenAsItsProbabilitiesSay) {
  const Gate gate = [] {
    Gate gate = decided();
    gate.values().back() = 0;  // temperature 1: Gumbel's draws are then those of the softmax
    return gate;
  }();
  const std::vector<double> expected = gate.ask(some_inputs(300)).noiseless;
  std::vector<double> share(kExperts, 0.0);
  constexpr int kDraws = 20000;
  for (uint64_t place = 0; place < kDraws; ++place) {
    const RandomKey noise(9, Purpose::expert, 2, place);
    share[gate.ask(some_inputs(300), &noise).chosen] += 1.0 / kDraws;
  }
  for (size_t e = 0; e < kExperts; ++e) EXPECT_NEAR(share[e], expected[e], 0.015);
}

/// The same with autograd, from the formulas of the header.
struct Plain {
  at::Tensor weight, bias, log_temperature;

  explicit Plain(const Gate& gate) {
    const auto part = [&](size_t i) {
      const Gate::Part p = gate.parts()[i];
      at::Tensor values = at::empty(p.shape, at::kDouble);
      for (size_t j = 0; j < p.count; ++j) values.mutable_data_ptr<double>()[j] = gate.values()[p.first + j];
      return values.requires_grad_(true);
    };
    weight = part(0), bias = part(1), log_temperature = part(2);
  }
  at::Tensor soft(const std::vector<float>& inputs, const RandomKey* noise) const {
    at::Tensor x = at::empty({static_cast<int64_t>(inputs.size())}, at::kDouble),
               g = at::zeros({kExperts}, at::kDouble);
    for (size_t i = 0; i < inputs.size(); ++i) x.mutable_data_ptr<double>()[i] = inputs[i];
    for (size_t e = 0; noise && e < kExperts; ++e)
      g.mutable_data_ptr<double>()[e] = -std::log(-std::log(noise->uniform(e)));
    return at::softmax((at::mv(weight, x) + bias + g) / log_temperature.exp(), 0);
  }
  std::vector<double> gradient() const {
    std::vector<double> all;
    for (const at::Tensor& part : {weight, bias, log_temperature}) {
      const at::Tensor values = part.grad().contiguous();
      all.insert(all.end(), values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
    }
    return all;
  }
};

void expect_all_near(const std::vector<double>& ours, const std::vector<double>& theirs) {
  double most = 0;
  for (const double value : theirs) most = std::max(most, std::abs(value));
  ASSERT_GT(most, 0);
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], 1e-10 * most) << "value " << i;
}

/// Predictions of the experts for one sample, and the loss of a prediction.
const std::vector<std::vector<double>> kPredictions = {{0.5, -1, 2, 0}, {1, 1, -0.5, 0.3}, {-2, 0.1, 0.7, 1}};
at::Tensor prediction(size_t e) { return at::tensor(kPredictions[e], at::kDouble); }
at::Tensor loss_of(const at::Tensor& answer) {
  return (answer - at::tensor({1.0, 0.0, 0.5, -1.0}, at::kDouble)).square().mean();
}

class GateGradient : public ::testing::TestWithParam<bool> {};

TEST_P(GateGradient, IsThatOfThePlainLoopWithAutograd) {
  const bool hard = GetParam();
  const Gate gate = decided();
  const Plain plain(gate);
  std::vector<double> ours(gate.values().size(), 0.0);
  constexpr double kBalance = 0.3;
  const std::vector<double> times = {120, 480, 910};
  std::vector<double> share(kExperts, 0.0);
  for (size_t s = 0; s < times.size(); ++s) {
    const RandomKey noise(3, Purpose::expert, 1, s);
    share[gate.ask(some_inputs(times[s]), &noise).chosen] += 1.0 / static_cast<double>(times.size());
  }
  at::Tensor total = at::zeros({}, at::kDouble);
  at::Tensor probability = at::zeros({kExperts}, at::kDouble);
  for (size_t s = 0; s < times.size(); ++s) {
    const std::vector<float> inputs = some_inputs(times[s]);
    const RandomKey noise(3, Purpose::expert, 1, s);
    const Gate::Answer answer = gate.ask(inputs, &noise);
    const at::Tensor soft = plain.soft(inputs, &noise);
    probability = probability + plain.soft(inputs, nullptr) / static_cast<double>(times.size());
    at::Tensor mixed = at::zeros({4}, at::kDouble);
    for (size_t e = 0; e < kExperts; ++e) {
      const at::Tensor p = soft[static_cast<int64_t>(e)];
      EXPECT_NEAR(p.item<double>(), answer.weights[e], 1e-12);
      const at::Tensor w = hard ? (e == answer.chosen ? 1 - p.detach() + p : at::zeros({}, at::kDouble)) : p;
      mixed = mixed + w * prediction(e);
    }
    total = total + loss_of(mixed);
    // as the training loop has it: <dL/dprediction, prediction> of the experts that were asked
    const at::Tensor by_answer = (mixed.detach() - at::tensor({1.0, 0.0, 0.5, -1.0}, at::kDouble)) / 2;
    std::vector<double> by_weights(kExperts, 0.0), by_noiseless(kExperts, 0.0);
    for (size_t e = 0; e < kExperts; ++e) {
      if (!hard || e == answer.chosen) by_weights[e] = at::dot(by_answer, prediction(e)).item<double>();
      by_noiseless[e] = kBalance * kExperts * share[e] / static_cast<double>(times.size());
    }
    gate.backward(inputs, answer, by_weights, by_noiseless, ours);
  }
  const at::Tensor balance = kExperts * (at::tensor(share, at::kDouble) * probability).sum();
  (total + kBalance * balance).backward();
  expect_all_near(ours, plain.gradient());
  std::vector<double> mean(kExperts);
  for (size_t e = 0; e < kExperts; ++e) mean[e] = probability[static_cast<int64_t>(e)].item<double>();
  EXPECT_NEAR(balance_loss(share, mean), balance.item<double>(), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GateGradient, ::testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Hard" : "Soft"; });

TEST(BalanceLoss, IsOneWhereEvenAndTheNumberOfExpertsWhereAllChooseOne) {
  EXPECT_DOUBLE_EQ(balance_loss(std::vector{0.25, 0.25, 0.25, 0.25}, std::vector{0.25, 0.25, 0.25, 0.25}), 1);
  EXPECT_DOUBLE_EQ(balance_loss(std::vector{0.0, 1.0, 0.0}, std::vector{0.0, 1.0, 0.0}), 3);
}

}  // namespace
}  // namespace tessera::diffusion
