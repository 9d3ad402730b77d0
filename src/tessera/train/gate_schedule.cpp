#include "tessera/train/gate_schedule.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/engine/group_check.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/train/step_report.h"

namespace tessera::train {

namespace {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Tenths of the range of timesteps.
constexpr size_t kBins = diffusion::LossByTimestep::kBins;

constexpr const char* kByUse = "experts_by_use";  // a field of Manifest::extra

}  // namespace

GateSchedule::GateSchedule(const job::Job& job, const recipe::Recipe& recipe,
                           const std::vector<prepare::StageData>& data, Ranks& ranks)
    : ExpertSchedule(job.experts, recipe, data, ranks.rank()),
      router_(recipe, job.experts.size(), job.model->context_dim()),
      ranks_(ranks) {
  needs_spares_ = !router_.hard();
  chosen_.assign(job.experts.size(), 0), counted_.assign(job.experts.size(), 0);
  const std::vector<int> peers = ranks.mesh.group(ranks.rank(), {Axis::dp_replicate, Axis::dp_shard});
  if (recipe.experts.deals() && peers.size() > 1) peers_ = &ranks.comm.group_of(kDeal, kDeal, peers);
}

void GateSchedule::begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                              plan::Programs programs) {
  ExpertSchedule::begin_part(part, plan, model, std::move(programs));
  planned_ = &plan.planned;
  known_.clear(), compared_.clear();
  const plan::Plan& whole = this->plan();
  evaluate_ =
      std::make_shared<const plan::Program>(whole, plan::compile_forward(planned_->spec, whole, rank_, "evaluate", 1));
  arena_ = router_.hard() ? 0 : evaluate_->schedule.arena;
  host_arena_ = router_.hard() ? 0 : evaluate_->schedule.host_arena;
  // A step of fewer micro-batches takes no more than the fullest, but for what the order of slots makes of it.
  for (size_t p = 0; p < std::max<size_t>(1, planned_->by_use.size()); ++p) {
    const plan::Plan& of = planned_->by_use.empty() ? whole : by_use(p);
    for (int64_t micros = 1; micros <= of.accumulation(); ++micros) {
      const plan::Program program = compile(of, std::vector<int64_t>(ranks_.mesh.dp_size(), micros * of.micro_batch));
      arena_ = std::max(arena_, program.schedule.arena);
      host_arena_ = std::max(host_arena_, program.schedule.host_arena);
    }
  }
  if (!router_.hard()) engine::check_groups(ranks_.comm, {&evaluate_->schedule});
  if (frequencies_.empty()) frequencies_ = planned_->routing.frequencies;
  choose_plans(0);
}

plan::Program GateSchedule::compile(plan::Plan part, const std::vector<int64_t>& shares) const {
  part.shares = shares;
  plan::Schedule schedule = plan::compile_train(planned_->spec, part, rank_);
  return {std::move(part), std::move(schedule)};
}

std::vector<int64_t> GateSchedule::micro_batches() const {
  std::vector<int64_t> all;
  for (size_t e = 0; e < chosen_.size(); ++e) all.push_back(plan_of(e).micro_batch);
  return all;
}

void GateSchedule::choose_plans(int64_t step) {
  if (planned_->by_use.empty()) return;
  const std::vector<size_t> before = std::exchange(chosen_, planned_->plans_of_experts(frequencies_));
  if (chosen_ == before && step > 0) return;
  known_.clear();
  const double all = std::accumulate(frequencies_.begin(), frequencies_.end(), 0.0);
  std::string text;
  for (size_t e = 0; e < chosen_.size(); ++e) {
    char often[32];
    std::snprintf(often, sizeof often, "%.3g %%", 100 * frequencies_[e] / all);
    text += (e > 0 ? "; " : "") + name(e) + ", chosen by " + often + " of the samples: " + plan_of(e).summary();
  }
  const std::string from = step > 0 ? " from step " + std::to_string(step) + " on" : "";
  if (ranks_.first()) log::info("experts by use" + from + ": " + text);
}

