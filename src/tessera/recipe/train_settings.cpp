#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/families/lora_namings.h"
#include "tessera/families/registry.h"
#include "tessera/plan/optimizers.h"
#include "tessera/recipe/settings.h"

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

template <auto member>
constexpr Read train = into<&Recipe::train, member>;
template <auto member>
constexpr Read rate = into<&Recipe::lr_schedule, member>;
template <auto member>
constexpr Read lora = into<&Recipe::lora, member>;
template <auto member>
constexpr Read diffusion = into<&Recipe::diffusion, member>;
template <auto member>
constexpr Read experts = into<&Recipe::experts, member>;

const std::vector<std::string>& timestep_names() {
  static const std::vector<std::string> names = {
      "uniform", "shift",  "logit_normal", "diffsynth",  "sana",       "diffusers",     "by_size",      "by_area",
      "mode",    "cosmap", "logsnr",       "flux_shift", "qwen_shift", "qinglong_flux", "qinglong_qwen"};
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

void read_mode(Recipe& recipe, const Given& given) { recipe.lora.on = given.text == "lora"; }

void read_micro_batch(Recipe& recipe, const Given& given) {
  recipe.train.micro_batch = automatic_count(given).value_or(0);
}

bool is_factored(const Facts& f) {
  return plan::row(f.recipe.plan.states.optimizer).factoring != plan::Factoring::none;
}
bool is_lion(const Facts& f) { return f.recipe.plan.states.optimizer == plan::Optimizer::lion; }
bool is_adafactor(const Facts& f) { return f.recipe.plan.states.optimizer == plan::Optimizer::adafactor; }
bool has_eps(const Facts& f) {  // Adam's
  const plan::OptimizerRow& row = plan::row(f.recipe.plan.states.optimizer);
  return row.first && row.second && row.factoring == plan::Factoring::none;
}
const Needs kOfProdigy = {[](const Facts& f) { return plan::row(f.recipe.plan.states.optimizer).distance; },
                          "it belongs to train.optimizer = \"prodigy\""};
const Needs kOfAdafactor = {is_adafactor, "it belongs to train.optimizer = \"adafactor\""};
bool has_betas(const Facts& f) { return plan::row(f.recipe.plan.states.optimizer).first; }
const Needs kOfAverage = {[](const Facts& f) { return f.recipe.train.ema > 0; }, "it belongs to train.ema"};

/// "adamw|lion|...", and the names of their 8-bit forms.
std::string optimiser_choices() {
  std::string choices;
  for (const plan::OptimizerRow& row : plan::optimizers()) choices += std::string(row.name) + "|";
  return choices + "adamw_schedule_free|adam8bit|came8bit";
}

void read_loss_scale(Recipe& recipe, const Given& given) {
  double& scale = recipe.train.loss_scale;
  scale = Recipe::Train{}.loss_scale;
  if (given.text != "auto") scale = checked_number(given, given.text, "auto or a number over 0");
  if (!(scale > 0))
    throw UserError(Exit::usage, "recipe", given.key + " = " + given.text + ": expected auto or a number over 0");
}

void read_growth_rate(Recipe& recipe, const Given& given) {
  double& rate = recipe.train.growth_rate;
  read_value(rate, given);
  if (rate > 0 && rate < 1) given.fail("0, or 1 and more: a step size that shrinks finds none");
}

void read_alpha(Recipe& recipe, const Given& given) {  // the row of the rank stands above
  recipe.lora.alpha = given.text == "auto" ? static_cast<double>(recipe.lora.rank)
                                           : checked_number(given, given.text, "auto or a number");
}

/// PATTERN=NUMBER, by comma.
template <auto Field, bool is_rank>
void read_pattern(Recipe& recipe, const Given& given) {
  auto& patterns = recipe.lora.*Field;
  patterns.clear();
  for (const std::string& item : split_list(given.text)) {
    const size_t at = item.rfind('=');
    if (at == item.npos || at == 0) given.fail("patterns with a number each, for example blocks.*.ffn.*=16");
    const double number = checked_number(given, item.substr(at + 1), "patterns with a number each");
    constexpr double kMost = 1 << 20;
    if (is_rank && (number < 1 || number > kMost || number != std::floor(number)))
      given.fail("ranks from 1 on behind each pattern, and '" + item + "' has none");
    patterns.emplace_back(item.substr(0, at), number);
  }
}

void read_exports(Recipe& recipe, const Given& given) {
  const auto& known = families::kLoraNamings;
  recipe.lora.exports = split_list(given.text);
  for (const std::string& naming : recipe.lora.exports) {
    if (std::find(known.begin(), known.end(), naming) != known.end()) continue;
    throw UserError(
        Exit::usage, "recipe",
        given.key + ": '" + naming + "' is no naming of LoRA files; did you mean " + nearest(naming, known)[0] + "?",
        "known are diffusers, comfyui, kohya, diffsynth and peft");
  }
}

void read_image_share(Recipe& recipe, const Given& given) {
  double& share = recipe.diffusion.image_share;
  read_value(share, given);
  if (!(share >= 0 && share <= 1))
    throw UserError(Exit::usage, "recipe", given.key + " = " + given.text + ": expected a share from 0 to 1");
}

void read_shares(Recipe& recipe, const Given& given) {
  recipe.experts.shares.clear();
  for (const std::string& share : split_list(given.text))
    recipe.experts.shares.push_back(checked_number(given, share, "numbers"));
}

/// The name of a schedule as a template argument.
template <size_t n>
struct Name {
  char text[n];
  constexpr Name(const char (&name)[n]) { std::copy_n(name, n, text); }
};
template <Name... names>
bool schedule_is(const Facts& f) {
  return ((f.recipe.lr_schedule.name == names.text) || ...);
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
const Needs kOfMaskTypes = {[](const Facts& f) { return families::any_beside(f.recipe.diffusion.mask_types); },
                            "it belongs to diffusion.mask_types"};
bool windows(const Facts& f) { return f.gated() || f.own_windows(f.recipe); }
const Needs kOfAllWeights = {[](const Facts& f) { return !f.recipe.lora.on; },
                             "train.mode = \"lora\" trains adapters, and freezes all weights"};
const Needs kOfLora = {[](const Facts& f) { return f.recipe.lora.on; }, "train.mode = \"lora\" trains adapters"};
const Needs kOfLokr = {[](const Facts& f) { return f.recipe.lora.kind == "lokr"; },
                       "it belongs to lora.kind = \"lokr\""};
const Needs kOfPairs = {[](const Facts& f) { return f.recipe.lora.kind == "lora"; },
                        "factors of loha and lokr have one rate, as in all programs"};
const Needs kOfFp16 = {[](const Facts& f) {
                         return !f.searches() || f.recipe.plan.compute == DType::f16 ||
                                f.recipe.plan.reduce == DType::f16;
                       },
                       "it belongs to plan.compute_dtype or plan.reduce_dtype = \"fp16\""};
const Needs kOfGate = {[](const Facts& f) { return f.gated(); }, "it belongs to experts.router = \"gate\""};
const Needs kOfTurns = {[](const Facts& f) { return !f.gated(); }, "it belongs to experts.router = \"turns\""};

/// "auto|both" and every family's experts.
std::string expert_choices() {
  std::string choices = "auto|both";
  for (const families::Family& family : families::all())
    for (const std::string& name : families::expert_names(family))
      if (("|" + choices + "|").find("|" + name + "|") == choices.npos) choices += "|" + name;
  return choices;
}

bool scales_by_batch(const Facts& f) {
  const std::string& scale = f.recipe.values.at("train.lr_scale");
  return scale == "linear" || scale == "sqrt";
}

}  // namespace

std::vector<Setting> train_settings() {
  return {
      {"train.mode",
       Kind::choice,
       "full",
       "what is trained; full: all weights; lora: adapters on some linears",
       read_mode,
       {.choices = "full|lora"}},
      {"train.only",
       Kind::list,
       "",
       "parameters that are trained, all others are frozen: parts of official or diffusers names (vace_blocks, self_attn.q, bias), patterns with * for the whole name, or regular expressions; empty: all",
       nullptr,
       {.needs = {kOfAllWeights}}},
      {"train.freeze",
       Kind::list,
       "",
       "parameters that are frozen, by patterns as in train.only",
       nullptr,
       {.needs = {kOfAllWeights}}},
      {"train.group", Kind::list, "",
       "parameters with a rate or a decay of their own: [[train.group]] with match = a pattern as in train.only, and lr (in place of train.lr, with its schedule) or lr_factor, weight_decay; the first that matches holds, a rate of 0 freezes; as text \"norm_q lr_factor=0.5\"",
       nullptr},
      {"train.global_batch",
       Kind::integer,
       "1",
       "samples of an optimiser step, all ranks together",
       train<&Recipe::Train::global_batch>,
       {.range = {.least = 1, .most = 1 << 24}, .in_stages = true}},
      {"train.micro_batch",
       Kind::text,
       "auto",
       "samples of a rank's forward; auto: the fastest that fits; does not change the loss curve",
       read_micro_batch,
       {.needs = {kSearched}, .in_stages = true}},
      {"train.lr",
       Kind::number,
       "1e-4",
       "learning rate",
       train<&Recipe::Train::lr>,
       {.range = at_least(0), .in_stages = true}},
      {"train.lr_scale",
       Kind::text,
       "none",
       "factor of train.lr: none; linear: global_batch / lr_base_batch; sqrt: its square root; or a number",
       nullptr,
       {.in_stages = true}},
      {"train.lr_base_batch",
       Kind::integer,
       "256",
       "global batch that train.lr is meant for, with lr_scale",
       nullptr,
       {.range = at_least(1),
        .needs = {{scales_by_batch, "train.lr_scale is neither linear nor sqrt"}},
        .in_stages = true}},
      {"train.schedule",
       Kind::choice,
       "constant_with_warmup",
       "learning-rate schedule",
       rate<&optim::LrSchedule::name>,
       {.choices =
            "constant|constant_with_warmup|linear|cosine|cosine_min|cosine_with_restarts|polynomial|wsd|torch_linear_then_cosine|opensora_linear_warmup",
        .in_stages = true}},
      {"train.warmup_steps",
       Kind::integer,
       "0",
       "warm-up steps",
       rate<&optim::LrSchedule::warmup_steps>,
       {.range = at_least(0),
        .needs = {{[](const Facts& f) { return !schedule_is<"constant">(f); },
                   "train.schedule = \"constant\" has no warm-up; \"constant_with_warmup\" has"}},
        .in_stages = true}},
      {"train.eta_min",
       Kind::number,
       "0",
       "lowest learning rate of cosine_min and torch_linear_then_cosine",
       rate<&optim::LrSchedule::eta_min>,
       {.range = at_least(0),
        .needs = {{schedule_is<"cosine_min", "torch_linear_then_cosine">,
                   "train.schedule = \"cosine_min\" and \"torch_linear_then_cosine\" have a lowest rate"}},
        .in_stages = true}},
      {"train.num_cycles",
       Kind::number,
       "1",
       "cycles of cosine_with_restarts",
       rate<&optim::LrSchedule::num_cycles>,
       {.range = above(0),
        .needs = {{schedule_is<"cosine_with_restarts">, "it belongs to train.schedule = \"cosine_with_restarts\""}},
        .in_stages = true}},
      {"train.power",
       Kind::number,
       "1",
       "exponent of polynomial",
       rate<&optim::LrSchedule::power>,
       {.range = above(0),
        .needs = {{schedule_is<"polynomial">, "it belongs to train.schedule = \"polynomial\""}},
        .in_stages = true}},
      {"train.stable_steps",
       Kind::integer,
       "0",
       "wsd: steps at the full learning rate",
       rate<&optim::LrSchedule::stable_steps>,
       {.range = at_least(0),
        .needs = {{schedule_is<"wsd">, "it belongs to train.schedule = \"wsd\""}},
        .in_stages = true}},
      {"train.decay_steps",
       Kind::integer,
       "0",
       "wsd: steps of the decay",
       rate<&optim::LrSchedule::decay_steps>,
       {.range = at_least(0),
        .needs = {{schedule_is<"wsd">, "it belongs to train.schedule = \"wsd\""}},
        .in_stages = true}},
      {"train.betas",
       Kind::list,
       "",
       "betas of the optimiser's moments; empty: 0.9, 0.999 (adamw, prodigy), 0.9, 0.99 (lion), 0.9, 0.999, 0.9999 (came)",
       nullptr,
       {.range = {.least = 0, .most = 1, .below = true},
        .needs = {{has_betas, "Adafactor's first moment has train.factored_beta1, and its second a rate of its own"}},
        .in_stages = true}},
      {"train.eps",
       Kind::number,
       "1e-8",
       "AdamW's and Prodigy's epsilon",
       train<&Recipe::Train::eps>,
       {.range = above(0),
        .needs = {{has_eps, "it belongs to train.optimizer = \"adamw\" or \"prodigy\""}},
        .in_stages = true}},
      {"train.factored_eps",
       Kind::list,
       "",
       "adafactor, came: two epsilons; the first is added to squared gradients, the second to squared residuals (came) or is the least RMS of a parameter (adafactor); empty: 1e-30, 1e-16 (came) or 1e-30, 1e-3 (adafactor)",
       nullptr,
       {.range = at_least(0),
        .needs = {{is_factored, "it belongs to train.optimizer = \"adafactor\" or \"came\""}},
        .in_stages = true}},
      {"train.relative_step",
       Kind::choice,
       "false",
       "adafactor: the learning rate is min(train.lr, 1 / sqrt(step)) times the RMS of each parameter (relative_step of transformers)",
       train<&Recipe::Train::relative_step>,
       {.choices = "true|false", .needs = {kOfAdafactor}, .in_stages = true}},
      {"train.warmup_init",
       Kind::choice,
       "false",
       "adafactor: with train.relative_step, the learning rate is at most 1e-6 times the step (warmup_init of transformers)",
       train<&Recipe::Train::warmup_init>,
       {.choices = "true|false",
        .needs = {kOfAdafactor,
                  {[](const Facts& f) { return f.recipe.train.relative_step; }, "it belongs to train.relative_step"}},
        .in_stages = true}},
      {"train.factored_beta1",
       Kind::number,
       "0",
       "adafactor: decay of a first moment (beta1 of transformers), which takes the bytes of one; 0: none",
       train<&Recipe::Train::factored_beta1>,
       {.range = {.least = 0, .most = 1, .below = true}, .needs = {kOfAdafactor}}},
      {"train.decoupled_decay",
       Kind::choice,
       "false",
       "lion: train.weight_decay is that of a step at train.lr, whatever that rate is (decoupled_weight_decay of lion-pytorch)",
       train<&Recipe::Train::decoupled_decay>,
       {.choices = "true|false", .needs = {{is_lion, "it belongs to train.optimizer = \"lion\""}}, .in_stages = true}},
      {"train.d0",
       Kind::number,
       "1e-06",
       "prodigy: initial estimate of the step size, which train.lr multiplies",
       train<&Recipe::Train::d0>,
       {.range = above(0), .needs = {kOfProdigy}}},
      {"train.d_coef",
       Kind::number,
       "1",
       "prodigy: factor of its estimate of the step size; 0.5 for smaller, 2 for larger steps",
       train<&Recipe::Train::d_coef>,
       {.range = above(0), .needs = {kOfProdigy}}},
      {"train.growth_rate",
       Kind::number,
       "0",
       "prodigy: its estimate of the step size becomes at most that many times as large in a step, for example 1.02; 0: no bound",
       read_growth_rate,
       {.range = at_least(0), .needs = {kOfProdigy}}},
      {"train.beta3",
       Kind::number,
       "0",
       "prodigy: decay of the sums that its step size is estimated from; 0: the square root of its second beta",
       train<&Recipe::Train::beta3>,
       {.range = {.least = 0, .most = 1, .below = true}, .needs = {kOfProdigy}}},
      {"train.bias_correction",
       Kind::choice,
       "false",
       "prodigy: Adam's bias correction of the moments",
       train<&Recipe::Train::bias_correction>,
       {.choices = "true|false", .needs = {kOfProdigy}}},
      {"train.safeguard_warmup",
       Kind::choice,
       "false",
       "prodigy: leave the learning rate out of the denominator of its estimate, for runs with a warm-up",
       train<&Recipe::Train::safeguard_warmup>,
       {.choices = "true|false", .needs = {kOfProdigy}}},
      {"train.weight_decay",
       Kind::number,
       "0.01",
       "decoupled weight decay",
       train<&Recipe::Train::weight_decay>,
       {.range = at_least(0), .in_stages = true}},
      {"train.clip_norm",
       Kind::number,
       "1.0",
       "global gradient norm to clip to; 0: no clipping",
       train<&Recipe::Train::clip_norm>,
       {.range = at_least(0), .in_stages = true}},
      {"train.loss_scale",
       Kind::text,
       "auto",
       "initial scale of dynamic loss scaling, for fp16; a step whose gradients overflow is skipped and halves it; auto: 65536",
       read_loss_scale,
       {.needs = {kOfFp16}}},
      {"train.loss_scale_window",
       Kind::integer,
       "2000",
       "steps in a row without overflow after which the scale doubles",
       train<&Recipe::Train::loss_scale_window>,
       {.range = at_least(1), .needs = {kOfFp16}}},
      {"train.optimizer",
       Kind::choice,
       "adamw",
       "optimiser; adam8bit, came8bit: with plan.moments = \"int8\"; adamw_schedule_free: AdamW whose weighted average is the result",
       nullptr,
       {.choices = optimiser_choices()}},
      {"train.ema",
       Kind::number,
       "0",
       "decay of the moving average of the weights (EMA), for example 0.9999; 0: no average",
       train<&Recipe::Train::ema>,
       {.range = {.least = 0, .most = 1, .below = true}}},
      {"train.ema_after",
       Kind::integer,
       "0",
       "steps before the average begins",
       train<&Recipe::Train::ema_after>,
       {.range = at_least(0), .needs = {kOfAverage}}},
      {"train.ema_power",
       Kind::number,
       "0",
       "power of the average's warm-up: its s-th step has the decay 1 - (1 + s / ema_inv_gamma)^-power; 0: (1 + s) / (10 + s)",
       train<&Recipe::Train::ema_power>,
       {.range = at_least(0), .needs = {kOfAverage}}},
      {"train.ema_inv_gamma",
       Kind::number,
       "1",
       "steps that the average's warm-up counts as one",
       train<&Recipe::Train::ema_inv_gamma>,
       {.range = above(0),
        .needs = {kOfAverage,
                  {[](const Facts& f) { return f.recipe.train.ema_power > 0; }, "it belongs to train.ema_power"}}}},
      {"train.ema_min_decay",
       Kind::number,
       "0",
       "least decay of the average, from its second step on",
       train<&Recipe::Train::ema_min_decay>,
       {.range = {.least = 0, .most = 1, .below = true}, .needs = {kOfAverage}}},
  };
}

std::vector<Setting> lora_settings() {
  return {
      {"lora.kind",
       Kind::choice,
       "lora",
       "lora: pairs B A; loha: products of two pairs, element by element; lokr: Kronecker products of two matrices",
       lora<&Recipe::Lora::kind>,
       {.choices = "lora|loha|lokr", .needs = {kOfLora}}},
      {"lora.rank",
       Kind::integer,
       "32",
       "rank of the adapters",
       lora<&Recipe::Lora::rank>,
       {.range = at_least(1), .needs = {kOfLora}}},
      {"lora.alpha",
       Kind::text,
       "auto",
       "adapters are scaled by alpha / rank (alpha / sqrt(rank) with lora.rslora); auto: the rank",
       read_alpha,
       {.needs = {kOfLora}}},
      {"lora.rank_pattern",
       Kind::list,
       "",
       "PATTERN=RANK of modules that have another rank; patterns as in lora.targets, over official names, the first that matches counts",
       read_pattern<&Recipe::Lora::rank_pattern, true>,
       {.needs = {kOfLora}}},
      {"lora.alpha_pattern",
       Kind::list,
       "",
       "PATTERN=ALPHA of modules that have another alpha, likewise",
       read_pattern<&Recipe::Lora::alpha_pattern, false>,
       {.needs = {kOfLora}}},
      {"lora.factor",
       Kind::integer,
       "-1",
       "lokr: into which part and the rest sizes are split; where it does not divide one, and with -1, the most square parts (of at most so much)",
       lora<&Recipe::Lora::factor>,
       {.range = at_least(-1), .needs = {kOfLora, kOfLokr}}},
      {"lora.decompose_both",
       Kind::choice,
       "false",
       "lokr: the first matrix is a product of two, too, where the rank is below half of its longer side",
       lora<&Recipe::Lora::decompose_both>,
       {.choices = "true|false", .needs = {kOfLora, kOfLokr}}},
      {"lora.full_matrix",
       Kind::choice,
       "false",
       "lokr: the second matrix is whole, whatever lora.rank is",
       lora<&Recipe::Lora::full_matrix>,
       {.choices = "true|false", .needs = {kOfLora, kOfLokr}}},
      {"lora.unbalanced",
       Kind::choice,
       "false",
       "lokr: the first matrix has the larger part of the outputs (unbalanced_factorization of LyCORIS)",
       lora<&Recipe::Lora::unbalanced>,
       {.choices = "true|false", .needs = {kOfLora, kOfLokr}}},
      {"lora.targets",
       Kind::list,
       "",
       "linears with adapters: names or their ends (q, ffn.0, attn1.to_q), patterns with * or regular expressions over official or diffusers names, or all; empty: q,k,v,o,ffn.0,ffn.2",
       lora<&Recipe::Lora::targets>,
       {.needs = {kOfLora}}},
      {"lora.dropout",
       Kind::number,
       "0",
       "dropout of the adapters' inputs",
       lora<&Recipe::Lora::dropout>,
       {.range = {.least = 0, .most = 1, .below = true}, .needs = {kOfLora}}},
      {"lora.rslora",
       Kind::choice,
       "false",
       "scale alpha / sqrt(rank) instead of alpha / rank",
       lora<&Recipe::Lora::rslora>,
       {.choices = "true|false", .needs = {kOfLora}}},
      {"lora.dora",
       Kind::choice,
       "false",
       "DoRA: train the magnitude of each weight row too",
       lora<&Recipe::Lora::dora>,
       {.choices = "true|false", .needs = {kOfLora}}},
      {"lora.plus_ratio",
       Kind::number,
       "1",
       "LoRA+: the learning rate of B is train.lr times this, 16 is usual; 1: the same for A and B",
       lora<&Recipe::Lora::plus_ratio>,
       {.range = above(0), .needs = {kOfLora, kOfPairs}}},
      {"lora.base_dtype",
       Kind::choice,
       "auto",
       "dtype of the blocks' frozen linears in memory and in gathers; int8, fp8: blocks of 256 with a scale each, the error is logged at the start; auto: bf16 where plan.compute_dtype is bf16, else fp32",
       nullptr,
       {.choices = "auto|fp32|bf16|int8|fp8", .needs = {kOfLora}}},
      {"lora.init",
       Kind::text,
       "",
       "LoRA file to start from, any naming; empty: A random, B zero",
       weights_path<&Recipe::lora, &Recipe::Lora::init>,
       {.needs = {kOfLora}}},
      {"lora.export",
       Kind::list,
       "diffusers",
       "namings of the LoRA files in run.out/model: diffusers always, and any of comfyui, kohya, diffsynth, peft",
       read_exports,
       {.needs = {kOfLora}}},
  };
}

namespace {

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
           "; flux_shift and qwen_shift: logit_normal, and the shift follows from the tokens of a frame; mode, cosmap: as in SD3; logsnr: a normal logarithm of the signal to noise ratio; qinglong_flux, qinglong_qwen: mixtures of these, as in musubi-tuner",
       read_timesteps,
       {.in_stages = true}},
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
       {.range = {.least = 0, .most = 100000}, .in_stages = true}},
      {"diffusion.bands",
       Kind::list,
       "",
       "ranges of timesteps after the shift by their share of the samples, LOW:HIGH=SHARE: 0:0.5=1,0.5:1=3; within each the distribution is as without; empty: none",
       read_bands,
       {.in_stages = true}},
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

}  // namespace

