#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/families/lora_namings.h"
#include "tessera/families/registry.h"
#include "tessera/plan/optimizers.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

template <auto... members>
constexpr Read train = into<&Recipe::train, members...>;
template <auto member>
constexpr Read rate = into<&Recipe::lr_schedule, member>;
template <auto member>
constexpr Read lora = into<&Recipe::lora, member>;
template <auto member>
constexpr Read experts = into<&Recipe::experts, member>;

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
const Needs kOfMuon = {[](const Facts& f) { return plan::row(f.recipe.plan.states.optimizer).whole; },
                       "it belongs to train.optimizer = \"muon\""};
bool has_betas(const Facts& f) { return plan::row(f.recipe.plan.states.optimizer).first; }
const Needs kOfTwins = {[](const Facts& f) { return f.recipe.train.twins(); }, "it belongs to train.preserve"};
const Needs kOfGuidance = {[](const Facts& f) { return f.recipe.train.guidance.on(); },
                           "it belongs to train.guidance_target"};
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

void read_ns_steps(Recipe& recipe, const Given& given) { read_value(recipe.plan.states.iterations, given); }

void read_ns_dtype(Recipe& recipe, const Given& given) {
  recipe.plan.states.matrices = given.text == "fp32" ? DType::f32 : DType::bf16;
}

void read_adjust_lr(Recipe& recipe, const Given& given) { recipe.train.scale_original = given.text == "original"; }

void read_preserve(Recipe& recipe, const Given& given) {
  using Preserve = Recipe::Train::Preserve;
  recipe.train.preserve = given.text == "class"   ? Preserve::of_class
                          : given.text == "blank" ? Preserve::blank
                                                  : Preserve::none;
}

/// A number, or LOW:HIGH.
void read_guidance(Recipe& recipe, const Given& given) {
  auto& [low, high, by_sigma, zero, weight] = recipe.train.guidance;
  const std::string expected = "a number over 0, or LOW:HIGH";
  const size_t colon = given.text.find(':');
  low = high = checked_number(given, given.text.substr(0, colon), expected);
  if (colon != given.text.npos) high = checked_number(given, given.text.substr(colon + 1), expected);
  if (!(low > 0 && low <= high && std::isfinite(high))) given.fail(expected);
}

void read_guidance_schedule(Recipe& recipe, const Given& given) {
  recipe.train.guidance.by_sigma = given.text == "sigma";
}

void read_ns_coefficients(Recipe& recipe, const Given& given) {
  const std::vector<std::string> numbers = split_list(given.text);
  if (numbers.size() != 3) given.fail("three numbers");
  for (size_t i = 0; i < 3; ++i) recipe.train.ns_coefficients[i] = checked_number(given, numbers[i], "three numbers");
}

void read_growth_rate(Recipe& recipe, const Given& given) {
  double& rate = recipe.train.growth_rate;
  read_value(rate, given);
  if (rate > 0 && rate < 1) given.fail("0, or 1 and more: a step size that shrinks finds none");
}

void read_alpha(Recipe& recipe, const Given& given) {  // the row of the rank stands above
  recipe.lora.alpha = given.text == "auto" ? static_cast<double>(recipe.lora.rank)
                                           : checked_number(given, given.text, "auto or a number");
  if (recipe.lora.alpha <= 0)
    given.fail("auto or a number above 0: adapters are scaled by it", "programs that take 0 for the rank mean auto");
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
    if (number <= 0) given.fail("numbers above 0 behind each pattern, and '" + item + "' has none");
    patterns.emplace_back(item.substr(0, at), number);
  }
}

