#include "tessera/recipe/recipe.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/families/lora_namings.h"
#include "tessera/plan/nvme.h"
#include "tessera/recipe/lr_scale.h"
#include "tessera/recipe/recipe_checks.h"

namespace tessera::recipe {

namespace {

/// Typed access to checked values.
struct Reader {
  const Values& values;
  const std::string& text(const char* name) const { return values.at(name); }
  int64_t integer(const char* name) const { return to_integer(values.at(name)); }
  double number(const char* name) const { return to_number(values.at(name)); }
  int64_t at_least(const char* name, int64_t least) const {
    const int64_t value = integer(name);
    if (value < least)
      throw UserError(
          Exit::usage, "recipe",
          std::string(name) + " = " + std::to_string(value) + ": expected at least " + std::to_string(least));
    return value;
  }
  /// A number, or nothing for "auto" (and what `words` say).
  std::optional<int> automatic(const char* name, const std::vector<std::pair<std::string, int>>& words) const {
    const std::string& value = values.at(name);
    if (value == "auto") return std::nullopt;
    std::string known = "auto";
    for (const auto& [word, meaning] : words) {
      if (value == word) return meaning;
      known += ", " + word;
    }
    constexpr size_t kDigits = 9;  // of an int
    if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos || value.size() > kDigits)
      throw UserError(Exit::usage, "recipe",
                      std::string(name) + " = '" + value + "': expected " + known + " or a number");
    return static_cast<int>(to_integer(value));
  }
  /// The same for what is counted from 1.
  std::optional<int> automatic_count(const char* name) const {
    const std::optional<int> value = automatic(name, {});
    if (value && *value < 1)
      throw UserError(Exit::usage, "recipe", std::string(name) + " = 0: expected auto or a number from 1 on");
    return value;
  }
  /// What may not be left empty.
  const std::string& named(const char* name, const char* hint) const {
    const std::string& value = values.at(name);
    if (value.empty()) throw UserError(Exit::usage, "recipe", std::string(name) + " is empty", hint);
    return value;
  }
};

std::string model_config(const Values& values) {
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  const std::string prefix = "model.config.";
  for (const auto& option : recipe_table().options()) {
    if (!option.name.starts_with(prefix) || values.at(option.name).empty()) continue;
    const std::string key = option.name.substr(prefix.size());
    if (option.kind == Kind::integer)
      config[key] = to_integer(values.at(option.name));
    else if (option.kind == Kind::text)
      config[key] = values.at(option.name);
    else if (option.kind == Kind::list)
      for (const std::string& item : split_list(values.at(option.name))) config[key].push_back(to_integer(item));
    else
      config[key] = to_number(values.at(option.name));
  }
  return config.empty() ? "" : config.dump();
}

/// data.buckets, or the one bucket of data.frames and data.size.
data::ClipRules clip_rules(const Reader& read) {
  data::ClipRules rules;
  for (const std::string& text : split_list(read.text("data.buckets")))
    rules.buckets.push_back(data::parse_bucket(text));
  const bool listed = !rules.buckets.empty();
  if (!listed) {
    const std::vector<std::string> size = split_list(read.text("data.size"));
    rules.buckets = {{read.at_least("data.frames", 1), to_integer(size[0]), to_integer(size[1])}};
  }
  rules.fps = read.number("data.fps");
  rules.mode = data::clip_mode_of(read.text("data.clip_mode"));
  rules.stride = read.at_least("data.clip_stride", 0);
  rules.samples = read.at_least("data.clip_samples", 1);
  const std::string& crop = read.text("data.max_crop");
  rules.max_crop = crop == "auto" ? (listed ? 0.5 : 1) : to_number(crop);
  if (rules.max_crop < 0 || rules.max_crop > 1 || crop.empty() ||
      (crop != "auto" && crop.find_first_not_of("0123456789.eE-+") != std::string::npos))
    throw UserError(Exit::usage, "recipe", "data.max_crop = '" + crop + "': expected auto or a share from 0 to 1");
  return rules;
}

/// A number where a word may stand as well.
double checked_number(const std::string& key, const std::string& text, const std::string& expected) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value)) return value;
  throw UserError(Exit::usage, "recipe", key + " = '" + text + "': expected " + expected);
}

/// N of "every N", else 0.
int every_of(const std::string& text) {
  const std::string word = "every ";
  if (!text.starts_with(word)) return 0;
  const std::string number = text.substr(word.size());
  const bool whole = !number.empty() && number.size() < 6 && number.find_first_not_of("0123456789") == number.npos;
  if (!whole || to_integer(number) < 1)
    throw UserError(Exit::usage, "recipe", "plan.recompute = '" + text + "': expected a number from 1 on after every",
                    "\"every 4\" recomputes one block in four");
  return static_cast<int>(to_integer(number));
}

