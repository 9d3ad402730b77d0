#include "tessera/train/gate_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/engine/group_check.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::train {

GateSchedule::GateSchedule(const job::Job& job, const recipe::Recipe& recipe,
                           const std::vector<prepare::StageData>& data, Ranks& ranks)
    : ExpertSchedule(job.experts, recipe, data, ranks.rank()),
      router_(recipe, job.experts.size(), job.model->context_dim()),
      ranks_(ranks) {
  needs_spares_ = !router_.hard();
}

void GateSchedule::begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                              plan::Programs programs) {
  ExpertSchedule::begin_part(part, plan, model, std::move(programs));
  spec_ = &plan.planned.spec;
  known_.clear(), compared_.clear();
  const plan::Plan& whole = this->plan();
  evaluate_ = std::make_shared<const plan::Program>(whole, plan::compile_forward(*spec_, whole, rank_, "evaluate", 1));
  arena_ = router_.hard() ? 0 : evaluate_->schedule.arena;
  host_arena_ = router_.hard() ? 0 : evaluate_->schedule.host_arena;
  // A step of fewer micro-batches takes no more than the fullest, but for what the order of slots makes of it.
  for (int64_t micros = 1; micros <= whole.accumulation(); ++micros) {
    const plan::Program program = compile(std::vector<int64_t>(ranks_.mesh.dp_size(), micros * whole.micro_batch));
    arena_ = std::max(arena_, program.schedule.arena);
    host_arena_ = std::max(host_arena_, program.schedule.host_arena);
  }
  if (!router_.hard()) engine::check_groups(ranks_.comm, {&evaluate_->schedule});
}

plan::Program GateSchedule::compile(const std::vector<int64_t>& shares) const {
  plan::Plan part = plan();
  part.shares = shares;
  plan::Schedule schedule = plan::compile_train(*spec_, part, rank_);
  return {std::move(part), std::move(schedule)};
}

plan::ProgramPtr GateSchedule::program(size_t expert) {
  const std::vector<int64_t>& shares = shares_[expert];
  const int64_t micros = div_up(*std::ranges::max_element(shares), plan().micro_batch);
  plan::ProgramPtr& known = known_[{static_cast<int64_t>(expert), micros, shares[static_cast<size_t>(dp_rank())]}];
  if (!known) {
    plan::Program made = compile(shares);
    made.schedule.phase = "train expert_" + std::to_string(expert);  // passes of a step are told apart by their phases
    known = std::make_shared<const plan::Program>(std::move(made));
  }
  // All ranks see so many micro-batches for the first time together.
  if (compared_.insert(micros).second) engine::check_groups(ranks_.comm, {&known->schedule});
  return known;
}

bool GateSchedule::speaks(int rank) const {
  return std::ranges::all_of(std::array{Axis::pp, Axis::cp, Axis::sp, Axis::tp},
                             [&](Axis axis) { return ranks_.mesh.coordinate(rank, axis) == 0; });
}

void GateSchedule::route(int64_t step, const diffusion::TrainingSamples& samples) {
  own_.clear(), sums_.clear();
  const auto seed = static_cast<uint64_t>(now_->run.seed);
  for (const int64_t place : own_places()) {
    const net::Sample& sample = samples.at(place)->input;
    const RandomKey noise(seed, Purpose::expert, static_cast<uint64_t>(step), static_cast<uint64_t>(place));
    const at::Tensor context = sample.context.contiguous();
    const std::span<const float> values(context.const_data_ptr<float>(), static_cast<size_t>(context.numel()));
    Own own{place, diffusion::gate_inputs(sample.t, values, context.size(0), context.size(1)), {}};
    own.answer = router_.gate().ask(own.inputs, &noise);
    own_.push_back(std::move(own));
  }
  agree();
  assign();
}

