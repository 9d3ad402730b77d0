#include "tessera/diffusion/training_sample.h"

#include <algorithm>

#include "tessera/base/random.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/families/frames/frame_masks.h"

namespace tessera::diffusion {

namespace {

/// Indices of these draws in the sample's timestep stream, beyond the draws of the timestep itself.
constexpr uint64_t kConditionDraw = 1000, kCaptionDraw = 1001, kPooledDraw = 1002, kGivenDraw = 1003, kMaskDraw = 1004;
/// Of the frames of a mask: those of a kind, and one a frame.
constexpr uint64_t kMaskDraws = 2000, kFrameDraws = 3000;

/// Whether the sample trains continuation from a clean first frame. A clip of one latent frame has none.
bool begins_clean(const NoiseSettings& settings, const net::Conditions& takes, const at::Tensor& latent, int64_t step,
                  int64_t place) {
  if (!takes.clean_first || latent.size(1) < 2) return false;
  if (!settings.conditions.empty() || !settings.mask_ratios.empty()) return false;
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

/// The frames of the sample that have noise, by draws of its own.
std::vector<char> noised_frames(const NoiseSettings& settings, int64_t frames, int64_t step, int64_t place) {
  const RandomKey key(settings.seed, Purpose::timestep, step, place);
  uint64_t next = kMaskDraws;
  const families::MaskDraws draws{
      [&](int64_t least, int64_t most) {
        return least + static_cast<int64_t>(key.below(next++, static_cast<uint64_t>(most - least + 1)));
      },
      [&](double least, double most) { return least + (most - least) * key.uniform(next++); },
      [&](int64_t frame) { return key.uniform(kFrameDraws + static_cast<uint64_t>(frame)); }};
  return families::frame_mask(families::masked_by(settings.mask_ratios, key.uniform(kMaskDraw)), frames, draws);
}

/// Frames that are given have no noise, and do not count: the loss is the mean over the others.
void give_frames(TrainingSample& sample, const at::Tensor& latent, const std::vector<char>& noised) {
  const auto frames = static_cast<int64_t>(noised.size());
  const auto trained = static_cast<double>(std::ranges::count(noised, 1));
  const at::Tensor mask = at::ones({frames}, at::kFloat);
  for (int64_t f = 0; f < frames; ++f) {
    const bool given = !noised[static_cast<size_t>(f)];
    sample.frame_weights.push_back(given ? 0 : static_cast<double>(frames) / trained);
    if (!given) continue;
    mask[f] = 0;
    sample.input.x.select(1, f).copy_(latent.select(1, f));
  }
  sample.input.extra["x_mask"] = mask;
}

/// Of a frame, where the sample says them; else 0.
double pixels_of(const std::map<std::string, at::Tensor>& extra) {
  const auto height = extra.find("height"), width = extra.find("width");
  return height == extra.end() || width == extra.end() ? 0
                                                       : height->second.item<double>() * width->second.item<double>();
}

}  // namespace

std::vector<families::GivenFrames> given_frames(const NoiseSettings& settings, const net::Conditions& takes,
                                                int64_t frames, int64_t latent_frames, int64_t step, int64_t place) {
  if (settings.conditions.empty() || !takes.given_frames || latent_frames < 2) return {};
  const bool causal = families::is_causal(frames, latent_frames);
  const double u = RandomKey(settings.seed, Purpose::timestep, step, place).uniform(kGivenDraw);
  const std::string kind = families::chosen(families::fitting(settings.conditions, latent_frames, causal), u);
  return families::given_frames(kind, frames, latent_frames, causal);
}

int64_t host_bytes(const TrainingSample& sample) {
  size_t bytes = sample.input.x.nbytes() + sample.input.context.nbytes() + sample.velocity.nbytes();
  for (const auto& [name, value] : sample.input.extra) bytes += value.nbytes();
  return static_cast<int64_t>(bytes);
}

TrainingSample noised(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                      int64_t step, int64_t place) {
  const Options timesteps = of_size(settings.timesteps, clean.latent.sizes(), pixels_of(clean.extra));
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
  if (!clean.given.empty()) sample.input.extra["cond"] = condition(clean.latent, clean.given, clean.pieces);
  if (!settings.mask_ratios.empty() && conditions.frame_masks && clean.latent.size(1) > 1) {
    const std::vector<char> mask = noised_frames(settings, clean.latent.size(1), step, place);
    if (std::ranges::count(mask, 0) > 0) give_frames(sample, clean.latent, mask);
  }
  sample.velocity = velocity(clean.latent, noise, timesteps.least_noise);
  sample.weight = drawn.weight;
  return sample;
}

}  // namespace tessera::diffusion
