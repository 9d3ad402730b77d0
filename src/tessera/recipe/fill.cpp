// From the texts of a recipe to its fields: each value by its row, then what several of them decide together.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/data/aspect_ratios.h"
#include "tessera/data/text/text.h"
#include "tessera/plan/optimizers.h"
#include "tessera/recipe/parameter_keys.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/setting.h"
#include "tessera/recipe/stages.h"

namespace tessera::recipe {

namespace {

/// train.lr_scale: how the learning rate follows the global batch.
struct LrScale {
  double factor = 1;
  std::string text;  ///< the factor as it was made; empty for none
};

/// `rule`: none; linear, global_batch / base_batch (Goyal et al., 2017: with SGD); sqrt, its square root (Adam; Sana's
/// auto_lr with a base of 256); or a number, the factor itself. Throws UserError (usage) for anything else.
LrScale lr_scale(const std::string& rule, int64_t global_batch, int64_t base_batch) {
  if (rule == "none") return {};
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(base_batch);
  const std::string text = std::to_string(global_batch) + " / " + std::to_string(base_batch);
  if (rule == "linear") return {ratio, text};
  if (rule == "sqrt") return {std::sqrt(ratio), "sqrt(" + text + ")"};
  char* end = nullptr;
  const double factor = std::strtod(rule.c_str(), &end);
  if (rule.empty() || *end != 0 || !std::isfinite(factor) || factor <= 0) {
    const std::string meant = nearest(rule, {"none", "linear", "sqrt"}).front();
    throw UserError(Exit::usage, "recipe: train.lr_scale",
                    "'" + rule + "': expected none, linear, sqrt or a factor above 0",
                    "did you mean \"" + meant + "\"?");
  }
  return {factor, rule};
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// An item of a list of model.config.
int64_t size_of_model(const std::string& key, const std::string& text) {
  if (const auto value = whole_number(text)) return *value;
  throw UserError(Exit::usage, "recipe", "model.config." + key + " = '" + text + "': expected whole numbers",
                  "for example 1, or a list of them: 0,4,8");
}

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
    else if (const std::string& value = values.at(option.name);
             option.kind == Kind::list && value.find_first_of(std::string(1, kListSeparator) + ",") == value.npos)
      config[key] = size_of_model(key, value);  // a list of one family is a number of another
    else if (option.kind == Kind::list)
      for (const std::string& item : split_list(value)) config[key].push_back(size_of_model(key, item));
    else
      config[key] = to_number(values.at(option.name));
  }
  return config.empty() ? "" : config.dump();
}

/// With the output that a student has of its own.
std::string with_logvar(const std::string& config, const Recipe::Distill& distill) {
  if (!distill.consistent() || !distill.logvar) return config;
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  if (!config.empty()) all = nlohmann::ordered_json::parse(config);
  all["logvar"] = true;
  return all.dump();
}

/// data.size, [height, width].
std::pair<int64_t, int64_t> size_of_clips(const Values& values) {
  const std::vector<std::string> size = split_list(values.at("data.size"));
  if (size.size() != 2 || whole_number(size[0]).value_or(0) < 1 || whole_number(size[1]).value_or(0) < 1)
    throw UserError(Exit::usage, "recipe",
                    "data.size = '" + values.at("data.size") + "': expected [height, width] in pixels",
                    "for example data.size = [480, 832]");
  return {to_integer(size[0]), to_integer(size[1])};
}

/// data.buckets, or the one bucket of data.frames and data.size; the first is what is sampled.
/// What is said of listed shapes, beside keys that make other shapes of them or leave no choice among them.
void check_batches_and_shares(const Recipe& r) {
  const data::ClipRules& rules = r.data.clips;
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw UserError(Exit::usage, "data.buckets", what, hint);
  };
  const bool batches = std::ranges::any_of(rules.buckets, [](const data::Bucket& b) { return b.batch > 0; });
  if (batches && rules.mode == data::ClipMode::full)
    refuse("batches of listed shapes with data.clip_mode = \"full\", which trains in shapes that are not listed",
           "list each length, or set train.global_batch for all");
  if (rules.draws() && rules.every_length)
    refuse("shares of the clips with data.clip_lengths = \"every\", which takes each clip in each length",
           "leave the shares out, or data.clip_lengths");
  if (rules.draws() && r.data.latents)
    refuse("shares of the clips with data.latents = \"" + r.values.at("data.latents") +
               "\", whose latents have one shape each",
           "leave the shares out, or train on the clips");
  if (r.data.images_every == 1)
    throw UserError(Exit::usage, "data.images_every", "1 would train on images alone, from the second step on",
                    "give 2 or more, or list shapes of one frame alone");
}

