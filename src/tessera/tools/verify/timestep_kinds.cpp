// Kind "timestep_kinds": from the recorded draws of five trainers to their timesteps and weights. A mesh means nothing here.
#include <cmath>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/tools/verify/by_size.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using diffusion::shift_sigma;
using Numbers = std::vector<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Numbers numbers(const Tensor& tensor) {
  const Tensor values = tensor.to(at::kDouble).contiguous().view(-1);
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

/// Draws in the order in which the reference asked for them.
class Draws {
 public:
  Draws(const CaseFile& file, const std::string& name) : name_(name) {
    if (file.has(name)) values_ = numbers(file.tensor(name));
  }
  double next() {
    check_input(at_ < values_.size(), "verify", name_ + " has fewer draws than its run asks for");
    return values_[at_++];
  }
  Numbers take(size_t count) {
    Numbers taken;
    for (size_t i = 0; i < count; ++i) taken.push_back(next());
    return taken;
  }
  size_t size() const { return values_.size(); }

 private:
  std::string name_;
  Numbers values_;
  size_t at_ = 0;
};

Tensor floats(const Numbers& values) { return doubles(values).to(at::kFloat); }
Tensor integers(const Numbers& values) { return doubles(values).to(at::kLong); }

/// "max|a - ref| <= bound * max(1, |ref|)", of each value.
void compare_near(CaseFile& file, const std::string& name, const Tensor& found, double bound) {
  file.compare_each(name, found, [bound](const Tensor& expected) { return expected.abs().clamp_min(1) * bound; });
}

[[noreturn]] void unknown(const char* key, const std::string& value) {
  throw UserError(Exit::input, "verify", std::string(key) + " '" + value + "' is not known to this build");
}

/// A bf16 number nearest to this one.
double rounded(double value) { return static_cast<double>(c10::BFloat16(static_cast<float>(value))); }

/// What musubi-tuner draws: strata and decisions in the place of its random numbers.
class Musubi {
 public:
  Musubi(const CaseFile& file, const std::string& run, const Settings& settings)
      : kind_(settings.at("timestep_sampling")),
        scheme_(settings.at("weighting_scheme")),
        shift_(settings.at("discrete_flow_shift")),
        scale_(settings.at("sigmoid_scale")),
        mean_(settings.at("logit_mean")),
        std_(settings.at("logit_std")),
        mode_(settings.at("mode_scale")),
        low_(settings.value("min_timestep", 0.0)),
        high_(settings.value("max_timestep", 1000.0)),
        preserves_(settings.value("preserve_distribution_shape", false)),
        strata_(settings.value("num_timestep_buckets", int64_t{0})),
        batch_(settings.at("batch").get<size_t>()),
        height_(settings.at("latent").at(1)),
        width_(settings.at("latent").at(2)),
        bf16_(settings.at("dtype") == "bf16"),
        uniform_(file, "in.musubi." + run + ".uniform"),
        normal_(file, "in.musubi." + run + ".normal") {
    settings.at("latent").json();
    if (const std::string dtype = settings.at("dtype"); dtype != "fp32" && dtype != "bf16") unknown("dtype", dtype);
    if (strata_ < 2 || kind_ == "sigma") {
      strata_ = 0;
      return;
    }
    const Tensor order = file.tensor("in.musubi." + run + ".bucket_order");
    for (int64_t i = 0; i < order.numel(); ++i) order_.push_back(order.view(-1)[i].item<int64_t>());
  }

  /// `bound` of values, `inverse` of those that went through the inverse of the error function.
  void check(CaseFile& file, const std::string& run, double bound, double inverse) {
    const std::string out = "out.musubi." + run;
    Numbers t, timesteps;
    if (kind_ == "sigma") {
      for (size_t i = 0; i < batch_; ++i) {
        const double index = std::trunc(density() * (high_ - low_) + low_), sigma = 1 - index / 1000;
        t.push_back(bf16_ ? rounded(sigma) : sigma);
        timesteps.push_back(1000 - index);
      }
    } else {
      while (t.size() < batch_) {
        if (strata_ > 0) draw_strata();
        for (const double drawn : drawn_batch())
          if (!preserves_)
            t.push_back(drawn * (high_ - low_) / 1000 + low_ / 1000);
          else if (drawn >= low_ / 1000 && drawn <= high_ / 1000 && t.size() < batch_)
            t.push_back(drawn);
      }
      for (const double each : t) timesteps.push_back(1000 * each + 1);
    }
    if (file.has(out + ".stratified")) compare_near(file, out + ".stratified", doubles(strata_now_), bound);
    if (strata_ > 0 && !is_uniform()) bound = inverse;
    compare_near(file, out + ".t", floats(t), bound);
    compare_near(file, out + ".timesteps", floats(timesteps), bound);
  }

 private:
  bool is_uniform() const { return kind_ == "uniform" || kind_ == "ideogram4_shift"; }

  /// Of kind sigma, by the weighting scheme.
  double density() {
    if (scheme_ == "logit_normal") return sigmoid(mean_ + std_ * normal_.next());
    if (scheme_ == "mode") return diffusion::mode_of(uniform_.next(), mode_);
    if (scheme_ != "none" && scheme_ != "cosmap" && scheme_ != "sigma_sqrt") unknown("weighting_scheme", scheme_);
    return uniform_.next();
  }

  /// Of each sample of a batch a number from a share of its own, which are taken from the end of a shuffled list.
  void draw_strata() {
    strata_now_.clear();
    next_ = 0;
    for (size_t i = 0; i < batch_; ++i) {
      const auto refill = static_cast<size_t>(taken_ / strata_),
                 back = static_cast<size_t>(strata_ - 1 - taken_ % strata_);
      const size_t place = refill * static_cast<size_t>(strata_) + back;
      check_input(place < order_.size(), "verify", "bucket_order has fewer refills than its run asks for");
      ++taken_;
      strata_now_.push_back((static_cast<double>(order_[place]) + uniform_.next()) / static_cast<double>(strata_));
    }
  }
  double uniform() { return strata_ > 0 ? strata_now_.at(next_++) : uniform_.next(); }
  double normal() {
    if (strata_ == 0) return normal_.next();
    const double u = std::clamp(strata_now_.at(next_++), 1e-7, 1 - 1e-7);
    return at::erfinv(at::scalar_tensor(2 * u - 1, at::kDouble)).item<double>() * M_SQRT2;
  }
  /// As the key of a shift by size has it.
  double by_tokens(const std::string& kind) const {
    const double tokens = static_cast<double>((height_ / 2) * (width_ / 2));
    if (kind == "flux_shift") return diffusion::token_shift(tokens, 4096, 1.15);
    if (kind == "flux2_shift") return diffusion::token_shift(static_cast<double>(height_ * width_), 4096, 1.15);
    if (kind == "qwen_shift") return diffusion::token_shift(tokens, 8192, 0.9);
    if (kind == "krea2_shift") return diffusion::token_shift(tokens, 6400, 1.15);
    unknown("timestep_sampling", kind);
  }
  double shifted(double shift) { return shift_sigma(sigmoid(scale_ * normal()), shift); }
  double logsnr(double mean, double std) { return sigmoid(-(mean + std * normal()) / 2); }

  Numbers drawn_batch() {
    Numbers t(batch_);
    if (kind_.starts_with("qinglong_")) return mixed();
    for (double& each : t)
      each = kind_ == "uniform"           ? uniform()
             : kind_ == "sigmoid"         ? shifted(1)
             : kind_ == "shift"           ? shifted(shift_)
             : kind_ == "logsnr"          ? logsnr(mean_, std_)
             : kind_ == "ideogram4_shift" ? by_area()
                                          : shifted(by_tokens(kind_));
    return t;
  }
  double by_area() {
    const Tensor z = at::special_ndtri(at::scalar_tensor(std::max(uniform(), 1e-7), at::kDouble));
    const double area = 16.0 * static_cast<double>(height_) * 16.0 * static_cast<double>(width_);
    const double t = sigmoid(0.5 * std::log(area / (512.0 * 512.0)) + 1.5 * z.item<double>());
    return std::clamp(t, 1 - 1 / (1 + std::exp(-7.5)), 1 - 1 / (1 + std::exp(9.0)));
  }
  /// All shifted samples draw first, then those of the middle share, then the others.
  Numbers mixed() {
    const bool of_frames = kind_ == "qinglong_flux";
    if (!of_frames && kind_ != "qinglong_qwen") unknown("timestep_sampling", kind_);
    const double first = of_frames ? 0.79 : 0.95, second = of_frames ? 0.9 : 0.95;
    const double shift = by_tokens(of_frames ? "flux_shift" : "qwen_shift");
    const Numbers decisions = uniform_.take(batch_);
    Numbers t(batch_);
    for (size_t i = 0; i < batch_; ++i)
      if (decisions[i] < first) t[i] = shifted(shift);
    for (size_t i = 0; i < batch_; ++i)
      if (decisions[i] >= first && decisions[i] < second) t[i] = logsnr(mean_, std_);
    for (size_t i = 0; i < batch_; ++i)
      if (decisions[i] >= second) t[i] = logsnr(5.36, 1);
    return t;
  }

  const std::string kind_, scheme_;
  const double shift_, scale_, mean_, std_, mode_, low_, high_;
  const bool preserves_;
  int64_t strata_, taken_ = 0;
  const size_t batch_;
  const int64_t height_, width_;
  const bool bf16_;
  Draws uniform_, normal_;
  std::vector<int64_t> order_;
  Numbers strata_now_;
  size_t next_ = 0;
};

/// Its weights at timesteps 1 to 1000, looked up in a table of sigmas of a dtype.
void check_musubi_weights(CaseFile& file) {
  const std::string prefix = "out.musubi_weight.";
  for (const std::string& name : file.names(prefix)) {
    const std::string what = name.substr(prefix.size()), scheme = what.substr(0, what.find('.'));
    const bool bf16 = what.ends_with(".bf16");
    const diffusion::Weighting weighting = diffusion::parse_weighting(scheme);
    Numbers weights;
    for (const double t : numbers(file.tensor("in.musubi_weight.timesteps"))) {
      const double sigma = std::clamp(std::round(t), 1.0, 1000.0) / 1000;
      weights.push_back(diffusion::weight_of(weighting, bf16 ? rounded(sigma) : sigma));
    }
    const Tensor found = floats(weights);
    if (bf16)  // and computed in it
      file.compare_each(name, found.to(at::kBFloat16).to(at::kFloat),
                        [](const Tensor& expected) { return bf16_steps(expected.to(at::kFloat)).to(at::kDouble); });
    else
      compare_near(file, name, found, 1e-5);
  }
}

/// diffusion-pipe's distribution, without its window.
diffusion::Options pipe_options(const Settings& settings, int64_t height, int64_t width) {
  const std::string method = settings.at("timestep_sample_method");
  if (method != "logit_normal" && method != "uniform") unknown("timestep_sample_method", method);
  diffusion::Options options;
  options.timesteps = method == "uniform" ? diffusion::Timesteps::uniform : diffusion::Timesteps::logit_normal;
  options.scale = settings.at("sigmoid_scale");
  const double shift = settings.value("shift", 0.0);
  const bool of_frames = settings.at("flux_shift");
  options.shift = shift != 0  ? shift
                  : of_frames ? diffusion::token_shift(static_cast<double>((height / 2) * (width / 2)), 4096, 1.15)
                              : 1;
  return options;
}

/// An entry of a table of the distribution, which is cut to a window.
void check_dp(CaseFile& file, const std::string& run, const Settings& settings) {
  const std::string out = "out.dp." + run;
  const auto hw = settings.at("latent_hw").get<std::array<int64_t, 2>>();
  const diffusion::Options options = pipe_options(settings, hw[0], hw[1]);
  const Numbers table = pipe_timesteps(settings, hw[0], hw[1]);
  const auto size = static_cast<double>(table.size());
  const auto entry = [&](double share) {
    return table.at(std::min(static_cast<size_t>(share * size), table.size() - 1));
  };
  Numbers every, t, quantiles, exact;
  for (size_t i = 0; i < table.size(); i += 500) every.push_back(table[i]);
  for (const double u : numbers(file.tensor("in.dp." + run + ".uniform"))) t.push_back(entry(u));
  for (int q = 1; q < 10; ++q) {
    const float place = static_cast<float>(q) / 10.0F * static_cast<float>(table.size());  // rounded as there
    quantiles.push_back(table.at(std::min(static_cast<size_t>(place), table.size() - 1)));
    exact.push_back(diffusion::quantile(options, q / 10.0));
  }
  file.judge(out + ".table_size", at::scalar_tensor(static_cast<int64_t>(table.size()), at::kLong),
             [](const Tensor& expected, const Tensor& found, Comparison& c) {
               c.max_abs = static_cast<double>((expected - found).abs().item<int64_t>()), c.bound = 1;
               c.ok = c.max_abs <= c.bound;
             });
  compare_near(file, out + ".table_every", floats(every), 2e-5);
  compare_near(file, out + ".t", floats(t), 2e-5);
  compare_near(file, out + ".quantile_t", floats(quantiles), 2e-5);
  compare_near(file, out + ".quantile_t_exact", floats(exact), 2e-6);
}

/// ai-toolkit's bell over the indices, mean 1; `half`: held at its largest from the middle on.
Numbers bell(size_t count, bool half) {
  Numbers weights;
  for (size_t i = 0; i < count; ++i)
    weights.push_back(std::exp(
        -2 * std::pow((static_cast<double>(i) - static_cast<double>(count) / 2) / static_cast<double>(count), 2)));
  const double least = *std::ranges::min_element(weights);
  for (double& w : weights) w -= least;
  const double mean = std::accumulate(weights.begin(), weights.end(), 0.0) / static_cast<double>(count);
  for (double& w : weights) w /= mean;
  for (size_t i = count / 2; half && i < count; ++i) weights[i] = *std::ranges::max_element(weights);
  return weights;
}

/// ai-toolkit's list of timesteps, the noisy ones first.
Numbers ai_list(const CaseFile& file, const std::string& run, const Settings& settings, const std::string& kind) {
  const auto count = settings.at("num_train_timesteps").get<size_t>();
  const bool dynamic = settings.at("use_dynamic_shifting");
  const double by_hand = settings.at("shift"), base = settings.at("base_shift"), most = settings.at("max_shift"),
               terminal = settings.value("shift_terminal", 0.0);
  const int64_t patch = settings.at("patch_size");
  const auto hw = settings.at("latent_hw").get<std::array<int64_t, 2>>();
  const auto n = static_cast<double>(count);
  Numbers list;
  if (kind == "sigmoid") {
    for (const double z : numbers(file.tensor("in.ai." + run + ".normal"))) list.push_back(n * (1 - sigmoid(z)));
    check_input(list.size() == count, "verify", "in.ai." + run + ".normal has a number for each timestep");
    std::ranges::sort(list, std::greater<>());
    return list;
  }
  if (kind == "linear" || kind == "weighted") {
    for (size_t i = 0; i < count; ++i) list.push_back(n - static_cast<double>(i));
    return list;
  }
  if (!kind.ends_with("shift")) unknown("timestep_type", kind);
  const double tokens = static_cast<double>(hw[0] * hw[1] / (patch * patch));
  const double shift = dynamic ? std::exp(base + (most - base) * (tokens - 256) / (4096 - 256)) : by_hand;
  // The ends are shifted once where the list is made, and again with all of it.
  const double last = dynamic ? 1 / n : shift_sigma(1 / n, shift);
  for (size_t i = 0; i < count; ++i)
    list.push_back(shift_sigma(1 + (last - 1) * static_cast<double>(i) / (n - 1), shift));
  const double stretch = terminal > 0 ? (1 - list.back()) / (1 - terminal) : 1;
  for (double& t : list) t = n * (1 - (1 - t) / stretch);
  return list;
}

void check_ai(CaseFile& file, const std::string& run, const Settings& settings) {
  const std::string out = "out.ai." + run, kind = settings.at("timestep_type"), style = settings.at("content_or_style");
  const double low = settings.at("min_denoising_steps"), high = settings.at("max_denoising_steps");
  const Numbers list = ai_list(file, run, settings, kind);
  const auto n = static_cast<double>(list.size());
  if (style != "balanced" && style != "content" && style != "style") unknown("content_or_style", style);
  Numbers indices, t;
  for (const double u : numbers(file.tensor("in.ai." + run + ".uniform"))) {
    const double cubed = u * u * u, place = style == "content" ? cubed * n : (1 - cubed) * n;
    indices.push_back(style == "balanced" ? std::floor(low + u * (high - low))
                                          : std::trunc(low + (high - low) * place / (n - 1)));
    t.push_back(list.at(static_cast<size_t>(indices.back())));
  }
  compare_near(file, out + ".timesteps", floats(list), 2e-6);
  file.compare(out + ".index", integers(indices), 0.0);
  compare_near(file, out + ".t", floats(t), 2e-6);
  const Numbers whole = bell(list.size(), false), half = bell(list.size(), true);
  const auto weights = [&](const char* name, const Numbers& table) {
    if (!file.has(out + name)) return;
    Numbers found;
    for (const double index : indices) found.push_back(table.at(static_cast<size_t>(index)));
    compare_near(file, out + name, floats(found), 1e-5);
  };
  weights(".weight", kind == "weighted" ? numbers(file.tensor("out.ai_table.weighted")) : whole);
  weights(".weight_v2", half);
}

/// A monotone cubic through values at equal distances on 0..1, as PCHIP has it, without what is below 0.
double monotone_cubic(const Numbers& y, double x) {
  const auto last = y.size() - 1;
  const auto count = static_cast<double>(last);
  const size_t i = std::min(static_cast<size_t>(x * count), last - 1);
  const auto rise = [&](size_t k) { return (y[k + 1] - y[k]) * count; };
  const auto end = [](double a, double b) {  // one-sided, of three points
    const double slope = (3 * a - b) / 2;
    if (slope * a <= 0) return 0.0;
    return a * b <= 0 && std::abs(slope) > 3 * std::abs(a) ? 3 * a : slope;
  };
  const auto slope = [&](size_t k) {
    if (last == 1) return rise(0);
    if (k == 0) return end(rise(0), rise(1));
    if (k == last) return end(rise(last - 1), rise(last - 2));
    const double a = rise(k - 1), b = rise(k);
    return a * b > 0 ? 2 * a * b / (a + b) : 0;
  };
  const double h = 1 / count, s = (x - static_cast<double>(i) * h) / h;
  const double value = y[i] * (1 + 2 * s) * (1 - s) * (1 - s) + y[i + 1] * s * s * (3 - 2 * s) +
                       h * (slope(i) * s * (1 - s) * (1 - s) - slope(i + 1) * s * s * (1 - s));
  return std::max(value, 0.0);
}

/// Where draws of that density lie below `u` of them.
double by_density(const Numbers& density, double u) {
  constexpr size_t kPoints = 4097;
  static_assert(kPoints > 1);
  Numbers sums(kPoints, 0.0);
  const double step = 1.0 / (kPoints - 1);
  for (size_t i = 1; i < kPoints; ++i)
    sums[i] = sums[i - 1] + step / 2 *
                                (monotone_cubic(density, static_cast<double>(i - 1) * step) +
                                 monotone_cubic(density, static_cast<double>(i) * step));
  const double wanted = u * sums.back();
  const auto above = static_cast<size_t>(std::ranges::upper_bound(sums, wanted) - sums.begin());
  const size_t i = std::clamp<size_t>(above, 1, kPoints - 1);
  const double rise = sums[i] - sums[i - 1];
  return (static_cast<double>(i - 1) + (rise > 0 ? (wanted - sums[i - 1]) / rise : 0)) * step;
}

void check_st(CaseFile& file, const std::string& run, const Settings& settings, double bound) {
  const auto noise = settings.at("noise").get<std::vector<int64_t>>();
  check_input(noise.size() == 4 || noise.size() == 5, "verify", "noise has four or five dimensions");
  const Settings scheduler = settings.at("scheduler");
  const double from = scheduler.at("base_image_seq_len"), to = scheduler.at("max_image_seq_len"),
               base = scheduler.at("base_shift"), most = scheduler.at("max_shift");
  const int64_t patch = scheduler.at("patch_size"), frames = noise.size() == 5 ? noise[2] : 1;
  const double tokens = static_cast<double>(frames * (noise[noise.size() - 2] / patch) * (noise.back() / patch));
  const double by_hand = settings.value("flow_schedule_shift", 0.0), scale = settings.at("flow_sigmoid_scale"),
               offset = settings.at("timestep_offset");
  const bool automatic = settings.at("flow_schedule_auto_shift"), uniform = settings.at("flow_use_uniform_schedule"),
             beta = settings.at("flow_use_beta_schedule"), fast = settings.at("flux_fast_schedule"),
             mixes = settings.at("mixflow_enabled");
  settings.read("flow_beta_schedule_alpha"), settings.read("flow_beta_schedule_beta");  // the draws have them
  const auto list = settings.value("flow_custom_timesteps", Numbers()),
             density = settings.value("flow_cubic_schedule_weights", Numbers());
  const std::string mode = settings.at("flow_timesteps_mode");
  if (!list.empty() && mode != "fixed-list" && mode != "round-robin") unknown("flow_timesteps_mode", mode);
  const double shift = by_hand > 0 ? by_hand
                       : automatic ? std::exp(base + (most - base) * (tokens - from) / (to - from))
                                   : 1;
  const auto draws = [&](const char* kind) { return numbers(file.tensor("in.st." + run + "." + kind)); };
  Numbers sigmas;
  if (!density.empty()) {
    check_input(density.size() > 1, "verify", "flow_cubic_schedule_weights has at least two numbers");
    for (const double u : draws("uniform")) sigmas.push_back(shift_sigma(by_density(density, u), shift));
  } else if (mixes) {
    for (const double u : draws("uniform")) sigmas.push_back(shift_sigma(1 - std::sqrt(u), shift));
  } else if (!list.empty()) {
    for (int64_t i = 0; i < noise[0]; ++i) {
      const size_t place =
          mode == "round-robin"
              ? static_cast<size_t>(i) % list.size()
              : static_cast<size_t>(draws("uniform").at(static_cast<size_t>(i)) * static_cast<double>(list.size()));
      const double value = list.at(std::min(place, list.size() - 1));
      sigmas.push_back(value <= 1 ? value : value / 1000);
    }
  } else if (fast) {
    const Numbers choice = {1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25};
    for (const double u : draws("uniform")) sigmas.push_back(choice.at(static_cast<size_t>(u * 10)));
  } else if (uniform) {
    for (const double u : draws("uniform")) sigmas.push_back(shift_sigma(u, shift));
  } else if (beta) {
    for (const double b : draws("beta")) sigmas.push_back(shift_sigma(b, shift));
  } else {
    for (const double z : draws("normal")) sigmas.push_back(shift_sigma(sigmoid(scale * (z + offset)), shift));
  }
  Numbers timesteps;
  for (const double sigma : sigmas) timesteps.push_back(1000 * sigma);
  compare_near(file, "out.st." + run + ".sigmas", floats(sigmas), bound);
  compare_near(file, "out.st." + run + ".timesteps", floats(timesteps), bound);
}

/// OneTrainer's tables: a weight of each timestep.
Numbers ot_weights(const std::string& kind, double weight, double bias, double shift, int64_t count) {
  const auto unshifted = [&](double x) { return x / (shift - shift * x + x); };
  Numbers weights;
  for (int64_t i = 0; i < count; ++i) {
    const double x = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0, l = unshifted(x);
    const double value = kind == "COS_MAP"   ? 2 / (M_PI * (1 - 2 * l + 2 * l * l))
                         : kind == "SIGMOID" ? sigmoid(weight * (unshifted(l) - bias - 0.5))
                                             : std::max(0.0, 2 - weight * std::pow(l - bias - 0.5, 2));
    weights.push_back(value * shift / std::pow(shift + x - shift * x, 2));
  }
  return weights;
}

void check_ot(CaseFile& file, const std::string& run, const Settings& settings) {
  const std::string kind = settings.at("timestep_distribution"), out = "out.ot." + run, in = "in.ot." + run;
  const double low = settings.at("min_noising_strength"), high = settings.at("max_noising_strength"),
               weight = settings.at("noising_weight"), bias = settings.at("noising_bias"),
               shift = settings.at("timestep_shift");
  const auto first = static_cast<int64_t>(low * 1000), last = static_cast<int64_t>(high * 1000);
  Numbers timesteps;
  if (kind == "COS_MAP" || kind == "SIGMOID" || kind == "INVERTED_PARABOLA") {
    const Numbers weights = ot_weights(kind, weight, bias, shift, last - first);
    Numbers sums(weights.size());
    std::partial_sum(weights.begin(), weights.end(), sums.begin());
    for (const double u : numbers(file.tensor(in + ".uniform"))) {
      const auto place = std::ranges::upper_bound(sums, u * sums.back()) - sums.begin();
      timesteps.push_back(static_cast<double>(std::min<int64_t>(place, last - first - 1) + first));
    }
    if (file.has(out + ".weights"))
      file.compare_each(out + ".weights", floats(weights),
                        [](const Tensor& expected) { return expected.abs() * 1e-5 + 1e-7; });
  } else {
    const auto share = [&](double draw) {
      if (kind == "UNIFORM") return draw;
      if (kind == "LOGIT_NORMAL") return sigmoid(bias + (weight + 1) * draw);
      if (kind == "HEAVY_TAIL") return diffusion::mode_of(draw, weight);
      if (kind != "BETA") unknown("timestep_distribution", kind);
      check_input(bias == 1 || weight == 1, "verify",
                  "BETA with noising_weight and noising_bias other than 1 has draws of its own");
      return bias == 1 ? std::pow(draw, 1 / weight) : 1 - std::pow(draw, 1 / bias);
    };
    const bool normal = kind == "LOGIT_NORMAL";
    for (const double draw : numbers(file.tensor(in + (normal ? ".normal" : ".uniform"))))
      timesteps.push_back(std::trunc(1000 * shift_sigma(low + (high - low) * share(draw), shift)));
  }
  file.compare(out + ".timestep", integers(timesteps), 0.0);
}

}  // namespace

