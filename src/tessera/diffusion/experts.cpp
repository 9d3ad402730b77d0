#include "tessera/diffusion/experts.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::diffusion {

namespace {

/// Draws the expert of a period: the one whose part of [0, 1) contains the period's uniform random number.
uint32_t expert_of_period(uint64_t seed, int64_t period, const std::vector<double>& shares) {
  double left = RandomKey(seed, Purpose::expert, static_cast<uint64_t>(period)).uniform(0);
  uint32_t last = 0;
  for (uint32_t e = 0; e < shares.size(); ++e) {
    if (shares[e] <= 0) continue;
    last = e;
    if ((left -= shares[e]) < 0) return e;
  }
  return last;
}

}  // namespace

void ExpertOrder::extend(int64_t steps, const std::vector<double>& shares) {
  check_internal(shares.size() == rule_.experts, "diffusion.turns", "expected one share for each expert");
  if (alone()) steps_ += std::max<int64_t>(0, steps);
  for (int64_t i = 0; !alone() && i < steps; ++i) {
    const int64_t step = steps_++;
    const bool begins = step % rule_.period == 0;
    const uint32_t expert = rule_.cycle > 0 ? static_cast<uint32_t>(step % rule_.cycle > 0)
                            : begins        ? expert_of_period(rule_.seed, step / rule_.period, shares)
                                            : order_.back().expert;
    order_.push_back({expert, ++taken_[expert]});
  }
}

int64_t ExpertOrder::done(size_t expert, int64_t step) const {
  if (alone()) return std::min(step, steps_);
  for (int64_t s = step; s > 0; --s)
    if (this->expert(s) == expert) return own_step(s);
  return 0;
}