Recipe::Lora lora_of(const Reader& read) {
  Recipe::Lora l;
  l.on = read.text("train.mode") == "lora";
  l.rank = read.at_least("lora.rank", 1);
  const std::string& alpha = read.text("lora.alpha");
  l.alpha = alpha == "auto" ? static_cast<double>(l.rank) : checked_number("lora.alpha", alpha, "auto or a number");
  l.dropout = read.number("lora.dropout");
  l.rslora = read.text("lora.rslora") == "true";
  l.dora = read.text("lora.dora") == "true";
  l.init = read.text("lora.init");
  l.targets = split_list(read.text("lora.targets"));
  l.exports = split_list(read.text("lora.export"));
  for (const std::string& naming : l.exports) {
    const auto& known = families::kLoraNamings;
    if (std::find(known.begin(), known.end(), naming) != known.end()) continue;
    throw UserError(
        Exit::usage, "recipe",
        "lora.export: '" + naming + "' is no naming of LoRA files; did you mean " + nearest(naming, known)[0] + "?",
        "known are diffusers, comfyui, kohya, diffsynth and peft");
  }
  if (l.dora && l.dropout > 0)
    throw UserError(Exit::usage, "recipe", "lora.dropout and lora.dora exclude each other", "set lora.dropout = 0");
  return l;
}

LrScale scale_of(const Recipe& r) {
  const Reader read{r.values};
  return lr_scale(read.text("train.lr_scale"), read.at_least("train.global_batch", 1),
                  read.at_least("train.lr_base_batch", 1));
}

/// What parameters are gathered as, computed in, and gradients reduced in and kept as; they go together as in a plan by
/// hand.
void fill_types(Recipe& r) {
  const auto type = [&](const char* key) {
    return dtype_of(r.values.at(key), std::string("recipe: ") + key, kComputeTypes);
  };
  r.plan.compute = type("plan.compute_dtype");
  r.plan.reduce = type("plan.reduce_dtype");
  r.plan.grad = type("plan.grad_dtype");
  std::string& gathered = r.values.at("plan.param_dtype");
  if (gathered == "auto")
    gathered = r.plan.states.masters == plan::Masters::fp32 ? r.values.at("plan.compute_dtype") : "bf16";
  r.plan.param_dtype = type("plan.param_dtype");
  plan::Plan types;
  types.mesh = r.mesh, types.states = r.plan.states;
  types.param_dtype = r.plan.param_dtype, types.compute = r.plan.compute, types.grad = r.plan.grad;
  types.check_types("recipe: plan.");
}

/// A base that bf16 products read is kept as what they read; else its own bits are kept unless others are asked for.
void fill_base(Recipe& r) {
  if (!r.lora.on) return;
  std::string& base = r.values.at("lora.base_dtype");
  if (base == "auto") base = r.plan.compute == DType::bf16 ? "bf16" : "fp32";
  r.lora.base = dtype_of(base, "recipe: lora.base_dtype", plan::kStoredTypes);
}

}  // namespace