void GateSchedule::follow_use(int64_t step) {
  for (size_t e = 0; e < counted_.size(); ++e) counted_[e] += gate_.experts[e].samples;
  if (planned_->by_use.empty() || shape_.checkpoint_every <= 0 || step % shape_.checkpoint_every != 0) return;
  for (size_t e = 0; e < counted_.size(); ++e)
    frequencies_[e] = frequencies_[e] / 2 + static_cast<double>(std::exchange(counted_[e], 0));
  choose_plans(step + 1);
}

plan::ProgramPtr GateSchedule::program(size_t expert) {
  const std::vector<int64_t>& shares = shares_[expert];
  const plan::Plan& of = plan_of(expert);
  const int64_t micros = div_up(*std::ranges::max_element(shares), of.micro_batch);
  plan::ProgramPtr& known = known_[{static_cast<int64_t>(expert), micros, shares[static_cast<size_t>(dp_rank())]}];
  if (!known) {
    plan::Program made = compile(of, shares);
    made.schedule.phase = "train expert_" + std::to_string(expert);  // passes of a step are told apart by their phases
    known = std::make_shared<const plan::Program>(std::move(made));
  }
  // All ranks see so many micro-batches for the first time together.
  if (compared_.emplace(chosen_[expert], micros).second) engine::check_groups(ranks_.comm, {&known->schedule});
  return known;
}

bool GateSchedule::speaks(int rank) const {
  return std::ranges::all_of(std::array{Axis::pp, Axis::cp, Axis::sp, Axis::tp},
                             [&](Axis axis) { return ranks_.mesh.coordinate(rank, axis) == 0; });
}

GateSchedule::Own GateSchedule::ask(int64_t step, int64_t place, const diffusion::TrainingSample& sample) const {
  const RandomKey noise(static_cast<uint64_t>(now_->run.seed), Purpose::expert, static_cast<uint64_t>(step),
                        static_cast<uint64_t>(place));
  const at::Tensor context = sample.input.context.contiguous();
  const std::span<const float> values(context.const_data_ptr<float>(), static_cast<size_t>(context.numel()));
  Own own{place, diffusion::gate_inputs(sample.input.t, values, context.size(0), context.size(1)), {}, sample.input.t};
  own.answer = router_.gate().ask(own.inputs, &noise);
  return own;
}

void GateSchedule::route(int64_t step, const diffusion::TrainingSamples& samples, engine::Engine& engine) {
  own_.clear(), sums_.clear();
  for (const int64_t place : own_places()) own_.push_back(ask(step, place, *samples.at(place)));
  agree();
  gate_.undealt_idle = plan::step_use(shares_, {1}).idle();
  pairs_ = peers_ && plan().together > 1 ? plan::expert_pairs(shares_, micro_batches()) : plan::ExpertPairs{};
  if (peers_) deal(step, samples, engine);
  assign();
  count_use();
}