namespace {

/// Longest period of the timestep's sine waves, divided by 2 pi, as in the denoisers.
constexpr double kLongestWave = 10000;
/// Scale of initial weights times 1 / sqrt(inputs): initial logits differ by about 0.1, Gumbel noise has width 1.3.
constexpr double kInitialSize = 0.1;

std::vector<double> softmax(const std::vector<double>& logits, double temperature) {
  const double most = *std::ranges::max_element(logits);
  std::vector<double> weights;
  double sum = 0;
  for (const double logit : logits) sum += weights.emplace_back(std::exp((logit - most) / temperature));
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// Gradient with respect to logits / temperature, from the gradient with respect to the softmax.
std::vector<double> softmax_backward(const std::vector<double>& weights, std::span<const double> by_weights) {
  double mean = 0;
  for (size_t e = 0; e < weights.size(); ++e) mean += weights[e] * by_weights[e];
  std::vector<double> gradient;
  for (size_t e = 0; e < weights.size(); ++e) gradient.push_back(weights[e] * (by_weights[e] - mean));
  return gradient;
}

}  // namespace

std::vector<float> gate_inputs(double t, std::span<const float> context, int64_t tokens, int64_t width) {
  check_internal(static_cast<int64_t>(context.size()) == tokens * width, "diffusion.gate",
                 "a text embedding of " + std::to_string(context.size()) + " values is not " + std::to_string(tokens) +
                     " rows of " + std::to_string(width));
  std::vector<float> inputs;
  constexpr int64_t kHalf = kGateTimes / 2;
  for (int64_t i = 0; i < kGateTimes; ++i) {
    const double angle = t * std::pow(kLongestWave, -static_cast<double>(i % kHalf) / kHalf);
    inputs.push_back(static_cast<float>(i < kHalf ? std::cos(angle) : std::sin(angle)));
  }
  std::vector<double> sums(static_cast<size_t>(width), 0.0);
  for (size_t i = 0; i < context.size(); ++i) sums[i % sums.size()] += context[i];
  double squares = 0;
  for (const double sum : sums) squares += sum * sum;
  const double size = std::sqrt(squares / static_cast<double>(std::max<int64_t>(width, 1)));
  for (const double sum : sums) inputs.push_back(size > 0 ? static_cast<float>(sum / size) : 0.0F);
  return inputs;
}

Gate::Gate(const GateOptions& options)
    : experts_(options.experts), inputs_(kGateTimes + options.text), values_(experts_ * (inputs_ + 1) + 1, 0.0F) {
  const size_t weights = experts_ * static_cast<size_t>(inputs_);
  RandomKey(options.seed, Purpose::init, hash_text("gate.weight")).normal(values_.data(), 0, weights);
  const auto size = static_cast<float>(kInitialSize / std::sqrt(static_cast<double>(inputs_)));
  for (size_t i = 0; i < weights; ++i) values_[i] *= size;
  values_.back() = static_cast<float>(std::log(options.temperature));
}

double Gate::temperature() const { return std::exp(static_cast<double>(values_.back())); }

std::vector<Gate::Part> Gate::parts() const {
  const size_t weights = experts_ * static_cast<size_t>(inputs_);
  const auto experts = static_cast<int64_t>(experts_);
  return {{"gate.weight", {experts, inputs_}, 0, weights},
          {"gate.bias", {experts}, weights, experts_},
          {"gate.log_temperature", {1}, weights + experts_, 1}};
}

std::vector<double> Gate::logits(std::span<const float> inputs) const {
  check_internal(static_cast<int64_t>(inputs.size()) == inputs_, "diffusion.gate",
                 std::to_string(inputs.size()) + " inputs for a gate of " + std::to_string(inputs_));
  std::vector<double> logits;
  for (size_t e = 0; e < experts_; ++e) {
    double sum = values_[experts_ * inputs.size() + e];
    for (size_t i = 0; i < inputs.size(); ++i) sum += double{values_[e * inputs.size() + i]} * inputs[i];
    logits.push_back(sum);
  }
  return logits;
}

Gate::Answer Gate::ask(std::span<const float> inputs, const RandomKey* noise) const {
  std::vector<double> scores = logits(inputs);
  Answer answer;
  answer.noiseless = softmax(scores, temperature());
  if (noise)
    for (size_t e = 0; e < experts_; ++e) scores[e] -= std::log(-std::log(noise->uniform(e)));
  answer.weights = softmax(scores, temperature());
  answer.chosen = static_cast<size_t>(std::ranges::max_element(scores) - scores.begin());
  return answer;
}

double Gate::Answer::entropy() const {
  double sum = 0;
  for (const double p : noiseless)
    if (p > 0) sum -= p * std::log(p);
  return sum;
}

void Gate::backward(std::span<const float> inputs, const Answer& answer, std::span<const double> by_weights,
                    std::span<const double> by_noiseless, std::span<double> gradient) const {
  const std::vector<double> noisy = softmax_backward(answer.weights, by_weights),
                            noiseless = softmax_backward(answer.noiseless, by_noiseless);
  const double temperature = this->temperature();
  // log(softmax) is its input up to a common constant, which does not matter because the gradients sum to 0.
  double by_log_temperature = 0;
  for (size_t e = 0; e < experts_; ++e) {
    if (answer.weights[e] > 0) by_log_temperature -= noisy[e] * std::log(answer.weights[e]);
    if (answer.noiseless[e] > 0) by_log_temperature -= noiseless[e] * std::log(answer.noiseless[e]);
    const double by_logit = (noisy[e] + noiseless[e]) / temperature;
    for (size_t i = 0; i < inputs.size(); ++i) gradient[e * inputs.size() + i] += by_logit * inputs[i];
    gradient[experts_ * inputs.size() + e] += by_logit;
  }
  gradient.back() += by_log_temperature;
}

double balance_loss(std::span<const double> share, std::span<const double> probability) {
  double sum = 0;
  for (size_t e = 0; e < share.size(); ++e) sum += share[e] * probability[e];
  return sum * static_cast<double>(share.size());
}

}  // namespace tessera::diffusion