void Recipe::fill() {
  Recipe& r = *this;
  const Reader read{r.values};
  check_ranges(r.values);
  r.run = {read.named("run.out", "name a folder of the run's own: it is made, and holds all that the run writes"),
           read.text("run.resume"), read.text("run.on_nan"), read.integer("run.seed"), read.at_least("run.steps", 1)};
  r.model = {read.text("model.preset"), read.text("model.path"), read.text("model.family"), read.text("model.init"),
             model_config(r.values)};
  const std::vector<std::string> size = split_list(read.text("data.size"));
  if (size.size() != 2 || to_integer(size[0]) < 1 || to_integer(size[1]) < 1)
    throw UserError(Exit::usage, "recipe",
                    "data.size = '" + read.text("data.size") + "': expected [height, width] in pixels",
                    "for example data.size = [480, 832]");
  r.data = {read.text("data.path"),
            read.text("data.metadata"),
            read.text("data.cache"),
            read.text("data.vae"),
            read.text("data.text_encoder"),
            read.text("data.text_encoder_path"),
            read.text("data.tokenizer"),
            to_integer(size[0]),
            to_integer(size[1]),
            read.at_least("data.frames", 1),
            read.at_least("data.repeats", 1),
            read.number("data.fps"),
            read.text("data.strict") == "true",
            read.at_least("data.allow_bad", 0),
            clip_rules(read)};
  r.data.image_encoder = read.text("data.image_encoder");
  r.data.image_encoder_path = read.text("data.image_encoder_path");
  r.data.audio_encoder = read.text("data.audio_encoder");
  r.data.vae_tile = read.automatic("data.vae_tile", {}).value_or(-1);
  r.data.frames = r.data.clips.buckets[0].frames;
  r.data.height = r.data.clips.buckets[0].height;
  r.data.width = r.data.clips.buckets[0].width;
  r.train.global_batch = read.at_least("train.global_batch", 1);
  r.train.micro_batch = read.automatic_count("train.micro_batch").value_or(0);
  r.train.lr = read.number("train.lr") * scale_of(r).factor;
  r.train.eps = read.number("train.eps");
  r.train.weight_decay = read.number("train.weight_decay");
  r.train.clip_norm = read.number("train.clip_norm");
  if (const std::string& scale = read.text("train.loss_scale"); scale != "auto")
    r.train.loss_scale = checked_number("train.loss_scale", scale, "auto or a number over 0");
  if (!(r.train.loss_scale > 0))
    throw UserError(Exit::usage, "recipe",
                    "train.loss_scale = " + read.text("train.loss_scale") + ": expected auto or a number over 0");
  r.train.loss_scale_window = read.at_least("train.loss_scale_window", 1);
  const std::vector<std::string> betas = split_list(read.text("train.betas"));
  if (betas.size() != 2)
    throw UserError(Exit::usage, "recipe", "train.betas = '" + read.text("train.betas") + "': expected two numbers",
                    "for example [0.9, 0.999]");
  for (int i = 0; i < 2; ++i) r.train.betas[i] = to_number(betas[i]);
  r.lora = lora_of(read);
  r.diffusion = {read.text("diffusion.timesteps"), read.text("diffusion.weighting"), read.number("diffusion.shift")};
  r.diffusion.image_share = read.number("diffusion.image_share");
  if (!(r.diffusion.image_share >= 0 && r.diffusion.image_share <= 1))
    throw UserError(Exit::usage, "recipe",
                    "diffusion.image_share = " + read.text("diffusion.image_share") + ": expected a share from 0 to 1");
  r.diffusion.min_t = read.number("diffusion.min_t");
  r.diffusion.max_t = read.number("diffusion.max_t");
  r.experts = {read.text("experts.train"), read.text("experts.boundary"), read.at_least("experts.turn", 1), {}};
  r.experts.router = read.text("experts.router");
  r.experts.count = read.at_least("experts.count", 2);
  r.experts.temperature = read.number("experts.temperature");
  r.experts.hard = read.text("experts.hard") == "true";
  r.experts.balance = read.number("experts.balance");
  for (const std::string& share : split_list(read.text("experts.shares")))
    r.experts.shares.push_back(checked_number("experts.shares", share, "numbers"));
  for (Axis axis : kAllAxes)
    r.mesh[axis] = static_cast<int>(read.at_least(("mesh." + std::string(axis_name(axis))).c_str(), 1));
  r.plan.file = read.text("plan.file");
  r.plan.profile = read.text("plan.profile");
  r.plan.budget = read.text("plan.budget").empty() ? 0 : parse_bytes(read.text("plan.budget"), "plan.budget");
  if (r.plan.budget == 0 && !read.text("plan.budget").empty())
    throw UserError(Exit::usage, "plan.budget", "no memory is given, every rank needs some",
                    "leave it away for most of the device, or write for example 24GiB");
  r.plan.recompute_every = every_of(read.text("plan.recompute"));
  r.plan.recompute =
      r.plan.recompute_every > 0 ? std::nullopt : read.automatic("plan.recompute", {{"none", 0}, {"all", 1 << 20}});
  r.plan.prefetch = read.automatic("plan.prefetch", {{"none", 0}});
  if (const std::string& text = read.text("plan.update"); text != "auto")
    r.plan.update = plan::update_of(text, "recipe: plan.update");
  if (const std::string& text = read.text("plan.update_on"); text != "auto")
    r.plan.update_on = plan::tier_of(text, "recipe: plan.update_on");
  r.plan.update_threads = read.automatic_count("plan.update_threads").value_or(0);
  if (const std::string& text = read.text("plan.pipeline"); text != "auto")
    r.plan.pipeline = plan::pipeline_schedule_of(text, "recipe: plan.pipeline");
  r.plan.chunks = read.automatic_count("plan.chunks");
  if (read.text("plan.strategy") != "auto")
    r.plan.strategy = plan::strategy_of(read.text("plan.strategy"), "recipe: plan.strategy");
  if (!read.text("plan.host_budget").empty())
    r.plan.host_budget = parse_bytes(read.text("plan.host_budget"), "plan.host_budget");
  r.plan.nvme = read.text("plan.nvme");
  r.plan.nvme_checksum = read.text("plan.nvme_checksum") == "true";
  if (const std::string& text = read.text("plan.activations"); text == plan::kRecomputeOffload.word)
    r.plan.activations = plan::kRecomputeOffload.policy;
  else if (text != "auto")
    r.plan.activations = plan::policy_of(text, "recipe: plan.activations");
  for (const auto& [key, tier] : {std::pair("plan.parameters", &r.plan.parameters),
                                  {"plan.gradients", &r.plan.gradients},
                                  {"plan.states", &r.plan.states_tier},
                                  {"plan.offload_to", &r.plan.offload_to},
                                  {"plan.idle", &r.plan.idle}})
    if (read.text(key) != "auto") {
      *tier = plan::tier_of(read.text(key), std::string("recipe: ") + key);
      if (*tier == plan::Tier::nvme) plan::require_nvme_folder(r.plan.nvme, std::string(key) + " = \"nvme\"");
    }
  const std::string& masters = read.text("plan.masters");
  r.plan.states = {plan::masters_of(masters, "recipe: plan.masters"),
                   plan::moments_of(read.text("plan.moments"), "recipe: plan.moments")};
  fill_types(r);
  fill_base(r);
  r.checkpoint = {read.at_least("checkpoint.every", 0), read.at_least("checkpoint.keep", 0)};
  r.sample = {
      read.at_least("sample.every", 0),       read.at_least("sample.steps", 1), read.integer("sample.seed"),
      read.number("sample.guidance"),         read.text("sample.sampler"),      read.text("sample.negative_prompt"),
      split_list(read.text("sample.prompts"))};
  r.sample.images = split_list(read.text("sample.image"));
  r.sample.last_images = split_list(read.text("sample.last_image"));
  r.sample.sounds = split_list(read.text("sample.audio"));
  r.sample.poses = split_list(read.text("sample.pose"));
  r.sample.clips = read.automatic("sample.clips", {}).value_or(0);
  if (r.sample.clips < 1 && read.text("sample.clips") != "auto")
    throw UserError(Exit::usage, "recipe", "sample.clips = " + read.text("sample.clips") + ": expected at least 1",
                    "or auto, as many as the sound lasts");
  r.fault = {read.number("fault.timeout"), read.at_least("fault.max_restarts", 0), read.number("fault.slow_factor"),
             read.at_least("fault.slow_steps", 1), read.text("fault.rebalance") == "true"};
  optim::LrSchedule& s = r.lr_schedule;
  s.name = read.text("train.schedule");
  s.lr = r.train.lr;
  s.total_steps = r.run.steps;
  s.warmup_steps = read.at_least("train.warmup_steps", 0);
  s.eta_min = read.number("train.eta_min");
  s.num_cycles = read.number("train.num_cycles");
  s.power = read.number("train.power");
  s.stable_steps = read.integer("train.stable_steps");
  s.decay_steps = read.integer("train.decay_steps");
}

void Recipe::set(const std::string& name, const std::string& value) {
  recipe_table().set(values, name, value, "recipe");
  fill();
}

Recipe Recipe::at_stage(size_t count) const {
  Recipe recipe = *this;
  recipe.stages.clear();
  recipe.plan = {};  // its automatic choices are those that nothing is said of
  for (size_t s = 0; s < count; ++s)
    for (const auto& [name, value] : stages.at(s).changes)
      recipe_table().set(recipe.values, name, value, "[[stage]] " + std::to_string(s + 1));
  recipe.fill();
  return recipe;
}

std::string Recipe::to_toml() const {
  std::string text = recipe_table().to_toml(values);
  if (const LrScale scale = scale_of(*this); !scale.text.empty()) {
    char lr[64];
    std::snprintf(lr, sizeof lr, " = %.9g", train.lr);
    const std::string key = "\nlr_scale = ";
    const size_t end = text.find('\n', text.find(key) + key.size());
    text.insert(end, "  # " + values.at("train.lr") + " x " + scale.text + lr + " is the rate of the schedule");
  }
  return text + stages_toml(stages);
}

}  // namespace tessera::recipe
