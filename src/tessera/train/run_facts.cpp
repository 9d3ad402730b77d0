#include "tessera/train/run_facts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/recipe/parameter_keys.h"

namespace tessera::train {

namespace {

using checkpoint::Json;

constexpr const char* kFacts = "facts";
constexpr const char* kRecipe = "recipe";
constexpr std::array<std::string_view, 2> kOfResuming = {"run.resume", "run.resume_changes"};

std::string hex(uint64_t hash) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

void add_base(Values& facts, const recipe::Recipe& recipe, const job::Job& job) {
  std::map<std::string, std::string> known;  // experts may begin as one model
  for (const job::Expert& expert : job.experts.list) {
    const bool random = expert.path.empty() || recipe.model.init == "random";
    std::string& base = known[expert.path];
    if (base.empty()) base = random ? "random" : checkpoint::fingerprint(checkpoint::open_weights(expert.path));
    facts[job.experts.several() ? "base of " + expert.name : "base"] = base;
  }
  if (job.experts.teacher.empty()) return;
  facts["teacher"] = checkpoint::fingerprint(checkpoint::open_weights(job.experts.teacher));
  for (const char* key : {"distill.method", "distill.logvar", "distill.guidance", "distill.sigma_data",
                          "distill.logit_mean", "distill.logit_std", "distill.tangent_warmup"})
    facts[key] = recipe.values.at(key);
  if (job.experts.critic())
    for (const char* key : {"distill.critic_steps", "distill.steps"}) facts[key] = recipe.values.at(key);
  if (recipe.distill.rolls_out())
    for (const char* key : {"distill.chunk", "distill.same_exit", "distill.chunk_reach", "distill.cache_noise"})
      facts[key] = recipe.values.at(key);
  if (job.experts.regresses)
    for (const char* key : {"distill.steps", "distill.teacher_steps", "distill.chunk"})
      facts[key] = recipe.values.at(key);
  if (!recipe.distill.judges()) return;
  for (const char* key :
       {"distill.head_blocks", "distill.consistency_weight", "distill.adversarial_weight", "distill.discriminator_loss",
        "distill.r1_weight", "distill.misaligned", "distill.own_angles", "distill.largest_angle",
        "distill.largest_share", "distill.judged_mean", "distill.judged_std"})
    facts[key] = recipe.values.at(key);
}

void add_lora(Values& facts, const recipe::Recipe& recipe, const job::Job& job) {
  if (!recipe.lora.on) return;
  facts["lora.rank"] = std::to_string(recipe.lora.rank);
  facts["lora.alpha"] = number_text(recipe.lora.alpha);
  facts["lora.rslora"] = recipe.lora.rslora ? "true" : "false";
  facts["lora.dora"] = recipe.lora.dora ? "true" : "false";
  for (const char* key : {"lora.kind", "lora.rank_pattern", "lora.alpha_pattern"})
    if (const std::string& value = recipe.values.at(key); !value.empty() && value != "lora") facts[key] = value;
  std::set<std::string> targets;
  std::string all, list;
  for (const std::string& module : std::set<std::string>(job.adapted.begin(), job.adapted.end())) {
    targets.insert(checkpoint::target_of(module));
    all += module + "\n";
  }
  for (const std::string& target : targets) list += (list.empty() ? "" : ",") + target;
  facts["lora.targets"] =
      list + " (" + std::to_string(job.adapted.size()) + " modules, " + hex(hash_text(all)).substr(0, 6) + ")";
}

/// By key, those of `now` and of `before` together.
std::vector<Change> differences(const Values& before, const Values& now, int64_t step) {
  std::vector<Change> found;
  std::set<std::string> keys;
  for (const auto* values : {&before, &now})
    for (const auto& [key, value] : *values) keys.insert(key);
  for (const std::string& key : keys) {
    const std::string was = value_of(before, key), is = value_of(now, key);
    if (!same_value(was, is)) found.push_back({key, was, is, step});
  }
  return found;
}

std::vector<Change> changed_facts(const Values& facts, const checkpoint::Manifest& saved) {
  Values before = values_of(saved.extra, kFacts);
  if (before.empty())
    return differences({{"run.seed", std::to_string(saved.seed)}}, {*facts.find("run.seed")}, saved.step);
  return differences(before, facts, saved.step);
}

std::string shown(const std::string& value) {
  if (value.empty()) return "nothing";
  std::string text;
  for (const std::string& item : split_list(value)) text += (text.empty() ? "" : ",") + item;
  return text;
}

}  // namespace

Values values_of(const Json& json, const char* field) {
  Values values;
  if (const auto found = json.find(field); found != json.end() && found->is_object())
    for (const auto& [key, value] : found->items())
      if (value.is_string()) values[key] = value.get<std::string>();
  return values;
}

std::string value_of(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? std::string() : found->second;
}

std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto number = [](const std::string& text) -> std::optional<double> {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
  };
  const auto same = [&](const std::string& one, const std::string& other) {
    const auto x = number(one), y = number(other);
    return one == other || (x && y && *x == *y);
  };
  return std::ranges::equal(split_list(a), split_list(b), same);
}