void resolve_buckets(Recipe& r) {
  const auto [height, width] = size_of_clips(r.values);
  data::ClipRules& rules = r.data.clips;
  rules.buckets.clear();
  rules.seed = static_cast<uint64_t>(r.run.seed);
  std::vector<std::string> sizes;
  for (const std::string& text : split_list(r.values.at("data.buckets"))) {
    const data::BucketItem item = data::parse_bucket_item(text);
    auto size = std::ranges::find(sizes, item.size());
    if (size == sizes.end()) size = sizes.insert(size, item.size());
    for (data::Bucket bucket : data::buckets_of(item.shape)) {
      bucket.batch = item.batch, bucket.take = item.take, bucket.keep = item.keep;
      bucket.level = static_cast<int>(size - sizes.begin());
      rules.buckets.push_back(bucket);
    }
  }
  if (std::ranges::any_of(rules.buckets, [](const data::Bucket& b) { return b.batch > 0; }))
    for (data::Bucket& bucket : rules.buckets)
      if (bucket.batch == 0) bucket.batch = to_integer(r.values.at("train.global_batch"));
  check_batches_and_shares(r);
  const bool listed = !rules.buckets.empty();
  if (!listed) rules.buckets = {{to_integer(r.values.at("data.frames")), height, width}};
  if (rules.mode == data::ClipMode::full) {
    std::vector<data::Bucket> all;
    for (const data::Bucket& most : rules.buckets)
      for (const data::Bucket& bucket : data::buckets_of_full(most))
        if (std::ranges::find(all, bucket) == all.end()) all.push_back(bucket);
    rules.buckets = std::move(all);
  }
  for (const data::Bucket& bucket : rules.buckets) {
    constexpr int64_t kMostPixels = int64_t{1} << 40;  // of a sample: 30,000 frames of 8K are fewer
    const int64_t pixels = checked_product({bucket.frames, bucket.height, bucket.width}, "recipe: " + bucket.text());
    if (pixels > kMostPixels)
      throw UserError(
          Exit::usage, "recipe",
          bucket.text() + " has " + std::to_string(pixels) + " pixels, expected at most " + std::to_string(kMostPixels),
          listed ? "see data.buckets" : "see data.frames and data.size");
  }
  const std::string& crop = r.values.at("data.max_crop");
  rules.max_crop = crop == "auto" ? (listed ? 0.5 : 1) : to_number(crop);
  if (rules.max_crop < 0 || rules.max_crop > 1 || crop.empty() ||
      (crop != "auto" && crop.find_first_not_of("0123456789.eE-+") != std::string::npos))
    throw UserError(Exit::usage, "recipe", "data.max_crop = '" + crop + "': expected auto or a share from 0 to 1");
  r.data.frames = rules.buckets[0].frames;
  r.data.height = rules.buckets[0].height;
  r.data.width = rules.buckets[0].width;
}

LrScale scale_of(const Values& values) {
  return lr_scale(values.at("train.lr_scale"), to_integer(values.at("train.global_batch")),
                  to_integer(values.at("train.lr_base_batch")));
}

/// Places on a disk by hand need one.
void check_disk(const Recipe& r) {
  for (const Setting& setting : settings())
    if (setting.more.choices.ends_with("|nvme") && r.values.at(setting.key) == name(plan::Tier::nvme))
      plan::require_nvme_folder(r.plan.nvme, setting.key + " = \"nvme\"");
  for (const plan::UnitKeys& units : r.plan.units)
    for (const auto& [key, value] : units.keys)
      if (value == name(plan::Tier::nvme))
        plan::require_nvme_folder(r.plan.nvme, "plan.units: " + units.match + " " + key + " = \"nvme\"");
}

/// What parameters are gathered as, computed in, and gradients reduced in and kept as; they go together as in a plan by
/// hand.
void resolve_types(Recipe& r) {
  const bool open = r.values.at("plan.compute_dtype") == "auto";
  std::string gathered = r.values.at("plan.param_dtype");
  if (gathered == "auto")
    gathered = r.plan.states.masters == plan::Masters::fp32 ? std::string(name(r.plan.compute)) : "bf16";
  if (!open) r.values.at("plan.param_dtype") = gathered;
  r.plan.param_dtype = dtype_of(gathered, "recipe: plan.param_dtype", kComputeTypes);
  r.plan.check_types("recipe: plan.");
}

