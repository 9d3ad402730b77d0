#include "tessera/train/expert_schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/plan/shares.h"

namespace tessera::train {

namespace {

diffusion::AngleDraws angles_of(const recipe::Recipe::Distill& distill) {
  return {.on = distill.consistent(),
          .flow = {.sigma_data = distill.sigma_data},
          .mean = distill.logit_mean,
          .std = distill.logit_std,
          .guidance = distill.on() && distill.guided() ? distill.guidance : std::vector<double>{},
          .largest = distill.judge.largest_angle,
          .largest_share = distill.judge.largest_share};
}

}  // namespace

ExpertSchedule::ExpertSchedule(const job::Experts& experts, const recipe::Recipe& recipe,
                               const std::vector<prepare::StageData>& data, int rank)
    : experts_(experts),
      expert_order_(job::plan_expert_order(experts, recipe::run_parts(recipe))),
      rank_(rank),
      updates_(experts.size(), 0),
      recipe_(recipe) {
  for (size_t e = 0; e < experts.places(); ++e) {
    std::vector<int64_t> first_steps;
    for (const prepare::StageData& part : data) first_steps.push_back(expert_order_.done(e, part.first_step - 1) + 1);
    data_.push_back(prepare::data_of_expert(data, first_steps));
  }
}

void ExpertSchedule::begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                                plan::Programs programs) {
  part_ = part;
  now_ = &plan.part.recipe;
  model_ = &model;
  programs_ = std::move(programs);
  shape_ = plan.planned.run;
  needs_spares_ = needs_spares_ || shape_.asks();
  noise_.clear();
  for (size_t e = 0; e < experts_.places(); ++e)
    noise_.push_back({.seed = static_cast<uint64_t>(now_->run.seed),
                      .timesteps = job::timestep_options(*now_, experts_.list[e]),
                      .angles = angles_of(now_->distill),
                      .loss = job::loss_rule(*now_),
                      .image_share = now_->distill.of_noise() ? 0 : now_->diffusion.image_share,
                      .conditions = now_->diffusion.conditions,
                      .mask_ratios = now_->diffusion.mask_ratios,
                      .mask_types = now_->diffusion.mask_types,
                      .drop_condition = now_->diffusion.drop_condition,
                      .condition_dropout = now_->diffusion.condition_dropout,
                      .caption_dropout = now_->diffusion.caption_dropout,
                      .null_context = data_[e][part_].samples->null_caption().context,
                      .null_glyphs = data_[e][part_].samples->null_caption().glyphs,
                      .pooled_dropout = now_->diffusion.pooled_dropout,
                      .null_pooled = data_[e][part_].samples->null_caption().pooled,
                      .blank_context = data_[e][part_].samples->blank_caption().context,
                      .blank_pooled = data_[e][part_].samples->blank_caption().pooled,
                      .chunks = job::chunk_draws(now_->diffusion)});
}

std::vector<int64_t> ExpertSchedule::places_of(int dp_rank, int64_t batch) const {
  int64_t samples = 0;
  for (int64_t m = 0; m < plan().accumulation(); ++m) samples += plan::slice_of(plan(), batch, dp_rank, m).count;
  std::vector<int64_t> places(static_cast<size_t>(samples));
  std::iota(places.begin(), places.end(), plan::slice_of(plan(), batch, dp_rank, 0).first);
  return places;
}

/// With those that it runs only where it has no sample of a micro-batch.
std::vector<int64_t> ExpertSchedule::wanted_places(int dp_rank, int64_t batch) const {
  std::vector<int64_t> places = places_of(dp_rank, batch);
  for (int64_t m = 0; needs_spares_ && m < plan().accumulation(); ++m)
    if (const int64_t spare = diffusion::spare_place(plan(), batch, dp_rank, m);
        plan::slice_of(plan(), batch, dp_rank, m).count == 0)
      if (std::ranges::find(places, spare) == places.end()) places.push_back(spare);
  return places;
}

int64_t ExpertSchedule::own_samples() const { return static_cast<int64_t>(own_places().size()); }

