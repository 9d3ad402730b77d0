#include "tessera/train/expert_steps.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/engine/store/transfer.h"

namespace tessera::train {

ExpertSteps::ExpertSteps(const job::Experts& experts, const recipe::Recipe& recipe,
                         const std::vector<prepare::StageData>& data)
    : experts_(experts),
      recipe_(recipe),
      turns_(job::plan_turns(experts, recipe::run_parts(recipe))),
      updates_(experts.size(), 0) {
  for (size_t e = 0; e < experts.places(); ++e) {
    std::vector<int64_t> first_steps;
    for (const prepare::StageData& part : data) first_steps.push_back(turns_.done(e, part.first_step - 1) + 1);
    data_.push_back(prepare::data_of_expert(data, first_steps));
  }
}

void ExpertSteps::begin_part(size_t part, const recipe::Recipe& recipe, const net::Denoiser& model) {
  part_ = part;
  now_ = &recipe;
  objectives_.clear();
  for (size_t e = 0; e < experts_.places(); ++e)
    objectives_.emplace_back(recipe, model, data_[e][part], job::timestep_options(recipe, experts_.list[e]));
}

void ExpertSteps::begin(int64_t step) {
  expert_ = turns_.expert(step);
  own_step_ = turns_.own_step(step);
}

/// A schedule is as long as the expert's share of the run.
double ExpertSteps::learning_rate(size_t expert, int64_t own_step) const {
  optim::LrSchedule schedule = now_->lr_schedule;
  if (experts_.places() > 1) schedule.total_steps = std::max<int64_t>(1, turns_.done(expert, turns_.steps()));
  return optim::learning_rate(schedule, own_step - 1);
}

std::vector<std::string> ExpertSteps::told() const {
  std::vector<std::string> lines;
  for (size_t e = 0; experts_.places() > 1 && e < experts_.size(); ++e)
    lines.push_back("the " + experts_.list[e].name + " expert has " + std::to_string(turns_.done(e, turns_.steps())) +
                    " of " + std::to_string(turns_.steps()) + " steps");
  return lines;
}

void ExpertSteps::write(int64_t step, checkpoint::Manifest& manifest) const {
  const auto position = data().place_after(own_step_);
  manifest.epoch = position.epoch;
  manifest.cursor = position.cursor;
  manifest.schedule_lr = learning_rate();
  if (!experts_.several()) {
    manifest.extra["updates"] = updates_[0];
    return;
  }
  for (size_t e = 0; e < experts_.size(); ++e) {
    if (experts_.gated) {
      manifest.experts[experts_.list[e].name] = {{"updates", updates_[e]}};
      continue;
    }
    const int64_t done = turns_.done(e, step);
    const auto place = data_[e][part_].place_after(done);
    manifest.experts[experts_.list[e].name] = {{"steps", done},
                                               {"updates", updates_[e]},
                                               {"schedule_lr", done > 0 ? learning_rate(e, done) : 0.0},
                                               {"data", {{"epoch", place.epoch}, {"cursor", place.cursor}}}};
  }
}

std::vector<checkpoint::Piece> ExpertSteps::pieces(engine::Store& store) const {
  std::vector<checkpoint::Piece> all;
  job::each_expert(store, experts_, [&](size_t, const std::string& prefix) {
    std::vector<checkpoint::Piece> own = engine::checkpoint_pieces(store, prefix);
    std::move(own.begin(), own.end(), std::back_inserter(all));
  });
  return all;
}

void ExpertSteps::resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved) {
  const checkpoint::Manifest& manifest = saved.manifest();
  job::check_experts(experts_, manifest);
  for (size_t e = 0; e < experts_.size(); ++e) {
    if (!experts_.several()) {
      updates_[e] = manifest.extra.value("updates", manifest.step);
      continue;
    }
    const checkpoint::Json& state = manifest.experts.at(experts_.list[e].name);
    if (!experts_.gated) check_steps(e, state.value("steps", int64_t{0}), manifest.step);
    updates_[e] = state.value("updates", int64_t{0});
  }
  job::each_expert(store, experts_, [&](size_t, const std::string& prefix) { engine::restore(store, saved, prefix); });
}

void ExpertSteps::check_steps(size_t expert, int64_t done, int64_t step) const {
  if (step > turns_.steps() || done == turns_.done(expert, step)) return;
  throw UserError(Exit::usage, "run.resume",
                  "the " + experts_.list[expert].name + " expert has done " + std::to_string(done) + " of " +
                      std::to_string(step) + " steps, by the recipe's turns it would be " +
                      std::to_string(turns_.done(expert, step)),
                  "keep run.seed, experts.*, diffusion.timesteps and diffusion.shift, or use another run.out");
}

}  // namespace tessera::train
