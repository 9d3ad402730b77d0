#include "tessera/train/objective.h"

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

Objective::Objective(const Recipe& recipe, const net::Denoiser& model, const StageData& data)
    : recipe_(recipe), model_(model), data_(data) {
  diffusion::parse_timesteps(recipe.diffusion.timesteps, options_);
  options_.shift = recipe.diffusion.shift;
  options_.weighting = diffusion::parse_weighting(recipe.diffusion.weighting);
}

void Objective::begin(int64_t step, const plan::Plan& plan, int dp_rank) {
  step_ = step;
  plan_ = &plan;
  dp_rank_ = dp_rank;
  loss_ = 0;
  bad_sample_ = -1;
}

net::Batch Objective::load(int micro) {
  const auto slice = plan_->slice(dp_rank_, micro);
  std::vector<net::Sample> samples;
  targets_.clear(), weights_.clear(), indices_.clear();
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
    targets_.push_back(model_.pack_target(diffusion::velocity(cached.latent, noise)));
    weights_.push_back(draw.weight);
    indices_.push_back(index);
    samples.push_back(std::move(sample));
  }
  return model_.pack(samples);
}

at::Tensor Objective::loss(const at::Tensor& prediction, const net::Batch& batch, int) {
  at::Tensor gradient = at::empty_like(prediction);
  for (size_t s = 0; s < targets_.size(); ++s) {
    const int64_t begin = batch.tokens.offsets[s], count = batch.tokens.offsets[s + 1] - begin;
    const double share = weights_[s] / static_cast<double>(plan_->global_batch);
    const double loss =
        mean_squared_error(prediction.narrow(0, begin, count), targets_[s], share, gradient.narrow(0, begin, count));
    if (!std::isfinite(loss) && bad_sample_ < 0) bad_sample_ = indices_[s];
    loss_ += loss * share;
  }
  targets_.clear();
  return gradient;
}

}  // namespace tessera::train