/// One exchange: how many samples chose each expert on each rank, and the sums that balance and statistics are made of.
void GateSchedule::agree() {
  const size_t experts = router_.gate().experts();
  std::vector<double> mine((2 + kBins) * experts + 1, 0.0);
  for (const Own& own : own_) {
    mine[own.answer.chosen] += 1;
    for (size_t e = 0; e < experts; ++e) mine[experts + e] += own.answer.noiseless[e];
    mine[2 * experts + own.answer.chosen * kBins + diffusion::LossByTimestep::bin(own.t)] += 1;
    mine.back() += own.answer.entropy();
  }
  shares_.assign(experts, std::vector<int64_t>(static_cast<size_t>(ranks_.mesh.dp_size()), 0));
  gate_ = {};
  gate_.experts.resize(experts);
  for (size_t e = 0; e < experts; ++e) {
    gate_.experts[e].by_timestep.assign(kBins, 0);
    gate_.experts[e].micro_batch = plan_of(e).micro_batch;
  }
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
      for (size_t b = 0; b < kBins; ++b)
        gate_.experts[e].by_timestep[b] += static_cast<int64_t>(row[2 * experts + e * kBins + b]);
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

void GateSchedule::deal(int64_t step, const diffusion::TrainingSamples& samples, engine::Engine& engine) {
  // The device's plan does not know of it.
  const engine::Meter::Scope host(engine::Part::host);
  const double began = clock_seconds();
  plan::Deal dealt = plan::deal(shares_, pairs_);
  shares_ = std::move(dealt.shares);
  dealt_.clear();
  for (const Own& own : own_) dealt_[own.place] = samples.at(own.place);
  if (dealt.moves.empty()) return;
  ranks_.watch.phase(step, "dealing samples to ranks");
  const auto members = static_cast<size_t>(peers_->size());
  std::vector<std::vector<int64_t>> leave(members);  // places of samples, by who runs them
  std::vector<int64_t> come(members, 0);
  std::vector<std::vector<int64_t>> own(shares_.size());  // by expert
  for (const Own& each : own_) own[each.answer.chosen].push_back(each.place);
  for (const plan::Deal::Move& move : dealt.moves) {
    gate_.moved += move.samples;
    if (move.to == dp_rank()) come[static_cast<size_t>(move.from)] += move.samples;
    for (int64_t s = 0; move.from == dp_rank() && s < move.samples; ++s) {
      leave[static_cast<size_t>(move.to)].push_back(own[move.expert].back());
      own[move.expert].pop_back();
    }
  }
  // How long each is, then all of them.
  std::vector<at::Tensor> told, heard, out, in;
  for (size_t m = 0; m < members; ++m) {
    told.push_back(at::empty({std::ssize(leave[m])}, at::kLong));
    heard.push_back(at::empty({come[m]}, at::kLong));
    for (size_t s = 0; s < leave[m].size(); ++s)
      told[m].mutable_data_ptr<int64_t>()[s] = diffusion::message_bytes(*samples.at(leave[m][s]));
  }
  int64_t sent = 0;
  for (const at::Tensor& each : told) sent += each.sum().item<int64_t>() + static_cast<int64_t>(each.nbytes());
  plan::Instruction shown;  // in a trace: what uses no unit and none of the plan's memory is a flush
  shown.op = plan::Op::flush, shown.lane = plan::Lane::host, shown.bytes = sent;
  plan::Schedule schedule;
  schedule.phase = "deal", schedule.list = {shown};
  std::unique_ptr<engine::ScheduleTimes> traced =
      engine.times().begin(std::make_shared<const plan::Program>(plan(), std::move(schedule)), step);
  peers_->all_to_all(told, heard);
  for (size_t m = 0; m < members; ++m) {
    const int64_t bytes = told[m].sum().item<int64_t>();
    out.push_back(at::empty({bytes}, at::kByte));
    in.push_back(at::empty({heard[m].sum().item<int64_t>()}, at::kByte));
    char* to = static_cast<char*>(out[m].mutable_data_ptr());
    for (size_t s = 0; s < leave[m].size(); ++s) {
      diffusion::write_message(leave[m][s], *samples.at(leave[m][s]), to);
      to += told[m].const_data_ptr<int64_t>()[s];
      dealt_.erase(leave[m][s]);
    }
  }
  peers_->all_to_all(out, in);
  std::erase_if(own_, [&](const Own& each) { return !dealt_.contains(each.place); });
  for (size_t m = 0; m < members; ++m) {
    int64_t at = 0;
    for (int64_t s = 0; s < come[m]; ++s) {
      const int64_t bytes = heard[m].const_data_ptr<int64_t>()[s];
      const auto [place, sample] = diffusion::read_message(in[m].narrow(0, at, bytes));
      at += bytes;
      dealt_[place] = sample;
      own_.push_back(ask(step, place, *sample));
    }
  }
  std::ranges::sort(own_, {}, &Own::place);
  gate_.seconds = clock_seconds() - began;
  traced->ended(0, 0);
  engine.times().end(std::move(traced));
}

void GateSchedule::count_use() {
  const plan::StepUse use = plan::step_use(shares_, micro_batches(), pairs_);
  gate_.idle = use.idle(), gate_.dummies = use.dummy_share();
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
    const auto pair = std::ranges::find(pairs_, e, &std::pair<size_t, size_t>::first);
    const bool behind = std::ranges::count(pairs_, e, &std::pair<size_t, size_t>::second) > 0;  // its partner has it
    if ((!router_.hard() || gate_.experts[e].samples > 0) && !behind) active_.push_back(e);
    if (pair != pairs_.end()) active_.push_back(pair->second);
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
  route(visit.step, samples, engine);
  if (!router_.hard()) mix(visit.step, samples, engine);
  std::vector<ExpertPass> passes;
  for (const size_t e : active_) {
    ExpertPass pass;
    pass.pass = {.program = program(e), .step = visit.step, .expert = e};
    pass.last = e == active_.back();
    pass.beside = std::ranges::count(pairs_, e, &std::pair<size_t, size_t>::first) > 0;
    pass.data = {.plan = &pass.pass.program->plan,
                 .samples = peers_ ? &dealt_ : &samples,
                 .places = places_[e],
                 .step = own_step_,
                 .weighed = true};
    if (!router_.hard()) {
      for (const Own& own : own_) pass.data.weights.push_back(own.answer.weights[e]);
      pass.data.sums = &sums_, pass.data.counts = e == 0;
    }
    passes.push_back(std::move(pass));
  }
  pass_began_ = clock_seconds();
  return passes;
}

void GateSchedule::book(const ExpertPass& pass, const Decision& decision, const diffusion::FlowMatching& objective) {
  ExpertSchedule::book(pass, decision, objective);
  whole_ = whole_ && decision.skipped.empty();
  by_weight_[pass.pass.expert] = objective.by_weight();
  gate_.experts[pass.pass.expert].grad_norm = decision.norm;
  if (!pass.beside) book_seconds(pass.pass.expert);
  loss_ += decision.loss;
  squares_ += decision.norm * decision.norm;
}

/// Of a pair's time each has a share by its samples.
void GateSchedule::book_seconds(size_t expert) {
  const double now = clock_seconds(), seconds = now - std::exchange(pass_began_, now);
  std::vector<size_t> ran = {expert};
  if (const auto pair = std::ranges::find(pairs_, expert, &std::pair<size_t, size_t>::second); pair != pairs_.end())
    ran.push_back(pair->first);
  double samples = 0;
  for (const size_t e : ran) samples += static_cast<double>(gate_.experts[e].samples);
  for (const size_t e : ran)
    gate_.experts[e].seconds = seconds * static_cast<double>(gate_.experts[e].samples) / samples;
}

report::StepMetrics GateSchedule::end(const plan::Visit&) {
  if (whole_) learn(metrics_.lr);
  metrics_.expert.clear();
  metrics_.loss = loss_;
  metrics_.grad_norm = std::sqrt(squares_);
  for (size_t e = 0; e < gate_.experts.size(); ++e) gate_.experts[e].updates = updates_[e];
  metrics_.gate = gate_;
  follow_use(metrics_.step);
  dealt_.clear();
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
  if (!planned_->by_use.empty()) manifest.extra[kByUse] = {{"frequencies", frequencies_}, {"since", counted_}};
}

std::vector<checkpoint::Piece> GateSchedule::pieces(engine::Store& store) const {
  std::vector<checkpoint::Piece> pieces = ExpertSchedule::pieces(store);
  if (rank_ == 0) std::ranges::move(router_.pieces(), std::back_inserter(pieces));
  return pieces;
}

void GateSchedule::resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved) {
  ExpertSchedule::resume(store, saved);
  router_.resume(saved);
  const auto use = saved.manifest().extra.find(kByUse);
  if (use == saved.manifest().extra.end()) return;
  frequencies_ = use->value("frequencies", std::vector<double>());
  counted_ = use->value("since", std::vector<int64_t>());
  check_input(frequencies_.size() == chosen_.size() && counted_.size() == chosen_.size(), "run.resume",
              saved.path().string() + " has frequencies of " + std::to_string(frequencies_.size()) + " experts, and " +
                  std::to_string(counted_.size()) + " counts, the run has " + std::to_string(chosen_.size()),
              "restore its manifest.json, or resume from another checkpoint");
}

void GateSchedule::save_model(const std::filesystem::path& folder) const {
  if (rank_ == 0) router_.save_model(folder);
}

void GateSchedule::load_model(const std::filesystem::path& folder) {
  if (job::GateRouter::is_in(folder)) router_.load_model(folder);
}

}  // namespace tessera::train