/// As many numbers as `filled`; empty: those. Writes them into the resolved value.
void resolve_numbers(Recipe& r, const std::string& key, std::span<double> into, const std::string& filled) {
  const size_t count = split_list(filled).size();
  if (count == 0) return;  // the key belongs to other optimisers
  std::string& text = r.values.at(key);
  if (text.empty()) text = filled;
  const std::vector<std::string> items = split_list(text);
  if (items.size() != count)
    throw UserError(Exit::usage, "recipe", key + " = " + text + ": expected " + std::to_string(count) + " numbers",
                    "for example " + filled);
  for (size_t i = 0; i < count; ++i) into[i] = to_number(items[i]);
}

/// What AdamW without a schedule cannot have.
void check_schedule_free(const Recipe& r) {
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw UserError(Exit::usage, "recipe", what + " with train.optimizer = \"adamw_schedule_free\"", hint);
  };
  if (!r.lr_schedule.name.starts_with("constant"))
    refuse("train.schedule = \"" + r.lr_schedule.name + "\"",
           "it averages in place of a schedule: \"constant_with_warmup\", or \"constant\"");
  if (r.train.ema > 0) refuse("train.ema", "it keeps an average of its own: leave train.ema out");
  if (r.plan.states.moments != plan::Moments::fp32)
    refuse("plan.moments = \"" + r.values.at("plan.moments") + "\"",
           "its base weights are kept as moments are: use fp32");
}

/// The optimiser, what its plan stores, and numbers that it has of its own.
void resolve_optimiser(Recipe& r) {
  struct Numbers {
    plan::Optimizer optimizer;
    std::string betas, eps;
  };
  static const Numbers kNumbers[] = {
      {plan::Optimizer::adamw, "0.9,0.999", ""},      {plan::Optimizer::lion, "0.9,0.99", ""},
      {plan::Optimizer::adafactor, "", "1e-30,1e-3"}, {plan::Optimizer::came, "0.9,0.999,0.9999", "1e-30,1e-16"},
      {plan::Optimizer::prodigy, "0.9,0.999", ""},    {plan::Optimizer::muon, "0.9,0.95", ""}};
  std::string name = r.values.at("train.optimizer");
  if (name.ends_with("8bit")) {
    name = name == "adam8bit" ? "adamw" : name.substr(0, name.size() - 4);
    std::string& moments = r.values.at("plan.moments");
    if (r.plan.states.moments == plan::Moments::bf16)
      throw UserError(Exit::usage, "recipe",
                      "train.optimizer = \"" + r.values.at("train.optimizer") +
                          "\" has moments in 8 bits, plan.moments = \"" + moments + "\"",
                      "leave one of them out");
    r.plan.states.moments = plan::Moments::int8, moments = "int8";
  }
  if (is_schedule_free(r)) name = "adamw", check_schedule_free(r);
  r.plan.states.optimizer = plan::optimizer_of(name, "recipe: train.optimizer");
  for (const Numbers& numbers : kNumbers) {
    if (numbers.optimizer != r.plan.states.optimizer) continue;
    resolve_numbers(r, "train.betas", r.train.betas, numbers.betas);
    resolve_numbers(r, "train.factored_eps", r.train.factored_eps, numbers.eps);
  }
  if (!plan::row(r.plan.states.optimizer).whole) {  // not the optimiser's
    r.plan.states.matrices = plan::StateFormat{}.matrices, r.plan.states.iterations = plan::StateFormat{}.iterations;
  } else if (r.train.muon_adam_lr > 0 && r.train.lr == 0) {
    throw UserError(Exit::usage, "recipe", "train.muon_adam_lr with train.lr = 0, whose schedule it follows",
                    "set train.lr, or freeze the matrices by train.freeze");
  }
  r.plan.states.ema = r.train.ema > 0 || is_schedule_free(r);
  r.plan.states.first_moment = plan::row(r.plan.states.optimizer).first_if_asked && r.train.factored_beta1 > 0;
  if (r.sample.weights == "auto")
    r.values.at("sample.weights") = r.sample.weights = r.plan.states.ema ? "ema" : "trained";
  if (r.eval.weights == "auto") r.eval.weights = r.plan.states.ema ? "ema" : "trained";
  if (r.eval.on()) r.values.at("eval.weights") = r.eval.weights;
  for (const auto& [key, weights] : {std::pair("sample.weights", r.sample.weights), {"eval.weights", r.eval.weights}})
    if (weights == "ema" && !r.plan.states.ema)
      throw UserError(Exit::usage, "recipe", std::string(key) + " = \"ema\", and no average is kept",
                      "set train.ema, for example 0.9999");
  if (r.plan.states.ema && r.plan.states.masters == plan::Masters::bf16)
    throw UserError(Exit::usage, "recipe",
                    (is_schedule_free(r) ? "train.optimizer = \"adamw_schedule_free\"" : "train.ema") +
                        std::string(" with plan.masters = \"bf16\": these are rounded, and cannot hold an average"),
                    "use plan.masters = \"split\", which gathers bf16 too, or \"fp32\"");
}

