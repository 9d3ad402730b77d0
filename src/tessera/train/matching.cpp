// The step of a student of few steps whose clips are matched with its teacher's (DMD2: Yin et al. 2024), and that of its
// critic, which learns the scores of those clips. Both make the clips as samples of the student are made, up to a step
// that is drawn, and without a gradient: the student trains in that step alone. Of the three networks, which share
// layout, slots and programs as experts do, the teacher has no states;
// where student and critic are adapters of it, it is there once.
//
// A student of chunks makes each of them so, behind what the finished ones have left (Self-Forcing: Huang et al. 2025;
// LongSANA's second stage). Its chunks then train in one pass over the clip, each at the step it ended with and behind the
// same states, which have no gradient (net/tokens.h: [Note: chunks in time]). Teacher and critic see whole clips.
//
// Beside it the step of a student that learns where its teacher's paths from noise end (CausVid: Yin et al. 2025; the first
// stage of Self-Forcing and LongSANA): the teacher makes a clip in many steps, and from a state on its way, or from one for
// each chunk of its frames, the student predicts the end.
//
//   const std::unique_ptr<ExpertSchedule> schedule = make_matching_schedule(job, recipe, data, rank);
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/train/expert_schedule.h"

namespace tessera::train {

namespace {

using at::Tensor;
using Clips = std::map<int64_t, Tensor>;  // by place

constexpr size_t kStudent = 0, kCritic = 1;
/// Between which the scores are compared.
constexpr double kLeastTime = 20, kMostTime = 980;

/// What both make of clips that no data set has.
class OfNoise : public ExpertSchedule {
 public:
  OfNoise(const job::Job& job, const recipe::Recipe& recipe, const std::vector<prepare::StageData>& data, int rank)
      : ExpertSchedule(job.experts, recipe, data, rank),
        teacher_(job.experts.size()),
        own_teacher_(job.teacher.get()) {}

  void begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                  plan::Programs programs) override {
    ExpertSchedule::begin_part(part, plan, model, std::move(programs));
    check_input(noise(kStudent).timesteps.least_noise == 0, "distill.method",
                "this family's clips keep noise at timestep 0, and a student's have none",
                "distil a model of another family");
  }

 protected:
  const recipe::Recipe::Distill& distill() const { return now_->distill; }
  /// The sample with another latent, timestep and target.
  static std::shared_ptr<const diffusion::TrainingSample> with(const diffusion::TrainingSample& sample, const Tensor& x,
                                                               double t, const Tensor& target, double weight) {
    auto made = std::make_shared<diffusion::TrainingSample>(sample);
    made->input.x = x, made->input.t = t, made->velocity = target, made->form = {};
    made->weight = sample.weight * weight;
    if (made->unguided) made->unguided->x = x, made->unguided->t = t;
    return made;
  }

  /// The same of a clip in chunks that begin at these frames, each frame with a timestep of its own. The error of a frame counts
  /// by the square of its sigma.
  static std::shared_ptr<const diffusion::TrainingSample> in_chunks(const diffusion::TrainingSample& sample,
                                                                    const Tensor& x, const Tensor& target,
                                                                    const std::vector<int64_t>& begins,
                                                                    const std::vector<double>& sigmas, double weight) {
    const Tensor times = at::tensor(sigmas, at::kDouble) * 1000;
    auto made =
        std::make_shared<diffusion::TrainingSample>(*with(sample, x, times.mean().item<double>(), target, weight));
    for (const double sigma : sigmas) made->frame_weights.push_back(sigma * sigma);
    made->input.extra["chunks"] = at::tensor(begins, at::kLong);
    if (sigmas.size() > 1) made->input.extra["t"] = times;
    return made;
  }

  /// The `number`-th noise of a sample in a step; the draws of its own noise are others.
  Tensor noise_at(int64_t step, int64_t place, int64_t number, const Tensor& like) const {
    const Tensor drawn = at::empty(like.sizes(), at::kFloat);
    const auto count = static_cast<size_t>(drawn.numel());
    RandomKey(static_cast<uint64_t>(now_->run.seed), Purpose::noise, static_cast<uint64_t>(step),
              static_cast<uint64_t>(place))
        .normal(drawn.mutable_data_ptr<float>(), static_cast<uint64_t>(number) * count, count);
    return drawn;
  }

