#include "tessera/plan/compile/run_walk.h"

#include <algorithm>
#include <iterator>

namespace tessera::plan {

RunWalk::RunWalk(RunShape run, bool just_in_time)
    : run_(std::move(run)),
      just_in_time_(just_in_time),
      last_(run_.last_step > 0 ? std::min(run_.last_step, run_.steps) : run_.steps),
      step_(run_.first_step) {}

bool RunWalk::has_samples(int64_t step) const {
  return run_.sample_every > 0 && (step % run_.sample_every == 0 || step == run_.steps);
}

bool RunWalk::has_evaluation(int64_t step) const {
  return run_.eval_every > 0 && run_.eval_passes > 0 && (step % run_.eval_every == 0 || step == run_.steps);
}

bool RunWalk::has_checkpoint(int64_t step) const {
  return (run_.checkpoint_every > 0 && step % run_.checkpoint_every == 0) || step == run_.steps;
}

std::optional<Visit> RunWalk::next() {
  if (in_step_) after_step();
  if (!follows_.empty()) {
    const Visit visit = follows_.back();
    follows_.pop_back();
    return visit;
  }
  if (stopped_ || step_ > last_) return std::nullopt;
  in_step_ = true;
  return Visit{Visit::Kind::train, step_, std::exchange(pending_, just_in_time_)};
}

std::vector<Visit> RunWalk::sample_visits(int64_t step) const {
  return {static_cast<size_t>(int64_t{run_.sample_prompts} * run_.sample_steps), Visit{Visit::Kind::sample, step}};
}

void RunWalk::make_up_samples() {
  const std::vector<Visit> samples = sample_visits(step_ - 1);
  follows_.insert(follows_.begin(), samples.begin(), samples.end());
}

void RunWalk::make_up_evaluation() {
  if (run_.eval_every > 0 && run_.eval_passes > 0) follows_.push_back({Visit::Kind::evaluate, step_ - 1});
}

/// Queues what follows the trained step, in reverse order.
void RunWalk::after_step() {
  using Kind = Visit::Kind;
  in_step_ = false;
  const int64_t step = step_++;
  const bool samples = !stopped_ && has_samples(step), evaluates = !stopped_ && has_evaluation(step),
             saves = std::exchange(save_asked_, false) || stopped_ || has_checkpoint(step);
  const bool swaps_expert = run_.swaps_expert(step);
  std::vector<Visit> order;
  if (pending_ && (samples || evaluates || saves || swaps_expert || step == last_)) {
    order.push_back({Kind::updates, step});
    pending_ = false;
  }
  // A sample loads the experts it needs itself.
  if (swaps_expert && !samples && !evaluates && !stopped_ && step < last_) order.push_back({Kind::swap, step});
  // What is kept of the checkpoints may be what has the least held-out loss.
  if (evaluates) order.push_back({Kind::evaluate, step});
  // The checkpoint first: a sample that fails or is stopped can be made again from it.
  if (saves) order.push_back({Kind::checkpoint, step});
  if (samples) std::ranges::copy(sample_visits(step), std::back_inserter(order));
  follows_.assign(order.rbegin(), order.rend());
}

PassesBefore passes_before(const RunShape& run, const Plan& plan) {
  const auto of = [&](AskBase which) {
    return std::ranges::count_if(asking_base(plan, which), [](int64_t samples) { return samples > 0; });
  };
  PassesBefore passes;
  for (const AskBase which : {run.base, run.unguided}) passes.base += of(which);
  passes.base += (run.teacher_passes + run.matches()) * (run.judges ? of(AskBase::clips) : plan.accumulation());
  if (run.judges) passes.second = of(AskBase::twins);
  return passes;
}

void each_schedule(const RunShape& run, const RunSchedules& schedules,
                   const std::function<void(int64_t, const Schedule&)>& emit, const PassesBefore& before) {
  const auto several = [&](int64_t step, int64_t passes, const Schedule& schedule) {
    for (int64_t pass = 0; pass < passes; ++pass) emit(step, schedule);
  };
  RunWalk walk(run, schedules.just_in_time());
  const auto expert = [&](int64_t step) { return run.expert_of ? run.expert_of(step) : 0; };
  while (const std::optional<Visit> visit = walk.next()) switch (visit->kind) {
      case Visit::Kind::train:
        if (run.heads_learn(visit->step)) {
          several(visit->step, before.second, schedules.base);
          several(visit->step, (run.misaligned ? 3 : 2) * before.second, schedules.features);
          emit(visit->step, schedules.exchange);
          break;
        }
        for (int64_t pass = 0, all = before.base * (run.matches() ? run.passes_of(visit->step).all() : 1); pass < all;
             ++pass) {
          emit(visit->step, schedules.base);
          if (run.distils() && (pass + 1) % run.teacher_passes == 0) emit(visit->step, schedules.tangent);
        }
        if (run.judges) {
          several(visit->step, before.second, schedules.base);
          several(visit->step, before.second, schedules.features);
          emit(visit->step, schedules.judged);
        }
        emit(visit->step, schedules.step(visit->pending, expert(visit->step)));
        break;
      case Visit::Kind::updates:
        emit(visit->step, schedules.updates_of(expert(visit->step)));
        break;
      case Visit::Kind::evaluate:
        for (int pass = 0; pass < run.eval_passes; ++pass) emit(visit->step, schedules.sample);
        break;
      case Visit::Kind::sample:
        emit(visit->step, schedules.sample);
        break;
      case Visit::Kind::checkpoint:
        emit(visit->step, schedules.checkpoint);
        break;
      case Visit::Kind::swap:  // no instructions: the store's thread moves the expert
        break;
    }
}

}  // namespace tessera::plan