std::vector<Setting> diffusion_settings() {
  std::vector<Setting> rows = timestep_settings();
  const std::vector<Setting> others = {
      {"diffusion.weighting",
       Kind::choice,
       "none",
       "loss weight over timesteps; sigma_sqrt: 1 / sigma^2; cosmap: 2 / (pi (1 - 2 sigma + 2 sigma^2)); sigma: sigma",
       diffusion<&Recipe::Diffusion::weighting>,
       {.choices = "none|diffsynth|sigma_sqrt|cosmap|sigma", .in_stages = true}},
      {"diffusion.loss",
       Kind::list,
       "mse",
       "loss of a prediction: mse, mae, huber or smooth_l1 as in sd-scripts, pseudo_huber as in ai-toolkit, true_huber or true_smooth_l1 as in PyTorch, log_cosh; or a sum, KIND=WEIGHT: mse=0.5,huber=0.5",
       read_loss,
       {.in_stages = true}},
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
       {.needs = {kDrawnOtherwise}, .in_stages = true}},
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
       {.range = {.least = 0, .most = 1}, .in_stages = true}},
      {"diffusion.max_t",
       Kind::number,
       "1",
       "largest timestep that is drawn, 0 to 1 after the shift",
       diffusion<&Recipe::Diffusion::max_t>,
       {.range = {.least = 0, .most = 1}, .in_stages = true}},
  };
  rows.insert(rows.end(), others.begin(), others.end());
  return rows;
}