void read_exports(Recipe& recipe, const Given& given) {
  const auto& known = families::kLoraNamings;
  recipe.lora.exports = split_list(given.text);
  if (recipe.lora.exports.empty() && !given.text.empty())
    throw UserError(Exit::usage, "recipe", given.key + ": '" + given.text + "' names no naming of LoRA files",
                    "known are diffusers, comfyui, kohya, diffsynth and peft");
  for (const std::string& naming : recipe.lora.exports) {
    if (std::find(known.begin(), known.end(), naming) != known.end()) continue;
    throw UserError(
        Exit::usage, "recipe",
        given.key + ": '" + naming + "' is no naming of LoRA files; did you mean " + nearest(naming, known)[0] + "?",
        "known are diffusers, comfyui, kohya, diffsynth and peft");
  }
}

void read_shares(Recipe& recipe, const Given& given) {
  recipe.experts.shares.clear();
  for (const std::string& share : split_list(given.text))
    recipe.experts.shares.push_back(checked_number(given, share, "numbers"));
}

/// Numbers, or the folder of a run that has them.
void read_frequencies(Recipe& recipe, const Given& given) {
  const std::vector<std::string> list = split_list(given.text);
  recipe.experts.frequencies.clear(), recipe.experts.frequencies_of.clear();
  if (list.size() == 1 && list[0].find_first_not_of("0123456789.eE+-") != std::string::npos) {
    recipe.experts.frequencies_of = list[0];
    return;
  }
  for (const std::string& frequency : list)
    recipe.experts.frequencies.push_back(checked_number(given, frequency, "numbers, or the folder of a run"));
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
const Needs kOfHard = {[](const Facts& f) { return !f.gated() || f.recipe.experts.hard; },
                       "with experts.hard = false every expert runs every sample, on the rank that has it"};
const Needs kOfDeal = {
    [](const Facts& f) { return !f.gated() || f.recipe.experts.deal == "auto"; },
    "with experts.deal = off samples stay where they were drawn, and ranks have those of all experts"};
const Needs kOfFreePlan = {[](const Facts& f) { return f.searches() && f.recipe.train.micro_batch == 0; },
                           "train.micro_batch and plan.file set what passes of all experts run by"};
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
       rate<&recipe::LrSchedule::name>,
       {.choices =
            "constant|constant_with_warmup|linear|cosine|cosine_min|cosine_with_restarts|polynomial|wsd|torch_linear_then_cosine|opensora_linear_warmup",
        .in_stages = true}},
      {"train.warmup_steps",
       Kind::integer,
       "0",
       "warm-up steps",
       rate<&recipe::LrSchedule::warmup_steps>,
       {.range = at_least(0),
        .needs = {{[](const Facts& f) { return !schedule_is<"constant">(f); },
                   "train.schedule = \"constant\" has no warm-up; \"constant_with_warmup\" has"}},
        .in_stages = true}},
      {"train.eta_min",
       Kind::number,
       "0",
       "lowest learning rate of cosine_min and torch_linear_then_cosine",
       rate<&recipe::LrSchedule::eta_min>,
       {.range = at_least(0),
        .needs = {{schedule_is<"cosine_min", "torch_linear_then_cosine">,
                   "train.schedule = \"cosine_min\" and \"torch_linear_then_cosine\" have a lowest rate"}},
        .in_stages = true}},
      {"train.num_cycles",
       Kind::number,
       "1",
       "cycles of cosine_with_restarts",
       rate<&recipe::LrSchedule::num_cycles>,
       {.range = above(0),
        .needs = {{schedule_is<"cosine_with_restarts">, "it belongs to train.schedule = \"cosine_with_restarts\""}},
        .in_stages = true}},
      {"train.power",
       Kind::number,
       "1",
       "exponent of polynomial",
       rate<&recipe::LrSchedule::power>,
       {.range = above(0),
        .needs = {{schedule_is<"polynomial">, "it belongs to train.schedule = \"polynomial\""}},
        .in_stages = true}},
      {"train.stable_steps",
       Kind::integer,
       "0",
       "wsd: steps at the full learning rate",
       rate<&recipe::LrSchedule::stable_steps>,
       {.range = at_least(0),
        .needs = {{schedule_is<"wsd">, "it belongs to train.schedule = \"wsd\""}},
        .in_stages = true}},
      {"train.decay_steps",
       Kind::integer,
       "0",
       "wsd: steps of the decay",
       rate<&recipe::LrSchedule::decay_steps>,
       {.range = at_least(0),
        .needs = {{schedule_is<"wsd">, "it belongs to train.schedule = \"wsd\""}},
        .in_stages = true}},
      {"train.betas",
       Kind::list,
       "",
       "betas of the optimiser's moments; empty: 0.9, 0.999 (adamw, prodigy), 0.9, 0.99 (lion), 0.9, 0.999, 0.9999 (came), 0.9, 0.95 (muon, of what AdamW updates)",
       nullptr,
       {.range = {.least = 0, .most = 1, .below = true},
        .needs = {{has_betas, "Adafactor's first moment has train.factored_beta1, and its second a rate of its own"}},
        .in_stages = true}},
      {"train.eps",
       Kind::number,
       "1e-8",
       "epsilon of AdamW, Prodigy and what AdamW updates beside Muon",
       train<&Recipe::Train::eps>,
       {.range = above(0),
        .needs = {{has_eps, "it belongs to train.optimizer = \"adamw\", \"prodigy\" or \"muon\""}},
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
      {"train.momentum",
       Kind::number,
       "0.95",
       "muon: decay of the momentum of matrices",
       train<&Recipe::Train::momentum>,
       {.range = {.least = 0, .most = 1, .below = true}, .needs = {kOfMuon}, .in_stages = true}},
      {"train.nesterov",
       Kind::choice,
       "true",
       "muon: a step looks ahead by the momentum once more",
       train<&Recipe::Train::nesterov>,
       {.choices = "true|false", .needs = {kOfMuon}, .in_stages = true}},
      {"train.ns_steps",
       Kind::integer,
       "5",
       "muon: Newton-Schulz iterations that make a matrix orthogonal",
       read_ns_steps,
       {.range = {.least = 1, .most = 100}, .needs = {kOfMuon}}},
      {"train.ns_coefficients",
       Kind::list,
       "3.4445,-4.775,2.0315",
       "muon: a, b, c of an iteration X = a X + b (X X^T) X + c (X X^T)^2 X",
       read_ns_coefficients,
       {.needs = {kOfMuon}, .in_stages = true}},
      {"train.ns_dtype",
       Kind::choice,
       "bf16",
       "muon: in which matrices are sent to the rank that iterates them, iterated and sent back",
       read_ns_dtype,
       {.choices = "bf16|fp32", .needs = {kOfMuon}}},
      {"train.adjust_lr_fn",
       Kind::choice,
       "match_rms_adamw",
       "muon: what a matrix's step is times the rate; match_rms_adamw: 0.2 sqrt(max(rows, columns)), as large as AdamW's; original: sqrt(max(1, rows / columns)), which wants rates near 0.02",
       read_adjust_lr,
       {.choices = "match_rms_adamw|original", .needs = {kOfMuon}, .in_stages = true}},
      {"train.muon_hidden_layers",
       Kind::list,
       "",
       "muon: matrices among the tensors of two dimensions or more, by patterns as in train.only; AdamW updates all else; empty: those of the blocks, without modulation tables and the first and last layers; *: all",
       nullptr,
       {.needs = {kOfMuon}}},
      {"train.muon_adam_layers",
       Kind::list,
       "",
       "muon: tensors among these that AdamW updates all the same, by patterns",
       nullptr,
       {.needs = {kOfMuon}}},
      {"train.muon_adam_lr",
       Kind::number,
       "0",
       "muon: learning rate of what AdamW updates, with the schedule and the scale of train.lr; 0: train.lr",
       train<&Recipe::Train::muon_adam_lr>,
       {.range = at_least(0), .needs = {kOfMuon}, .in_stages = true}},
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
      {"train.preserve",
       Kind::choice,
       "none",
       "what adapters are to leave as it is; class: captions with train.preserve_class in place of data.trigger; blank: no caption; half of train.global_batch are the other half's clips again with these captions, whose target is what the model says without its adapters",
       read_preserve,
       {.choices = "none|class|blank"}},
      {"train.preserve_class",
       Kind::text,
       "",
       "word for what data.trigger is one of: person, house",
       train<&Recipe::Train::preserve_class>,
       {.needs = {{[](const Facts& f) { return f.recipe.train.preserve == Recipe::Train::Preserve::of_class; },
                   "it belongs to train.preserve = \"class\""}}}},
      {"train.preserve_weight",
       Kind::number,
       "1",
       "weight of the mean loss of what is to stay beside that of the clips",
       train<&Recipe::Train::preserve_weight>,
       {.range = at_least(0), .needs = {kOfTwins}, .in_stages = true}},
      {"train.guidance_target", Kind::text, "1",
       "for bases that were distilled of their guidance: targets lie so many times as far from what the model predicts without a caption, 3 is usual; LOW:HIGH draws it for each sample; 1: targets stay",
       read_guidance},
      {"train.guidance_schedule",
       Kind::choice,
       "constant",
       "train.guidance_target over the timesteps; sigma: it is 1 at the clean end and grows to itself",
       read_guidance_schedule,
       {.choices = "constant|sigma", .needs = {kOfGuidance}, .in_stages = true}},
      {"train.guidance_zero",
       Kind::choice,
       "false",
       "the prediction without a caption is first scaled to what it has of the target (CFG-Zero)",
       train<&Recipe::Train::guidance, &Recipe::Train::Guidance::zero>,
       {.choices = "true|false", .needs = {kOfGuidance}, .in_stages = true}},
      {"train.guidance_weight",
       Kind::number,
       "1",
       "weight of the loss against moved targets",
       train<&Recipe::Train::guidance, &Recipe::Train::Guidance::weight>,
       {.range = at_least(0), .needs = {kOfGuidance}, .in_stages = true}},
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
      {"lora.rank_dropout",
       Kind::number,
       "0",
       "share of the ranks of each pair that a sample does without, drawn for each sample and module; the others are scaled up",
       lora<&Recipe::Lora::rank_dropout>,
       {.range = {.least = 0, .most = 1, .below = true}, .needs = {kOfLora}}},
      {"lora.module_dropout",
       Kind::number,
       "0",
       "share of the adapters that a sample does without, drawn for each sample and module; the others are not scaled",
       lora<&Recipe::Lora::module_dropout>,
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
      {"experts.deal",
       Kind::choice,
       "auto",
       "auto: behind a hard gate the samples of each expert are spread evenly over the data-parallel ranks; off: they stay where they were drawn",
       experts<&Recipe::ExpertKeys::deal>,
       {.choices = "auto|off", .needs = {kOfGate, kOfHard}}},
      {"experts.share",
       Kind::choice,
       "auto",
       "auto: behind a hard gate the last micro-batches of two experts, which only some ranks have samples of, are computed side by side, each on ranks of its own, where the plan finds that faster; off: one expert after the other",
       experts<&Recipe::ExpertKeys::share>,
       {.choices = "auto|off", .needs = {kOfGate, kOfHard, kOfDeal}}},
      {"experts.by_use",
       Kind::choice,
       "off",
       "auto: behind a hard gate passes of an expert that is seldom chosen may run with smaller micro-batches and other activations than those of one that is chosen often, by frequencies that are measured from checkpoint to checkpoint; off: all by one plan",
       experts<&Recipe::ExpertKeys::by_use>,
       {.choices = "auto|off", .needs = {kOfGate, kOfHard, kOfFreePlan}}},
      {"experts.frequencies",
       Kind::list,
       "",
       "how often samples choose each expert, for what plan predicts and experts.by_use begins with: numbers, or the folder of a run that has measured them; empty: alike",
       read_frequencies,
       {.needs = {kOfGate, kOfHard}}},
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