/// A base that bf16 products read is kept as what they read; else its own bits are kept unless others are asked for.
void resolve_base(Recipe& r) {
  if (!r.lora.on) return;
  std::string base = r.values.at("lora.base_dtype");
  if (base == "auto") base = r.plan.compute == DType::bf16 ? "bf16" : "fp32";
  if (r.values.at("plan.compute_dtype") != "auto") r.values.at("lora.base_dtype") = base;
  r.lora.base = dtype_of(base, "recipe: lora.base_dtype", plan::kStoredTypes);
}

/// Optimisers that find their rate themselves find one for all parameters.
void check_plus(const Recipe& r) {
  if (r.lora.plus_ratio == 1) return;
  const bool own = r.values.at("train.optimizer") == "prodigy" ||
                   (r.values.at("train.optimizer") == "adafactor" && r.train.relative_step);
  if (own)
    throw UserError(Exit::usage, "recipe",
                    "lora.plus_ratio = " + r.values.at("lora.plus_ratio") + ": train.optimizer = \"" +
                        r.values.at("train.optimizer") + "\" finds one rate for all parameters itself",
                    "leave lora.plus_ratio out, or use adamw, lion, came or adafactor at train.lr");
}

void check_adapters(const Recipe& r) {
  if (!r.lora.on) return;
  check_plus(r);
  if (r.lora.dora && r.plan.fp8)
    throw UserError(
        Exit::usage, "recipe",
        "lora.dora with plan.compute_dtype = \"fp8\": a magnitude's gradient needs the base's product in 16 "
        "bits, so no product of the adapted linears would be in 8",
        "leave lora.dora out, or set plan.compute_dtype = \"bf16\"");
  if (r.lora.factor == 0)
    throw UserError(Exit::usage, "recipe", "lora.factor = 0: expected -1 or a number from 1 on", "8 is usual");
}

void check_paths(const Recipe& r) {
  if (r.data.paths.size() < 2 || r.data.metadata.empty()) return;
  throw UserError(
      Exit::usage, "recipe",
      "data.path names " + std::to_string(r.data.paths.size()) +
          " folders beside data.metadata, whose clips lie in one",
      "give each folder its own metadata.csv or .jsonl and leave data.metadata out, or name one folder that "
      "holds all");
}

void check_frequencies(const Recipe& r) {
  const std::vector<double>& given = r.experts.frequencies;
  if (given.empty() || r.experts.router != "gate") return;
  double sum = 0;
  bool negative = false;
  for (const double frequency : given) sum += frequency, negative = negative || !(frequency >= 0);
  if (std::ssize(given) != r.experts.count || negative || !(sum > 0) || !std::isfinite(sum))
    throw UserError(Exit::usage, "experts.frequencies",
                    std::to_string(given.size()) + " numbers for experts.count = " + std::to_string(r.experts.count),
                    "give one for each expert, not below 0 and not all 0, as 0.9,0.1; or the folder of a run");
}

void check_encoders(const Recipe& r) {
  if (r.data.encoders == Encoders::sharded && r.experts.router == "gate")
    throw UserError(Exit::usage, "recipe",
                    "data.encoders = \"sharded\" with experts.router = \"gate\": a gate may ask for captions of other "
                    "ranks' samples, and sharded encoders make those of a rank's own",
                    "use \"cached\", \"host\" or \"device\"");
}