  /// What a network says of each of the samples of `made_`, as a velocity. A teacher that is the base of the others' adapters
  /// is whichever of them is there, without them; one of other sizes has a place of its own.
  Clips said(size_t network, int64_t step, engine::Engine& engine, diffusion::Asked asked = diffusion::Asked::base) {
    const bool of_teacher = network == teacher_, own_sizes = of_teacher && own_teacher_;
    if (!of_teacher || experts_.teachers() > 0) engine.swap(network);
    diffusion::TrainingSamples shown;
    for (const auto& [place, sample] : made_) {
      auto as_asked = std::make_shared<diffusion::TrainingSample>(*sample);
      if (asked == diffusion::Asked::unguided) as_asked->input = *sample->unguided;
      shown[place] = std::move(as_asked);
    }
    const net::Denoiser& model = own_sizes ? *own_teacher_ : *model_;
    diffusion::FlowMatching packer(model, rank_);
    packer.begin({.plan = &plan(),
                  .samples = &shown,
                  .places = own_places(),
                  .batch = data().batch(own_step_),
                  .step = own_step_});
    Clips clips;
    for (int64_t micro = 0; micro < plan().accumulation(); ++micro) {
      net::Batch batch = packer.inputs(static_cast<int>(micro));
      if (network == kStudent && !histories_.empty()) batch.tokens.history = histories_[static_cast<size_t>(micro)];
      const Tensor rows =
          (own_sizes ? engine.forward_teacher(programs_.teacher, {batch}, step)
                     : engine.forward(programs_.base, {batch}, step, /*without_adapters=*/of_teacher))[0]
              .to(at::kFloat);
      const engine::Meter::Scope host(engine::Part::host);
      std::vector<Tensor> values = model.unpack(rows, batch);
      for (size_t s = 0; s < values.size(); ++s)
        clips[static_cast<int64_t>(batch.tokens.samples[s])] = std::move(values[s]);
    }
    return clips;
  }

  /// What the teacher says, guided.
  Clips taught(int64_t step, engine::Engine& engine) {
    Clips said = this->said(teacher_, step, engine), without;
    if (!distill().guided()) return said;
    without = this->said(teacher_, step, engine, diffusion::Asked::unguided);
    const engine::Meter::Scope host(engine::Part::host);
    for (auto& [place, velocity] : said)
      velocity = without.at(place) + made_.at(place)->guidance * (velocity - without.at(place));
    return said;
  }

  ExpertPass pass_of(const plan::Visit& visit) {
    begin_step(visit.step);
    const plan::ProgramPtr& program = programs_.step(visit.pending, static_cast<int>(expert_));
    ExpertPass pass;
    pass.pass = {.program = program, .step = visit.step, .expert = expert_};
    pass.data = {.plan = &program->plan,
                 .samples = &made_,
                 .places = own_places(),
                 .batch = data().batch(own_step_),
                 .step = own_step_};
    return pass;
  }

  void begin_step(int64_t step) {
    step_ = step;
    expert_ = expert_order_.expert(step);
    own_step_ = expert_order_.own_step(step);
    metrics_ = {};
  }

  const size_t teacher_;                    // its place behind the networks that are trained
  const net::Denoiser* const own_teacher_;  // of other sizes; null: it has the student's
  int64_t step_ = 0;                        // of the run
  diffusion::TrainingSamples made_;         // of the pass
  std::vector<std::shared_ptr<net::History>>
      histories_;  // by micro-batch, of a student's chunks; none where clips are whole
};

class Matching final : public OfNoise {
 public:
  using OfNoise::OfNoise;

  std::vector<ExpertPass> passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                 engine::Engine& engine) override {
    ExpertPass pass = pass_of(visit);
    made_ = samples;
    Rollout exit = distill().chunk > 0 ? made_in_chunks(samples, engine) : made_clips(samples, engine);
    put_noise(samples, exit);
    if (expert_ == kCritic) {
      histories_.clear();
      follow(samples, exit);
      return {pass};
    }
    match(samples, exit, engine);
    if (!histories_.empty()) pass.data.histories = &histories_;
    return {pass};
  }

  void book(const ExpertPass& pass, const Decision& decision, const diffusion::FlowMatching& objective) override {
    OfNoise::book(pass, decision, objective);
    histories_.clear();
  }

