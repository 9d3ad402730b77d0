#include "tessera/train/gated_step.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/engine/group_check.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::train {

GatedStep::GatedStep(job::GateRouter& router, comm::Comm& comm, const Mesh& mesh, int rank)
    : router_(router),
      world_(comm.group("control", {kAllAxes.begin(), kAllAxes.end()})),
      comm_(comm),
      mesh_(mesh),
      rank_(rank) {}

void GatedStep::begin_part(const recipe::Recipe& recipe, const plan::ModelSpec& spec, const plan::Plan& plan) {
  recipe_ = &recipe, spec_ = &spec, plan_ = &plan;
  known_.clear(), compared_.clear();
  pass_ = plan::compile_forward(spec, plan, rank_, "evaluate", 1);
  arena_ = router_.hard() ? 0 : pass_.arena;
  // A step of fewer micro-batches takes no more than the fullest, but for what the order of slots makes of it.
  for (int64_t micros = 1; micros <= plan.accumulation(); ++micros)
    arena_ = std::max(arena_, compile(std::vector<int64_t>(mesh_.dp_size(), micros * plan.micro_batch)).arena);
  if (!router_.hard()) engine::check_groups(comm_, {&pass_});
}

plan::Schedule GatedStep::compile(const std::vector<int64_t>& shares) const {
  plan::Plan plan = *plan_;
  plan.shares = shares;
  return plan::compile_train(*spec_, plan, rank_);
}

const plan::Schedule& GatedStep::schedule(size_t expert) {
  const std::vector<int64_t>& shares = shares_[expert];
  const int64_t most = *std::ranges::max_element(shares), micros = div_up(most, plan_->micro_batch);
  const auto [found, added] = known_.try_emplace({micros, shares[mesh_.dp_rank(rank_)]});
  plan::Schedule& schedule = found->second;
  if (added) schedule = compile(shares);
  schedule.phase = "train expert_" + std::to_string(expert);  // passes of a step are told apart by their phases
  // All ranks see so many micro-batches for the first time together.
  if (compared_.insert(micros).second) engine::check_groups(comm_, {&schedule});
  return schedule;
}

bool GatedStep::speaks(int rank) const {
  return std::ranges::all_of(std::array{Axis::pp, Axis::cp, Axis::sp, Axis::tp},
                             [&](Axis axis) { return mesh_.coordinate(rank, axis) == 0; });
}

void GatedStep::route(const Objective& objective, int64_t step) {
  own_.clear(), sums_.clear();
  const auto seed = static_cast<uint64_t>(recipe_->run.seed);
  for (int64_t m = 0; m < plan_->accumulation(); ++m) {
    const auto slice = plan_->slice(mesh_.dp_rank(rank_), m);
    for (int64_t place = slice.first; place < slice.first + slice.count; ++place) {
      const auto [t, context] = objective.question(place);
      const RandomKey noise(seed, Purpose::turn, static_cast<uint64_t>(step), static_cast<uint64_t>(place));
      Own own{place, diffusion::gate_inputs(t, context.values, context.shape.at(0), context.shape.at(1)), {}};
      own.answer = router_.gate().ask(own.inputs, &noise);
      own_.push_back(std::move(own));
    }
  }
  agree();
  assign();
}

/// One exchange: how many samples chose each expert on each rank, and the sums that balance and statistics are made of.
void GatedStep::agree() {
  const size_t experts = router_.gate().experts();
  std::vector<double> mine(2 * experts + 1, 0.0);
  for (const Own& own : own_) {
    mine[own.answer.chosen] += 1;
    for (size_t e = 0; e < experts; ++e) mine[experts + e] += own.answer.calm[e];
    mine.back() += own.answer.entropy();
  }
  shares_.assign(experts, std::vector<int64_t>(static_cast<size_t>(mesh_.dp_size()), 0));
  metrics_ = {};
  metrics_.experts.resize(experts);
  metrics_.temperature = router_.gate().temperature();
  const auto batch = static_cast<double>(plan_->global_batch);
  const std::vector<std::vector<double>> rows = world_.all_gather_doubles(mine);
  for (int rank = 0; rank < static_cast<int>(rows.size()); ++rank) {
    if (!speaks(rank)) continue;
    const std::vector<double>& row = rows[static_cast<size_t>(rank)];
    for (size_t e = 0; e < experts; ++e) {
      const auto count = static_cast<int64_t>(row[e]);
      shares_[e][static_cast<size_t>(mesh_.dp_rank(rank))] = count;
      metrics_.experts[e].samples += count;
      metrics_.experts[e].probability += row[experts + e] / batch;
    }
    metrics_.entropy += row.back() / batch;
  }
  std::vector<double> share, probability;
  for (const auto& e : metrics_.experts) {
    share.push_back(static_cast<double>(e.samples) / batch);
    probability.push_back(e.probability);
  }
  metrics_.balance_loss = diffusion::balance_loss(share, probability);
}

