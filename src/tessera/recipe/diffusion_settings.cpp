// How a step is noised and what its loss is: [diffusion].
#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/families/registry.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

// Keys that say by weights which frames a model is given: KIND=WEIGHT of known kinds.

/// "t2v=1,i2v_head=5"; each of `known`.
std::vector<families::Weighted> weighted(const Given& given, std::string (*known)(const std::string&)) {
  std::vector<families::Weighted> all;
  for (const std::string& item : split_list(given.text)) {
    const size_t equal = item.find('=');
    if (equal == std::string::npos || equal == 0) given.fail("KIND=WEIGHT");
    const double weight = checked_number(given, item.substr(equal + 1), "KIND=WEIGHT");
    if (weight < 0) given.fail("weights of at least 0");
    all.push_back({known(item.substr(0, equal)), weight});
  }
  return all;
}

std::string given_kind(const std::string& name) {
  families::places_of(name);
  return name;
}

/// Weights of which one is above 0, or none at all.
void check_weights(const std::vector<families::Weighted>& kinds, const Given& given) {
  double sum = 0;
  for (const families::Weighted& kind : kinds) sum += kind.weight;
  if (!kinds.empty() && !(sum > 0)) given.fail("a kind with a weight above 0");
}

std::string drop_kind(const std::string& name) {
  const std::vector<std::string> known = families::drop_kinds();
  if (std::ranges::find(known, name) == known.end())
    throw UserError(Exit::usage, "recipe", "diffusion.drop_condition: unknown kind '" + name + "'",
                    "there are cond and null, which drop the caption, text and null, which drop the frames, and keep");
  return name;
}

void read_conditions(Recipe& recipe, const Given& given) {
  recipe.diffusion.conditions = weighted(given, given_kind);
  check_weights(recipe.diffusion.conditions, given);
}

void read_mask_ratios(Recipe& recipe, const Given& given) {
  constexpr double kRounding = 1e-9;  // of ratios that sum to 1
  recipe.diffusion.mask_ratios = weighted(given, families::mask_kind);
  double sum = 0;
  for (const families::Weighted& kind : recipe.diffusion.mask_ratios) sum += kind.weight;
  if (sum > 1 + kRounding) given.fail("ratios that sum to at most 1", "the rest has no frame that is given");
}

void read_mask_types(Recipe& recipe, const Given& given) {
  recipe.diffusion.mask_types = weighted(given, families::beside_kind);
  check_weights(recipe.diffusion.mask_types, given);
}

void read_drop_condition(Recipe& recipe, const Given& given) {
  recipe.diffusion.drop_condition = weighted(given, drop_kind);
  check_weights(recipe.diffusion.drop_condition, given);
}

/// Of `known`; else they are told of it.
std::string named(const std::string& name, const std::vector<std::string>& known, const char* key) {
  if (std::ranges::find(known, name) == known.end())
    throw UserError(Exit::usage, "recipe", std::string(key) + ": unknown kind '" + name + "'",
                    "there are " + families::listed(known, "and"));
  return name;
}

void read_draw_shares(Recipe& recipe, const Given& given) {
  families::ConditionShares shares;
  for (const families::Weighted& one : weighted(given, [](const std::string& name) { return name; })) {
    double& share = families::share_of(shares, one.name);
    if (one.weight > 1) given.fail("shares of at most 1");
    share = one.weight;
  }
  recipe.diffusion.draws.shares = shares;
}

void read_pixel_masks(Recipe& recipe, const Given& given) {
  recipe.diffusion.draws.masks = weighted(given, [](const std::string& name) {
    return named(name, families::pixel_mask_names(), "diffusion.pixel_masks");
  });
  check_weights(recipe.diffusion.draws.masks, given);
}

void read_condition_dropout(Recipe& recipe, const Given& given) {
  recipe.diffusion.condition_dropout = weighted(given, [](const std::string& name) {
    return named(name, families::droppable_conditions(), "diffusion.condition_dropout");
  });
  for (const families::Weighted& one : recipe.diffusion.condition_dropout)
    if (one.weight > 1) given.fail("shares of at most 1");
}

/// "nothing=0.9,first_frame=0.4,...": as VideoX-Fun's trainers draw.
std::string usual_shares() {
  families::ConditionShares shares;
  std::string text;
  for (const std::string& name : families::share_names()) {
    char share[16];
    std::snprintf(share, sizeof share, "=%g", families::share_of(shares, name));
    text += (text.empty() ? "" : ", ") + name + share;
  }
  return text;
}