/// Masks come from one place.
void check_masks(const Recipe& r) {
  const data::MaskFiles& masks = r.data.masks;
  const bool path = masks.column || !masks.folder.empty(), suffix = !masks.suffix.empty();
  if (int{path} + int{suffix} + int{masks.alpha} > 1)
    throw UserError(
        Exit::usage, "recipe",
        std::string("several of data.mask_path, data.mask_suffix and data.alpha_mask are set, and a clip ") +
            "has one mask",
        "leave one of them");
  if (suffix && masks.suffix.find('/') != std::string::npos)
    throw UserError(Exit::usage, "recipe", "data.mask_suffix = '" + masks.suffix + "' is no ending of a file's name",
                    "give what follows a clip's name, as -masklabel.png, or the folder as data.mask_path");
}

std::string name_of_set(const std::vector<Recipe::DataSet>& sets, const Recipe::Data& data) {
  std::string name;
  for (const std::string& path : data.paths) name += (name.empty() ? "" : ", ") + path;
  if (name.empty()) name = data.metadata;
  const std::string once = name;
  for (int copy = 2; std::ranges::count(sets, name, &Recipe::DataSet::name) > 0; ++copy)
    name = once + " #" + std::to_string(copy);
  return name;
}

/// One [[data.set]] by its keys, as data.* would be read with them.
Recipe::DataSet read_set(const Recipe& r, const std::string& list) {
  Recipe whole = r;
  std::erase_if(whole.values, [](const auto& value) { return list_row(value.first).starts_with("data.set.N."); });
  whole.stages.clear(), whole.sets.clear();
  Recipe::DataSet set;
  const std::string row_of = "data.set.N.";
  for (const Setting& row : set_settings()) {
    const std::string key = row.key.substr(row_of.size());
    const auto given = r.values.find(list + key);
    if (given == r.values.end()) continue;
    if (const auto kept = whole.values.find("data." + key); kept != whole.values.end() && key != "repeats") {
      kept->second = given->second;
      continue;
    }
    Setting named = row;
    named.key = given->first;
    check_range(named, given->second);
    if (key == "role") {
      set.role = given->second == "regularisation" ? Recipe::Role::regularisation
                 : given->second == "prior"        ? Recipe::Role::prior
                                                   : Recipe::Role::train;
      continue;
    }
    const double number = to_number(given->second);
    for (const auto& [name, to] :
         {std::pair("repeats", &set.repeats), {"weight", &set.weight}, {"loss_weight", &set.loss_weight}})
      if (key == name) *to = number;
    for (const auto& [name, to] : {std::pair("from_step", &set.from_step), {"to_step", &set.to_step}})
      if (key == name) *to = to_integer(given->second);
  }
  whole.values.at("train.preserve") = "none";  // which asks all sets together
  whole.fill();
  set.data = std::move(whole.data);
  return set;
}

void check_set(const Recipe& r, const std::string& list, const Recipe::DataSet& set) {
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    throw UserError(Exit::usage, "recipe", what, hint);
  };
  if (set.data.paths.empty() && set.data.metadata.empty())
    refuse(list + "path is empty, and so is " + list + "metadata", "name the folder or table of each [[data.set]]");
  if (r.values.contains(list + "repeats") && set.weight > 0)
    refuse(list + "repeats beside " + list + "weight", "one of them says how often samples of a set come");
  if (r.data.images_every > 0 && set.weight > 0)
    refuse(list + "weight beside data.images_every, which says how often images come",
           "leave the weight out: images, and clips, come by their number");
  if (set.to_step > 0 && set.to_step < set.from_step)
    refuse(list + "to_step = " + std::to_string(set.to_step) +
               " lies before its from_step = " + std::to_string(set.from_step),
           "leave one of them out");
}

/// The shapes of a run are those of all sets, and what is sampled looks like the first one.
void share_shapes(Recipe& r) {
  if (r.sets.empty()) return;
  std::vector<data::Bucket> all;
  for (const Recipe::DataSet& set : r.sets)
    for (const data::Bucket& bucket : set.data.clips.buckets)
      if (std::ranges::none_of(all, [&](const data::Bucket& one) { return data::is_shape(one, bucket); }))
        all.push_back(bucket);
  r.data.clips.buckets = std::move(all);
  const Recipe::Data& first = r.sets[0].data;
  r.data.frames = first.frames, r.data.height = first.height, r.data.width = first.width;
  r.data.fps = r.data.clips.fps = first.fps;
}

