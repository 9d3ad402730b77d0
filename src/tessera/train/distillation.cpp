// The step of a student: what its frozen teacher and its own forward mode say of each sample, before it trains on both
// (diffusion/distillation.h). Teacher and student share layout, slots and programs, as experts do: the teacher is the one
// that has no states. Where heads judge the student, too, it has every second step and they have the others.
//
// [Note: pairs] Of a judged student's batch the places are pairs of one clip: the even one trains by consistency, the odd one
// is predicted from an angle of its own, noised anew, and read by the heads on the teacher's blocks. The teacher runs twice for
// them: for all features, which the heads need at once, and with a graph, back to its input.
//
//   const std::unique_ptr<ExpertSchedule> schedule = make_expert_schedule(job, recipe, data, ranks);
#include <algorithm>
#include <cmath>
#include <iterator>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/device/backend.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/slice.h"
#include "tessera/job/optimiser.h"
#include "tessera/net/passes.h"
#include "tessera/train/gate_schedule.h"
#include "tessera/train/heads.h"

namespace tessera::train {

namespace {

using at::Tensor;

constexpr size_t kStudent = 0, kHeads = 1;  // networks of Turns
/// Numbers of what is drawn beside a pair's own noise and angles (diffusion/training_sample.h).
constexpr int kFake = 2, kReal = 3, kShifted = 4;

/// Numbers of a token at a block.
int64_t width_of_blocks(const net::Denoiser& model) {
  const net::Batch batch = model.pack({model.blank({model.in_channels(), 1, 8, 8})});
  return engine::measure(net::frozen_up_to_blocks(model, {0}), batch, "", {.train = false}).prediction_row /
         static_cast<int64_t>(sizeof(float));
}

Turns turns_of(const recipe::Recipe& recipe) {
  Turns::Network student{"student", recipe.lr_schedule}, heads{"discriminator", {.lr = recipe.train.lr}};
  student.rate.total_steps = (student.rate.total_steps + 1) / 2;
  return Turns({student, heads});
}

/// Gradients at the teacher's features, which it carries back to its input.
class ToldObjective final : public net::Objective {
 public:
  struct Micro {
    net::Batch batch;
    Tensor at_rows;  // of all its tokens
  };
  explicit ToldObjective(std::vector<Micro> micros) : micros_(std::move(micros)) {}

  net::Batch batch(int micro) override { return micros_[static_cast<size_t>(micro)].batch; }
  Tensor gradient(const Tensor& rows, const net::Batch& batch, int micro) override {
    return micros_[static_cast<size_t>(micro)]
        .at_rows.slice(0, batch.tokens.begin, batch.tokens.begin + rows.size(0))
        .to(rows.options())
        .contiguous();
  }
  const net::Batch& packed(int64_t micro) const { return micros_[static_cast<size_t>(micro)].batch; }

 private:
  const std::vector<Micro> micros_;
};

class Distillation final : public ExpertSchedule {
 public:
  Distillation(const job::Job& job, const recipe::Recipe& recipe, const std::vector<prepare::StageData>& data,
               Ranks& ranks)
      : ExpertSchedule(job.experts, recipe, data, ranks.rank()),
        teacher_(job.experts.size()),
        skips_(recipe.run.on_nan == "skip") {
    if (!recipe.distill.judges()) return;
    needs_spares_ = true;
    const std::vector<int> peers = ranks.mesh.group(ranks.rank(), {Axis::dp_replicate, Axis::dp_shard});
    const Heads::Rules rules{.loss = {.hinge = recipe.distill.judge.hinge, .r1_weight = recipe.distill.judge.r1_weight},
                             .clip_norm = recipe.train.clip_norm,
                             .seed = static_cast<uint64_t>(recipe.run.seed)};
    heads_.emplace(job::optimiser_of(recipe, {.optimizer = recipe.plan.states.optimizer}), rules,
                   Heads::Shape{recipe.distill.judge.blocks.size(), width_of_blocks(*job.model)}, device::here(),
                   peers.size() > 1 ? &ranks.comm.group_of("heads", "heads", peers) : nullptr);
    if (const std::vector<int> stages = ranks.mesh.group(ranks.rank(), {Axis::pp}); stages.size() > 1)
      stages_ = &ranks.comm.group_of("stages", "heads", stages);
    turns_.emplace(turns_of(recipe));
  }