template <auto member>
constexpr Read diffusion = into<&Recipe::diffusion, member>;

const std::vector<std::string>& timestep_names() {
  static const std::vector<std::string> names = {
      "uniform", "shift",  "logit_normal", "diffsynth", "sana",       "diffusers",  "by_size",       "by_area",
      "mode",    "cosmap", "mix",          "logsnr",    "flux_shift", "qwen_shift", "qinglong_flux", "qinglong_qwen"};
  return names;
}

/// A name, or logit_normal with the mean and the deviation of its normal draws.
void read_timesteps(Recipe& recipe, const Given& given) {
  double mean = 0, scale = 0;
  int end = 0;
  const bool shaped = std::sscanf(given.text.c_str(), "logit_normal( %lf , %lf )%n", &mean, &scale, &end) == 2 &&
                      end == static_cast<int>(given.text.size()) && scale > 0;
  if (!shaped && std::ranges::find(timestep_names(), given.text) == timestep_names().end())
    given.fail("one of " + families::listed(timestep_names(), "and") + ", or logit_normal(MEAN, DEVIATION)",
               "did you mean '" + nearest(given.text, timestep_names()).front() + "'?");
  recipe.diffusion.timesteps = given.text;
}

/// "0,11": whole numbers that grow from 0.
void read_chunks_in_time(Recipe& recipe, const Given& given) {
  constexpr const char* kExpected = "latent frames at which chunks begin, 0 first and growing, for example 0,11";
  auto& chunks = recipe.diffusion.chunks;
  chunks.clear();
  for (const std::string& item : split_list(given.text)) {
    const double start = checked_number(given, item, kExpected);
    const bool grows = chunks.empty() ? start == 0 : start > static_cast<double>(chunks.back());
    if (!grows || start != std::floor(start) || start > 1e6) given.fail(kExpected);
    chunks.push_back(static_cast<int64_t>(start));
  }
  if (chunks.size() == 1) given.fail("several chunks", "a clip of one chunk has one timestep: leave it empty");
}
const Needs kOfChunks = {[](const Facts& f) { return !f.recipe.diffusion.chunks.empty(); },
                         "it belongs to diffusion.chunks"};

void read_image_share(Recipe& recipe, const Given& given) {
  double& share = recipe.diffusion.image_share;
  read_value(share, given);
  if (!(share >= 0 && share <= 1))
    throw UserError(Exit::usage, "recipe", given.key + " = " + given.text + ": expected a share from 0 to 1");
}

/// Kinds of timesteps that have a shift of a sample's size.
bool shifts_by_size(const Facts& f) {
  const std::string& kind = f.recipe.diffusion.timesteps;
  return kind.starts_with("by_") || kind == "flux_shift" || kind == "qwen_shift" || kind.starts_with("qinglong_");
}
bool shifts_by_hand(const Facts& f) {
  const bool unshifted = f.recipe.diffusion.timesteps == "logsnr";
  return !(shifts_by_size(f) || unshifted) || !f.recipe.sample.sampler.starts_with("euler_by_");
}
bool has_normal(const Facts& f) {
  const std::string& kind = f.recipe.diffusion.timesteps;
  return kind != "uniform" && kind != "shift" && kind != "diffsynth" && kind != "mode" && kind != "cosmap" &&
         !kind.ends_with(')');
}
const Needs kOfNormal = {has_normal,
                         "diffusion.timesteps is made from no normal numbers, or says their mean and deviation itself"};
bool has_threshold(const Facts& f) {
  return std::ranges::any_of(f.recipe.diffusion.loss, [](const families::Weighted& term) {
    return term.name.find("huber") != term.name.npos || term.name.find("smooth") != term.name.npos;
  });
}
const Needs kOfThreshold = {has_threshold, "it belongs to diffusion.loss = \"huber\" and its like"};

/// The kinds of diffusion.loss, as ops/kernels.h has them.
constexpr const char* kLosses[] = {"mse",          "mae",        "huber",          "smooth_l1",
                                   "pseudo_huber", "true_huber", "true_smooth_l1", "log_cosh"};

