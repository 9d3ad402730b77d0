#include "tessera/job/experts.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/families/registry.h"

namespace tessera::job {

namespace {

namespace fs = std::filesystem;

/// The shift of the grid that DiffSynth's fractions are of.
constexpr double kDiffSynthShift = 5;

/// The family's two experts, high noise first, both with the weights of one model; none where it has single models.
std::vector<Expert> experts_of(const recipe::Recipe& recipe) {
  std::vector<Expert> experts;
  for (const families::Expert& expert : families::of(recipe.model.family).experts)
    experts.push_back({expert.name, recipe.model.path, expert.folder});
  return experts;
}

/// Those whose folders model.path holds, under official names or diffusers'; nothing where it holds one model.
std::vector<Expert> expert_folders(const recipe::Recipe& recipe) {
  const fs::path path = recipe.model.path;
  std::vector<Expert> experts = experts_of(recipe);
  if (path.empty() || !fs::is_directory(path) || experts.empty()) return {};
  const checkpoint::ModelFolder found = checkpoint::find_parts(path);
  const checkpoint::ModelPart *high = found.find("transformer"), *low = found.find("transformer_2");
  const bool one = high && high->weights.filename() == experts[0].folder;
  if (!low && !one) return {};
  check_input(low && high, "model.path",
              path.string() + " holds one of two experts: there is no " +
                  (high                          ? experts[1].folder
                   : found.layout == "diffusers" ? "transformer"
                                                 : experts[0].folder),
              "complete the folder, or train the one that is there: model.path = \"" +
                  (high ? high : low)->weights.string() + "\"");
  experts[0].path = high->weights.string(), experts[1].path = low->weights.string();
  return experts;
}

/// "expert_0": of those that a gate chooses among, and their folders.
std::string gated_name(size_t expert) { return "expert_" + std::to_string(expert); }

/// As many as experts.count: those of a folder that a run with a gate exported, or copies of one model.
Experts gated_experts(const recipe::Recipe& recipe) {
  const auto count = static_cast<size_t>(recipe.experts.count);
  const fs::path path = recipe.model.path;
  if (recipe.experts.train != "auto")
    throw UserError(Exit::usage, "experts.router",
                    "a gate chooses among experts without timestep ranges; experts.train = \"" + recipe.experts.train +
                        "\" belongs to experts.router = \"turns\"",
                    "leave experts.train out, or experts.router");
  if (!expert_folders(recipe).empty())
    throw UserError(Exit::usage, "experts.router",
                    path.string() + " holds two experts with a timestep range each; a gate starts from one model",
                    "give one of its folders as model.path, or leave experts.router out");
  Experts experts;
  experts.gated = true;
  if (path.empty() || !fs::is_directory(path / gated_name(0))) {
    for (size_t e = 0; e < count; ++e) experts.list.push_back({gated_name(e), path.string(), gated_name(e)});
    return experts;
  }
  for (size_t e = 0; fs::is_directory(path / gated_name(e)); ++e)
    experts.list.push_back({gated_name(e), (path / gated_name(e)).string(), gated_name(e)});
  if (experts.size() != count)
    throw UserError(Exit::usage, "experts.count",
                    path.string() + " holds " + std::to_string(experts.size()) + " experts, experts.count is " +
                        std::to_string(count),
                    "set experts.count = " + std::to_string(experts.size()));
  return experts;
}

double number_of(const std::string& text, const std::string& shown) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value > 0 && value < 1) return value;
  throw UserError(Exit::usage, "experts.boundary", "'" + shown + "': expected auto or a number between 0 and 1",
                  "0.875 is a sigma after the shift; a fraction of DiffSynth's grid is written diffsynth(0.417)");
}

/// The user's shares of the steps, high noise first; empty: by mass.
std::vector<double> shares_by_hand(const recipe::Recipe& recipe, size_t experts) {
  const std::vector<double>& given = recipe.experts.shares;
  if (given.empty()) return {};
  const double sum = std::accumulate(given.begin(), given.end(), 0.0);
  if (given.size() != experts || sum <= 0 || *std::min_element(given.begin(), given.end()) < 0)
    throw UserError(Exit::usage, "experts.shares",
                    std::to_string(given.size()) + " numbers for " + std::to_string(experts) + " experts",
                    "give one for each, high noise first, not below 0 and not all 0: [1, 1] gives both as many steps");
  std::vector<double> shares;
  for (double share : given) shares.push_back(share / sum);
  return shares;
}

