#pragma once
// Flow matching: the random draws of a training step, the noisy latent and the target velocity.
//
//   TrainingDraw d = draw(options, seed, step, sample);          // sample: position in the global batch
//   Tensor x = add_noise(latent, noise, d.sigma);                // (1 - sigma) x0 + sigma eps; the model gets t = d.t
//   Tensor target = velocity(latent, noise);                     // eps - x0
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/torch_headers.h"

namespace tessera::diffusion {

/// S_s(u) = s u / (1 + (s - 1) u), which moves sigmas towards noise for s > 1. Shifting by a after b is shifting by a
/// b.
double shift_sigma(double u, double shift);
double unshift_sigma(double sigma, double shift);

/// Distribution of u in (0, 1); sigma = S_shift(u) in every case.
enum class Timesteps {
  uniform,
  logit_normal,  ///< u = sigmoid(mean + scale * normal)
  diffsynth,     ///< one of the 1000 values 1 - i / 1000, as in DiffSynth's trainer
  // Entry i = floor(1000 sigmoid(mean + scale * normal)) of a table:
  nvlabs,     ///< i / 1000, the cleanest first, and t truncated to an integer, as in NVlabs' trainer
  diffusers,  ///< 1 - i / 1000, the noisiest first, as in diffusers' trainers
  by_size,  ///< u = sigmoid(normal), and the shift is that of the sample's size (of_size), as in Open-Sora 2.0's trainer
  by_area,  ///< logit_normal, and the shift is that of the sample's area and frames, as in Open-Sora 1.2's trainer
  // As in SD3 (Esser et al. 2024):
  mode,    ///< heavy tails: u = 1 - v - mode_scale (cos^2(pi v / 2) - 1 + v) of a uniform v
  cosmap,  ///< density 2 / (pi (1 - 2 u + 2 u^2))
  mix,     ///< 70 % logit_normal, 30 % uniform, as in HunyuanVideo-1.5's trainer
  logsnr,  ///< u = sigmoid(-(mean + scale * normal) / 2), a normal logarithm of the signal to noise ratio, unshifted
  // As in musubi-tuner, the shift by the tokens of a frame:
  flux_shift,     ///< logit_normal; exp of a line through (256, 0.5) and (4096, 1.15)
  qwen_shift,     ///< likewise (8192, 0.9)
  qinglong_flux,  ///< 79 % flux_shift of a standard normal number, 11 % logsnr, 10 % logsnr(5.36, 1)
  qinglong_qwen,  ///< 95 % qwen_shift, 5 % logsnr(5.36, 1)
};
enum class Weighting {
  none,
  diffsynth,   ///< a bell over t: largest at 500, zero at 1000, mean 1 over the shifted table
  sigma_sqrt,  ///< 1 / sigma^2, of at least 0.001
  cosmap,      ///< 2 / (pi (1 - 2 sigma + 2 sigma^2))
  sigma,       ///< sigma, as in OneTrainer
};
double weight_of(Weighting weighting, double sigma, double shift = 1);

/// A range of shifted sigmas: low <= sigma < high, and sigma = 1 as well if high is 1.
struct Window {
  double low = 0, high = 1;
  bool operator==(const Window&) const = default;
  bool holds(double sigma) const { return sigma >= low && (sigma < high || high >= 1); }
};

/// A part of the range of sigmas, and its share of the draws.
struct Band {
  Window window;
  double share = 1;
};

struct Options {
  Timesteps timesteps = Timesteps::uniform;
  double mean = 0, scale = 1;  ///< of the normal number, where the distribution has one
  double mode_scale = 1.29;    ///< of mode, -1 to 1.75
  double shift = 1;
  Weighting weighting = Weighting::none;
  Window window = {};  ///< draws are conditioned on lying in it
  /// Of by_size. The noisy latent is (1 - sigma) x0 + (sigma + least_noise (1 - sigma)) eps.
  double least_noise = 0;
  int64_t piece = 0;             ///< of by_area: that of area_shift()
  bool rounds_to_bf16 = false;   ///< sigma and t are numbers of bf16, as in a trainer that computes in it
  std::vector<Band> bands = {};  ///< empty: the whole range is drawn as the distribution has it
  /// Draws are taken from so many equal shares of the distribution in turn, each once in a random order, over the
  /// samples of `batch` samples a step; 0: they are independent.
  int64_t strata = 0, batch = 1;
};

/// exp of the line through (256, 0.5) and (`tokens_at`, `log_at`), by tokens a frame, as Flux shifts.
double token_shift(double tokens, double tokens_at, double log_at);
/// What mode makes of a uniform number.
double mode_of(double v, double mode_scale);
/// The sigma below which lies that share of the draws: of a distribution with a window, of those in it.
double quantile(const Options& options, double share);
/// The share of the distribution from which draw number `number` of a run is taken, 0 to strata - 1.
int64_t stratum(uint64_t seed, int64_t strata, int64_t number);

/// The shift of a clip with that many tokens a frame (places of 2 x 2 latent values) and latent frames, in Open-Sora 2.0
/// (Peng et al. 2025): the line through (256, 1) and (4096, 3), times the root of the frames.
double size_shift(double tokens_per_frame, int64_t frames);
/// The shift of a video of that many pixels a frame and latent frames, in Open-Sora 1.2 (Zheng et al. 2024): the root of
/// the area, in squares of 512 pixels, times the root of the frames.
double area_shift(double pixels, int64_t frames);
/// The same of a latent [C, F, H, W], whose values are of 8 x 8 pixels where the video's are not given. `piece`: 0, or the latent frames of a piece of the
/// video; the first of each is then not counted, as in Open-Sora 1.3, whose pieces begin with the frame before them. A
/// picture is one frame.
double area_shift(at::IntArrayRef latent, int64_t piece = 0, double pixels = 0);
/// Whether each sample's shift follows from its size.
bool shifts_each(Timesteps timesteps);
/// The options of a sample whose latent is [C, F, H, W]: by_size and by_area get the shift of its size, others stay.
/// `pixels` of a frame, for by_area, where they are known.
Options of_size(Options options, at::IntArrayRef latent, double pixels = 0);

/// Names of Timesteps in recipes: "uniform", "shift" (a synonym), "logit_normal", "sana" ...
const std::vector<std::string>& timestep_names();
/// One of these, or "logit_normal(0.5, 1.2)". Throws UserError (usage) naming the nearest known name.
void parse_timesteps(const std::string& text, Options& options);
Weighting parse_weighting(const std::string& text);

struct TrainingDraw {
  double sigma = 0;
  double t = 0;       ///< 1000 sigma; of nvlabs its integer part
  double weight = 1;  ///< weight of the sample's loss
};

/// The probability that a draw without a window lies in `window`.
double window_mass(const Options& options, const Window& window);

/// What a draw of u in (0, 1) from the options' distribution comes to: its entry, shifted, and the model's timestep.
TrainingDraw draw_of(const Options& options, double u);

/// Counter-based random numbers: the result depends on the arguments only, so it is the same for every mesh.
TrainingDraw draw(const Options& options, uint64_t seed, int64_t step, int64_t sample);

/// Chunks of frames of a clip that have timesteps of their own, as NVlabs draws them for SANA-Video.
struct ChunkDraws {
  std::vector<int64_t> starts = {};  ///< latent frames, 0 first; empty: a clip has one timestep
  /// Each chunk has as much noise as the one before it or more: one chunk, any of them, has the run's distribution, and of
  /// all ways to go on from it to the ends of the clip in steps of 1/1000 each is as likely. Else each has a draw of its own.
  bool incremental = false;
  double same_share = 0;         ///< of the clips, that have one timestep
  double first_frame_noise = 0;  ///< m: a given first frame has the noise of u m, of a uniform u, in place of none
  bool on() const { return !starts.empty() || first_frame_noise > 0; }
};
/// Of each of a clip's latent frames. Chunks that begin behind its end are not there. `first_given`: its first frame is.
std::vector<TrainingDraw> draw_frames(const Options& options, const ChunkDraws& chunks, int64_t frames,
                                      bool first_given, uint64_t seed, int64_t step, int64_t sample);
/// Whether chunks may be drawn from the distribution: a number of it stands for so much noise, before the shift.
bool draws_chunks(Timesteps timesteps);

at::Tensor add_noise(const at::Tensor& x0, const at::Tensor& noise, double sigma, double least_noise = 0);
at::Tensor velocity(const at::Tensor& x0, const at::Tensor& noise, double least_noise = 0);

/// DiffSynth's training table: descending sigmas S_shift(1 - i / count), t = 1000 sigma and loss weights.
struct TrainingTable {
  std::vector<double> sigmas, timesteps, weights;
  double weight_at(double t) const;  ///< weight of the nearest entry
};
TrainingTable training_table(double shift, int64_t count = 1000);

}  // namespace tessera::diffusion