/// "huber", or "mse=0.5,huber=0.5".
void read_loss(Recipe& recipe, const Given& given) {
  auto& terms = recipe.diffusion.loss;
  terms.clear();
  const std::vector<std::string> known(std::begin(kLosses), std::end(kLosses));
  for (const std::string& item : split_list(given.text)) {
    const size_t equal = item.find('=');
    const std::string kind = item.substr(0, equal);
    if (std::ranges::find(known, kind) == known.end())
      given.fail("KIND or KIND=WEIGHT of " + families::listed(known, "and"),
                 "did you mean " + nearest(kind, known).front() + "?");
    terms.push_back({kind, equal == item.npos ? 1 : checked_number(given, item.substr(equal + 1), "KIND=WEIGHT")});
    if (terms.back().weight < 0) given.fail("weights of at least 0");
  }
  if (terms.empty()) given.fail("a kind", "mse is usual");
  check_weights(terms, given);
}

/// "0:0.3=1,0.3:1=3"
void read_bands(Recipe& recipe, const Given& given) {
  auto& bands = recipe.diffusion.bands;
  bands.clear();
  const std::string expected = "LOW:HIGH=SHARE, sigmas from 0 to 1, for example 0:0.5=1,0.5:1=3";
  for (const std::string& item : split_list(given.text)) {
    const size_t equal = item.find('='), colon = item.find(':');
    if (equal == item.npos || colon == item.npos || colon > equal) given.fail(expected);
    const double low = checked_number(given, item.substr(0, colon), expected),
                 high = checked_number(given, item.substr(colon + 1, equal - colon - 1), expected);
    bands.push_back({item.substr(0, equal), checked_number(given, item.substr(equal + 1), expected)});
    if (low < 0 || high > 1 || low >= high || bands.back().weight < 0) given.fail(expected);
  }
  check_weights(bands, given);
}
const Needs kDrawnOtherwise = {
    [](const Facts& f) {
      const auto& diffusion = f.recipe.diffusion;
      return diffusion.conditions.empty() && diffusion.mask_ratios.empty() && diffusion.mask_types.empty();
    },
    "diffusion.conditions, diffusion.mask_ratios or diffusion.mask_types say which frames are given"};
const Needs kOfDraws = {[](const Facts& f) { return f.recipe.diffusion.draws.on(); },
                        "diffusion.condition_draws = 0 draws nothing"};
const Needs kOfMaskTypes = {[](const Facts& f) { return families::any_beside(f.recipe.diffusion.mask_types); },
                            "it belongs to diffusion.mask_types"};

const Needs kOfFlow = {[](const Facts& f) { return !f.recipe.distill.consistent() && !f.recipe.distill.regresses(); },
                       "distill.method draws angles or steps of its own and has its own loss"};
const Needs kOfClips = {[](const Facts& f) { return !f.recipe.distill.of_noise(); },
                        "distill.method = \"dmd\" and \"ode\" make clips of noise alone"};
const Needs kOfOwnLoss = {[](const Facts& f) { return !f.recipe.distill.on(); }, "distill.method has its own loss"};