void ExpertSchedule::encode_captions(int64_t step) {
  if (recipe_.data.encoders != recipe::Encoders::sharded) return;
  if (std::tuple now(part_, step, plan().shares); now != captions_of_)
    captions_of_ = std::move(now);
  else
    return;
  const size_t expert = expert_order_.expert(step), place_of_data = experts_.gated ? 0 : expert;
  const int64_t own_step = expert_order_.own_step(step);
  const prepare::StageData& data = data_[place_of_data][part_];
  std::vector<std::vector<prepare::PreparedData::Place>> of_ranks;
  for (int d = 0; d < plan().mesh.dp_size(); ++d) {
    auto& own = of_ranks.emplace_back();
    for (const int64_t place : wanted_places(d, data.batch(own_step))) {
      const auto pick = data.pick(own_step, place);
      own.emplace_back(pick.index, pick.epoch);
    }
  }
  data.samples->encode_captions(of_ranks, static_cast<size_t>(dp_rank()));
}

std::vector<Wanted> ExpertSchedule::wanted(int64_t step) const {
  const size_t expert = expert_order_.expert(step), place_of_data = experts_.gated ? 0 : expert;
  const int64_t own_step = expert_order_.own_step(step);
  const prepare::StageData& data = data_[place_of_data][part_];
  std::vector<Wanted> wanted;
  for (const int64_t place : wanted_places(dp_rank(), data.batch(own_step))) {
    const auto [index, epoch] = data.pick(own_step, place);
    const int set = data.samples->set_of(index);
    const recipe::Recipe::DataSet* own = now_->sets.empty() ? nullptr : &now_->sets.at(static_cast<size_t>(set));
    // Losses are means over a batch of which twins are half: each half is to count as a batch.
    const bool twins = now_->train.twins(), twin = twins && place % 2 == 1;
    const bool judged = now_->distill.judges() && place % 2 == 1;
    const double half = now_->pairs() ? 2 : 1, loss_weight = half * (own ? own->loss_weight : 1),
                 twin_weight = half * now_->train.preserve_weight;
    const double consistency = now_->distill.judges() ? now_->distill.judge.consistency : 1;
    const bool from_base = twin || (own && own->role == recipe::Recipe::Role::prior);
    const int64_t drawn = place / data.times;  // a twin has the timestep and the noise of its clip
    diffusion::NoiseSettings of_set = noise_[place_of_data];
    of_set.null_context = data.samples->null_caption(set).context;
    of_set.null_glyphs = data.samples->null_caption(set).glyphs;
    of_set.null_pooled = data.samples->null_caption(set).pooled;
    if (own) of_set.loss.masks = job::mask_rule(now_->masked(), now_->diffusion, own->data);
    const bool blank = twin && now_->train.preserve == recipe::Recipe::Train::Preserve::blank;
    if (twin) of_set.caption_dropout = of_set.pooled_dropout = 0;
    if (from_base) of_set.loss.guidance = {};
    of_set.angles.second = judged;
    if (blank) {
      of_set.null_context = of_set.blank_context, of_set.caption_dropout = 1;
      of_set.null_pooled = of_set.blank_pooled;
      of_set.pooled_dropout = of_set.null_pooled.defined() ? 1 : 0;
    }
    const auto make = [samples = data.samples, noise = std::move(of_set), takes = model_->conditions(), own_step, drawn,
                       index = index, epoch = epoch, set, loss_weight, twin_weight, twin, blank, from_base, judged,
                       consistency] {
      const auto given = [&](int64_t frames, int64_t latent_frames) {
        return diffusion::given_frames(noise, takes, frames, latent_frames, own_step, drawn);
      };
      prepare::PreparedSample clean = samples->sample(index, epoch, given, /*of_class=*/twin && !blank);
      if (twin) clean.mask = at::Tensor();  // all of it is to stay
      diffusion::TrainingSample sample =
          diffusion::noised(noise, takes,
                            {std::move(clean.latent), std::move(clean.context), std::move(clean.extra),
                             std::move(clean.given), std::move(clean.pieces), std::move(clean.mask)},
                            own_step, drawn);
      sample.index = index;
      sample.set = set;
      sample.from_base = from_base, sample.twin = twin;
      sample.weight = twin ? twin_weight : sample.weight * loss_weight * consistency;
      if (judged) sample.from_base = sample.twin = true, sample.weight = 1;
      return sample;
    };
    wanted.push_back({{static_cast<int64_t>(part_), static_cast<int64_t>(place_of_data), own_step, place}, make});
  }
  return wanted;
}

