#include "tessera/diffusion/flow.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::diffusion {

namespace {

constexpr double kFlowSteps = 1000;
constexpr double kLeastNoise = 1e-5;  // of Open-Sora 2.0's trainer
constexpr double kNormalShare = 0.7;  // of mix

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

/// Where a function that grows from 0 to 1 has this value.
template <class Grows>
double where(const Grows& grows, double value) {
  double low = 0, high = 1;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (grows(middle) < value ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// The probability that a continuous draw has u below `u`, 0 to 1.
double share_below(const Options& options, double u) {
  if (u <= 0 || u >= 1 || options.timesteps == Timesteps::uniform) return std::clamp(u, 0.0, 1.0);
  if (options.timesteps == Timesteps::mode)
    return where([&](double p) { return mode_of(1 - p, options.mode_scale); }, u);
  if (options.timesteps == Timesteps::cosmap) return 2 / M_PI * std::atan(2 * u - 1) + 0.5;
  const double normal = normal_below((std::log(u / (1 - u)) - options.mean) / options.scale);
  return options.timesteps == Timesteps::mix ? kNormalShare * normal + (1 - kNormalShare) * u : normal;
}

/// Its inverse.
double u_at(const Options& options, double p) {
  if (options.timesteps == Timesteps::uniform) return p;
  if (options.timesteps == Timesteps::mode) return mode_of(1 - p, options.mode_scale);
  if (options.timesteps == Timesteps::cosmap) return (std::tan(M_PI / 2 * (p - 0.5)) + 1) / 2;
  if (options.timesteps == Timesteps::mix) return where([&](double u) { return share_below(options, u); }, p);
  return 1 / (1 + std::exp(-(options.mean + options.scale * normal_at(p))));
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
    case Timesteps::logsnr:
    case Timesteps::flux_shift:
    case Timesteps::qwen_shift:
    case Timesteps::qinglong_flux:
    case Timesteps::qinglong_qwen:
      return 1 / (1 + std::exp(-(options.mean + options.scale * key.normal(0))));
    case Timesteps::diffsynth:
      return 1 - static_cast<double>(key.below(0, static_cast<uint64_t>(kFlowSteps))) / kFlowSteps;
    case Timesteps::mode:
    case Timesteps::cosmap:
    case Timesteps::mix:
    case Timesteps::uniform:
      break;
  }
  return u_at(options, key.uniform(0));
}

/// The u at a share, 0 to 1, of the draws that are in the window of the options.
double u_inside(const Options& options, double share) {
  const Window& window = options.window;
  if (options.timesteps == Timesteps::diffsynth) {  // entries count from the noisy end
    const auto [first, last] = table_range(options, window);
    const auto i = static_cast<int64_t>(share * static_cast<double>(last - first));
    return 1 - static_cast<double>(first + std::min(i, last - first - 1)) / kFlowSteps;
  }
  const auto [low, high] = shares(options, window);
  return u_at(options, low + (high - low) * share);
}

/// Draws u from the window of the options.
double draw_inside(const Options& options, const RandomKey& key) {
  if (options.timesteps != Timesteps::diffsynth) return u_inside(options, key.uniform(0));
  const auto [first, last] = table_range(options, options.window);
  return 1 - static_cast<double>(first + static_cast<int64_t>(key.below(0, last - first))) / kFlowSteps;
}

double mass_of_one(const Options& options, const Window& window) {
  if (options.timesteps == Timesteps::diffsynth) {
    const auto [first, last] = table_range(options, window);
    return static_cast<double>(last - first) / kFlowSteps;
  }
  const auto [low, high] = shares(options, window);
  return high - low;
}

Window overlap(const Window& a, const Window& b) { return {std::max(a.low, b.low), std::min(a.high, b.high)}; }
bool is_empty(const Window& window) { return window.low >= window.high; }

/// A part of a mixture, and its share of the draws.
struct Part {
  double share = 1;
  Options options;
};

/// What the options draw from: themselves alone, or several distributions by their shares, which have no bands.
std::vector<Part> parts_of(const Options& options) {
  const auto normal = [&](double share, Timesteps timesteps, double mean, double scale, double shift) {
    Part part{share, options};
    part.options.timesteps = timesteps, part.options.mean = mean, part.options.scale = scale;
    part.options.shift = shift;
    return part;
  };
  const Part clean = normal(0.1, Timesteps::logsnr, -5.36 / 2, 0.5, 1);
  if (options.timesteps == Timesteps::qinglong_flux)
    return {normal(0.79, Timesteps::flux_shift, 0, 1, options.shift),
            normal(0.11, Timesteps::logsnr, options.mean, options.scale, 1), clean};
  if (options.timesteps == Timesteps::qinglong_qwen)
    return {normal(0.95, Timesteps::qwen_shift, 0, 1, options.shift), {0.05, clean.options}};
  if (options.bands.empty()) return {{1, options}};
  std::vector<Part> parts;
  double all = 0;
  for (const Band& band : options.bands) all += band.share;
  for (const Band& band : options.bands) {
    Part part{0, options};
    part.options.bands.clear();
    part.options.window = overlap(band.window, options.window);
    const double whole = mass_of_one(part.options, band.window);
    if (is_empty(part.options.window) || whole <= 0) continue;
    part.share = band.share / all * mass_of_one(part.options, part.options.window) / whole;
    parts.push_back(std::move(part));
  }
  return parts;
}

constexpr uint64_t kPartDraw = 900;  // index in the sample's timestep stream

/// The part that this draw is from; of one there is no draw.
const Options& chosen_part(const std::vector<Part>& parts, const RandomKey& key) {
  double all = 0;
  for (const Part& part : parts) all += part.share;
  double left = parts.size() > 1 ? all * key.uniform(kPartDraw) : 0;
  for (const Part& part : parts)
    if (left < part.share)
      return part.options;
    else
      left -= part.share;
  return parts.back().options;
}

}  // namespace

double window_mass(const Options& options, const Window& window) {
  if (options.bands.empty()) return mass_of_one(options, window);
  Options inside = options;
  inside.window = window;
  double mass = 0;
  for (const Part& part : parts_of(inside)) mass += part.share;
  return mass;
}

double mode_of(double v, double mode_scale) {
  const double c = std::cos(M_PI / 2 * v);
  return 1 - v - mode_scale * (c * c - 1 + v);
}

double token_shift(double tokens, double tokens_at, double log_at) {
  return std::exp(0.5 + (log_at - 0.5) * (tokens - 256) / (tokens_at - 256));
}

double quantile(const Options& options, double share) {
  const std::vector<Part> parts = parts_of(options);
  double all = 0;
  for (const Part& part : parts) all += part.share;
  const auto below = [&](double sigma) {
    double mass = 0;
    for (const Part& part : parts) {
      const Window here = overlap({0, sigma}, part.options.window);
      const double whole = mass_of_one(part.options, part.options.window);
      if (!is_empty(here) && whole > 0) mass += part.share * mass_of_one(part.options, here) / whole;
    }
    return mass / all;
  };
  return draw_of({.rounds_to_bf16 = options.rounds_to_bf16}, where(below, share)).sigma;
}

int64_t stratum(uint64_t seed, int64_t strata, int64_t number) {
  const RandomKey key(seed, Purpose::timestep, ~uint64_t{0}, static_cast<uint64_t>(number / strata));
  std::vector<int64_t> order(static_cast<size_t>(strata));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[key.below(i, i + 1)]);
  return order[static_cast<size_t>(number % strata)];
}