/// Those of diffusion.* that say which timesteps are drawn.
std::vector<Setting> timestep_settings() {
  return {
      {"diffusion.timesteps",
       Kind::text,
       "uniform",
       "distribution of training timesteps, before the shift: logit_normal(MEAN, DEVIATION), or one of " +
           families::listed(timestep_names(), "and") +
           "; shift: uniform; by_size and by_area: logit_normal, and the shift follows from a sample's resolution and frames, as in " +
           families::listed(families::names_in(&families::Family::shift_by_size), "and") +
           "; flux_shift and qwen_shift: logit_normal, and the shift follows from the tokens of a frame; mode, cosmap: as in SD3; mix: 70 % logit_normal, 30 % uniform; logsnr: a normal logarithm of the signal to noise ratio; qinglong_flux, qinglong_qwen: mixtures of these, as in musubi-tuner",
       read_timesteps,
       {.needs = {kOfFlow}, .in_stages = true}},
      {"diffusion.logit_mean",
       Kind::number,
       "0",
       "mean of the normal numbers from which timesteps are made; of logsnr and the logsnr part of qinglong the mean of that logarithm",
       diffusion<&Recipe::Diffusion::logit_mean>,
       {.needs = {kOfNormal}, .in_stages = true}},
      {"diffusion.logit_std",
       Kind::number,
       "1",
       "their standard deviation (sigmoid_scale of other programs)",
       diffusion<&Recipe::Diffusion::logit_std>,
       {.range = above(0), .needs = {kOfNormal}, .in_stages = true}},
      {"diffusion.mode_scale",
       Kind::number,
       "1.29",
       "mode: how heavy the tails are; above 0 the middle is drawn more often, below 0 the ends",
       diffusion<&Recipe::Diffusion::mode_scale>,
       {.range = {.least = -1, .most = 1.75},
        .needs = {{[](const Facts& f) { return f.recipe.diffusion.timesteps == "mode"; },
                   "it belongs to diffusion.timesteps = \"mode\""}},
        .in_stages = true}},
      {"diffusion.strata",
       Kind::integer,
       "0",
       "equal shares of the distribution, from each of which one timestep is drawn before any gets a second one, over the steps; 0: timesteps are independent",
       diffusion<&Recipe::Diffusion::strata>,
       {.range = {.least = 0, .most = 100000}, .needs = {kOfFlow}, .in_stages = true}},
      {"diffusion.bands",
       Kind::list,
       "",
       "ranges of timesteps after the shift by their share of the samples, LOW:HIGH=SHARE: 0:0.5=1,0.5:1=3; within each the distribution is as without; empty: none",
       read_bands,
       {.needs = {kOfFlow}, .in_stages = true}},
      {"diffusion.shift",
       Kind::number,
       "5",
       "flow shift of training timesteps and of the sampler",
       diffusion<&Recipe::Diffusion::shift>,
       {.range = above(0),
        .needs = {{shifts_by_hand,
                   "timesteps and samplers that are by_size or by_area take the shift of a sample's size"}},
        .in_stages = true}},
  };
}

std::vector<Setting> chunk_settings() {
  return {
      {"diffusion.chunks",
       Kind::list,
       "",
       "latent frames at which chunks of a clip begin that have timesteps of their own, 0 first, for models of videos that take a timestep for each frame: 0,11; empty: a clip has one timestep",
       read_chunks_in_time,
       {.needs = {kOfFlow}}},
      {"diffusion.chunk_draws",
       Kind::choice,
       "uniform",
       "uniform: each chunk has a draw of diffusion.timesteps; incremental: one of them has it, and noise grows from chunk to chunk",
       diffusion<&Recipe::Diffusion::chunk_draws>,
       {.choices = "uniform|incremental", .needs = {kOfChunks}, .in_stages = true}},
      {"diffusion.chunk_same_share",
       Kind::number,
       "0",
       "share of clips whose chunks have one timestep after all",
       diffusion<&Recipe::Diffusion::chunk_same_share>,
       {.range = {.least = 0, .most = 1}, .needs = {kOfChunks}, .in_stages = true}},
      {"diffusion.first_frame_noise",
       Kind::number,
       "0",
       "noise of a first frame that is given: of a timestep drawn evenly from 0 to this share of all, for models as of diffusion.chunks; 0: none",
       diffusion<&Recipe::Diffusion::first_frame_noise>,
       {.range = {.least = 0, .most = 1}, .needs = {kOfFlow}}},
  };
}

std::vector<Setting> drawn_condition_settings() {
  return {
      {"diffusion.condition_draws",
       Kind::integer,
       "0",
       "how often masks and pictures that a clip is given are drawn for it, as VideoX-Fun's trainers draw them, for models that take such: the cache has an entry for each, and each sample takes one of them; 0: a clip is given what its row names",
       into<&Recipe::diffusion, &Recipe::Diffusion::draws, &families::ConditionDraws::count>,
       {.range = {.least = 0, .most = 10000}}},
      {"diffusion.draw_shares",
       Kind::list,
       "",
       "how often diffusion.condition_draws draws what, NAME=SHARE; those that are not named are " + usual_shares(),
       read_draw_shares,
       {.needs = {kOfDraws}}},
      {"diffusion.pixel_masks",
       Kind::list,
       "",
       "kinds of masks that diffusion.condition_draws draws, KIND=WEIGHT: " +
           families::listed(families::pixel_mask_names(), "and") + "; empty: as VideoX-Fun's trainers weigh them",
       read_pixel_masks,
       {.needs = {kOfDraws}}},
      {"diffusion.condition_dropout",
       Kind::list,
       "",
       "shares of samples that train without some of their conditions, NAME=SHARE: control=0.1,start=0.1,reference=0.1,image=0.1, where start is the latent of a first picture and image what an image encoder sees; empty: none",
       read_condition_dropout,
       {.in_stages = true}},
  };
}

}  // namespace