std::vector<ExpertPass> ExpertSchedule::passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                               engine::Engine& engine) {
  expert_ = expert_order_.expert(visit.step);
  own_step_ = expert_order_.own_step(visit.step);
  metrics_ = {};
  const plan::ProgramPtr& program = programs_.step(visit.pending, static_cast<int>(expert_));
  ExpertPass pass;
  pass.pass = {.program = program, .step = visit.step, .expert = expert_};
  pass.data = {.plan = &program->plan,
               .samples = &samples,
               .places = own_places(),
               .batch = data().batch(own_step_),
               .step = own_step_};
  if (!shape_.asks()) return {pass};
  targets_.clear();
  engine.swap(expert_);
  ask(diffusion::Asked::base, shape_.base, visit.step, pass.data, engine);
  ask(diffusion::Asked::unguided, shape_.unguided, visit.step, pass.data, engine);
  pass.data.targets = &targets_;
  return {pass};
}

void ExpertSchedule::ask(diffusion::Asked asked, plan::AskBase which, int64_t step, const diffusion::PassData& data,
                         engine::Engine& engine) {
  diffusion::FlowMatching packer(*model_, rank_);
  packer.begin(data);
  const std::vector<int64_t> samples = plan::asking_base(plan(), which);
  for (size_t micro = 0; micro < samples.size(); ++micro) {
    if (samples[micro] == 0) continue;
    std::vector<int64_t> places;
    const net::Batch batch = packer.asked_inputs(static_cast<int>(micro), asked, places);
    const at::Tensor out =
        engine.forward(programs_.base, {batch}, step, /*without_adapters=*/asked == diffusion::Asked::base)[0].to(
            at::kFloat);
    for (size_t s = 0; s < places.size(); ++s) {
      const int64_t begin = batch.tokens.offsets[s];
      targets_[places[s]] =
          packer.asked_target(asked, places[s], out.narrow(0, begin, batch.tokens.offsets[s + 1] - begin));
    }
  }
}

void ExpertSchedule::book(const ExpertPass& pass, const Decision& decision, const diffusion::FlowMatching&) {
  metrics_.step = pass.pass.step;
  metrics_.loss = decision.loss;
  metrics_.grad_norm = decision.norm;
  metrics_.lr = decision.rate;
  metrics_.loss_scale = decision.loss_scale;
  metrics_.d = decision.d;
  metrics_.expert = name(pass.pass.expert);
  metrics_.expert_step = own_step_;
  add_by_timestep(decision.by_timestep);
}

void ExpertSchedule::add_by_timestep(const diffusion::LossByTimestep& pass) {
  metrics_.by_timestep.resize(diffusion::LossByTimestep::kBins);
  for (size_t b = 0; b < diffusion::LossByTimestep::kBins; ++b) {
    report::StepMetrics::Bin& bin = metrics_.by_timestep[b];
    const int64_t count = std::llround(pass.counts[b]);  // a sample's parts on several ranks add up to it
    if (count == 0) continue;
    bin.loss = (bin.loss * static_cast<double>(bin.count) + pass.sums[b]) / static_cast<double>(bin.count + count);
    bin.count += count;
  }
}

report::StepMetrics ExpertSchedule::end(const plan::Visit&) { return std::exchange(metrics_, {}); }

/// A schedule is as long as the expert's share of the run.
double ExpertSchedule::learning_rate(size_t expert, int64_t own_step) const {
  recipe::LrSchedule schedule = now_->lr_schedule;
  if (experts_.places() > 1)
    schedule.total_steps = std::max<int64_t>(1, expert_order_.done(expert, expert_order_.steps()));
  if (experts_.critic() && expert > 0 && now_->distill.critic_lr > 0) schedule.lr = now_->distill.critic_lr;
  return recipe::learning_rate(schedule, own_step - 1);
}

std::vector<std::string> ExpertSchedule::describe() const {
  std::vector<std::string> lines;
  for (size_t e = 0; experts_.places() > 1 && e < experts_.size(); ++e)
    lines.push_back("the " + experts_.list[e].name + " expert has " +
                    std::to_string(expert_order_.done(e, expert_order_.steps())) + " of " +
                    std::to_string(expert_order_.steps()) + " steps");
  return lines;
}