double shift_sigma(double u, double shift) { return shift * u / (1 + (shift - 1) * u); }
double unshift_sigma(double sigma, double shift) { return sigma / (shift - (shift - 1) * sigma); }

namespace {

constexpr std::pair<const char*, Timesteps> kTimesteps[] = {{"uniform", Timesteps::uniform},
                                                            {"shift", Timesteps::uniform},
                                                            {"logit_normal", Timesteps::logit_normal},
                                                            {"diffsynth", Timesteps::diffsynth},
                                                            {"sana", Timesteps::nvlabs},
                                                            {"diffusers", Timesteps::diffusers},
                                                            {"by_size", Timesteps::by_size},
                                                            {"by_area", Timesteps::by_area},
                                                            {"mode", Timesteps::mode},
                                                            {"cosmap", Timesteps::cosmap},
                                                            {"mix", Timesteps::mix},
                                                            {"logsnr", Timesteps::logsnr},
                                                            {"flux_shift", Timesteps::flux_shift},
                                                            {"qwen_shift", Timesteps::qwen_shift},
                                                            {"qinglong_flux", Timesteps::qinglong_flux},
                                                            {"qinglong_qwen", Timesteps::qinglong_qwen}};
constexpr std::pair<const char*, Weighting> kWeightings[] = {{"none", Weighting::none},
                                                             {"diffsynth", Weighting::diffsynth},
                                                             {"sigma_sqrt", Weighting::sigma_sqrt},
                                                             {"cosmap", Weighting::cosmap},
                                                             {"sigma", Weighting::sigma}};

template <class Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& [name, value] : rows) names.emplace_back(name);
  return names;
}

}  // namespace

