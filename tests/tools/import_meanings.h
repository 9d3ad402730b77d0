#pragma once
// What other trainers' configurations mean: the recipe of each is held against the trainer's own formulas, written down
// here by hand. Rates are read from the schedule, timesteps from the distribution that a job draws from, and what is left
// of the checkpoints from the rules of keeping.
#include <cmath>
#include <sstream>

#include "tessera/job/experts.h"
#include "tessera/job/given_checks.h"
#include "tessera/recipe/lr_schedule.h"
#include "tools/import_cases.h"

namespace tessera::tools::meanings {

using Rates = std::vector<std::pair<int64_t, double>>;  ///< of steps, from 0 on
using Steps = std::vector<int64_t>;

struct Optimiser {
  std::string name = "adamw";
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.01, clip = 1;
  bool eight = false;  ///< moments of 8 bits
};

struct Meaning {
  Rates lr = {};
  int64_t batch = 1, steps = 0;
  std::vector<double> sigmas = {};  ///< at the quantiles 0.1, 0.3, 0.5, 0.7 and 0.9; none: not held
  std::string shapes = {};          ///< empty: not held
  double fps = 16, dropout = 0;
  int64_t repeats = 1;
  Optimiser by = {};
  Steps saved = {};                  ///< checkpoints that are left at the end
  std::optional<Steps> files = {};   ///< of a LoRA, where others are left
  std::vector<int64_t> latent = {};  ///< whose shift is asked for, where each sample has its own
  std::vector<std::pair<std::string, std::string>> told = {};  ///< as of a Case
  std::string refused = {};                                    ///< likewise: options, with spaces between them
};

struct Row {
  const char* what;
  std::string text;  ///< of a command, or of the file `name`; @ is the folder
  Meaning means;
  std::string name = {};
  int ranks = 0;
};

// ---- the formulas of rates and timesteps ------------------------------------------------------------------------------

inline Rates level(double lr) { return {{0, lr}, {7, lr}, {50, lr}, {100, lr}, {200, lr}}; }
/// Of diffusers and transformers: lr i / w, then the same.
inline Rates ramp(double lr, int64_t w) { return {{0, 0}, {w / 4, lr / 4}, {w / 2, lr / 2}, {w, lr}, {2 * w, lr}}; }
/// ... then down to 0 after n steps, or by a half cosine to the least rate.
inline Rates falling(double lr, int64_t w, int64_t n, const std::function<double(double)>& rate_at) {
  Rates rates = {{w / 2, w > 0 ? lr * static_cast<double>(w / 2) / static_cast<double>(w) : lr}};
  for (const int64_t step : {w, w + (n - w) / 4, w + (n - w) / 2, n})
    rates.emplace_back(step, rate_at(static_cast<double>(step - w) / static_cast<double>(n - w)));
  return rates;
}
inline Rates line(double lr, int64_t w, int64_t n) {
  return falling(lr, w, n, [=](double p) { return lr * (1 - p); });
}
inline Rates half_cosine(double lr, int64_t w, int64_t n, double least = 0) {
  return falling(lr, w, n, [=](double p) { return least + (lr - least) * (1 + std::cos(p * std::acos(-1.0))) / 2; });
}

inline constexpr double kQuantiles[] = {0.1, 0.3, 0.5, 0.7, 0.9};
inline constexpr double kNormal[] = {-1.2815515655446004, -0.5244005127080407, 0, 0.5244005127080407,
                                     1.2815515655446004};

inline double shifted(double u, double s) { return s * u / (1 + (s - 1) * u); }
inline double before_shift(double sigma, double s) { return sigma / (s - (s - 1) * sigma); }
/// Between two sigmas after the shift.
inline std::vector<double> uniform(double s, double low = 0, double high = 1) {
  const double from = before_shift(low, s), to = before_shift(high, s);
  std::vector<double> sigmas;
  for (const double q : kQuantiles) sigmas.push_back(shifted(from + q * (to - from), s));
  return sigmas;
}
inline std::vector<double> sigmoid(double s, double scale = 1, double mean = 0) {
  std::vector<double> sigmas;
  for (const double z : kNormal) sigmas.push_back(shifted(1 / (1 + std::exp(-(mean + scale * z))), s));
  return sigmas;
}
/// Entries 1000 - i of DiffSynth's table of 1000, from `first` to `last` of its indices, as fractions.
inline std::vector<double> diffsynth(double first, double last) {
  std::vector<double> sigmas;
  for (const double q : kQuantiles) sigmas.push_back(shifted(1 - last + q * (last - first), 5));
  return sigmas;
}

inline Steps each(int64_t every, int64_t last, int64_t first = 0) {
  Steps steps;
  for (int64_t s = std::max(first, every); s < last; s += every) steps.push_back(s);
  steps.push_back(last);
  return steps;
}

// ---- what a recipe comes to -------------------------------------------------------------------------------------------

/// Below which a share `q` of the draws lies.
inline double sigma_at(const diffusion::Options& options, double q) {
  double low = options.window.low, high = options.window.high;
  const double all = diffusion::window_mass(options, options.window), least = options.window.low;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (diffusion::window_mass(options, {least, middle}) < q * all ? low : high) = middle;
  }
  return low;
}

