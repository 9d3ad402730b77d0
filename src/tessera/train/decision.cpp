#include "tessera/train/decision.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/checkpoint/training.h"
#include "tessera/comm/launch/stop_signals.h"
#include "tessera/optim/adamw.h"

namespace tessera::train {

namespace {

constexpr double kLeastScale = 1.0 / 16384;  // what overflows at this scale is beyond fp16 by itself
constexpr const char *kScaleKey = "loss_scale", *kStepsKey = "loss_scale_steps";

std::string scale_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// A number that is none has no sign either: printf gives it one.
double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

std::string six_digits(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

/// What a step that is not finite says of itself; `bad`: data-set index of a sample, -1 for none.
std::string not_finite(const Decision& d, int64_t bad, const DecisionRules& rules) {
  return "loss " + six_digits(d.loss) + ", gradient norm " + six_digits(d.norm) +
         (bad >= 0 ? ", sample " + rules.source(bad) : ", every sample's own loss was finite");
}

}  // namespace

LossScale::LossScale(const plan::Plan& plan, const recipe::Recipe::Train& train) {
  if (plan.compute != DType::f16 && plan.reduce != DType::f16) return;
  scaler_.emplace(optim::GradScalerOptions{.init_scale = static_cast<float>(train.loss_scale),
                                           .growth_interval = train.loss_scale_window});
}

std::optional<double> LossScale::scale() const {
  return scaler_ ? std::optional<double>(scaler_->scale()) : std::nullopt;
}

std::string LossScale::end_step(int64_t step, bool finite, const std::function<std::string()>& kept) {
  if (!scaler_) return "";
  const double used = scaler_->scale();
  if (scaler_->update(finite)) return "";
  const std::string why = "gradients overflowed fp16 at loss scale " + scale_text(used);
  if (scaler_->scale() < kLeastScale)
    throw UserError(Exit::not_finite, "train", "step " + std::to_string(step) + ": " + why,
                    "they are too large for fp16 at any scale: lower train.lr, or compute and reduce in bf16" +
                        (kept ? "; " + kept() : std::string()));
  return why + ", from now on it is " + scale_text(scaler_->scale());
}

void LossScale::save(checkpoint::Manifest& manifest) const {
  if (!scaler_) return;
  manifest.extra[kScaleKey] = scaler_->scale();
  manifest.extra[kStepsKey] = scaler_->growth_tracker();
}

void LossScale::restore(const checkpoint::Manifest& manifest) {
  if (!scaler_ || !manifest.extra.contains(kScaleKey)) return;
  scaler_->restore({manifest.extra.value(kScaleKey, scaler_->scale()), manifest.extra.value(kStepsKey, int64_t{0})});
}

Decision decide(double norm, const std::vector<std::vector<double>>& ranks, const DecisionRules& rules,
                LossScale& loss_scale) {
  Decision d;
  int64_t bad = -1;
  for (const auto& row : ranks) {
    const StepReport& report = d.ranks.emplace_back(StepReport::unpack(row));
    d.loss += report.loss;
    for (size_t b = 0; b < diffusion::LossByTimestep::kBins; ++b) {
      d.by_timestep.sums[b] += report.by_timestep.sums[b];
      d.by_timestep.counts[b] += report.by_timestep.counts[b];
    }
    d.due = d.due || report.due != 0;
    if (report.bad_sample > 0 && bad < 0) bad = static_cast<int64_t>(report.bad_sample) - 1;
    if (const int signal = static_cast<int>(report.stop); signal == comm::kSaveSignal)
      d.save = true;
    else if (signal > 0)
      d.stop = signal;
  }
  d.rate = rules.rate;
  d.loss_scale = loss_scale.scale();
  d.loss = without_sign_of_nan(d.loss);
  d.norm = without_sign_of_nan(norm / d.loss_scale.value_or(1));
  const bool finite = std::isfinite(d.loss) && std::isfinite(d.norm);
  // Of a loss that is not finite no scale is the cause.
  if (std::isfinite(d.loss)) d.skipped = loss_scale.end_step(rules.step, finite, rules.kept);
  d.overflow = !d.skipped.empty();
  if (d.overflow) return d;
  if (!finite) {
    d.skipped = not_finite(d, bad, rules);
    if (rules.skip_not_finite) return d;
    throw UserError(Exit::not_finite, "train", "step " + std::to_string(rules.step) + ": " + d.skipped,
                    (bad >= 0 ? "look at that sample, lower train.lr, " : "lower train.lr, ") +
                        std::string("or set run.on_nan = \"skip\"") + (rules.kept ? "; " + rules.kept() : ""));
  }
  if (rules.updated) return d;
  d.control = net::StepControl{rules.count_update(), rules.rate,
                               optim::clip_coefficient(d.norm, rules.clip_norm) / d.loss_scale.value_or(1)};
  return d;
}

}  // namespace tessera::train
