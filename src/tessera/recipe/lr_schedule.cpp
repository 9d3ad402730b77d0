#include "tessera/recipe/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "tessera/base/check.h"

namespace tessera::recipe {

namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kPolynomialEnd = 1e-7;  // diffusers' lr_end

double warmup_ratio(const LrSchedule& s, double i) {
  return i / std::max<double>(1, static_cast<double>(s.warmup_steps));
}
/// Progress after warm-up: 0 to 1, more after the last step.
double progress(const LrSchedule& s, double i) {
  return (i - static_cast<double>(s.warmup_steps)) /
         std::max<double>(1, static_cast<double>(s.total_steps - s.warmup_steps));
}
bool warming(const LrSchedule& s, double i) { return i < static_cast<double>(s.warmup_steps); }

double constant(const LrSchedule& s, double) { return s.lr; }
double constant_with_warmup(const LrSchedule& s, double i) { return s.lr * (warming(s, i) ? warmup_ratio(s, i) : 1); }
double linear(const LrSchedule& s, double i) {
  return s.lr * (warming(s, i) ? warmup_ratio(s, i) : std::max(0.0, 1 - progress(s, i)));
}
double cosine(const LrSchedule& s, double i) {
  return s.lr * (warming(s, i) ? warmup_ratio(s, i) : std::max(0.0, 0.5 * (1 + std::cos(kPi * progress(s, i)))));
}
double cosine_min(const LrSchedule& s, double i) {
  if (warming(s, i)) return s.lr * warmup_ratio(s, i);
  return s.eta_min + (s.lr - s.eta_min) / 2 * (1 + std::cos(kPi * progress(s, i)));
}
double cosine_with_restarts(const LrSchedule& s, double i) {
  if (warming(s, i)) return s.lr * warmup_ratio(s, i);
  const double p = progress(s, i);
  return p >= 1 ? 0 : s.lr * std::max(0.0, 0.5 * (1 + std::cos(kPi * std::fmod(s.num_cycles * p, 1.0))));
}
double polynomial(const LrSchedule& s, double i) {
  if (warming(s, i)) return s.lr * warmup_ratio(s, i);
  if (i > static_cast<double>(s.total_steps)) return kPolynomialEnd;
  return (s.lr - kPolynomialEnd) * std::pow(1 - progress(s, i), s.power) + kPolynomialEnd;
}
double wsd(const LrSchedule& s, double i) {
  if (warming(s, i)) return s.lr * (s.min_lr_ratio + (1 - s.min_lr_ratio) * warmup_ratio(s, i));
  const double stable_end = static_cast<double>(s.warmup_steps + s.stable_steps),
               decay = static_cast<double>(s.decay_steps);
  if (i < stable_end) return s.lr;
  if (i >= stable_end + decay) return s.lr * s.min_lr_ratio;
  const double p = (i - stable_end) / std::max(1.0, decay);
  return s.lr * (s.min_lr_ratio + (1 - s.min_lr_ratio) * 0.5 * (1 + std::cos(kPi * p)));
}
double torch_linear_then_cosine(const LrSchedule& s, double i) {
  const double warmup = static_cast<double>(s.warmup_steps);
  if (warming(s, i)) return s.lr * (s.start_factor + (1 - s.start_factor) * i / warmup);
  return s.eta_min + (s.lr - s.eta_min) * (1 + std::cos(kPi * progress(s, i))) / 2;
}
double linear_warmup_from_initial(const LrSchedule& s, double i) {
  if (!warming(s, i)) return s.lr;
  return s.initial_lr + (s.lr - s.initial_lr) * (i + 1) / static_cast<double>(s.warmup_steps + 1);
}

using Formula = double (*)(const LrSchedule&, double);
const std::map<std::string, Formula> kFormulas = {{"constant", constant},
                                                  {"constant_with_warmup", constant_with_warmup},
                                                  {"linear", linear},
                                                  {"cosine", cosine},
                                                  {"cosine_min", cosine_min},
                                                  {"cosine_with_restarts", cosine_with_restarts},
                                                  {"polynomial", polynomial},
                                                  {"wsd", wsd},
                                                  {"torch_linear_then_cosine", torch_linear_then_cosine},
                                                  {"opensora_linear_warmup", linear_warmup_from_initial}};

}  // namespace

double learning_rate(const LrSchedule& schedule, int64_t step) {
  const auto it = kFormulas.find(schedule.name);
  if (it != kFormulas.end()) return it->second(schedule, static_cast<double>(step));
  std::vector<std::string> known;
  for (const auto& [name, formula] : kFormulas) known.push_back(name);
  throw UserError(Exit::usage, "train.schedule", "unknown schedule '" + schedule.name + "'",
                  "did you mean '" + nearest(schedule.name, known).front() + "'?");
}

}  // namespace tessera::recipe
