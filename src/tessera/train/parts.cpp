#include "tessera/train/parts.h"

#include <algorithm>
#include <utility>

#include "tessera/plan/plan_file.h"

namespace tessera::train {

Parts::Parts(std::vector<planning::PartPlan> plans, std::vector<planning::PricedStep> priced,
             std::vector<std::vector<double>> flops, int rank)
    : plans_(std::move(plans)), priced_(std::move(priced)), flops_(std::move(flops)), rank_(rank) {}

void Parts::go_on(int64_t done) {
  done_ = done;
  while (more() && now().part.last <= done_) ++part_;
}

void Parts::begin(size_t part) {
  part_ = part;
  const planning::Planned& planned = plans_.at(part).planned;
  take({{planned.plan(), planned.schedules(rank_), planned.run.forwards()}, planned.memory(rank_)});
  planning::require_priced(programs_.train->schedule, priced_.at(part), rank_);
  first_step_ = std::max(now().part.first, done_ + 1);
  plan::RunShape shape = planned.run;
  shape.first_step = first_step_;
  walk_.emplace(shape, programs_.just_in_time());
}

Parts::Shared Parts::with_shares(const std::vector<int64_t>& shares) const {
  planning::Planned changed = planned();
  changed.choice.plan.shares = shares;
  plan::Programs programs(changed.plan(), changed.schedules(rank_), planned().run.forwards());
  programs.sample = programs_.sample, programs.checkpoint = programs_.checkpoint, programs.base = programs_.base;
  programs.tangent = programs_.tangent, programs.features = programs_.features;
  programs.exchange = programs_.exchange, programs.teacher = programs_.teacher;
  return {std::move(programs), changed.memory(rank_)};
}

void Parts::take(Shared shared) {
  programs_ = std::move(shared.programs);
  predicted_ = std::move(shared.predicted);
  plan_hash_ = plan::plan_hash(programs_.train->plan);
}

}  // namespace tessera::train