  void begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                  plan::Programs programs) override {
    ExpertSchedule::begin_part(part, plan, model, std::move(programs));
    moving_.units = net::forward_mode(model);
    moving_.spec = *plan.planned.tangent;
    if (!heads_) return;
    features_.units = net::frozen_up_to_blocks(model, now_->distill.judge.blocks);
    features_.spec = *plan.planned.features;
    features_.frozen = true;
  }

  std::vector<ExpertPass> passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                 engine::Engine& engine) override {
    expert_ = 0;
    own_step_ = visit.step;
    metrics_ = {};
    targets_.clear(), learned_.clear();
    const bool lesson = heads_ && turns_->now() == kHeads;
    const plan::ProgramPtr& program = lesson ? programs_.exchange : programs_.step(visit.pending);
    ExpertPass pass;
    pass.pass = {.program = program, .step = visit.step, .form = lesson ? &features_ : nullptr};
    pass.data = {.plan = &program->plan,
                 .samples = &samples,
                 .places = own_places(),
                 .batch = data().batch(own_step_),
                 .step = own_step_};
    pass.trains = !lesson;
    if (lesson) {
      teach_heads(samples, engine);
      return {pass};
    }
    const std::vector<int64_t> clips = passes_of(0);
    for (int64_t micro = 0; micro < plan().accumulation(); ++micro)
      if (clips[static_cast<size_t>(micro)] > 0) learn(micro, samples, engine);
    if (heads_) be_judged(samples, engine);
    pass.data.targets = &targets_, pass.data.learned = &learned_;
    return {pass};
  }

  double learning_rate(const ExpertPass& pass) const override {
    return heads_ ? turns_->rate(kStudent) : ExpertSchedule::learning_rate(pass);
  }

  void book(const ExpertPass& pass, const Decision& decision, const diffusion::FlowMatching& objective) override {
    ExpertSchedule::book(pass, decision, objective);
    if (!heads_) return;
    const size_t network = pass.trains ? kStudent : kHeads;
    metrics_.expert = turns_->name(network);
    if (!pass.trains) metrics_.loss = lesson_.loss.loss, metrics_.grad_norm = lesson_.norm, metrics_.lr = heads_rate_;
    const std::string skipped = pass.trains      ? decision.skipped
                                : lesson_.finite ? ""
                                                 : "the loss or the gradients of the heads are not finite";
    if (!pass.trains && !skipped.empty()) {
      if (!skips_)
        throw UserError(Exit::not_finite, "train", "step " + std::to_string(own_step_) + ": " + skipped,
                        "lower train.lr, or set run.on_nan = \"skip\"");
      log::warn("step " + std::to_string(own_step_) + " is skipped, and the heads have the next one: " + skipped);
    }
    turns_->end_step(skipped.empty());
    metrics_.expert_step = turns_->taken(network);
  }