/// That of the base's folder, or of the one in which the expert lies that model.path names; nothing where it says none.
/// Says where the recipe shifts otherwise than a run trained the base.
std::optional<double> told_boundary(const recipe::Recipe& recipe) {
  const auto [boundary, shift, file] = checkpoint::find_facts(recipe.model.path);
  if (file.empty()) return {};
  check_input(boundary && *boundary > 0 && *boundary < 1, "experts.boundary",
              file.string() + " has no boundary between 0 and 1",
              "set experts.boundary, or remove the file for that of the model's release");
  const std::string& ours = recipe.values.at("diffusion.shift");
  if (shift && file.filename() == checkpoint::kExpertsFile && *shift != recipe.diffusion.shift) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", *shift);
    log::info(file.string() + ": the experts were trained with diffusion.shift = " + text + ", this recipe has " +
              ours);
  }
  return boundary;
}

}  // namespace

Experts find_experts(const recipe::Recipe& recipe) {
  if (recipe.experts.router == "gate") return gated_experts(recipe);
  const std::string& train = recipe.experts.train;
  if (!recipe.model.path.empty() && fs::is_directory(fs::path(recipe.model.path) / gated_name(0)))
    throw UserError(Exit::usage, "model.path", recipe.model.path + " holds experts that a gate chooses among",
                    "set experts.router = \"gate\" and experts.count, or give one of them: " +
                        (fs::path(recipe.model.path) / gated_name(0)).string());
  Experts experts{expert_folders(recipe)};
  if (experts.list.empty() && train != "auto") experts.list = experts_of(recipe);  // both begin as the one model
  if (train != "auto" && train != "both")
    std::erase_if(experts.list, [&](const Expert& expert) { return expert.name != train; });
  if (experts.list.empty() && train != "auto")
    throw UserError(Exit::usage, "experts.train",
                    "models of the family " + families::of(recipe.model.family).name +
                        " have no experts that own a range of noise" +
                        (train == "both" ? "" : " and are called " + train),
                    "leave experts.train out, or set experts.router = \"gate\"");
  if (experts.list.empty()) experts.list = {{"", recipe.model.path, ""}};
  if (!recipe.distill.on()) return experts;
  experts.teacher = recipe.distill.teacher, experts.regresses = recipe.distill.regresses();
  if (!recipe.distill.matches()) return experts;
  const std::string& critic = recipe.distill.critic;
  experts.list = {{"student", recipe.model.path, "student"},
                  {"critic", critic.empty() ? experts.teacher : critic, "critic"}};
  experts.critic_steps = recipe.distill.critic_steps;
  // Weights that a plan does without have no path.
  const auto of_teacher = [teacher = fs::path(experts.teacher).lexically_normal()](const Expert& expert) {
    return expert.path.empty() || fs::path(expert.path).lexically_normal() == teacher;
  };
  experts.shared_base = recipe.lora.on && std::ranges::all_of(experts.list, of_teacher);
  return experts;
}

void have_own_teacher(Experts& experts, bool named_critic, bool adapters) {
  experts.own_teacher = true;
  if (!named_critic) experts.list[1].path = experts.list[0].path;
  const auto path = [&](size_t e) { return fs::path(experts.list[e].path).lexically_normal(); };
  experts.shared_base = adapters && path(0) == path(1);
}

double parse_boundary(const std::string& text) {
  constexpr std::string_view kIndex = "diffsynth(";
  if (!text.starts_with(kIndex)) return number_of(text, text);
  if (!text.ends_with(")")) number_of("", text);
  return diffusion::shift_sigma(1 - number_of(text.substr(kIndex.size(), text.size() - kIndex.size() - 1), text),
                                kDiffSynthShift);
}