namespace {

/// How far each [[data.set]] was gone through behind a step; null where there is none.
checkpoint::Json cursors(const prepare::StageData& data, int64_t step) {
  if (data.sets.empty()) return nullptr;
  checkpoint::Json all = checkpoint::Json::array();
  const std::vector<prepare::StageData::Seen> seen = data.seen_before(step + 1);
  for (size_t s = 0; s < seen.size(); ++s) {
    const int64_t size = std::max<int64_t>(1, data.order.set_size(s));
    all.push_back({{"set", seen[s].set},
                   {"samples", seen[s].samples},
                   {"epoch", seen[s].samples / size},
                   {"cursor", seen[s].samples % size}});
  }
  return all;
}

std::vector<prepare::StageData::Seen> seen_of_sets(const checkpoint::Json& cursors) {
  std::vector<prepare::StageData::Seen> seen;
  for (const checkpoint::Json& set : cursors)
    if (set.is_object() && set.contains("set") && set["set"].is_string() && set.contains("samples") &&
        set["samples"].is_number_integer())
      seen.push_back({set["set"].get<std::string>(), set["samples"].get<int64_t>()});
  return seen;
}

}  // namespace

void ExpertSchedule::write(int64_t step, checkpoint::Manifest& manifest) const {
  const auto position = data().place_after(own_step_);
  manifest.epoch = position.epoch;
  manifest.cursor = position.cursor;
  manifest.sets = cursors(data(), own_step_);
  manifest.schedule_lr = learning_rate(expert_, own_step_);
  if (!experts_.several()) {
    manifest.extra["updates"] = updates_[0];
    return;
  }
  for (size_t e = 0; e < experts_.size(); ++e) {
    if (experts_.gated) {
      manifest.experts[experts_.list[e].name] = {{"updates", updates_[e]}};
      continue;
    }
    const int64_t done = expert_order_.done(e, step);
    const auto place = data_[e][part_].place_after(done);
    manifest.experts[experts_.list[e].name] = {{"steps", done},
                                               {"updates", updates_[e]},
                                               {"schedule_lr", done > 0 ? learning_rate(e, done) : 0.0},
                                               {"data", {{"epoch", place.epoch}, {"cursor", place.cursor}}}};
    if (checkpoint::Json sets = cursors(data_[e][part_], done); !sets.is_null())
      manifest.experts[experts_.list[e].name]["data"]["sets"] = std::move(sets);
  }
}

std::vector<checkpoint::Piece> ExpertSchedule::pieces(engine::Store& store) const {
  std::vector<checkpoint::Piece> all;
  const int active = store.expert();
  job::each_expert(store, experts_, [&](size_t, const std::string& prefix) {
    std::vector<checkpoint::Piece> own = engine::checkpoint_pieces(store, prefix, active);
    std::move(own.begin(), own.end(), std::back_inserter(all));
  });
  return all;
}

void ExpertSchedule::resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved) {
  const checkpoint::Manifest& manifest = saved.manifest();
  for (size_t e = 0; e < experts_.size(); ++e) {
    if (!experts_.several()) {
      updates_[e] = manifest.extra.value("updates", manifest.step);
      continue;
    }
    const checkpoint::Json& state = manifest.experts.at(experts_.list[e].name);
    updates_[e] = state.value("updates", int64_t{0});
    if (experts_.gated) continue;
    const int64_t done = state.value("steps", int64_t{0});
    check_steps(e, done, manifest.step);
    if (const auto seen = state.find("data"); seen != state.end())
      prepare::go_on_behind(data_[e], done, {seen->value("epoch", int64_t{0}), seen->value("cursor", int64_t{0})},
                            seen_of_sets(seen->value("sets", checkpoint::Json())));
  }
  if (experts_.places() == 1)
    prepare::go_on_behind(data_[0], manifest.step, {manifest.epoch, manifest.cursor}, seen_of_sets(manifest.sets));
  job::each_expert(store, experts_, [&](size_t e, const std::string& prefix) {
    engine::restore(store, saved, prefix);
    if (updates_[e] == 0) engine::begin_averages(store);  // 0.1 saved zeros for an expert that had not begun
  });
}

void ExpertSchedule::check_steps(size_t expert, int64_t done, int64_t step) const {
  if (step > expert_order_.steps() || done == expert_order_.done(expert, step)) return;
  throw UserError(Exit::usage, "run.resume",
                  "the " + experts_.list[expert].name + " expert has done " + std::to_string(done) + " of " +
                      std::to_string(step) + " steps, by the recipe's expert schedule it would be " +
                      std::to_string(expert_order_.done(expert, step)),
                  "keep run.seed, experts.*, diffusion.timesteps and diffusion.shift, or use another run.out");
}

}  // namespace tessera::train