/// [[data.set]], of which each may have keys of data.* in place of those.
void resolve_sets(Recipe& r) {
  const std::vector<int64_t> numbers = list_numbers(r.values, "data.set");
  r.sets.clear();
  if (numbers.empty()) return;
  for (const auto& [key, own] : {std::pair("data.path", ""), {"data.metadata", ""}, {"data.repeats", "1"}})
    if (r.values.at(key) != own)
      throw UserError(Exit::usage, "recipe", std::string(key) + " beside [[data.set]], of which each has its own",
                      "write what [data] has as a [[data.set]] too, and leave the key out there");
  for (const int64_t number : numbers) {
    const std::string list = "data.set." + std::to_string(number) + ".";
    if (number != std::ssize(r.sets))
      throw UserError(Exit::usage, "recipe",
                      list + "* is set, and there is no data.set." + std::to_string(std::ssize(r.sets)),
                      "sets are counted from 0");
    Recipe::DataSet set;
    try {
      set = read_set(r, list);
    } catch (const UserError& error) {
      throw UserError(error.code(), "[[data.set]] " + std::to_string(number), error.what());
    }
    check_set(r, list, set);
    set.name = name_of_set(r.sets, set.data), set.key = list;
    r.sets.push_back(std::move(set));
  }
  const auto weighs = [](const Recipe::DataSet& set) { return set.weight > 0; };
  if (const auto count = std::ranges::count_if(r.sets, weighs); count > 0 && count < std::ssize(r.sets))
    throw UserError(Exit::usage, "recipe",
                    std::to_string(count) + " of " + std::to_string(r.sets.size()) + " [[data.set]] have a weight",
                    "give each a weight, or each its repeats");
  if (r.drawn_at > 0) std::erase_if(r.sets, [&](const Recipe::DataSet& set) { return !set.drawn_at(r.drawn_at); });
  share_shapes(r);
}

void check_held_out(const Recipe& r) {
  if (r.eval.on() && r.experts.router == "gate")
    throw UserError(Exit::usage, "recipe",
                    "eval.every with experts.router = \"gate\": a gate asks for the samples of a training step",
                    "leave eval.every out, or set experts.router = \"turns\"");
}

/// What the model says without its adapters is a target: there must be adapters, and one pass of a step.
void check_base(const Recipe& r) {
  if (r.train.guidance.on() && r.experts.router == "gate")
    throw UserError(
        Exit::usage, "recipe",
        "train.guidance_target with experts.router = \"gate\": a gate sums the predictions of several experts",
        "leave train.guidance_target out, or set experts.router = \"turns\"");
  if (!r.asks_base()) return;
  const std::string key = r.train.twins() ? "train.preserve = \"" + r.values.at("train.preserve") + "\""
                                          : std::string("role = \"prior\" of a [[data.set]]");
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    throw UserError(Exit::usage, "recipe", key + what, hint);
  };
  if (!r.lora.on)
    refuse(" takes what the model says without its adapters, and train.mode = \"full\" has none",
           "set train.mode = \"lora\"");
  if (r.experts.router == "gate")
    refuse(" with experts.router = \"gate\": a gate sums the predictions of several experts",
           "set experts.router = \"turns\"");
  if (!r.train.twins()) return;
  std::vector<int64_t> batches = {r.train.global_batch};
  for (const data::Bucket& bucket : r.data.clips.buckets) batches.push_back(bucket.batch);
  for (const int64_t batch : batches)
    if (batch % 2 != 0)
      refuse(" trains each clip of a batch twice, and a batch has " + std::to_string(batch) + " samples",
             "make train.global_batch, and batches of data.buckets, even");
  if (r.train.preserve != Recipe::Train::Preserve::of_class) return;
  if (r.train.preserve_class.empty())
    refuse(" without train.preserve_class", "name what data.trigger is one of: person, house");
  for (const Recipe::DataSet& set : r.data_sets()) {
    const std::string where = r.sets.empty() ? "" : " of " + set.name;
    if (set.data.texts)
      refuse(" with data.texts" + where + ": their captions are encoded already", "set train.preserve = \"blank\"");
    if (set.data.captions.trigger.empty() && set.role == Recipe::Role::train)
      refuse(" without data.trigger" + where + ", which the class stands for",
             "set data.trigger, or train.preserve = \"blank\"");
  }
}