void GatedStep::assign() {
  const size_t experts = router_.gate().experts();
  active_.clear();
  routed_.assign(experts, {});
  by_weight_.assign(experts, {});
  for (size_t e = 0; e < experts; ++e) {
    for (const Own& own : own_) {
      if (router_.hard() && own.answer.chosen != e) continue;
      routed_[e].places.push_back(own.place);
      if (!router_.hard()) routed_[e].weights.push_back(own.answer.weights[e]);
    }
    if (!router_.hard()) {
      routed_[e].sums = &sums_, routed_[e].books = e == 0;
      for (int d = 0; d < mesh_.dp_size(); ++d) {
        shares_[e][static_cast<size_t>(d)] = 0;
        for (int64_t m = 0; m < plan_->accumulation(); ++m)
          shares_[e][static_cast<size_t>(d)] += plan_->slice(d, m).count;
      }
    }
    if (!router_.hard() || metrics_.experts[e].samples > 0) active_.push_back(e);
  }
}

void GatedStep::mix(const Objective& objective, const plan::Plan& plan, engine::Executor& executor, int64_t step,
                    const Calls& calls) {
  for (const size_t e : active_) {
    calls.bring(e);
    size_t next = 0;  // of own_
    for (int64_t m = 0; m < plan.accumulation(); ++m) {
      const net::Batch batch = objective.inputs(static_cast<int>(m));
      const at::Tensor out = executor.forward(pass_, step, {batch})[0];
      const int64_t count = plan.slice(mesh_.dp_rank(rank_), m).count;
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

bool GatedStep::run(int64_t step, Objective& objective, plan::Plan& plan, engine::Executor& executor,
                    report::StepMetrics& metrics, const Calls& calls) {
  const std::vector<int64_t> shares = plan.shares;
  objective.begin(step, plan, rank_);
  route(objective, step);
  if (!router_.hard()) mix(objective, plan, executor, step, calls);
  double loss = 0, squares = 0;
  bool whole = true;
  for (const size_t e : active_) {
    plan.shares = shares_[e];
    metrics.ranks.clear();
    whole = calls.pass(e, e == active_.back()) && whole;
    by_weight_[e] = objective.by_weight();
    metrics_.experts[e].grad_norm = metrics.grad_norm;
    loss += metrics.loss;
    squares += metrics.grad_norm * metrics.grad_norm;
  }
  plan.shares = shares;
  if (whole) learn(metrics.lr);
  metrics.expert.clear();
  metrics.loss = loss;
  metrics.grad_norm = std::sqrt(squares);
  metrics.gate = metrics_;
  return whole;
}

void GatedStep::learn(double lr) {
  const diffusion::Gate& gate = router_.gate();
  const size_t experts = gate.experts();
  std::vector<double> gradient(gate.values().size(), 0.0);
  // d(balance) / d(calm weight of a sample): once for each sample, whoever shares it
  std::vector<double> by_calm(experts, 0.0);
  const auto batch = static_cast<double>(plan_->global_batch);
  if (speaks(rank_))
    for (size_t e = 0; e < experts; ++e)
      by_calm[e] = recipe_->experts.balance * static_cast<double>(experts) *
                   static_cast<double>(metrics_.experts[e].samples) / (batch * batch);
  std::vector<size_t> next(experts, 0);
  for (const Own& own : own_) {
    std::vector<double> by_weights(experts, 0.0);
    for (size_t e = 0; e < experts; ++e)
      if (!router_.hard() || own.answer.chosen == e) by_weights[e] = by_weight_[e].at(next[e]++);
    gate.backward(own.inputs, own.answer, by_weights, by_calm, gradient);
  }
  std::vector<float> sum(gradient.begin(), gradient.end());
  world_.all_reduce(at::from_blob(sum.data(), {static_cast<int64_t>(sum.size())}, at::kFloat));
  metrics_.grad_norm = router_.update(std::move(sum), lr, recipe_->train);
  sums_.clear();
}

}  // namespace tessera::train