 private:
  /// Of a student's steps, and what its clips are compared at.
  struct Rollout {
    std::vector<int64_t> begins = {0};  ///< frames at which chunks begin
    std::vector<double> sigmas;         ///< of the step at which each exits
    Clips input, velocity;              ///< likewise
    Clips clean;                        ///< where that leads
    Clips noise, noisy;                 ///< of the scores
  };

  static double time_of(const diffusion::TrainingSample& sample) {
    return std::clamp(sample.input.t, kLeastTime, kMostTime);
  }

  /// Frames of a clip that are made together: a chunk, or all.
  struct Part {
    int64_t begin = 0, end = 0, chunk = 0;
    Tensor of(const Tensor& clip) const { return clip.slice(1, begin, end).contiguous(); }
  };

  /// Those frames of a sample, to be denoised behind what stands before them.
  std::shared_ptr<const diffusion::TrainingSample> shown(const diffusion::TrainingSample& sample, const Part& part,
                                                         const Tensor& x, double t) const {
    auto made = std::make_shared<diffusion::TrainingSample>(*with(sample, x, t, part.of(sample.velocity), 1));
    if (distill().chunk > 0) made->input.extra["first_frame"] = at::tensor({part.begin}, at::kLong);
    return made;
  }

  /// Backward simulation: the student's sampler up to the step that was drawn.
  Rollout made_part(const diffusion::TrainingSamples& samples, const Part& part, engine::Engine& engine) {
    const int64_t steps = distill().steps, last = diffusion::drawn_exit(static_cast<uint64_t>(now_->run.seed), step_,
                                                                        steps, distill().same_exit ? 0 : part.chunk);
    const std::vector<double> sigmas = diffusion::plain_schedule(static_cast<int>(steps), now_->diffusion.shift).sigmas;
    Rollout exit;
    double sigma = 0;
    for (int64_t k = 0; k <= last; ++k) {
      sigma = sigmas[static_cast<size_t>(k)];
      {
        const engine::Meter::Scope host(engine::Part::host);
        for (const auto& [place, sample] : samples) {
          const Tensor noise = part.of(noise_at(step_, place, k, sample->velocity));
          exit.input[place] = k == 0 ? noise : (1 - sigma) * exit.clean.at(place) + sigma * noise;
          made_[place] = shown(*sample, part, exit.input[place], 1000 * sigma);
        }
      }
      exit.velocity = said(kStudent, step_, engine);
      const engine::Meter::Scope host(engine::Part::host);
      for (const auto& [place, velocity] : exit.velocity) exit.clean[place] = exit.input.at(place) - sigma * velocity;
    }
    exit.sigmas = {sigma};
    return exit;
  }

  Rollout made_clips(const diffusion::TrainingSamples& samples, engine::Engine& engine) {
    return made_part(samples, {.end = samples.begin()->second->velocity.size(1)}, engine);
  }

  /// The same for a chunk after the other, each behind what the finished ones have left.
  Rollout made_in_chunks(const diffusion::TrainingSamples& samples, engine::Engine& engine) {
    const int64_t frames = samples.begin()->second->velocity.size(1);
    for (const auto& [place, sample] : samples)
      check_internal(sample->velocity.size(1) == frames, "train.matching", "clips of a step differ in their frames");
    const std::vector<int64_t> bounds = net::chunk_bounds(frames, distill().chunk);
    histories_.clear();
    for (int64_t micro = 0; bounds.size() > 2 && micro < plan().accumulation(); ++micro) {
      histories_.push_back(std::make_shared<net::History>());
      histories_.back()->reach = distill().chunk_reach;
    }
    Rollout all;
    std::map<int64_t, std::array<std::vector<Tensor>, 3>> parts;
    for (size_t c = 0; c + 1 < bounds.size(); ++c) {
      const Part part{bounds[c], bounds[c + 1], static_cast<int64_t>(c)};
      const Rollout exit = made_part(samples, part, engine);
      all.sigmas.push_back(exit.sigmas.front());
      for (const auto& [place, clean] : exit.clean) {
        const std::array<Tensor, 3> values = {exit.input.at(place), exit.velocity.at(place), clean};
        for (size_t i = 0; i < values.size(); ++i) parts[place][i].push_back(values[i]);
      }
      if (c + 2 < bounds.size()) finish(samples, part, exit.clean, engine);
    }
    for (const auto& history : histories_) history->of_all = true;
    all.begins.assign(bounds.begin(), bounds.end() - 1);
    const engine::Meter::Scope host(engine::Part::host);
    for (const auto& [place, values] : parts)
      all.input[place] = at::cat(values[0], 1), all.velocity[place] = at::cat(values[1], 1),
      all.clean[place] = at::cat(values[2], 1);
    return all;
  }