/// One exchange: how many samples chose each expert on each rank, and the sums that balance and statistics are made of.
void GateSchedule::agree() {
  const size_t experts = router_.gate().experts();
  std::vector<double> mine(2 * experts + 1, 0.0);
  for (const Own& own : own_) {
    mine[own.answer.chosen] += 1;
    for (size_t e = 0; e < experts; ++e) mine[experts + e] += own.answer.noiseless[e];
    mine.back() += own.answer.entropy();
  }
  shares_.assign(experts, std::vector<int64_t>(static_cast<size_t>(ranks_.mesh.dp_size()), 0));
  gate_ = {};
  gate_.experts.resize(experts);
  gate_.temperature = router_.gate().temperature();
  const auto batch = static_cast<double>(plan().global_batch);
  const std::vector<std::vector<double>> rows = ranks_.gather(mine);
  for (int rank = 0; rank < static_cast<int>(rows.size()); ++rank) {
    if (!speaks(rank)) continue;
    const std::vector<double>& row = rows[static_cast<size_t>(rank)];
    for (size_t e = 0; e < experts; ++e) {
      const auto count = static_cast<int64_t>(row[e]);
      shares_[e][static_cast<size_t>(ranks_.mesh.dp_rank(rank))] = count;
      gate_.experts[e].samples += count;
      gate_.experts[e].probability += row[experts + e] / batch;
    }
    gate_.entropy += row.back() / batch;
  }
  std::vector<double> share, probability;
  for (const auto& e : gate_.experts) {
    share.push_back(static_cast<double>(e.samples) / batch);
    probability.push_back(e.probability);
  }
  gate_.balance_loss = diffusion::balance_loss(share, probability);
}

void GateSchedule::assign() {
  const size_t experts = router_.gate().experts();
  active_.clear();
  places_.assign(experts, {});
  by_weight_.assign(experts, {});
  for (size_t e = 0; e < experts; ++e) {
    for (const Own& own : own_)
      if (!router_.hard() || own.answer.chosen == e) places_[e].push_back(own.place);
    if (!router_.hard())
      for (int d = 0; d < ranks_.mesh.dp_size(); ++d) {
        shares_[e][static_cast<size_t>(d)] = 0;
        for (int64_t m = 0; m < plan().accumulation(); ++m)
          shares_[e][static_cast<size_t>(d)] += plan().slice(d, m).count;
      }
    if (!router_.hard() || gate_.experts[e].samples > 0) active_.push_back(e);
  }
}

void GateSchedule::mix(int64_t step, const diffusion::TrainingSamples& samples, engine::Engine& engine) {
  diffusion::FlowMatching packer(*model_, rank_);
  packer.begin({.plan = &plan(), .samples = &samples, .places = own_places(), .step = step});
  for (const size_t e : active_) {
    engine.swap(e);
    size_t next = 0;  // of own_
    for (int64_t m = 0; m < plan().accumulation(); ++m) {
      const net::Batch batch = packer.inputs(static_cast<int>(m));
      const at::Tensor out = engine.forward(evaluate_, {batch}, step)[0];
      const int64_t count = plan().slice(dp_rank(), m).count;
      for (int64_t s = 0; s < count; ++s) {
        const Own& own = own_[next++];
        const auto [first, last] = batch.predictions_of(static_cast<size_t>(s));
        const at::Tensor rows = out.narrow(0, first, last - first);
        at::Tensor& sum = sums_[own.place];
        if (sum.defined())
          sum.add_(rows, own.answer.weights[e]);
        else
          sum = rows * own.answer.weights[e];
      }
    }
  }
}

std::vector<ExpertPass> GateSchedule::passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                             engine::Engine& engine) {
  expert_ = 0;
  own_step_ = visit.step;
  metrics_ = {};
  loss_ = squares_ = 0, whole_ = true;
  route(visit.step, samples);
  if (!router_.hard()) mix(visit.step, samples, engine);
  std::vector<ExpertPass> passes;
  for (const size_t e : active_) {
    ExpertPass pass;
    pass.pass = {.program = program(e), .step = visit.step, .expert = e};
    pass.last = e == active_.back();
    pass.data = {.plan = &pass.pass.program->plan,
                 .samples = &samples,
                 .places = places_[e],
                 .step = own_step_,
                 .weighed = true};
    if (!router_.hard()) {
      for (const Own& own : own_) pass.data.weights.push_back(own.answer.weights[e]);
      pass.data.sums = &sums_, pass.data.counts = e == 0;
    }
    passes.push_back(std::move(pass));
  }
  return passes;
}