inline Steps left(const recipe::Recipe& r, int64_t keep) {
  Steps saves = each(r.checkpoint.every > 0 ? r.checkpoint.every : r.run.steps, r.run.steps);
  if (keep > 0 && static_cast<int64_t>(saves.size()) > keep) saves.erase(saves.begin(), saves.end() - keep);
  return saves;
}

inline std::string shapes_of(const recipe::Recipe& r) {
  std::string text;
  for (const std::string& bucket : split_list(r.values.at("data.buckets"))) text += (text.empty() ? "" : " ") + bucket;
  if (!text.empty()) return text;
  return std::to_string(r.data.frames) + "x" + std::to_string(r.data.height) + "x" + std::to_string(r.data.width);
}

inline void hold_optimiser(const recipe::Recipe& r, const Optimiser& by) {
  EXPECT_EQ(r.values.at("train.optimizer"), by.name);
  EXPECT_EQ(r.plan.states.moments == plan::Moments::int8, by.eight);
  if (by.name == "adamw" || by.name == "lion" || by.name == "prodigy") {
    EXPECT_DOUBLE_EQ(r.train.betas[0], by.beta1);
    EXPECT_DOUBLE_EQ(r.train.betas[1], by.beta2);
  }
  if (by.name == "adamw" || by.name == "prodigy") EXPECT_DOUBLE_EQ(r.train.eps, by.eps);
  EXPECT_DOUBLE_EQ(r.train.weight_decay, by.decay);
  EXPECT_DOUBLE_EQ(r.train.clip_norm, by.clip);
}

inline void hold_timesteps(const recipe::Recipe& r, const Meaning& m) {
  diffusion::Options options = job::timestep_options(r, {});
  if (!m.latent.empty()) options = diffusion::of_size(options, m.latent);
  const bool table = options.timesteps == diffusion::Timesteps::diffsynth ||
                     options.timesteps == diffusion::Timesteps::diffusers ||
                     options.timesteps == diffusion::Timesteps::nvlabs;
  for (size_t i = 0; i < m.sigmas.size(); ++i)  // of a table, up to an entry
    EXPECT_NEAR(sigma_at(options, kQuantiles[i]), m.sigmas[i], table ? 4e-3 : 1e-5) << "quantile " << kQuantiles[i];
}

inline void hold(const Folder& folder, const Row& row) {
  SCOPED_TRACE(row.what);
  const auto placed = [&](const std::string& with_places) {
    std::string text;
    for (const char c : with_places) c == '@' ? text += folder.path.string() : text += c;
    return text;
  };
  const std::string text = placed(row.text);
  const ImportContext context{.ranks = row.ranks, .folder = folder.path.string()};
  const Translation t =
      row.name.empty() ? import_command(text, context) : import_file(folder.file(row.name, text), context);
  for (const auto& mistake : t.mistakes) ADD_FAILURE() << mistake.option << ": " << mistake.why;
  Meaning m = row.means;
  std::istringstream refused(m.refused);
  for (std::string option; refused >> option;) m.told.emplace_back(option, "refused");
  for (auto& told : m.told) told.first = placed(told.first);
  const auto is_told = [&](const Translation::Remark& remark) {
    return std::ranges::any_of(m.told, [&](const auto& told) { return remark.option.starts_with(told.first); });
  };
  for (const auto& remark : t.refused)
    EXPECT_TRUE(is_told(remark)) << "refused: " << remark.option << ": " << remark.why;
  check({text, m.told}, t);
  const recipe::Recipe r = recipe::load_recipe("", t.overrides());
  for (const std::string& note : job::without_effect(r, r.mesh))
    for (const auto& setting : t.settings)
      EXPECT_FALSE(note.starts_with(setting.key + " = ") && note.find(" has no effect: ") != std::string::npos) << note;
  EXPECT_EQ(r.train.global_batch, m.batch);
  if (m.steps > 0) EXPECT_EQ(r.run.steps, m.steps);
  for (const auto& [step, rate] : m.lr)
    EXPECT_NEAR(recipe::learning_rate(r.lr_schedule, step), rate, 1e-6 * rate + 2e-13) << "rate of step " << step;
  hold_optimiser(r, m.by);
  EXPECT_DOUBLE_EQ(r.diffusion.caption_dropout, m.dropout);
  if (!m.sigmas.empty()) hold_timesteps(r, m);
  if (!m.shapes.empty()) {
    EXPECT_EQ(shapes_of(r), m.shapes);
    EXPECT_DOUBLE_EQ(r.data.fps, m.fps);
    EXPECT_EQ(r.data.repeats, m.repeats);
  }
  if (m.saved.empty()) return;
  EXPECT_EQ(left(r, r.checkpoint.keep), m.saved);
  if (r.lora.on) EXPECT_EQ(left(r, r.checkpoint.keep_exports), m.files.value_or(m.saved)) << "files of the LoRA";
}

inline void hold_all(const Folder& folder, const std::vector<Row>& rows) {
  for (const Row& row : rows) hold(folder, row);
}

}  // namespace tessera::tools::meanings
