// The step of a student: what its frozen teacher and its own forward mode say of each sample, before it trains on both
// (diffusion/distillation.h). Teacher and student share layout, slots and programs, as experts do: the teacher is the one
// that has no states.
//
//   const std::unique_ptr<ExpertSchedule> schedule = make_expert_schedule(job, recipe, data, ranks);
#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/net/passes.h"
#include "tessera/train/gate_schedule.h"

namespace tessera::train {

namespace {

using at::Tensor;

class Distillation final : public ExpertSchedule {
 public:
  Distillation(const job::Job& job, const recipe::Recipe& recipe, const std::vector<prepare::StageData>& data, int rank)
      : ExpertSchedule(job.experts, recipe, data, rank), teacher_(job.experts.size()) {}

  void begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                  plan::Programs programs) override {
    ExpertSchedule::begin_part(part, plan, model, std::move(programs));
    moving_.units = net::forward_mode(model);
    moving_.spec = *plan.planned.tangent;
  }

  std::vector<ExpertPass> passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                 engine::Engine& engine) override {
    expert_ = 0;
    own_step_ = visit.step;
    metrics_ = {};
    targets_.clear(), learned_.clear();
    const plan::ProgramPtr& program = programs_.step(visit.pending);
    ExpertPass pass;
    pass.pass = {.program = program, .step = visit.step};
    pass.data = {.plan = &program->plan,
                 .samples = &samples,
                 .places = own_places(),
                 .batch = data().batch(own_step_),
                 .step = own_step_};
    for (int64_t micro = 0; micro < plan().accumulation(); ++micro) learn(micro, samples, engine);
    pass.data.targets = &targets_, pass.data.learned = &learned_;
    return {pass};
  }

 private:
  using Samples = std::vector<const diffusion::TrainingSample*>;

  /// The samples of a micro-batch; a rank without one runs another, whose results nobody reads.
  std::vector<int64_t> places_in(int64_t micro) const {
    const int64_t batch = data().batch(own_step_);
    const plan::Plan::Slice slice = plan::slice_of(plan(), batch, dp_rank(), micro);
    if (slice.count == 0) return {diffusion::spare_place(plan(), batch, dp_rank(), micro)};
    std::vector<int64_t> places;
    for (int64_t s = 0; s < slice.count; ++s) places.push_back(slice.first + s);
    return places;
  }

  net::Batch named(net::Batch batch, const std::vector<int64_t>& places) const {
    batch.tokens.samples.assign(places.begin(), places.end());
    batch.tokens.step = static_cast<uint64_t>(own_step_);
    return batch;
  }

  /// Rows of the last unit, in host memory.
  Tensor said(engine::Engine& engine, const plan::ProgramPtr& program, const net::Batch& batch,
              const engine::OtherForm* form = nullptr) const {
    return engine.forward(program, {batch}, own_step_, /*without_adapters=*/false, form)[0].to(at::kFloat);
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
    const std::vector<int64_t> places = places_in(micro);
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
    if (plan::slice_of(plan(), data().batch(own_step_), dp_rank(), micro).count == 0) return;
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

  const size_t teacher_;  // behind the experts
  engine::OtherForm moving_;
  std::map<int64_t, diffusion::Learned> learned_;
};

}  // namespace

/// Of a student with a critic: matching.cpp.
std::unique_ptr<ExpertSchedule> make_matching_schedule(const job::Experts& experts, const recipe::Recipe& recipe,
                                                       const std::vector<prepare::StageData>& data, int rank);

std::unique_ptr<ExpertSchedule> make_expert_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                     const std::vector<prepare::StageData>& data, Ranks& ranks) {
  if (job.experts.gated) return std::make_unique<GateSchedule>(job, recipe, data, ranks);
  if (job.experts.critic()) return make_matching_schedule(job.experts, recipe, data, ranks.rank());
  if (!job.experts.teacher.empty()) return std::make_unique<Distillation>(job, recipe, data, ranks.rank());
  return std::make_unique<ExpertSchedule>(job.experts, recipe, data, ranks.rank());
}

}  // namespace tessera::train