std::string Change::text() const {
  return "changed since step " + std::to_string(step) + ": " + key + " " + shown(before) + " -> " + shown(now);
}

Values run_facts(const recipe::Recipe& recipe, const job::Job& job) {
  Values facts = {{"run.seed", std::to_string(recipe.run.seed)},
                  {"train.mode", recipe.lora.on ? "lora" : "full"},
                  {"objective", "flow_matching"}};
  const Json config = checkpoint::parse_json(job.model->config_json(), "config.json");
  for (const auto& [key, value] : config.items()) facts["model.config." + key] = value.dump();
  for (const char* key : {"diffusion.timesteps", "diffusion.shift", "diffusion.weighting"})
    facts[key] = recipe.values.at(key);
  if (recipe.diffusion.caption_dropout > 0)  // a checkpoint of a run without it need not say so
    facts["diffusion.caption_dropout"] = number_text(recipe.diffusion.caption_dropout);
  for (const char* key :
       {"diffusion.conditions", "diffusion.mask_ratios", "diffusion.mask_types", "diffusion.drop_condition",
        "diffusion.draw_shares", "diffusion.pixel_masks", "diffusion.condition_dropout"})
    if (const std::string& kinds = recipe.values.at(key); !kinds.empty()) facts[key] = kinds;
  if (recipe.diffusion.draws.on()) facts["diffusion.condition_draws"] = recipe.values.at("diffusion.condition_draws");
  // What a checkpoint of a run without them need not say.
  for (const auto& [key, usual] : {std::pair("diffusion.logit_mean", "0"),
                                   {"diffusion.logit_std", "1"},
                                   {"diffusion.mode_scale", "1.29"},
                                   {"diffusion.strata", "0"},
                                   {"diffusion.bands", ""},
                                   {"diffusion.loss", "mse"},
                                   {"diffusion.huber_c", "0.1"},
                                   {"diffusion.huber_schedule", "constant"},
                                   {"diffusion.huber_scale", "1"},
                                   {"diffusion.chunks", ""},
                                   {"diffusion.chunk_draws", "uniform"},
                                   {"diffusion.chunk_same_share", "0"},
                                   {"diffusion.first_frame_noise", "0"}})
    if (!same_value(recipe.values.at(key), usual)) facts[key] = recipe.values.at(key);
  if (recipe::is_schedule_free(recipe))
    facts["train.optimizer"] = recipe.values.at("train.optimizer");  // AdamW's states mean others
  for (const char* key : {"train.only", "train.freeze", "train.muon_hidden_layers", "train.muon_adam_layers"})
    if (!recipe.values.at(key).empty()) facts[key] = recipe.values.at(key);
  if (recipe.diffusion.pooled_dropout > 0)
    facts["diffusion.pooled_dropout"] = number_text(recipe.diffusion.pooled_dropout);
  if (!job.experts.list.front().name.empty() && !job.experts.critic()) {
    facts["experts.router"] = recipe.experts.router;
    facts["experts.count"] = std::to_string(job.experts.size());
    facts["experts.boundary"] = number_text(job.experts.boundary);
  }
  add_base(facts, recipe, job);
  add_lora(facts, recipe, job);
  return facts;
}

Values recipe_values(const recipe::Recipe& recipe) {
  Values values = recipe.values;
  for (size_t i = 0; i < recipe.stages.size(); ++i) {
    const std::string stage = "stage " + std::to_string(i + 1) + ": ";
    values[stage + "from"] = std::to_string(recipe.stages[i].from);
    for (const auto& [key, value] : recipe.stages[i].changes) values[stage + key] = value;
  }
  return values;
}

void save_facts(const Values& facts, const Values& recipe, checkpoint::Manifest& manifest) {
  manifest.extra[kFacts] = facts;
  manifest.extra[kRecipe] = recipe;
}

void require_same(const Values& facts, const checkpoint::Manifest& saved) {
  const std::vector<Change> changed = changed_facts(facts, saved);
  if (changed.empty()) return;
  std::string all;
  for (const Change& change : changed) all += (all.empty() ? "" : "; ") + change.text();
  throw UserError(
      Exit::usage, "run.resume", all,
      "restore the old value, use another run.out, or resume all the same with run.resume_changes = \"allow\"");
}

std::vector<Change> changes(const Values& facts, const Values& recipe, const checkpoint::Manifest& saved) {
  std::vector<Change> found = changed_facts(facts, saved);
  std::set<std::string> named(kOfResuming.begin(), kOfResuming.end());
  for (const Change& change : found) named.insert(change.key);
  const Values before = values_of(saved.extra, kRecipe);
  if (before.empty()) return found;
  bool same_keys = true;  // of the data
  for (const Change& change : differences(before, recipe, saved.step)) {
    if (named.count(change.key) || change.key == kDataSet) continue;
    found.push_back(change);
    // the tokenizer of demos is made of the captions
    same_keys &= !change.key.starts_with("data.") || change.key == "data.tokenizer";
  }
  const std::string was = value_of(before, kDataSet), is = value_of(recipe, kDataSet);
  if (same_keys && !was.empty() && was != is) found.push_back({kDataSet, was, is, saved.step});
  return found;
}

}  // namespace tessera::train