const std::vector<std::string>& timestep_names() {
  static const std::vector<std::string> names = names_of(kTimesteps);
  return names;
}

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
  const auto row = std::ranges::find(kTimesteps, text, [](const auto& r) { return std::string(r.first); });
  if (row == std::end(kTimesteps)) unknown("diffusion.timesteps", text, timestep_names());
  options.timesteps = row->second;
  if (options.timesteps == Timesteps::by_size) options.least_noise = kLeastNoise;
}

Weighting parse_weighting(const std::string& text) {
  for (const auto& [name, weighting] : kWeightings)
    if (text == name) return weighting;
  unknown("diffusion.weighting", text, names_of(kWeightings));
}

double weight_of(Weighting weighting, double sigma, double shift) {
  constexpr double kLeast = 1 / kFlowSteps;  // the last entry of the tables in which others look it up
  switch (weighting) {
    case Weighting::diffsynth:
      return training_table(shift).weight_at(kFlowSteps * sigma);
    case Weighting::sigma_sqrt:
      return 1 / std::pow(std::max(sigma, kLeast), 2);
    case Weighting::cosmap:
      return 2 / (M_PI * (1 - 2 * sigma + 2 * sigma * sigma));
    case Weighting::sigma:
      return sigma;
    case Weighting::none:
      break;
  }
  return 1;
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
  result.weight = weight_of(options.weighting, result.t / kFlowSteps, options.shift);
  return result;
}

TrainingDraw draw(const Options& options, uint64_t seed, int64_t step, int64_t sample) {
  const RandomKey key(seed, Purpose::timestep, static_cast<uint64_t>(step), static_cast<uint64_t>(sample));
  const std::vector<Part> parts = parts_of(options);
  const Options& from = chosen_part(parts, key);
  if (options.strata > 0) {
    const int64_t taken = stratum(seed, options.strata, (step - 1) * options.batch + sample);
    const double share = (static_cast<double>(taken) + key.uniform(0)) / static_cast<double>(options.strata);
    return draw_of(from, u_inside(from, share));
  }
  return draw_of(from, from.window == Window{} ? draw_anywhere(from, key) : draw_inside(from, key));
}

namespace {

/// Indices of draws in the sample's timestep stream: whether a clip has one timestep, which chunk has the distribution's,
/// the noise of a first frame, and of each chunk two.
constexpr uint64_t kSameDraw = 5000, kAnchorDraw = 5001, kFirstFrameDraw = 5002, kChunkDraw = 5100;

/// What is drawn by `share`, 0 to 1, of 0 .. count - 1 with weights C(i + more, more).
int64_t weighted_entry(int64_t count, int64_t more, double share) {
  const auto grown = [&](double weight, int64_t i) {
    return weight * static_cast<double>(i + more) / static_cast<double>(i);
  };
  double weight = 1, all = 1;
  for (int64_t i = 1; i < count; ++i) all += weight = grown(weight, i);
  double left = share * all;
  weight = 1;
  for (int64_t i = 0; i + 1 < count; ++i) {
    if (i > 0) weight = grown(weight, i);
    if (left < weight) return i;
    left -= weight;
  }
  return count - 1;
}

/// A number of 1000 entries of the distribution, from which draw_of() makes that entry of a table, and which is between the
/// entries where there is none.
double number_of(const Options& options, int64_t entry, double between) {
  return (static_cast<double>(entry) + (has_logit_normal_table(options) ? 0.5 : between)) / kFlowSteps;
}

/// Numbers of chunks that grow from one to the next, around that of an `anchor`.
std::vector<double> grown_around(const Options& options, size_t chunks, const RandomKey& key) {
  const auto count = static_cast<int64_t>(chunks), last = static_cast<int64_t>(kFlowSteps) - 1;
  const auto anchor = static_cast<size_t>(key.below(kAnchorDraw, chunks));
  std::vector<double> u(chunks, draw_anywhere(options, key));
  const auto entry_at = [&](size_t c) { return std::clamp(static_cast<int64_t>(kFlowSteps * u[c]), int64_t{0}, last); };
  const auto share = [&](size_t c) { return key.uniform(kChunkDraw + 2 * c); };
  const auto between = [&](size_t c) { return key.uniform(kChunkDraw + 2 * c + 1); };
  for (size_t c = anchor + 1; c < chunks; ++c) {  // weights C(last - entry + more, more), from the end
    const int64_t from = entry_at(c - 1), more = count - 1 - static_cast<int64_t>(c);
    u[c] = std::max(u[c - 1], number_of(options, last - weighted_entry(last - from + 1, more, share(c)), between(c)));
  }
  for (size_t c = anchor; c-- > 0;) {
    const int64_t entry = weighted_entry(entry_at(c + 1) + 1, static_cast<int64_t>(c), share(c));
    u[c] = std::min(u[c + 1], number_of(options, entry, between(c)));
  }
  return u;
}

}  // namespace