  /// A pass at the clean end, of which later chunks read the states.
  void finish(const diffusion::TrainingSamples& samples, const Part& part, const Clips& clean, engine::Engine& engine) {
    const double sigma = distill().cache_noise;
    {
      const engine::Meter::Scope host(engine::Part::host);
      for (const auto& [place, sample] : samples) {
        const Tensor& x = clean.at(place);
        const auto noise = [&, place = place] {
          return part.of(noise_at(step_, place, distill().steps + 1, sample->velocity));
        };
        made_[place] = shown(*sample, part, sigma > 0 ? (1 - sigma) * x + sigma * noise() : x, 0);
      }
    }
    std::vector<net::History::Left> left(histories_.size());
    for (size_t micro = 0; micro < left.size(); ++micro) histories_[micro]->storing = &left[micro];
    said(kStudent, step_, engine);
    for (size_t micro = 0; micro < left.size(); ++micro) {
      histories_[micro]->storing = nullptr;
      histories_[micro]->finished.push_back(std::move(left[micro]));
    }
  }

  void put_noise(const diffusion::TrainingSamples& samples, Rollout& exit) const {
    const engine::Meter::Scope host(engine::Part::host);
    for (const auto& [place, clean] : exit.clean) {
      const double sigma = time_of(*samples.at(place)) / 1000;
      exit.noise[place] = noise_at(step_, place, distill().steps, clean);
      exit.noisy[place] = (1 - sigma) * clean + sigma * exit.noise[place];
    }
  }

  /// The critic's step: flow matching on the student's clips.
  void follow(const diffusion::TrainingSamples& samples, const Rollout& exit) {
    const engine::Meter::Scope host(engine::Part::host);
    for (const auto& [place, clean] : exit.clean) {
      const diffusion::TrainingSample& sample = *samples.at(place);
      made_[place] = with(sample, exit.noisy.at(place), time_of(sample), exit.noise.at(place) - clean, 1);
    }
  }

  /// The student's step: x = x_t - sigma u has the gradient of matching_loss() at x where the error of its prediction u is
  /// half of sigma^2 (u - target)^2 with the target u + d / sigma, sigma that of the step at which x's chunk exits.
  void match(const diffusion::TrainingSamples& samples, const Rollout& exit, engine::Engine& engine) {
    const int64_t step = step_;
    {
      const engine::Meter::Scope host(engine::Part::host);
      for (const auto& [place, clean] : exit.clean) {
        const diffusion::TrainingSample& sample = *samples.at(place);
        made_[place] = with(sample, exit.noisy.at(place), time_of(sample), sample.velocity, 1);
      }
    }
    const Clips fake = said(kCritic, step, engine);
    const Clips real = taught(step, engine);
    // The critic's states stayed where they are while the teacher, which has none, took its place (Store::swap_with).
    engine.swap(kCritic);
    const engine::Meter::Scope host(engine::Part::host);
    for (const auto& [place, clean] : exit.clean) {
      const diffusion::TrainingSample& sample = *samples.at(place);
      const double sigma = time_of(sample) / 1000;
      const auto end = [&](const Tensor& velocity) { return exit.noisy.at(place) - sigma * velocity; };
      const diffusion::MatchingLoss loss =
          diffusion::matching_loss(clean, end(fake.at(place)), end(real.at(place)), {});
      const std::vector<double> sigmas = by_frame(exit, clean.size(1));
      const Tensor by_frame = at::tensor(sigmas, at::kDouble).view({1, -1, 1, 1});
      const Tensor target = exit.velocity.at(place) + (loss.d / by_frame).to(at::kFloat);
      made_[place] = distill().chunk > 0 ? in_chunks(sample, exit.input.at(place), target, exit.begins, sigmas, 0.5)
                                         : with(sample, exit.input.at(place), 1000 * sigmas.front(), target,
                                                sigmas.front() * sigmas.front() / 2);
    }
  }