/// What a student's step does not have.
void check_distillation(const Recipe& r) {
  if (!r.distill.on()) return;
  const std::string method = "distill.method = \"" + r.distill.method + "\"";
  if (r.distill.teacher.empty())
    throw UserError(Exit::usage, "recipe", method + " without distill.teacher", "give the teacher's weights");
  const std::pair<bool, const char*> beside[] = {
      {r.distill.of_noise() && r.model.init == "random",
       "model.init = \"random\": a student begins as a trained model"},
      {r.distill.judges() && r.lora.on, "train.mode = \"lora\": heads judge a student that is trained whole"},
      {r.lora.on && (r.lora.dropout > 0 || r.lora.rank_dropout > 0 || r.lora.module_dropout > 0),
       "lora.dropout, lora.rank_dropout or lora.module_dropout: the passes before a step are to say what the step says"},
      {r.experts.router == "gate" || r.experts.train != "auto", "experts: a student is one denoiser"},
      {r.distill.of_noise() && !r.diffusion.chunks.empty(),
       "diffusion.chunks: a clip has the timesteps of distill.steps or one, and its chunks are distill.chunk"},
      {r.distill.chunk > 0 && (r.mesh[Axis::sp] > 1 || r.mesh[Axis::cp] > 1),
       "distill.chunk on mesh.sp or mesh.cp: its ranks exchange a state for each chunk, and a teacher has none"},
      {r.distill.rolls_out() && r.mesh[Axis::tp] > 1,
       "distill.chunk on mesh.tp: its ranks share the last frame of a finished chunk, which a teacher has not"},
      {r.asks_base() || r.train.guidance.on(),
       "train.preserve, train.guidance_target or a set of role \"prior\": its targets are the teacher's"},
      {r.masked(), "masks: the loss is normalised over all of a sample"},
      {r.eval.on(), "eval.every: a held-out loss is that of flow matching"},
      {!r.diffusion.conditions.empty() || !r.diffusion.mask_ratios.empty() || !r.diffusion.mask_types.empty(),
       "frames that are given: a student has its noise and its caption alone"}};
  for (const auto& [there, what] : beside)
    if (there) throw UserError(Exit::usage, "recipe", method + " with " + what, "leave one of them out");
  if (r.distill.regresses() && r.distill.teacher_steps % r.distill.steps != 0)
    throw UserError(Exit::usage, "recipe",
                    "distill.teacher_steps = " + std::to_string(r.distill.teacher_steps) +
                        " is no multiple of distill.steps = " + std::to_string(r.distill.steps),
                    "the student's steps are to be among the teacher's: take " +
                        std::to_string(r.distill.steps * div_up(r.distill.teacher_steps, r.distill.steps)));
  const std::string mode = r.lora.on ? "lora" : "full";
  if (r.distill.matches() && r.distill.critic_mode != "auto" && r.distill.critic_mode != mode)
    throw UserError(
        Exit::usage, "recipe",
        "distill.critic_mode = \"" + r.distill.critic_mode + "\" with train.mode = \"" + mode +
            "\": student and critic share the layout of their shards, in which a parameter is trained or frozen",
        "set both to \"full\" or both to \"lora\"");
  if (!r.distill.judges()) return;
  const plan::OptimizerRow& optimizer = plan::row(r.plan.states.optimizer);
  const int64_t clips = r.clips_of(r.train.global_batch);
  const std::tuple<bool, std::string, const char*> refused[] = {
      {r.train.global_batch % 2 != 0,
       " trains each clip of a batch twice, and train.global_batch is " + std::to_string(r.train.global_batch),
       "make it even"},
      {clips % ((clips + 7) / 8) != 0 || (r.distill.judge.misaligned && 2 * clips % ((2 * clips + 7) / 8) != 0),
       ": heads normalise over groups of at most 8 clips, and " + std::to_string(clips) +
           " clips, half of train.global_batch, or twice as many with distill.misaligned, do not divide into such of one size",
       "take clips that are a multiple of 8, or at most 4"},
      {!batches(r).empty() || r.data.clips.buckets.size() > 1,
       " with several sizes of pictures: heads normalise over pictures of one size", "set data.size alone"},
      {optimizer.whole || optimizer.distance,
       " with train.optimizer = \"" + r.values.at("train.optimizer") + "\": heads have no such updates",
       "use came, adamw, lion or adafactor"},
      {!r.stages.empty(), " with [[stage]]: a stage has no turn of its own", "train the stages as runs"}};
  for (const auto& [there, what, hint] : refused)
    if (there) throw UserError(Exit::usage, "recipe", method + what, hint);
}

