#include "tessera/train/objective.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::train {

double mean_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient) {
  const auto count = prediction.numel();
  const float* p = prediction.const_data_ptr<float>();
  const float* t = target.const_data_ptr<float>();
  float* g = gradient.mutable_data_ptr<float>();
  const auto factor = static_cast<float>(2 * scale / static_cast<double>(count));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float difference = p[i] - t[i];
    sum += static_cast<double>(difference) * difference;
    g[i] = difference * factor;
  }
  return sum / static_cast<double>(count);
}

double sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target, double scale,
                    const at::Tensor& gradient) {
  const net::Tokens& tokens = batch.tokens;
  const auto [first, last] = batch.predictions_of(s);
  const int64_t begin = std::max(first, tokens.begin), end = std::min(last, tokens.begin + tokens.count());
  if (begin >= end) return 0;  // the sample's predictions are on other ranks
  const int64_t count = end - begin;
  const double part = static_cast<double>(count) / static_cast<double>(last - first);
  return part * mean_squared_error(prediction.narrow(0, begin - tokens.begin, count),
                                   target.rows.narrow(0, begin - tokens.offsets[s] - target.first, count), scale * part,
                                   gradient.narrow(0, begin - tokens.begin, count));
}

/// Its place among the draws of a sample's timestep, far behind those that the timestep itself takes.
constexpr uint64_t kConditionDraw = 1000;

Objective::Objective(const Recipe& recipe, const net::Denoiser& model, const StageData& data,
                     const diffusion::Options& options)
    : recipe_(recipe), model_(model), data_(data), options_(options) {}

void Objective::begin(int64_t step, const plan::Plan& plan, int rank) {
  step_ = step;
  plan_ = &plan;
  rank_ = rank;
  loss_ = 0;
  bad_sample_ = -1;
  micros_.clear();
}

net::Batch Objective::load(int micro) {
  const auto slice = plan_->slice(plan_->mesh.dp_rank(rank_), micro);
  std::vector<net::Sample> samples;
  const bool has_loss = plan_->owns(rank_, static_cast<int>(plan_->units.size()) - 1);
  Micro& m = micros_[micro];
  for (int64_t place = slice.first; place < slice.first + slice.count; ++place) {
    const auto [index, epoch] = data_.pick(step_, place);
    const PreparedSample cached = data_.samples->sample(index, epoch);
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
  for (int64_t place = slice.first; place < slice.first + slice.count; ++place)
    batch.tokens.samples.push_back(static_cast<uint64_t>(place));
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
void Objective::cut_targets(std::vector<Target>& targets, const net::Tokens& tokens) const {
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
  for (size_t s = 0; s < m.targets.size(); ++s) {
    const double share = m.weights[s] / static_cast<double>(plan_->global_batch);
    const double loss = sample_error(prediction, batch, s, m.targets[s], share * gradient_scale_, gradient);
    if (!std::isfinite(loss) && bad_sample_ < 0) bad_sample_ = m.indices[s];
    loss_ += loss * share;
  }
  return gradient;
}

}  // namespace tessera::train
