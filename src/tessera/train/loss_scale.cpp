#include "tessera/train/loss_scale.h"

#include "tessera/base/check.h"
#include "tessera/checkpoint/training.h"
#include "tessera/recipe/recipe.h"

namespace tessera::train {

namespace {

constexpr double kLeastScale = 1.0 / 16384;  // what overflows at this scale is beyond fp16 by itself
constexpr const char *kScaleKey = "loss_scale", *kStepsKey = "loss_scale_steps";

std::string scale_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

LossScale::LossScale(const plan::Plan& plan, const recipe::Recipe& recipe) {
  if (plan.compute != DType::f16 && plan.reduce != DType::f16) return;
  scaler_.emplace(optim::GradScalerOptions{.init_scale = static_cast<float>(recipe.train.loss_scale),
                                           .growth_interval = recipe.train.loss_scale_window});
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

}  // namespace tessera::train