  void write(int64_t step, checkpoint::Manifest& manifest) const override {
    ExpertSchedule::write(step, manifest);
    if (heads_) turns_->write(manifest);
  }
  std::vector<checkpoint::Piece> pieces(engine::Store& store) const override {
    std::vector<checkpoint::Piece> all = ExpertSchedule::pieces(store);
    if (heads_ && rank_ == 0) std::ranges::move(heads_->pieces(), std::back_inserter(all));
    return all;
  }
  void resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved) override {
    ExpertSchedule::resume(store, saved);
    if (!heads_) return;
    turns_->resume(saved.manifest());
    heads_->resume(saved, turns_->taken(kHeads));
  }

 protected:
  /// With the clips whose pictures stand under the captions of others.
  std::vector<int64_t> wanted_places(int dp_rank, int64_t batch) const override {
    std::vector<int64_t> places = ExpertSchedule::wanted_places(dp_rank, batch);
    if (!misaligned(batch)) return places;
    for (const int64_t clip : clips_of(dp_rank, batch))
      if (const int64_t place = 2 * before(clip, batch) + 1; std::ranges::find(places, place) == places.end())
        places.push_back(place);
    return places;
  }

 private:
  using Samples = std::vector<const diffusion::TrainingSample*>;

  /// Of a micro-batch, at even (0) or odd (1) places where the student is judged, else at all. A rank without one runs
  /// another, whose results nobody reads.
  struct Part {
    std::vector<int64_t> places;
    bool own = true;
  };
  Part part_of(int64_t micro, int64_t odd) const {
    const int64_t batch = data().batch(own_step_);
    const plan::Plan::Slice slice = plan::slice_of(plan(), batch, dp_rank(), micro);
    Part part;
    for (int64_t place = slice.first; place < slice.first + slice.count; ++place)
      if (!heads_ || place % 2 == odd) part.places.push_back(place);
    if (!part.places.empty()) return part;
    return {{slice.count > 0 ? slice.first : diffusion::spare_place(plan(), batch, dp_rank(), micro)}, false};
  }
  /// The most that a dp rank has of each micro-batch; none of them runs what none has.
  std::vector<int64_t> passes_of(int64_t odd) const {
    const plan::AskBase of_pairs = odd == 1 ? plan::AskBase::twins : plan::AskBase::clips;
    return plan::asking_base(plan(), heads_ ? of_pairs : plan::AskBase::any);
  }
  /// The clips whose odd place a rank has.
  std::vector<int64_t> clips_of(int dp_rank, int64_t batch) const {
    std::vector<int64_t> clips;
    for (const int64_t place : places_of(dp_rank, batch))
      if (place % 2 == 1) clips.push_back(place / 2);
    return clips;
  }
  bool misaligned(int64_t batch) const { return heads_ && now_->distill.judge.misaligned && batch > 2; }
  static int64_t before(int64_t clip, int64_t batch) { return (clip + batch / 2 - 1) % (batch / 2); }

  net::Batch named(net::Batch batch, const std::vector<int64_t>& places) const {
    batch.tokens.samples.assign(places.begin(), places.end());
    batch.tokens.step = static_cast<uint64_t>(own_step_);
    return batch;
  }

  /// Rows of the last unit, in host memory.
  Tensor said(engine::Engine& engine, const plan::ProgramPtr& program, const net::Batch& batch,
              const engine::OtherForm* form = nullptr) const {
    const bool of_teacher = program == programs_.base && engine.store().expert() == static_cast<int>(teacher_);
    return engine.forward(program, {batch}, own_step_, /*without_adapters=*/of_teacher, form)[0].to(at::kFloat);
  }

  /// dx_t / dt of each sample, as the teacher says it, guided.
  std::vector<Tensor> velocities(const std::vector<int64_t>& places, const Samples& samples,
                                 engine::Engine& engine) const {
    engine.swap(teacher_);
    const auto asked = [&](bool guided) {
      std::vector<net::Sample> inputs;
      for (const diffusion::TrainingSample* sample : samples)
        inputs.push_back(guided && sample->unguided ? *sample->unguided : sample->input);
      const net::Batch batch = named(model_->pack(inputs), places);
      const Tensor rows = said(engine, programs_.base, batch);
      const engine::Meter::Scope host(engine::Part::host);
      std::vector<Tensor> f = model_->unpack(rows, batch);
      for (size_t s = 0; s < f.size(); ++s) f[s] = samples[s]->call->output(f[s]);
      return f;
    };
    std::vector<Tensor> velocity = asked(/*guided=*/false), without;
    if (now_->distill.guided()) without = asked(/*guided=*/true);
    const engine::Meter::Scope host(engine::Part::host);
    for (size_t s = 0; s < velocity.size(); ++s) {
      if (!without.empty()) velocity[s] = without[s] + samples[s]->guidance * (velocity[s] - without[s]);
      velocity[s] = velocity[s] * now_->distill.sigma_data;
    }
    engine.swap(0);
    return velocity;
  }

  void learn(int64_t micro, const diffusion::TrainingSamples& all, engine::Engine& engine) {
    const auto [places, own] = part_of(micro, 0);
    Samples samples;
    for (const int64_t place : places) samples.push_back(all.at(place).get());
    const std::vector<Tensor> velocity = velocities(places, samples, engine);
    const diffusion::TrigFlow flow{.sigma_data = now_->distill.sigma_data};
    std::vector<diffusion::FlowMove> moves;
    std::vector<net::Sample> inputs;
    std::vector<net::Direction> directions;
    for (size_t s = 0; s < samples.size(); ++s) {
      const engine::Meter::Scope host(engine::Part::host);
      const diffusion::FlowCall& call = *samples[s]->call;
      const double rate = std::cos(call.angle) * std::sin(call.angle);
      moves.push_back(flow.move(call, velocity[s] * (rate / flow.sigma_data), rate));
      inputs.push_back(samples[s]->input);
      // Timesteps are 1000 s, of which the flow's times are so many parts.
      directions.push_back({moves[s].z, moves[s].time * flow.timestep_norm});
    }
    const net::Batch batch = named(net::pack_moving(*model_, inputs, directions), places);
    const Tensor rows = said(engine, programs_.tangent, batch, &moving_);
    const engine::Meter::Scope host(engine::Part::host);
    const std::vector<Tensor> halves = rows.chunk(2, 1), values = model_->unpack(halves[0], batch),
                              tangents = model_->unpack(halves[1], batch);
    if (!own) return;
    for (size_t s = 0; s < samples.size(); ++s)
      learn(places[s], *samples[s], flow, velocity[s], values[s], moves[s].output(tangents[s], values[s]),
            halves[0].narrow(0, batch.predictions_of(s)[0], 1));
  }

  /// The target u + g / q of the flow network's prediction u makes (F - F_stopped - g)^2 of its error.
  void learn(int64_t place, const diffusion::TrainingSample& sample, const diffusion::TrigFlow& flow,
             const Tensor& velocity, const Tensor& u, const Tensor& tangent, const Tensor& first_row) {
    const diffusion::FlowCall& call = *sample.call;
    const int64_t width = first_row.size(1), beside = model_->numbers_beside();
    const double logvar = beside > 0 ? first_row[0][width - beside].item<double>() : 0;
    const double warmup = static_cast<double>(now_->distill.tangent_warmup), done = static_cast<double>(own_step_ - 1);
    const diffusion::ConsistencyLoss loss = diffusion::consistency_loss(flow,
                                                                        {{.t = call.angle,
                                                                          .x_t = flow.sigma_data * call.scaled,
                                                                          .velocity = velocity,
                                                                          .f = call.output(u),
                                                                          .tangent = tangent,
                                                                          .logvar = logvar}},
                                                                        warmup > 0 ? std::min(1.0, done / warmup) : 1);
    Tensor rows = model_->pack_target(u + loss.g[0] / call.q).to(at::kFloat);
    if (beside > 0) rows.narrow(1, width - beside, beside).fill_(logvar);  // which has a gradient of its own
    targets_[place] = rows;
    // The mean is over the columns of the prediction, and those beside it have no error.
    const double columns = static_cast<double>(width) / static_cast<double>(width - beside);
    learned_[place] = {loss.weights[0] * std::exp(-logvar) * call.q * call.q * columns, logvar,
                       beside > 0 ? loss.at_logvar[0] : 0};
  }

  // The heads.

  diffusion::TrigFlow flow() const { return {.sigma_data = now_->distill.sigma_data}; }
  /// Latents times sigma_data, of which the sample was made.
  Tensor clean_of(const diffusion::TrainingSample& sample) const {
    const diffusion::FlowCall& call = *sample.call;
    return std::cos(call.angle) * flow().sigma_data * call.scaled - std::sin(call.angle) * sample.velocity;
  }
  double judged_angle(int64_t clip, int number) const {
    const auto& judge = now_->distill.judge;
    return diffusion::drawn_angle(
        diffusion::normal_beside(static_cast<uint64_t>(now_->run.seed), own_step_, clip, number), judge.logit_mean,
        judge.logit_std);
  }

  /// A picture before the heads: what the teacher gets of it.
  struct Judged {
    diffusion::FlowCall call;
    net::Sample input;
  };
  /// `sample`: whose caption it stands under.
  Judged judged(const Tensor& clean, double angle, int number, int64_t clip,
                const diffusion::TrainingSample& sample) const {
    const Tensor noise =
        diffusion::noise_beside(static_cast<uint64_t>(now_->run.seed), own_step_, clip, number, clean.sizes());
    Judged judged{flow().call(flow().noisy(clean, noise, angle), angle), sample.input};
    judged.input.x = judged.call.z, judged.input.t = 1000 * judged.call.s;
    return judged;
  }

  /// What the student predicts at the odd places that this rank has; and of one that it runs for others.
  std::map<int64_t, Tensor> predicted(const diffusion::TrainingSamples& all, engine::Engine& engine) {
    std::map<int64_t, Tensor> clean;
    const std::vector<int64_t> second = passes_of(1);
    engine.swap(0);
    for (int64_t micro = 0; micro < plan().accumulation(); ++micro) {
      if (second[static_cast<size_t>(micro)] == 0) continue;
      const Part part = part_of(micro, 1);
      std::vector<net::Sample> inputs;
      for (const int64_t place : part.places) inputs.push_back(all.at(place)->input);
      const net::Batch batch = named(model_->pack(inputs), part.places);
      const Tensor rows = said(engine, programs_.base, batch);
      const engine::Meter::Scope host(engine::Part::host);
      const std::vector<Tensor> u = model_->unpack(rows, batch);
      for (size_t s = 0; s < u.size(); ++s) {
        const diffusion::FlowCall& call = *all.at(part.places[s])->call;
        clean[part.places[s]] = flow().clean(flow().sigma_data * call.scaled, call.output(u[s]), call.angle);
      }
    }
    return clean;
  }

  /// The teacher's features of a picture for each odd place, which `make` gives, by the place's clip and `first`.
  template <class Make>
  void add_features(Heads::Rows& rows, int64_t first, engine::Engine& engine, const Make& make) {
    const std::vector<int64_t> second = passes_of(1);
    engine.swap(teacher_);
    for (int64_t micro = 0; micro < plan().accumulation(); ++micro) {
      if (second[static_cast<size_t>(micro)] == 0) continue;
      const Part part = part_of(micro, 1);
      std::vector<net::Sample> inputs;
      for (const int64_t place : part.places) inputs.push_back(make(place, part.own));
      const net::Batch batch = named(model_->pack(inputs), part.places);
      const Tensor all = said(engine, programs_.features, batch, &features_);
      const engine::Meter::Scope host(engine::Part::host);
      for (size_t s = 0; s < part.places.size(); ++s) {
        const int64_t begin = batch.tokens.offsets[s], end = batch.tokens.offsets[s + 1];
        tokens_ = end - begin;
        if (part.own) rows[first + part.places[s] / 2] = all.slice(0, begin, end).clone();
      }
    }
    engine.swap(0);
  }

  Heads::Spread spread(int64_t batches) const {
    const int64_t batch = data().batch(own_step_);
    Heads::Spread spread{batches * (batch / 2), {}};
    for (int d = 0; d < plan().mesh.dp_size(); ++d) {
      auto& own = spread.of_rank.emplace_back();
      for (int64_t b = 0; b < batches; ++b)
        for (const int64_t clip : clips_of(d, batch)) own.push_back(b * (batch / 2) + clip);
    }
    return spread;
  }

  /// What the heads tell the student of its predictions becomes the gradient at them.
  void be_judged(const diffusion::TrainingSamples& all, engine::Engine& engine) {
    const std::map<int64_t, Tensor> clean = predicted(all, engine);
    std::map<int64_t, Judged> pictures;
    Heads::Rows rows;
    add_features(rows, 0, engine, [&](int64_t place, bool own) {
      const engine::Meter::Scope host(engine::Part::host);
      const diffusion::TrainingSample& sample = *all.at(place);
      if (!own) return sample.input;
      pictures[place] = judged(clean.at(place), judged_angle(place / 2, kFake), kFake, place / 2, sample);
      return pictures[place].input;
    });
    Heads::Told told = heads_->tell(rows, spread(1), tokens_);

    std::vector<ToldObjective::Micro> micros;
    {
      const engine::Meter::Scope host(engine::Part::host);
      for (int64_t micro = 0; micro < plan().accumulation(); ++micro) {
        const Part part = part_of(micro, 1);
        std::vector<net::Sample> inputs;
        std::vector<Tensor> at;
        for (const int64_t place : part.places) {
          inputs.push_back(part.own ? pictures.at(place).input : all.at(place)->input);
          if (part.own) at.push_back(told.at_rows.at(place / 2));
        }
        net::Batch batch = named(model_->pack(inputs), part.places);
        const int64_t of_features = features_.spec.prediction_row / static_cast<int64_t>(sizeof(float));
        Tensor at_rows = at.empty() ? at::zeros({batch.tokens.total(), of_features}, at::kFloat) : at::cat(at);
        micros.push_back({std::move(batch), std::move(at_rows)});
      }
    }
    ToldObjective objective(std::move(micros));
    engine::StepRun step = engine.run(
        {.program = programs_.judged, .step = own_step_, .expert = teacher_, .form = &features_}, objective, {});
    engine.finish(std::move(step), std::nullopt);
    engine.swap(0);
    const engine::Meter::Scope host(engine::Part::host);
    for (int64_t micro = 0; micro < plan().accumulation(); ++micro) {
      if (plan::slice_of(plan(), data().batch(own_step_), dp_rank(), micro).count == 0) continue;
      const Part part = part_of(micro, 1);
      const net::Batch& batch = objective.packed(micro);
      std::vector<Tensor>& found = engine.interpreter().input_grads()[static_cast<size_t>(micro)];
      for (Tensor& gradient : found)
        if (gradient.defined()) gradient = gradient.cpu();
      const bool first_stage = plan().owns(rank_, 0);  // which the gradients come back to
      std::vector<Tensor> whole;
      if (first_stage) whole = engine::whole_input_grads(std::move(found), batch, engine.interpreter().parallel());
      if (!part.own) continue;
      std::vector<net::Sample> inputs;
      for (const int64_t place : part.places) inputs.push_back(pictures.at(place).input);
      const auto grads = first_stage ? model_->unpack_input_grads(whole, batch, inputs)
                                     : std::vector<std::map<std::string, Tensor>>(inputs.size());
      for (size_t s = 0; s < part.places.size(); ++s) {
        const Judged& picture = pictures.at(part.places[s]);
        Tensor at_z = first_stage ? grads[s].at("x").to(at::kFloat).contiguous()
                                  : at::empty(picture.input.x.sizes(), at::TensorOptions(at::kFloat));
        if (stages_) stages_->broadcast(at_z, 0);
        be_told(part.places[s], *all.at(part.places[s]), picture, at_z, told.loss);
      }
    }
  }

  void be_told(int64_t place, const diffusion::TrainingSample& sample, const Judged& picture, const Tensor& at_z,
               double loss) {
    const diffusion::FlowCall& call = *sample.call;
    const double weight = now_->distill.judge.weight;
    const double by_f =
        picture.call.q / flow().sigma_data * std::cos(picture.call.angle) * flow().clean_by_output(call.angle);
    Tensor rows = model_->pack_target(call.at_u(at_z * (weight * by_f))).to(at::kFloat);
    const int64_t beside = model_->numbers_beside();
    if (beside > 0) rows.narrow(1, rows.size(1) - beside, beside).zero_();
    targets_[place] = rows;
    learned_[place] = {.weight = 1, .beside = 2 * weight * loss, .told = true};  // of two samples of a pair
  }

  /// The heads' own step.
  void teach_heads(const diffusion::TrainingSamples& all, engine::Engine& engine) {
    const int64_t batch = data().batch(own_step_);
    const std::map<int64_t, Tensor> clean = predicted(all, engine);
    const auto& judge = now_->distill.judge;
    Heads::Rows fakes, reals;
    const auto none = [&](int64_t place) { return all.at(place)->input; };
    add_features(fakes, 0, engine, [&](int64_t place, bool own) {
      const engine::Meter::Scope host(engine::Part::host);
      if (!own) return none(place);
      return judged(clean.at(place), judged_angle(place / 2, kFake), kFake, place / 2, *all.at(place)).input;
    });
    if (misaligned(batch))
      add_features(fakes, batch / 2, engine, [&](int64_t place, bool own) {
        const engine::Meter::Scope host(engine::Part::host);
        if (!own) return none(place);
        const Tensor other = clean_of(*all.at(2 * before(place / 2, batch) + 1));
        return judged(other, judged_angle(place / 2, kShifted), kShifted, place / 2, *all.at(place)).input;
      });
    add_features(reals, 0, engine, [&](int64_t place, bool own) {
      const engine::Meter::Scope host(engine::Part::host);
      if (!own) return none(place);
      const double angle = judged_angle(place / 2, judge.own_angles ? kReal : kFake);
      return judged(clean_of(*all.at(place)), angle, kReal, place / 2, *all.at(place)).input;
    });
    heads_rate_ = turns_->rate(kHeads);
    lesson_ = heads_->learn(fakes, spread(misaligned(batch) ? 2 : 1), reals, spread(1), tokens_, heads_rate_);
  }

  const size_t teacher_;  // behind the experts
  const bool skips_;
  std::optional<Heads> heads_;
  comm::Group* stages_ = nullptr;  // that are told what the heads say; null: there is one
  std::optional<Turns> turns_;
  engine::OtherForm features_;
  Heads::Lesson lesson_;
  double heads_rate_ = 0;
  int64_t tokens_ = 0;  // of a picture's features
  engine::OtherForm moving_;
  std::map<int64_t, diffusion::Learned> learned_;
};

}  // namespace

/// Of a student with a critic, or of the ends of its teacher's paths: matching.cpp.
std::unique_ptr<ExpertSchedule> make_matching_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                       const std::vector<prepare::StageData>& data, int rank);

std::unique_ptr<ExpertSchedule> make_expert_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                     const std::vector<prepare::StageData>& data, Ranks& ranks) {
  if (job.experts.gated) return std::make_unique<GateSchedule>(job, recipe, data, ranks);
  if (job.experts.critic() || job.experts.regresses) return make_matching_schedule(job, recipe, data, ranks.rank());
  if (!job.experts.teacher.empty()) return std::make_unique<Distillation>(job, recipe, data, ranks);
  return std::make_unique<ExpertSchedule>(job.experts, recipe, data, ranks.rank());
}

}  // namespace tessera::train
