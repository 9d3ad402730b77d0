#include "tessera/train/updates.h"

#include "tessera/base/check.h"
#include "tessera/checkpoint/training.h"
#include "tessera/job/optimiser.h"
#include "tessera/plan/optimizers.h"

namespace tessera::train {

namespace {

constexpr const char* kKey = "step_sizes";

}  // namespace

StepSize::StepSize(plan::Optimizer optimizer, const recipe::Recipe::Train& train, size_t experts) {
  if (!plan::row(optimizer).distance) return;
  options_ = job::prodigy_options(train);
  sizes_.assign(experts, optim::ProdigySize(options_));
}

void StepSize::use(const recipe::Recipe::Train& train) {
  options_ = job::prodigy_options(train);
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

Updates::Updates(Ranks& ranks, ExpertSchedule& experts, Health& health, Proofs& proofs, engine::Store& store,
                 LossScale scale, StepSize size)
    : ranks_(ranks),
      experts_(experts),
      health_(health),
      proofs_(proofs),
      store_(store),
      loss_scale_(std::move(scale)),
      step_size_(std::move(size)) {}

void Updates::begin_part(const recipe::Recipe::Train& train, bool skips_not_finite) {
  step_size_.use(train);
  clip_norm_ = train.clip_norm;
  skips_not_finite_ = skips_not_finite;
}

const ExpertPass& Updates::armed(ExpertPass& pass) {
  pass.data.gradient_scale = loss_scale_.scale().value_or(1);
  if (pass.trains && pass.data.plan->update == plan::Update::in_backward)
    pass.pass.ahead =
        step_size_.armed(pass.pass.expert, {experts_.count_update(pass.pass.expert), experts_.learning_rate(pass), 1});
  return pass;
}

Decision Updates::decide(const ExpertPass& pass, const engine::StepRun& step) {
  DecisionRules rules;
  rules.step = pass.pass.step;
  rules.rate = experts_.learning_rate(pass);
  rules.clip_norm = clip_norm_;
  rules.skip_not_finite = skips_not_finite_;
  rules.updated = pass.pass.ahead.has_value() || !pass.trains;
  rules.count_update = [&] { return experts_.count_update(pass.pass.expert); };
  rules.source = [&](int64_t index) { return experts_.data().samples->source(index); };
  rules.kept = [&] { return health_.way_back(rules.step, rules.rate); };
  Decision decision;
  try {
    decision = train::decide(step.norm(), step.ranks(), rules, loss_scale_);
  } catch (const UserError& error) {
    if (error.code() == Exit::not_finite) health_.note(rules.step, error, rules.rate);
    throw;
  }
  reports_ = decision.ranks;
  decision.d = step_size_.of(pass.pass.expert);
  step_size_.take(reports_);
  if (decision.control) decision.control = step_size_.armed(pass.pass.expert, *decision.control);
  if (decision.control) decision.d = step_size_.of(pass.pass.expert);
  if (decision.stop != 0) stop_ = decision.stop;
  if (decision.save)
    save_asked_ = "a signal asked for it";
  else if (decision.due)
    save_asked_ = "checkpoint.every_minutes are over";
  if (!pass.trains) return decision;
  if (const std::optional<bool> spike = health_.weigh(pass, decision)) proofs_.trained(pass.pass.expert, *spike);
  return decision;
}

void Updates::settle() {
  if (!step_size_.pending()) return;
  const net::Totals own = store_.take_totals();
  std::vector<net::Totals> totals;
  for (const auto& row : ranks_.gather({own.begin(), own.end()})) totals.push_back({row[0], row[1]});
  step_size_.take(totals);
}

void Updates::save(checkpoint::Manifest& manifest) const {
  loss_scale_.save(manifest);
  step_size_.save(manifest);
}

void Updates::restore(const checkpoint::Manifest& manifest) {
  loss_scale_.restore(manifest);
  step_size_.restore(manifest);
}

}  // namespace tessera::train
