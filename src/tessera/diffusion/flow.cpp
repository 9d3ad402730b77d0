#include "tessera/diffusion/flow.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::diffusion {

namespace {

constexpr double kFlowSteps = 1000;
constexpr double kLeastNoise = 1e-5;  // of Open-Sora 2.0's trainer

[[noreturn]] void unknown(const std::string& key, const std::string& word, const std::vector<std::string>& known) {
  const auto near = nearest(word, known);
  throw UserError(Exit::usage, key,
                  "'" + word + "' is not known" + (near.empty() ? "" : "; did you mean " + near[0] + "?"));
}

double normal_below(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

/// The normal quantile of probability `p`: by bisection, to the last bit or two, independent of the standard library.
double normal_at(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (normal_below(middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// The probability that a continuous draw has u below `u`, 0 to 1.
double share_below(const Options& options, double u) {
  if (u <= 0 || u >= 1 || options.timesteps == Timesteps::uniform) return std::clamp(u, 0.0, 1.0);
  return normal_below((std::log(u / (1 - u)) - options.mean) / options.scale);
}

/// Entry i of the table, before the shift.
double entry(Timesteps timesteps, int64_t i) {
  const double u = static_cast<double>(i) / kFlowSteps;
  return timesteps == Timesteps::nvlabs ? u : 1 - u;
}

/// Entries [first, last) of the table that are in the window.
std::pair<int64_t, int64_t> table_range(const Options& options, const Window& window) {
  const auto count = static_cast<int64_t>(kFlowSteps);
  const auto sigma = [&](int64_t i) { return shift_sigma(entry(options.timesteps, i), options.shift); };
  int64_t first = 0, last = count;
  while (first < count && !window.holds(sigma(first))) ++first;
  while (last > first && !window.holds(sigma(last - 1))) --last;
  return {first, last};
}

bool has_logit_normal_table(const Options& options) {
  return options.timesteps == Timesteps::nvlabs || options.timesteps == Timesteps::diffusers;
}

/// Probabilities of a continuous draw below the lower and below the upper end of the window. Of a table, the draws whose
/// entries are in it.
std::pair<double, double> shares(const Options& options, const Window& window) {
  if (has_logit_normal_table(options)) {
    const auto [first, last] = table_range(options, window);
    return {share_below(options, static_cast<double>(first) / kFlowSteps),
            share_below(options, static_cast<double>(last) / kFlowSteps)};
  }
  return {share_below(options, unshift_sigma(window.low, options.shift)),
          share_below(options, unshift_sigma(window.high, options.shift))};
}

double draw_anywhere(const Options& options, const RandomKey& key) {
  switch (options.timesteps) {
    case Timesteps::logit_normal:
    case Timesteps::nvlabs:
    case Timesteps::diffusers:
    case Timesteps::by_size:
    case Timesteps::by_area:
      return 1 / (1 + std::exp(-(options.mean + options.scale * key.normal(0))));
    case Timesteps::diffsynth:
      return 1 - static_cast<double>(key.below(0, static_cast<uint64_t>(kFlowSteps))) / kFlowSteps;
    case Timesteps::uniform:
      break;
  }
  return key.uniform(0);
}

/// Draws u from the window of the options.
double draw_inside(const Options& options, const RandomKey& key) {
  const Window& window = options.window;
  if (options.timesteps == Timesteps::diffsynth) {
    const auto [first, last] = table_range(options, window);
    return 1 - static_cast<double>(first + static_cast<int64_t>(key.below(0, last - first))) / kFlowSteps;
  }
  const auto [low, high] = shares(options, window);
  const double p = low + (high - low) * key.uniform(0);
  if (options.timesteps == Timesteps::uniform) return p;
  return 1 / (1 + std::exp(-(options.mean + options.scale * normal_at(p))));
}

}  // namespace

double window_mass(const Options& options, const Window& window) {
  if (options.timesteps == Timesteps::diffsynth) {
    const auto [first, last] = table_range(options, window);
    return static_cast<double>(last - first) / kFlowSteps;
  }
  const auto [low, high] = shares(options, window);
  return high - low;
}

double shift_sigma(double u, double shift) { return shift * u / (1 + (shift - 1) * u); }
double unshift_sigma(double sigma, double shift) { return sigma / (shift - (shift - 1) * sigma); }

void parse_timesteps(const std::string& text, Options& options) {
  const std::string word = text.substr(0, text.find('('));
  if (word == "logit_normal") {
    options.timesteps = Timesteps::logit_normal;
    int end = 0;
    const char* arguments = text.c_str() + word.size();
    if (*arguments == '\0') return;
    const bool read = std::sscanf(arguments, "( %lf , %lf )%n", &options.mean, &options.scale, &end) == 2;
    if (read && arguments[end] == '\0' && end > 0 && options.scale > 0) return;
    throw UserError(Exit::usage, "diffusion.timesteps", "'" + text + "' cannot be read",
                    "write logit_normal(MEAN, SCALE), SCALE above 0");
  }
  if (text == "uniform" || text == "shift")
    options.timesteps = Timesteps::uniform;
  else if (text == "diffsynth")
    options.timesteps = Timesteps::diffsynth;
  else if (text == "sana")
    options.timesteps = Timesteps::nvlabs;
  else if (text == "diffusers")
    options.timesteps = Timesteps::diffusers;
  else if (text == "by_size")
    options.timesteps = Timesteps::by_size, options.least_noise = kLeastNoise;
  else if (text == "by_area")
    options.timesteps = Timesteps::by_area;
  else
    unknown("diffusion.timesteps", text,
            {"uniform", "shift", "logit_normal", "diffsynth", "sana", "diffusers", "by_size", "by_area"});
}

Weighting parse_weighting(const std::string& text) {
  if (text == "none") return Weighting::none;
  if (text == "diffsynth") return Weighting::diffsynth;
  unknown("diffusion.weighting", text, {"none", "diffsynth"});
}

TrainingDraw draw_of(const Options& options, double u) {
  TrainingDraw result;
  if (has_logit_normal_table(options)) {
    const auto [first, last] = table_range(options, options.window);
    const auto i = std::clamp<int64_t>(static_cast<int64_t>(kFlowSteps * u), first, std::max(first, last - 1));
    u = entry(options.timesteps, i);
  }
  result.sigma = shift_sigma(u, options.shift);
  if (options.rounds_to_bf16) result.sigma = static_cast<float>(c10::BFloat16(static_cast<float>(result.sigma)));
  // Rounding must not move a draw across the edge of its window.
  if (!options.window.holds(result.sigma))
    result.sigma = result.sigma < options.window.low ? options.window.low : std::nextafter(options.window.high, 0.0);
  result.t = kFlowSteps * result.sigma;
  if (options.timesteps == Timesteps::nvlabs) result.t = std::trunc(result.t);
  if (options.weighting == Weighting::diffsynth) result.weight = training_table(options.shift).weight_at(result.t);
  return result;
}

TrainingDraw draw(const Options& options, uint64_t seed, int64_t step, int64_t sample) {
  const RandomKey key(seed, Purpose::timestep, static_cast<uint64_t>(step), static_cast<uint64_t>(sample));
  return draw_of(options, options.window == Window{} ? draw_anywhere(options, key) : draw_inside(options, key));
}

double size_shift(double tokens_per_frame, int64_t frames) {
  const double line = 1 + 2 * (tokens_per_frame - 256) / (4096 - 256);
  return line * std::sqrt(static_cast<double>(frames));
}

double area_shift(double pixels, int64_t frames) {
  constexpr double kSquare = 512;
  return std::sqrt(pixels / (kSquare * kSquare)) * std::sqrt(static_cast<double>(frames));
}

double area_shift(at::IntArrayRef latent, int64_t piece, double pixels) {
  constexpr int64_t kPixels = 8;  // of height and width, of a latent value
  const int64_t frames = latent[1], begins = piece > 0 && frames > 1 ? div_up(frames, piece) : 0;
  if (pixels <= 0) pixels = static_cast<double>(kPixels * latent[2] * kPixels * latent[3]);
  return area_shift(pixels, frames - begins);
}

bool shifts_each(Timesteps timesteps) { return timesteps == Timesteps::by_size || timesteps == Timesteps::by_area; }

Options of_size(Options options, at::IntArrayRef latent, double pixels) {
  constexpr int64_t kPlaces = 4;  // of a token, whatever the model's patch is
  if (options.timesteps == Timesteps::by_size)
    options.shift = size_shift(static_cast<double>(latent[2] * latent[3] / kPlaces), latent[1]);
  if (options.timesteps == Timesteps::by_area) options.shift = area_shift(latent, options.piece, pixels);
  return options;
}

at::Tensor add_noise(const at::Tensor& x0, const at::Tensor& noise, double sigma, double least_noise) {
  return x0 * (1 - sigma) + noise * (sigma + least_noise * (1 - sigma));
}
at::Tensor velocity(const at::Tensor& x0, const at::Tensor& noise, double least_noise) {
  return least_noise == 0 ? noise - x0 : noise * (1 - least_noise) - x0;
}

TrainingTable training_table(double shift, int64_t count) {
  TrainingTable table;
  const auto n = static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    const double sigma = shift_sigma(1 - static_cast<double>(i) / n, shift);
    const double t = kFlowSteps * sigma, off = (t - kFlowSteps / 2) / kFlowSteps;
    table.sigmas.push_back(sigma);
    table.timesteps.push_back(t);
    table.weights.push_back(std::exp(-2 * off * off));
  }
  const double least = *std::min_element(table.weights.begin(), table.weights.end());
  double sum = 0;
  for (double& w : table.weights) sum += (w -= least);
  for (double& w : table.weights) w *= kFlowSteps / sum;
  if (count != static_cast<int64_t>(kFlowSteps) &&
      count > 1) {  // DiffSynth raises shorter tables by their second weight
    for (double& w : table.weights) w *= n / kFlowSteps;
    const double lift = table.weights[1];
    for (double& w : table.weights) w += lift;
  }
  return table;
}

double TrainingTable::weight_at(double t) const {
  size_t best = 0;
  for (size_t i = 1; i < timesteps.size(); ++i)
    if (std::abs(timesteps[i] - t) < std::abs(timesteps[best] - t)) best = i;
  return weights.at(best);
}

}  // namespace tessera::diffusion
