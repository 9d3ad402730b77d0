#include "tessera/diffusion/training_sample.h"

#include <algorithm>

#include "tessera/base/random.h"

namespace tessera::diffusion {

namespace {

/// Indices of these draws in the sample's timestep stream, beyond the draws of the timestep itself.
constexpr uint64_t kConditionDraw = 1000, kCaptionDraw = 1001, kPooledDraw = 1002;

/// Whether the sample trains continuation from a clean first frame. A clip of one latent frame has none.
bool begins_clean(const NoiseSettings& settings, const net::Conditions& takes, const at::Tensor& latent, int64_t step,
                  int64_t place) {
  if (!takes.clean_first || latent.size(1) < 2) return false;
  if (takes.always_clean) return true;
  return RandomKey(settings.seed, Purpose::timestep, step, place).uniform(kConditionDraw) < settings.image_share;
}

bool drops(double share, uint64_t draw, const NoiseSettings& settings, int64_t step, int64_t place) {
  return share > 0 && RandomKey(settings.seed, Purpose::timestep, step, place).uniform(draw) < share;
}

/// As many rows as the caption in whose place they stand: a learned one has as many as the longest caption, and the
/// programs that learned it show the model those that the caption's mask leaves.
at::Tensor in_place_of(const at::Tensor& caption, const at::Tensor& null_context) {
  return null_context.slice(0, 0, std::min(null_context.size(0), caption.size(0)));
}

}  // namespace

int64_t host_bytes(const TrainingSample& sample) {
  size_t bytes = sample.input.x.nbytes() + sample.input.context.nbytes() + sample.velocity.nbytes();
  for (const auto& [name, value] : sample.input.extra) bytes += value.nbytes();
  return static_cast<int64_t>(bytes);
}

TrainingSample noised(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                      int64_t step, int64_t place) {
  const Options timesteps = of_size(settings.timesteps, clean.latent.sizes());
  const TrainingDraw drawn = draw(timesteps, settings.seed, step, place);
  const at::Tensor noise = at::empty(clean.latent.sizes(), at::kFloat);
  RandomKey(settings.seed, Purpose::noise, step, place).normal(noise.mutable_data_ptr<float>(), 0, noise.numel());
  TrainingSample sample;
  sample.input.x = add_noise(clean.latent, noise, drawn.sigma, timesteps.least_noise);
  sample.input.t = drawn.t;
  sample.input.context = drops(settings.caption_dropout, kCaptionDraw, settings, step, place)
                             ? in_place_of(clean.context, settings.null_context)
                             : clean.context;
  sample.input.extra = clean.extra;
  if (drops(settings.pooled_dropout, kPooledDraw, settings, step, place))
    sample.input.extra["pooled"] = settings.null_pooled;
  if (begins_clean(settings, conditions, clean.latent, step, place) && !clean.extra.count("image_latent"))
    sample.input.extra["image_latent"] = clean.latent.slice(1, 0, 1).contiguous();
  sample.velocity = velocity(clean.latent, noise, timesteps.least_noise);
  sample.weight = drawn.weight;
  return sample;
}

}  // namespace tessera::diffusion