std::vector<Setting> diffusion_settings() {
  std::vector<Setting> rows = timestep_settings();
  const std::vector<Setting> others = {
      {"diffusion.weighting",
       Kind::choice,
       "none",
       "loss weight over timesteps; sigma_sqrt: 1 / sigma^2; cosmap: 2 / (pi (1 - 2 sigma + 2 sigma^2)); sigma: sigma",
       diffusion<&Recipe::Diffusion::weighting>,
       {.choices = "none|diffsynth|sigma_sqrt|cosmap|sigma", .needs = {kOfOwnLoss}, .in_stages = true}},
      {"diffusion.loss",
       Kind::list,
       "mse",
       "loss of a prediction: mse, mae, huber or smooth_l1 as in sd-scripts, pseudo_huber as in ai-toolkit, true_huber or true_smooth_l1 as in PyTorch, log_cosh; or a sum, KIND=WEIGHT: mse=0.5,huber=0.5",
       read_loss,
       {.needs = {kOfOwnLoss}, .in_stages = true}},
      {"diffusion.huber_c",
       Kind::number,
       "0.1",
       "difference at which huber and its like go over from squares to absolute values",
       diffusion<&Recipe::Diffusion::huber_c>,
       {.range = above(0), .needs = {kOfThreshold}, .in_stages = true}},
      {"diffusion.huber_schedule",
       Kind::choice,
       "constant",
       "how huber_c follows the timestep t, 0 to 1; exponential: huber_c^t; snr: from 1 on the clean side to huber_c on the noisy one",
       diffusion<&Recipe::Diffusion::huber_schedule>,
       {.choices = "constant|exponential|snr", .needs = {kOfThreshold}, .in_stages = true}},
      {"diffusion.huber_scale",
       Kind::number,
       "1",
       "factor of huber_c after that schedule",
       diffusion<&Recipe::Diffusion::huber_scale>,
       {.range = above(0), .needs = {kOfThreshold}, .in_stages = true}},
      {"diffusion.normalize_masked_area_loss",
       Kind::choice,
       "false",
       "with masks (data.mask_path): the loss of a sample is the mean over what trains, sum(m e) / sum(m); else over all of it, mean(m e)",
       diffusion<&Recipe::Diffusion::normalize_masked_area>,
       {.choices = "true|false", .needs = {kMasked}, .in_stages = true}},
      {"diffusion.unmasked_probability",
       Kind::number,
       "0",
       "share of samples that train whole in spite of their masks",
       diffusion<&Recipe::Diffusion::unmasked_probability>,
       {.range = {.least = 0, .most = 1}, .needs = {kMasked}, .in_stages = true}},
      {"diffusion.unmasked_weight",
       Kind::number,
       "0",
       "least weight of a place in the loss, to which smaller ones of masks are raised",
       diffusion<&Recipe::Diffusion::unmasked_weight>,
       {.range = {.least = 0, .most = 1}, .needs = {kMasked}, .in_stages = true}},
      {"diffusion.image_share",
       Kind::number,
       "0.5",
       "share of samples trained as image-to-video, the others as text-to-video, for models that do both",
       read_image_share,
       {.needs = {kDrawnOtherwise, kOfClips}, .in_stages = true}},
      {"diffusion.conditions",
       Kind::list,
       "",
       "frames that are given beside the noisy ones, KIND=WEIGHT: " + families::given_examples() +
           "; empty: diffusion.image_share",
       read_conditions,
       {}},
      {"diffusion.mask_ratios",
       Kind::list,
       "",
       "frames that are given without noise, KIND=RATIO: random=0.05,image_head=0.1, and interpolate, quarter_ or image_ with random, head, tail or head_tail; the remaining samples have none; empty: diffusion.image_share",
       read_mask_ratios,
       {.in_stages = true}},
      {"diffusion.mask_types",
       Kind::list,
       "",
       "frames that are given beside the noisy ones, KIND=WEIGHT: " + families::beside_examples() +
           "; empty: diffusion.image_share or diffusion.mask_ratios",
       read_mask_types,
       {}},
      {"diffusion.drop_condition",
       Kind::list,
       "",
       "what is dropped from samples with given frames (diffusion.mask_types), KIND=WEIGHT: cond=0.05,text=0.05,null=0.05,keep=0.85, where cond drops the caption, text the frames, null both; empty: nothing is dropped",
       read_drop_condition,
       {.needs = {kOfMaskTypes}, .in_stages = true}},
      {"diffusion.caption_dropout",
       Kind::number,
       "0",
       "share of samples that train with the embedding of an empty caption in place of their own, for guidance; 0.1 is usual",
       diffusion<&Recipe::Diffusion::caption_dropout>,
       {.range = {.least = 0, .most = 1}}},
      {"diffusion.pooled_dropout",
       Kind::number,
       "0",
       "share of samples that train with the pooled vector of an empty caption, drawn apart from diffusion.caption_dropout, for models that take one",
       diffusion<&Recipe::Diffusion::pooled_dropout>,
       {.range = {.least = 0, .most = 1}}},
      {"diffusion.min_t",
       Kind::number,
       "0",
       "smallest timestep that is drawn, 0 to 1 after the shift",
       diffusion<&Recipe::Diffusion::min_t>,
       {.range = {.least = 0, .most = 1}, .needs = {kOfFlow}, .in_stages = true}},
      {"diffusion.max_t",
       Kind::number,
       "1",
       "largest timestep that is drawn, 0 to 1 after the shift",
       diffusion<&Recipe::Diffusion::max_t>,
       {.range = {.least = 0, .most = 1}, .needs = {kOfFlow}, .in_stages = true}},
  };
  rows.insert(rows.end(), others.begin(), others.end());
  for (const std::vector<Setting>& more : {chunk_settings(), drawn_condition_settings()})
    rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

namespace {

template <auto member>
constexpr Read distill = into<&Recipe::distill, member>;

/// "4,4.5,5"
void read_strengths(Recipe& recipe, const Given& given) {
  auto& strengths = recipe.distill.guidance;
  strengths.clear();
  for (const std::string& item : split_list(given.text)) {
    strengths.push_back(checked_number(given, item, "numbers of at least 0, as 4,4.5,5"));
    if (!(strengths.back() >= 0 && std::isfinite(strengths.back()))) given.fail("numbers of at least 0, as 4,4.5,5");
  }
  if (strengths.empty()) given.fail("a number or several", "1: the teacher is not guided");
}

/// "2,8,14,19"
void read_blocks(Recipe& recipe, const Given& given) {
  auto& blocks = recipe.distill.judge.blocks;
  blocks.clear();
  for (const std::string& item : split_list(given.text)) {
    const double block = checked_number(given, item, "numbers of blocks, as 2,8,14,19");
    if (!(block >= 0) || block != std::floor(block)) given.fail("numbers of blocks, from 0");
    blocks.insert(static_cast<int64_t>(block));
  }
  if (blocks.empty()) given.fail("a block or several", "distill.method = \"scm\" trains without heads");
}

void read_discriminator_loss(Recipe& recipe, const Given& given) { recipe.distill.judge.hinge = given.text == "hinge"; }

template <auto member>
constexpr Read judge = into<&Recipe::distill, &Recipe::Distill::judge, member>;
using Judge = Recipe::Distill::Judge;

const Needs kJudges = {[](const Facts& f) { return f.recipe.distill.judges(); },
                       "it belongs to distill.method = \"scm_ladd\""};

const Needs kDistils = {[](const Facts& f) { return f.recipe.distill.on(); }, "it belongs to distill.method"};
const Needs kConsistent = {[](const Facts& f) { return f.recipe.distill.consistent(); },
                           "it belongs to distill.method = \"scm\" and \"scm_ladd\""};
const Needs kMatches = {[](const Facts& f) { return f.recipe.distill.matches(); },
                        "it belongs to distill.method = \"dmd\""};
const Needs kOfNoise = {[](const Facts& f) { return f.recipe.distill.of_noise(); },
                        "it belongs to distill.method = \"dmd\" and \"ode\""};
const Needs kRollsOut = {[](const Facts& f) { return f.recipe.distill.rolls_out(); },
                         "it belongs to distill.method = \"dmd\" with distill.chunk"};
const Needs kRegresses = {[](const Facts& f) { return f.recipe.distill.regresses(); },
                          "it belongs to distill.method = \"ode\""};

/// Those of a student that heads judge.
std::vector<Setting> judge_settings() {
  return {
      {"distill.head_blocks",
       Kind::list,
       "2,8,14,19",
       "blocks of the teacher, from 0, whose tokens a head of the discriminator reads",
       read_blocks,
       {.needs = {kJudges}}},
      {"distill.consistency_weight",
       Kind::number,
       "1",
       "weight of the consistency loss beside that of the heads",
       judge<&Judge::consistency>,
       {.range = at_least(0), .needs = {kJudges}, .in_stages = true}},
      {"distill.adversarial_weight",
       Kind::number,
       "0.5",
       "weight of what the heads tell the student",
       judge<&Judge::weight>,
       {.range = at_least(0), .needs = {kJudges}, .in_stages = true}},
      {"distill.discriminator_loss",
       Kind::choice,
       "hinge",
       "loss of the heads and of the student before them",
       read_discriminator_loss,
       {.choices = "hinge|cross_entropy", .needs = {kJudges}}},
      {"distill.r1_weight",
       Kind::number,
       "0",
       "weight of the squared gradients of the heads at features of real pictures, in their loss",
       judge<&Judge::r1_weight>,
       {.range = at_least(0), .needs = {kJudges}, .in_stages = true}},
      {"distill.misaligned",
       Kind::choice,
       "true",
       "whether the heads see real pictures under another picture's caption, too, as if the student had made them",
       judge<&Judge::misaligned>,
       {.choices = "true|false", .needs = {kJudges}}},
      {"distill.own_angles",
       Kind::choice,
       "true",
       "whether real pictures have angles of their own before the heads; false: those of the student's pictures",
       judge<&Judge::own_angles>,
       {.choices = "true|false", .needs = {kJudges}}},
      {"distill.largest_angle",
       Kind::number,
       "1.5708",
       "angle from which a share of the judged pictures is predicted",
       judge<&Judge::largest_angle>,
       {.range = above(0), .needs = {kJudges}, .in_stages = true}},
      {"distill.largest_share",
       Kind::number,
       "0.5",
       "that share; the others have an angle drawn as for the consistency loss",
       judge<&Judge::largest_share>,
       {.range = {.least = 0, .most = 1}, .needs = {kJudges}, .in_stages = true}},
      {"distill.judged_mean",
       Kind::number,
       "-0.6",
       "mean of the normal numbers from which the angles of pictures before the heads are drawn",
       judge<&Judge::logit_mean>,
       {.needs = {kJudges}, .in_stages = true}},
      {"distill.judged_std",
       Kind::number,
       "1",
       "their standard deviation",
       judge<&Judge::logit_std>,
       {.range = above(0), .needs = {kJudges}, .in_stages = true}},
  };
}

/// Those of a student whose clips are matched with its teacher's.
std::vector<Setting> matching_settings() {
  return {
      {"distill.critic",
       Kind::text,
       "",
       "weights that the critic begins with, as model.path; empty: the teacher's, or the student's where the teacher has other sizes",
       weights_path<&Recipe::distill, &Recipe::Distill::critic>,
       {.needs = {kMatches}}},
      {"distill.critic_mode",
       Kind::choice,
       "auto",
       "whether the critic trains all of its parameters or adapters as [lora] says; auto: as train.mode says of the student, which has to be the same",
       distill<&Recipe::Distill::critic_mode>,
       {.choices = "auto|full|lora", .needs = {kMatches}}},
      {"distill.critic_steps",
       Kind::integer,
       "5",
       "steps of the critic after each step of the student; run.steps counts both",
       distill<&Recipe::Distill::critic_steps>,
       {.range = {.least = 1, .most = 1000}, .needs = {kMatches}}},
      {"distill.critic_lr",
       Kind::number,
       "0",
       "learning rate of the critic, along the same schedule; 0: train.lr",
       distill<&Recipe::Distill::critic_lr>,
       {.range = at_least(0), .needs = {kMatches}, .in_stages = true}},
      {"distill.steps",
       Kind::integer,
       "4",
       "steps in which the student makes a clip, evenly spaced before diffusion.shift, as the sampler lcm has them",
       distill<&Recipe::Distill::steps>,
       {.range = {.least = 1, .most = 1000}, .needs = {kOfNoise}}},
      {"distill.teacher_steps",
       Kind::integer,
       "48",
       "steps in which the teacher makes the clips that the student learns, a multiple of distill.steps",
       distill<&Recipe::Distill::teacher_steps>,
       {.range = {.least = 1, .most = 1000}, .needs = {kRegresses}}},
      {"distill.chunk",
       Kind::integer,
       "0",
       "latent frames of a student's chunks, each of which sees those before it and no later ones, for models as of diffusion.chunks; the first chunk takes what is left over; 0: clips are whole",
       distill<&Recipe::Distill::chunk>,
       {.range = {.least = 0, .most = 1000}, .needs = {kOfNoise}}},
      {"distill.same_exit",
       Kind::choice,
       "true",
       "whether all chunks of a step's clips end behind the same of distill.steps; false: each has a draw of its own",
       distill<&Recipe::Distill::same_exit>,
       {.choices = "true|false", .needs = {kRollsOut}}},
      {"distill.chunk_reach",
       Kind::integer,
       "0",
       "chunks before its own that a chunk's attention reads while the student makes clips, as sample.chunk_reach; 0: all",
       distill<&Recipe::Distill::chunk_reach>,
       {.range = {.least = 0, .most = 1000}, .needs = {kRollsOut}}},
      {"distill.cache_noise",
       Kind::number,
       "0",
       "sigma of the noise in a finished chunk where later ones read it, as sample.cache_noise",
       distill<&Recipe::Distill::cache_noise>,
       {.range = {.least = 0, .most = 1}, .needs = {kRollsOut}}},
  };
}

}  // namespace

std::vector<Setting> distill_settings() {
  std::vector<Setting> rows = {
      {"distill.method",
       Kind::choice,
       "none",
       "how a frozen teacher trains the model, its student of few steps; scm: continuous-time consistency (sCM), for models whose family has a forward mode; scm_ladd: the same with heads on the teacher's blocks that tell the student's pictures from the data's, trained in every second step, and train.global_batch has each clip twice; dmd: matching of distributions with a critic (DMD2), for models of text to pictures or clips; ode: regression on the teacher's paths from noise to clips, which students of dmd and of chunks begin with; none: the model is trained on the data alone",
       distill<&Recipe::Distill::method>,
       {.choices = "none|scm|scm_ladd|dmd|ode"}},
      {"distill.teacher",
       Kind::text,
       "",
       "weights of the teacher, as model.path; a model of the same sizes, or for dmd one of the same family and latents whose config.json says its own; of scm one whose network sees timesteps of 0 to 1 (model.config.timestep_scale)",
       weights_path<&Recipe::distill, &Recipe::Distill::teacher>,
       {.needs = {kDistils}}},
      {"distill.teacher_preset",
       Kind::text,
       "",
       "sizes of the teacher where they are not the student's, as model.preset, for instance to plan before its weights are there; empty: those of the config.json beside distill.teacher, else the student's",
       distill<&Recipe::Distill::teacher_preset>,
       {.needs = {kMatches}}},
      {"distill.logvar",
       Kind::choice,
       "true",
       "whether the student learns how much a sample weighs in the loss by its time and guidance",
       distill<&Recipe::Distill::logvar>,
       {.choices = "true|false", .needs = {kConsistent}}},
      {"distill.guidance",
       Kind::list,
       "4,4.5,5",
       "strengths of the teacher's guidance, of which each sample draws one, and a student of scm is told it; the first of 1 or less: without",
       read_strengths,
       {.needs = {kDistils}}},
      {"distill.sigma_data",
       Kind::number,
       "0.5",
       "standard deviation that the data are taken to have",
       distill<&Recipe::Distill::sigma_data>,
       {.range = above(0), .needs = {kConsistent}}},
      {"distill.logit_mean",
       Kind::number,
       "0.2",
       "mean of the normal numbers n from which angles are drawn, atan(2 exp(n))",
       distill<&Recipe::Distill::logit_mean>,
       {.needs = {kConsistent}, .in_stages = true}},
      {"distill.logit_std",
       Kind::number,
       "1.6",
       "their standard deviation",
       distill<&Recipe::Distill::logit_std>,
       {.range = above(0), .needs = {kConsistent}, .in_stages = true}},
      {"distill.tangent_warmup",
       Kind::integer,
       "4000",
       "steps over which the tangent's share of the loss grows from none to all",
       distill<&Recipe::Distill::tangent_warmup>,
       {.range = at_least(0), .needs = {kConsistent}, .in_stages = true}},
  };
  for (const std::vector<Setting>& more : {judge_settings(), matching_settings()})
    rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

}  // namespace tessera::recipe