std::vector<Setting> experts_settings() {
  return {
      {"experts.router",
       Kind::choice,
       "turns",
       "turns: two experts, each with its own range of timesteps and its own steps; gate: several copies of one model, a learned gate chooses one for each sample",
       experts<&Recipe::ExpertKeys::router>,
       {.choices = "turns|gate"}},
      {"experts.count",
       Kind::integer,
       "2",
       "number of experts behind the gate",
       experts<&Recipe::ExpertKeys::count>,
       {.range = at_least(2), .needs = {kOfGate}}},
      {"experts.temperature",
       Kind::number,
       "1",
       "initial temperature of the gate's softmax; it is learned",
       experts<&Recipe::ExpertKeys::temperature>,
       {.range = above(0), .needs = {kOfGate}}},
      {"experts.hard",
       Kind::choice,
       "true",
       "true: only the chosen expert runs; false: all run, and the gate's weights sum their predictions",
       experts<&Recipe::ExpertKeys::hard>,
       {.choices = "true|false", .needs = {kOfGate}}},
      {"experts.balance",
       Kind::number,
       "0.01",
       "weight of the load-balance loss: experts x sum of share x mean probability, which is 1 when balanced",
       experts<&Recipe::ExpertKeys::balance>,
       {.range = at_least(0), .needs = {kOfGate}}},
      {"experts.train",
       Kind::choice,
       "auto",
       "which of two experts train; auto: both where model.path holds " +
           families::listed(families::expert_folders(families::standard()), "and") +
           "; if it holds one model, both start from it",
       experts<&Recipe::ExpertKeys::train>,
       {.choices = expert_choices()}},
      {"experts.boundary",
       Kind::text,
       "auto",
       "timestep from which the high-noise expert is used, 0 to 1 after the shift, or diffsynth(0.417), DiffSynth's index fraction; auto: 0.9 for image-to-video models, else 0.875",
       experts<&Recipe::ExpertKeys::boundary>,
       {.needs = {kOfTurns, {windows, "the run has one denoiser, which has every timestep"}}}},
      {"experts.turn",
       Kind::integer,
       "1",
       "optimiser steps of one expert before the other trains",
       experts<&Recipe::ExpertKeys::turn>,
       {.range = at_least(1), .needs = {kOfTurns, kSeveral}}},
      {"experts.shares",
       Kind::list,
       "",
       "shares of the steps by expert, high noise first; empty: as often as timesteps fall on each expert's side of the boundary",
       read_shares,
       {.needs = {kOfTurns, kSeveral}}},
  };
}

}  // namespace tessera::recipe