void place_boundary(Experts& experts, const recipe::Recipe& recipe, const net::Denoiser& model) {
  if (experts.critic()) return;
  const std::string& text = recipe.experts.boundary;
  const std::vector<Expert> both = experts_of(recipe);
  const bool asked = text == "auto" && !experts.gated && !experts.list.front().name.empty();
  experts.boundary = text != "auto" ? parse_boundary(text)
                     : asked        ? told_boundary(recipe).value_or(model.released_boundary())
                                    : model.released_boundary();
  for (Expert& expert : experts.list) {
    if (both.empty() || expert.name.empty() || experts.gated) continue;
    expert.window =
        expert.name == both[0].name ? diffusion::Window{experts.boundary, 1} : diffusion::Window{0, experts.boundary};
  }
}

recipe::Recipe for_expert(recipe::Recipe recipe, const Experts& experts, size_t e) {
  const Expert& expert = experts.list.at(e);
  recipe.model.path = expert.path;
  if (!experts.several() || recipe.lora.init.empty()) return recipe;
  if (experts.critic()) {  // it is the student's
    if (e > 0) recipe.lora.init.clear();
    return recipe;
  }
  const fs::path own = fs::path(recipe.lora.init) / expert.folder;
  if (!fs::exists(own))
    throw UserError(Exit::input, "lora.init",
                    recipe.lora.init + " has no " + expert.folder + ": a LoRA belongs to one expert, the run has " +
                        std::to_string(experts.size()),
                    "give a folder with one for each, such as run.out/model of a LoRA run");
  recipe.lora.init = own.string();
  return recipe;
}

namespace {

/// LOW:HIGH with their shares, as read_bands() of the recipe lets them through.
std::vector<diffusion::Band> bands_of(const std::vector<families::Weighted>& written) {
  std::vector<diffusion::Band> bands;
  for (const families::Weighted& each : written) {
    const size_t colon = each.name.find(':');
    bands.push_back({{to_number(each.name.substr(0, colon)), to_number(each.name.substr(colon + 1))}, each.weight});
  }
  return bands;
}

}  // namespace

diffusion::MaskRule mask_rule(bool on, const recipe::Recipe::Diffusion& rules, const recipe::Recipe::Data& data) {
  return {.on = on,
          .inverted = data.invert_mask,
          .least = data.mask_min_value,
          .unmasked = rules.unmasked_weight,
          .whole_share = rules.unmasked_probability,
          .of_area = rules.normalize_masked_area};
}

diffusion::LossRule loss_rule(const recipe::Recipe& recipe) {
  diffusion::LossRule rule;
  rule.form.weights = {};
  for (const families::Weighted& term : recipe.diffusion.loss)
    for (size_t kind = 0; kind < ops::kErrorKinds; ++kind)
      if (term.name == ops::kErrorNames[kind]) rule.form.weights[kind] += term.weight;
  rule.form.c = recipe.diffusion.huber_c;
  rule.schedule = diffusion::huber_schedule_of(recipe.diffusion.huber_schedule);
  rule.scale = recipe.diffusion.huber_scale;
  rule.masks = mask_rule(recipe.masked(), recipe.diffusion, recipe.data);
  const auto& guidance = recipe.train.guidance;
  rule.guidance = {guidance.low, guidance.high, guidance.by_sigma, guidance.zero, guidance.weight};
  return rule;
}

diffusion::ChunkDraws chunk_draws(const recipe::Recipe::Diffusion& diffusion) {
  return {diffusion.chunks, diffusion.chunk_draws == "incremental", diffusion.chunk_same_share,
          diffusion.first_frame_noise};
}