  static std::vector<double> by_frame(const Rollout& exit, int64_t frames) {
    std::vector<double> all;
    for (int64_t f = 0, c = -1; f < frames; ++f) {
      if (const auto next = static_cast<size_t>(c + 1); next < exit.begins.size() && exit.begins[next] == f) ++c;
      all.push_back(exit.sigmas[static_cast<size_t>(c)]);
    }
    return all;
  }
};

/// Draws of the steps of a sample's chunks stand behind all others of timesteps.
constexpr uint64_t kStepDraws = uint64_t{1} << 32;

class Paths final : public OfNoise {
 public:
  using OfNoise::OfNoise;

  std::vector<ExpertPass> passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                 engine::Engine& engine) override {
    const ExpertPass pass = pass_of(visit);
    const std::map<int64_t, std::vector<Tensor>> paths = walked(samples, engine);
    const std::vector<double> sigmas = sigmas_of(distill().steps);
    const engine::Meter::Scope host(engine::Part::host);
    for (const auto& [place, path] : paths) made_[place] = learnt(*samples.at(place), place, path, sigmas);
    return {pass};
  }

 private:
  /// With the last, 0.
  std::vector<double> sigmas_of(int64_t steps) const {
    return diffusion::plain_schedule(static_cast<int>(steps), now_->diffusion.shift).sigmas;
  }

  /// The teacher's states at the student's steps, and where it ends.
  std::map<int64_t, std::vector<Tensor>> walked(const diffusion::TrainingSamples& samples, engine::Engine& engine) {
    const std::vector<double> sigmas = sigmas_of(distill().teacher_steps);
    const int64_t every = distill().teacher_steps / distill().steps;
    std::map<int64_t, std::vector<Tensor>> paths;
    Clips now;
    made_ = samples;
    {
      const engine::Meter::Scope host(engine::Part::host);
      for (const auto& [place, sample] : samples) now[place] = noise_at(step_, place, 0, sample->velocity);
    }
    for (int64_t k = 0; k < distill().teacher_steps; ++k) {
      const double sigma = sigmas[static_cast<size_t>(k)], next = sigmas[static_cast<size_t>(k) + 1];
      for (const auto& [place, x] : now) {
        if (k % every == 0) paths[place].push_back(x);
        made_[place] = with(*samples.at(place), x, 1000 * sigma, x, 1);
      }
      const Clips velocities = taught(step_, engine);
      const engine::Meter::Scope host(engine::Part::host);
      for (const auto& [place, velocity] : velocities) now[place] = now.at(place) + (next - sigma) * velocity;
    }
    for (const auto& [place, x] : now) paths[place].push_back(x);
    return paths;
  }

  /// Each chunk's step is drawn, the end among them; a whole clip's is not the end, from which there is nothing to learn.
  std::shared_ptr<const diffusion::TrainingSample> learnt(const diffusion::TrainingSample& sample, int64_t place,
                                                          const std::vector<Tensor>& path,
                                                          const std::vector<double>& sigmas) const {
    const int64_t chunk = distill().chunk, frames = path.back().size(1);
    std::vector<int64_t> begins = {0}, picks;
    if (chunk > 0) begins = net::chunk_bounds(frames, chunk), begins.pop_back();
    const RandomKey key(static_cast<uint64_t>(now_->run.seed), Purpose::timestep, static_cast<uint64_t>(step_),
                        static_cast<uint64_t>(place));
    for (size_t c = 0; c < begins.size(); ++c)
      picks.push_back(static_cast<int64_t>(
          key.below(kStepDraws + c, static_cast<uint64_t>(distill().steps + (chunk > 0 ? 1 : 0)))));
    const diffusion::PathRegression regression = diffusion::path_regression(path, sigmas, begins, picks);
    if (chunk > 0)
      return in_chunks(sample, regression.x, regression.target, begins, regression.sigmas, regression.share);
    const double sigma = regression.sigmas.front();
    return with(sample, regression.x, 1000 * sigma, regression.target, regression.share * sigma * sigma);
  }
};

}  // namespace

std::unique_ptr<ExpertSchedule> make_matching_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                       const std::vector<prepare::StageData>& data, int rank) {
  if (job.experts.regresses) return std::make_unique<Paths>(job, recipe, data, rank);
  return std::make_unique<Matching>(job, recipe, data, rank);
}

}  // namespace tessera::train
