#include "tessera/train/step_size.h"

#include "tessera/base/check.h"
#include "tessera/checkpoint/training.h"
#include "tessera/job/optimiser.h"
#include "tessera/plan/optimizers.h"

namespace tessera::train {

namespace {

constexpr const char* kKey = "step_sizes";

}  // namespace

StepSize::StepSize(const recipe::Recipe& recipe, size_t experts) {
  if (!plan::row(recipe.plan.states.optimizer).distance) return;
  options_ = job::prodigy_options(recipe.train);
  sizes_.assign(experts, optim::ProdigySize(options_));
}

void StepSize::use(const recipe::Recipe& recipe) {
  options_ = job::prodigy_options(recipe.train);
  for (optim::ProdigySize& size : sizes_) size = {options_, size.d(), size.most(), size.numerator()};
}

std::optional<double> StepSize::of(size_t expert) const {
  return sizes_.empty() ? std::nullopt : std::optional<double>(sizes_.at(expert).d());
}

net::StepControl StepSize::armed(size_t expert, net::StepControl control) {
  if (sizes_.empty()) return control;
  control.d = sizes_.at(expert).d();
  pending_ = Update{expert, control};
  return control;
}

void StepSize::take(const std::vector<StepReport>& ranks) {
  std::vector<net::Totals> totals;
  for (const StepReport& report : ranks) totals.push_back(report.totals);
  take(totals);
}

void StepSize::take(const std::vector<net::Totals>& ranks) {
  if (!pending_) return;
  net::Totals all = {};
  for (const net::Totals& own : ranks)
    for (size_t t = 0; t < all.size(); ++t) all[t] += own[t];
  sizes_.at(pending_->expert).take(all, pending_->control);
  pending_.reset();
}

void StepSize::save(checkpoint::Manifest& manifest) const {
  if (sizes_.empty()) return;
  checkpoint::Json all = checkpoint::Json::array();
  for (const optim::ProdigySize& size : sizes_)
    all.push_back({{"d", size.d()}, {"d_max", size.most()}, {"numerator", size.numerator()}});
  manifest.extra[kKey] = all;
}

void StepSize::restore(const checkpoint::Manifest& manifest) {
  if (sizes_.empty()) return;
  const checkpoint::Json all = manifest.extra.value(kKey, checkpoint::Json::array());
  check_input(all.is_array() && all.size() == sizes_.size(), "train.step_size",
              "the checkpoint has step sizes of " + std::to_string(all.is_array() ? all.size() : 0) +
                  " experts, this run has " + std::to_string(sizes_.size()),
              "resume with the optimiser and the experts that the checkpoint was made with");
  for (size_t e = 0; e < sizes_.size(); ++e) {
    const double d = all[e].value("d", options_.d0);  // without a bound of its growth it was the largest estimate
    sizes_[e] = {options_, d, all[e].value("d_max", d), all[e].value("numerator", 0.0)};
  }
}

}  // namespace tessera::train