/// The rules about a whole recipe, when all rows are read.
void resolve(Recipe& r) {
  check_held_out(r);
  check_masks(r);
  check_paths(r);
  check_encoders(r);
  check_frequencies(r);
  r.model.config = with_logvar(model_config(r.values), r.distill);
  r.data.captions.fps = r.data.fps;
  resolve_buckets(r);
  r.train.lr *= scale_of(r.values).factor;
  r.distill.critic_lr *= scale_of(r.values).factor;
  r.train.muon_adam_lr *= scale_of(r.values).factor;
  r.lr_schedule.lr = r.train.lr;
  r.lr_schedule.total_steps = r.run.steps;
  for (const auto& [key, share] : {std::pair("lora.dropout", r.lora.dropout),
                                   {"lora.rank_dropout", r.lora.rank_dropout},
                                   {"lora.module_dropout", r.lora.module_dropout}})
    if (r.lora.dora && share > 0)
      throw UserError(Exit::usage, "recipe", std::string(key) + " and lora.dora exclude each other",
                      std::string("set ") + key + " = 0");
  if (r.lora.rank_dropout > 0 && r.lora.kind != "lora")
    throw UserError(Exit::usage, "recipe",
                    "lora.rank_dropout with lora.kind = \"" + r.lora.kind +
                        "\", whose change of a weight has no ranks to leave out",
                    "set lora.module_dropout, or lora.dropout");
  check_adapters(r);
  if (r.run.deterministic && r.run.library_sums())
    throw UserError(Exit::usage, "recipe", "run.deterministic = true: run.sums = \"library\" has no order of its own",
                    "set run.sums = \"in_order\"");
  if (r.run.deterministic && r.plan.attention == plan::Attention::cudnn)
    throw UserError(
        Exit::usage, "recipe",
        "run.deterministic = true: plan.attention = \"cudnn\" has a backward that gives other bits each time",
        "set plan.attention = \"flash\", or leave it out");
  check_disk(r);
  resolve_optimiser(r);
  parameter_keys(r);  // throws for what it cannot read
  resolve_types(r);
  resolve_base(r);
}

}  // namespace

void Recipe::fill() {
  for (const auto& [key, value] : values)
    if (const size_t bad = data::invalid_utf8(value); bad != std::string::npos)
      throw UserError(Exit::usage, "recipe", key + " is not UTF-8 at byte " + std::to_string(bad),
                      "files and messages could not name it: give it in UTF-8");
  for (const Setting& setting : settings()) check_range(setting, values.at(setting.key));
  for (const Setting& setting : settings())
    if (setting.read) setting.read(*this, {setting.key, values.at(setting.key)});
  resolve(*this);
  resolve_sets(*this);
  check_base(*this);
  check_distillation(*this);
}

bool Recipe::masked() const {
  return sets.empty() ? data.masks.on()
                      : std::ranges::any_of(sets, [](const DataSet& set) { return set.data.masks.on(); });
}

std::vector<Recipe::DataSet> Recipe::data_sets() const {
  if (!sets.empty()) return sets;
  DataSet all{.name = name_of_set({}, data), .data = data};
  return {std::move(all)};
}

Recipe Recipe::of_set(size_t set) const {
  Recipe one = *this;
  one.stages.clear(), one.sets.clear();
  one.data = sets.at(set).data;
  for (const auto& [key, value] : values) {
    if (!list_row(key).starts_with("data.set.N.")) continue;
    one.values.erase(key);
    const std::string own = "data." + key.substr(key.rfind('.') + 1);
    if (key.starts_with(sets[set].key) && own != "data.repeats" && one.values.contains(own)) one.values[own] = value;
  }
  return one;
}

void Recipe::set(const std::string& name, const std::string& value) {
  recipe_table().set(values, name, value, "recipe");
  fill();
}

Recipe Recipe::at_stage(size_t count) const {
  Recipe recipe = *this;
  recipe.stages.clear();
  for (size_t s = 0; s < count; ++s)
    for (const auto& [name, value] : stages.at(s).changes)
      recipe_table().set(recipe.values, name, value, "[[stage]] " + std::to_string(s + 1));
  recipe.drawn_at = count == 0 ? 1 : stages[count - 1].from;
  recipe.fill();
  return recipe;
}

std::string Recipe::to_toml() const {
  std::string text = recipe_table().to_toml(values);
  if (const LrScale scale = scale_of(values); !scale.text.empty()) {
    char lr[64];
    std::snprintf(lr, sizeof lr, " = %.9g", train.lr);
    const std::string key = "\nlr_scale = ";
    const size_t end = text.find('\n', text.find(key) + key.size());
    text.insert(end, "  # " + values.at("train.lr") + " x " + scale.text + lr + " is the rate of the schedule");
  }
  return text + stages_toml(stages);
}

}  // namespace tessera::recipe
