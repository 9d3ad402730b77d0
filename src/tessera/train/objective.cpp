#include "tessera/train/objective.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::train {

/// Its place among the draws of a sample's timestep, far behind those that the timestep itself takes.
constexpr uint64_t kConditionDraw = 1000;

Objective::Objective(const recipe::Recipe& recipe, const net::Denoiser& model, const prepare::StageData& data,
                     const diffusion::Options& options)
    : recipe_(recipe), model_(model), data_(data), options_(options) {}

void Objective::begin(int64_t step, const plan::Plan& plan, int rank, const Routed* routed) {
  step_ = step;
  plan_ = &plan;
  routed_ = routed;
  by_weight_.assign(routed ? routed->places.size() : 0, 0.0);
  rank_ = rank;
  loss_ = 0;
  bad_sample_ = -1;
  micros_.clear();
}

Objective::Question Objective::question(int64_t place) const {
  const auto [index, epoch] = data_.pick(step_, place);
  return {diffusion::draw(options_, static_cast<uint64_t>(recipe_.run.seed), step_, place).t,
          data_.samples->context(index, epoch)};
}

net::Batch Objective::load(int micro) {
  const auto slice = plan_->slice(plan_->mesh.dp_rank(rank_), micro);
  return pack(slice.first, slice.count, micros_[micro]);
}

net::Batch Objective::inputs(int micro) const {
  const auto slice = plan_->slice(plan_->mesh.dp_rank(rank_), micro);
  Micro unused;
  if (slice.count > 0) return pack(slice.first, slice.count, unused);
  return pack(std::min(slice.first, plan_->global_batch - 1), 1, unused);
}

/// Of a sample by its number in the plan's slices, the place in the global batch.
int64_t Objective::place_of(int64_t sample) const {
  if (!routed_) return sample;
  return routed_->places.at(static_cast<size_t>(sample - plan_->slice(plan_->mesh.dp_rank(rank_), 0).first));
}

net::Batch Objective::pack(int64_t first, int64_t count, Micro& m) const {
  std::vector<net::Sample> samples;
  std::vector<uint64_t> places;
  const bool has_loss = plan_->owns(rank_, static_cast<int>(plan_->units.size()) - 1);
  m.first = first - plan_->slice(plan_->mesh.dp_rank(rank_), 0).first;
  for (int64_t number = first; number < first + count; ++number) {
    const int64_t place = place_of(number);
    places.push_back(static_cast<uint64_t>(place));
    const auto [index, epoch] = data_.pick(step_, place);
    const prepare::PreparedSample cached = data_.samples->sample(index, epoch);
    const diffusion::TrainingDraw draw =
        diffusion::draw(options_, static_cast<uint64_t>(recipe_.run.seed), step_, place);
    const at::Tensor noise = at::empty(cached.latent.sizes(), at::kFloat);
    RandomKey(recipe_.run.seed, Purpose::noise, step_, place).normal(noise.mutable_data_ptr<float>(), 0, noise.numel());
    net::Sample sample;
    sample.x = diffusion::add_noise(cached.latent, noise, draw.sigma);
    sample.t = draw.t;
    sample.context = cached.context;
    sample.extra = cached.extra;
    if (begins_clean(place, cached.latent) && !sample.extra.count("image_latent"))
      sample.extra["image_latent"] = cached.latent.slice(1, 0, 1);
    if (has_loss) m.targets.push_back({model_.pack_target(diffusion::velocity(cached.latent, noise))});
    m.weights.push_back(draw.weight);
    m.indices.push_back(index);
    samples.push_back(std::move(sample));
  }
  net::Batch batch = model_.pack(samples);
  batch.tokens.samples = std::move(places);
  batch.tokens.step = static_cast<uint64_t>(step_);
  if (plan::sequence_size(plan_->mesh) > 1) cut_targets(m.targets, batch.tokens);
  return batch;
}

/// Whether the sample is learned as a continuation of its first frame. A clip of one latent frame has none.
bool Objective::begins_clean(int64_t place, const at::Tensor& latent) const {
  const net::Conditions takes = model_.conditions();
  if (!takes.clean_first || latent.size(1) < 2) return false;
  if (takes.always_clean) return true;
  return RandomKey(recipe_.run.seed, Purpose::timestep, step_, place).uniform(kConditionDraw) <
         recipe_.diffusion.image_share;
}

/// To the rows that are this rank's, so that the others can go.
void Objective::cut_targets(std::vector<diffusion::Target>& targets, const net::Tokens& tokens) const {
  const plan::TokenRange here = plan::token_share(tokens.total(), plan_->mesh, rank_);
  for (size_t s = 0; s < targets.size(); ++s) {
    const auto row = [&, rows = targets[s].rows.size(0)](int64_t token) {
      return std::clamp<int64_t>(token - tokens.offsets[s], 0, rows);
    };
    targets[s] = {targets[s].rows.slice(0, row(here.begin), row(here.end)).clone(), row(here.begin)};
  }
}

at::Tensor Objective::loss(const at::Tensor& prediction, const net::Batch& batch, int micro) {
  const Micro m = std::move(micros_.extract(micro).mapped());
  at::Tensor gradient = batch.predicted.empty() ? at::empty_like(prediction) : at::zeros_like(prediction);
  const at::Tensor answer = with_sums(prediction, batch, m);
  for (size_t s = 0; s < m.targets.size(); ++s) {
    const double share = m.weights[s] / static_cast<double>(plan_->global_batch);
    const double loss = diffusion::sample_error(answer, batch, s, m.targets[s], share * gradient_scale_, gradient);
    if (!std::isfinite(loss) && bad_sample_ < 0) bad_sample_ = m.indices[s];
    if (!routed_ || routed_->books) loss_ += loss * share;
    if (routed_) weigh(prediction, batch, s, m.first + static_cast<int64_t>(s), gradient);
  }
  return gradient;
}

/// What the samples are answered with: the prediction itself, or where experts answer together their sum.
at::Tensor Objective::with_sums(const at::Tensor& prediction, const net::Batch& batch, const Micro& micro) const {
  if (!routed_ || !routed_->sums) return prediction;
  at::Tensor answer = prediction.clone();
  for (size_t s = 0; s < micro.targets.size(); ++s) {
    const auto [begin, end] = diffusion::rows_here(batch, s);
    if (begin >= end) continue;
    const at::Tensor& sum = routed_->sums->at(static_cast<int64_t>(batch.tokens.samples[s]));
    const int64_t at = begin + batch.tokens.begin - batch.predictions_of(s)[0];
    answer.narrow(0, begin, end - begin).copy_(sum.narrow(0, at, end - begin));
  }
  return answer;
}

/// Books what the gate learns from a sample, and makes the gradient that of the expert's own prediction.
void Objective::weigh(const at::Tensor& prediction, const net::Batch& batch, size_t s, int64_t own,
                      at::Tensor& gradient) {
  const auto [begin, end] = diffusion::rows_here(batch, s);
  if (begin >= end) return;
  at::Tensor rows = gradient.narrow(0, begin, end - begin);
  const float *g = rows.const_data_ptr<float>(), *f = prediction.narrow(0, begin, end - begin).const_data_ptr<float>();
  double sum = 0;
  for (int64_t i = 0; i < rows.numel(); ++i) sum += static_cast<double>(g[i]) * f[i];
  by_weight_[static_cast<size_t>(own)] = sum / gradient_scale_;
  if (!routed_->weights.empty()) rows.mul_(routed_->weights[static_cast<size_t>(own)]);
}

}  // namespace tessera::train