std::vector<double> pipe_timesteps(const Settings& settings, int64_t height, int64_t width) {
  constexpr int kEntries = 10000;
  const diffusion::Options options = pipe_options(settings, height, width);
  const double low = settings.at("min_t"), high = settings.at("max_t");
  std::vector<double> table;
  for (int i = 0; i < kEntries; ++i)
    if (const double t = diffusion::quantile(options, 1e-4 + (1 - 2e-4) * i / (kEntries - 1)); t >= low && t < high)
      table.push_back(t);
  check_input(!table.empty(), "verify", "min_t to max_t leaves no entry of the table");
  return table;
}

CaseResults verify_timestep_kinds(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const auto check = [&](const std::string& project, const auto& of_run) {
    if (!context.config.contains(project)) return;
    for (const auto& [run, settings] : context.config.at(project).items()) {
      try {
        of_run(run, settings);
      } catch (const UserError& error) {
        settings.json();
        file.refuse_run(project + "." + run, error.what());
      }
    }
  };
  const double bound = context.tolerance("t, sigmas"), inverse = context.tolerance("erfinv kinds (buckets_*)");
  check("musubi",
        [&](const std::string& run, const Settings& s) { Musubi(file, run, s).check(file, run, bound, inverse); });
  check("dp", [&](const std::string& run, const Settings& s) { check_dp(file, run, s); });
  check("ai", [&](const std::string& run, const Settings& s) { check_ai(file, run, s); });
  check("st", [&](const std::string& run, const Settings& s) { check_st(file, run, s, bound); });
  check("ot", [&](const std::string& run, const Settings& s) { check_ot(file, run, s); });
  check_musubi_weights(file);
  for (const auto& [name, half] : {std::pair("out.ai_table.bell", false), {"out.ai_table.half_bell", true}})
    if (file.has(name))
      compare_near(file, name, floats(bell(static_cast<size_t>(file.tensor(name).numel()), half)), 1e-6);
  file.leave_out("out.ai_table.weighted",
                 "a table of numbers that ai-toolkit measured, by which its weights are looked up");
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