bool draws_chunks(Timesteps timesteps) {
  return timesteps != Timesteps::diffusers && timesteps != Timesteps::diffsynth &&
         timesteps != Timesteps::qinglong_flux && timesteps != Timesteps::qinglong_qwen;
}

std::vector<TrainingDraw> draw_frames(const Options& options, const ChunkDraws& chunks, int64_t frames,
                                      bool first_given, uint64_t seed, int64_t step, int64_t sample) {
  const auto key_of = [&](size_t chunk) {  // a stream for each chunk's draw: places of a batch are below 2^40
    return RandomKey(seed, Purpose::timestep, static_cast<uint64_t>(step),
                     static_cast<uint64_t>(sample) + (static_cast<uint64_t>(chunk) << 40));
  };
  const RandomKey key = key_of(0);
  std::vector<int64_t> starts = chunks.starts;
  std::erase_if(starts, [&](int64_t start) { return start >= frames; });
  if (starts.size() < 2 || key.uniform(kSameDraw) < chunks.same_share) starts = {0};
  std::vector<TrainingDraw> of_frames;
  if (starts.size() == 1) {
    of_frames.assign(static_cast<size_t>(frames), draw(options, seed, step, sample));
  } else {
    std::vector<double> u;
    if (chunks.incremental) u = grown_around(options, starts.size(), key);
    for (size_t c = 0; c < starts.size(); ++c) {
      const int64_t end = c + 1 < starts.size() ? starts[c + 1] : frames;
      const double number = chunks.incremental ? u[c] : draw_anywhere(options, key_of(c));
      of_frames.resize(static_cast<size_t>(end), draw_of(options, number));
    }
  }
  if (first_given) {
    const auto entry = static_cast<int64_t>(
        chunks.first_frame_noise * static_cast<double>(key.below(kFirstFrameDraw, static_cast<uint64_t>(kFlowSteps))));
    of_frames[0] = draw_of(options, number_of(options, entry, 0));
  }
  return of_frames;
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

bool shifts_each(Timesteps timesteps) {
  constexpr Timesteps kEach[] = {Timesteps::by_size,    Timesteps::by_area,       Timesteps::flux_shift,
                                 Timesteps::qwen_shift, Timesteps::qinglong_flux, Timesteps::qinglong_qwen};
  return std::ranges::find(kEach, timesteps) != std::end(kEach);
}

Options of_size(Options options, at::IntArrayRef latent, double pixels) {
  constexpr int64_t kPlaces = 4;  // of a token, whatever the model's patch is
  if (options.timesteps == Timesteps::by_size)
    options.shift = size_shift(static_cast<double>(latent[2] * latent[3] / kPlaces), latent[1]);
  if (options.timesteps == Timesteps::by_area) options.shift = area_shift(latent, options.piece, pixels);
  const auto tokens = static_cast<double>((latent[2] / 2) * (latent[3] / 2));
  if (options.timesteps == Timesteps::flux_shift || options.timesteps == Timesteps::qinglong_flux)
    options.shift = token_shift(tokens, 4096, 1.15);
  if (options.timesteps == Timesteps::qwen_shift || options.timesteps == Timesteps::qinglong_qwen)
    options.shift = token_shift(tokens, 8192, 0.9);
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