diffusion::Options timestep_options(const recipe::Recipe& recipe, const Expert& expert) {
  diffusion::Options options;
  options.mean = recipe.diffusion.logit_mean, options.scale = recipe.diffusion.logit_std;
  diffusion::parse_timesteps(recipe.diffusion.timesteps, options);
  using diffusion::Timesteps;
  options.shift = recipe.diffusion.shift;
  options.piece = expert.piece;
  options.mode_scale = recipe.diffusion.mode_scale;
  options.strata = recipe.diffusion.strata, options.batch = recipe.clips_of(recipe.train.global_batch);
  const bool mixed = options.timesteps == Timesteps::qinglong_flux || options.timesteps == Timesteps::qinglong_qwen;
  if (mixed || options.timesteps == Timesteps::logsnr) options.mean /= -2, options.scale /= 2;
  if (options.timesteps == Timesteps::logsnr) options.shift = 1;
  options.bands = bands_of(recipe.diffusion.bands);
  if (!options.bands.empty() && diffusion::shifts_each(options.timesteps))
    throw UserError(Exit::usage, "diffusion.bands",
                    recipe.diffusion.timesteps +
                        " shifts the timesteps of each sample by its size, so no share of "
                        "them lies in a band",
                    "leave diffusion.bands out, or choose another diffusion.timesteps");
  options.weighting = diffusion::parse_weighting(recipe.diffusion.weighting);
  options.window = {std::max(expert.window.low, recipe.diffusion.min_t),
                    std::min(expert.window.high, recipe.diffusion.max_t)};
  if (diffusion::shifts_each(options.timesteps)) {
    if (options.window != diffusion::Window{})
      throw UserError(Exit::usage, "diffusion.timesteps",
                      recipe.diffusion.timesteps +
                          " shifts the timesteps of each sample by its size, so no share of them lies in one window",
                      expert.name.empty() ? "leave diffusion.min_t and diffusion.max_t out"
                                          : "two experts need a shift for all samples: choose logit_normal");
    options.rounds_to_bf16 = options.timesteps == diffusion::Timesteps::by_size && recipe.plan.compute == DType::bf16;
  }
  if (options.window.low < options.window.high && diffusion::window_mass(options, options.window) > 0) return options;
  char window[64];
  std::snprintf(window, sizeof window, "%g to %g", options.window.low, options.window.high);
  throw UserError(Exit::usage, "diffusion.min_t",
                  "no timestep is drawn from " + std::string(window) +
                      (expert.name.empty() ? "" : ", what is left of the " + expert.name + " expert's window"),
                  "diffusion.min_t and diffusion.max_t are sigmas after the shift, 0 to 1; widen them");
}

diffusion::ExpertOrder plan_expert_order(const Experts& experts, const std::vector<recipe::RunPart>& parts) {
  const recipe::Recipe& recipe = parts.at(0).recipe;
  diffusion::ExpertOrder order({.seed = static_cast<uint64_t>(recipe.run.seed),
                                .period = recipe.experts.turn,
                                .experts = experts.places(),
                                .cycle = experts.critic() ? experts.critic_steps + 1 : 0});
  for (const recipe::RunPart& part : parts) {
    std::vector<double> shares = experts.gated ? std::vector{1.0} : shares_by_hand(part.recipe, experts.size());
    if (shares.empty()) {
      double sum = 0;
      for (const Expert& expert : experts.list) {
        const diffusion::Options options = timestep_options(part.recipe, expert);
        sum += shares.emplace_back(diffusion::window_mass(options, options.window));
      }
      for (double& share : shares) share /= sum;
    }
    order.extend(part.last - part.first + 1, shares);
  }
  return order;
}

void check_experts(const Experts& experts, const checkpoint::Manifest& saved) {
  std::set<std::string> ours, theirs;
  if (experts.several())
    for (const Expert& expert : experts.list) ours.insert(expert.name);
  if (saved.experts.is_object())
    for (const auto& [name, state] : saved.experts.items()) theirs.insert(name);
  if (ours == theirs) return;
  const auto named = [](const std::set<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "the experts " : " and ") + name;
    return list.empty() ? "one denoiser" : list;
  };
  throw UserError(Exit::usage, "run.resume", "the checkpoint has " + named(theirs) + ", the run has " + named(ours),
                  "use the model.path and experts.* it was trained with, or another run.out");
}

void each_expert(engine::Store& store, const Experts& experts,
                 const std::function<void(size_t expert, const std::string& prefix)>& act) {
  for (size_t e = 0; e < experts.size(); ++e) {
    const engine::Store::ExpertScope active(store, static_cast<int>(e));
    act(e, experts.several() ? experts.list[e].folder + "." : "");
  }
}

}  // namespace tessera::job