void GateSchedule::book(const ExpertPass& pass, const Decision& decision, const diffusion::FlowMatching& objective) {
  ExpertSchedule::book(pass, decision, objective);
  whole_ = whole_ && decision.skipped.empty();
  by_weight_[pass.pass.expert] = objective.by_weight();
  gate_.experts[pass.pass.expert].grad_norm = decision.norm;
  loss_ += decision.loss;
  squares_ += decision.norm * decision.norm;
}

report::StepMetrics GateSchedule::end(const plan::Visit&) {
  if (whole_) learn(metrics_.lr);
  metrics_.expert.clear();
  metrics_.loss = loss_;
  metrics_.grad_norm = std::sqrt(squares_);
  for (size_t e = 0; e < gate_.experts.size(); ++e) gate_.experts[e].updates = updates_[e];
  metrics_.gate = gate_;
  return std::exchange(metrics_, {});
}

void GateSchedule::learn(double lr) {
  const diffusion::Gate& gate = router_.gate();
  const size_t experts = gate.experts();
  std::vector<double> gradient(gate.values().size(), 0.0);
  // d(balance) / d(calm weight of a sample): once for each sample, whoever shares it
  std::vector<double> by_noiseless(experts, 0.0);
  const auto batch = static_cast<double>(plan().global_batch);
  if (speaks(rank_))
    for (size_t e = 0; e < experts; ++e)
      by_noiseless[e] = now_->experts.balance * static_cast<double>(experts) *
                        static_cast<double>(gate_.experts[e].samples) / (batch * batch);
  std::vector<size_t> next(experts, 0);
  for (const Own& own : own_) {
    std::vector<double> by_weights(experts, 0.0);
    for (size_t e = 0; e < experts; ++e)
      if (!router_.hard() || own.answer.chosen == e) by_weights[e] = by_weight_[e].at(next[e]++);
    gate.backward(own.inputs, own.answer, by_weights, by_noiseless, gradient);
  }
  std::vector<float> sum(gradient.begin(), gradient.end());
  ranks_.all().all_reduce(at::from_blob(sum.data(), {static_cast<int64_t>(sum.size())}, at::kFloat));
  gate_.grad_norm = router_.update(std::move(sum), lr, now_->train);
  sums_.clear();
}

void GateSchedule::write(int64_t step, checkpoint::Manifest& manifest) const {
  ExpertSchedule::write(step, manifest);
  router_.write(manifest);
}

std::vector<checkpoint::Piece> GateSchedule::pieces(engine::Store& store) const {
  std::vector<checkpoint::Piece> pieces = ExpertSchedule::pieces(store);
  if (rank_ == 0) std::ranges::move(router_.pieces(), std::back_inserter(pieces));
  return pieces;
}

void GateSchedule::resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved) {
  ExpertSchedule::resume(store, saved);
  router_.resume(saved);
}

void GateSchedule::save_model(const std::filesystem::path& folder) const {
  if (rank_ == 0) router_.save_model(folder);
}

void GateSchedule::load_model(const std::filesystem::path& folder) {
  if (job::GateRouter::is_in(folder)) router_.load_model(folder);
}

std::unique_ptr<ExpertSchedule> make_expert_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                     const std::vector<prepare::StageData>& data, Ranks& ranks) {
  if (job.experts.gated) return std::make_unique<GateSchedule>(job, recipe, data, ranks);
  return std::make_unique<ExpertSchedule>(job.experts, recipe, data, ranks.rank());
}

}  // namespace tessera::train
