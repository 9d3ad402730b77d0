#include "tessera/job/without_effect.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/job/encoders_used.h"
#include "tessera/job/experts.h"
#include "tessera/models/registry.h"
#include "tessera/plan/optimizers.h"
#include "tessera/recipe/settings.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

namespace {

bool several(const recipe::Recipe& recipe) { return find_experts(recipe).several(); }
bool windows(const recipe::Recipe& recipe) { return !find_experts(recipe).list.front().name.empty(); }

/// Why what was set for a key does nothing, "VALUE has no effect: ..."; none where it does something, or nothing was set.
std::vector<std::string> idle(const recipe::Setting& setting, const recipe::Facts& facts) {
  const std::vector<std::string> value = split_list(facts.recipe.values.at(setting.key));
  if (value == split_list(setting.fallback)) return {};  // a list of one is that one
  std::string shown;
  for (const std::string& item : value) shown += (shown.empty() ? "" : ",") + item;
  std::vector<std::string> why;
  for (const recipe::Needs& needs : setting.more.needs)
    if (!needs.met(facts)) why.push_back(shown + " has no effect: " + needs.otherwise);
  return why;
}

/// "KEY = VALUE has no effect: ..." for each key that was set and lacks what it needs. What [data] says holds for the sets
/// that do not say it themselves: it does nothing where it does nothing for each of them.
void add_idle(const recipe::Facts& facts, std::vector<std::string>& notes) {
  std::vector<recipe::Recipe> sets;
  for (size_t s = 0; s < facts.recipe.sets.size(); ++s) sets.push_back(facts.recipe.of_set(s));
  for (const recipe::Setting& setting : recipe::settings()) {
    const bool by_set = !sets.empty() && setting.key.starts_with("data.");
    bool used = false;
    for (size_t s = 0; by_set && s < sets.size(); ++s) {
      const std::string own = facts.recipe.sets[s].key + setting.key.substr(5);
      const auto why = idle(setting, {sets[s], facts.mesh, facts.several_experts, facts.own_windows});
      if (!facts.recipe.values.contains(own))
        used |= why.empty();
      else
        for (const std::string& each : why) notes.push_back(own + " = " + each);
    }
    if (used) continue;
    for (const std::string& each : idle(setting, facts)) notes.push_back(setting.key + " = " + each);
  }
}

/// Fields of model.config that replace those of a preset.
std::string replaced_sizes(const recipe::Recipe& recipe) {
  std::string list;
  for (const auto& [key, value] : recipe.values)
    if (key.starts_with("model.config.") && !value.empty()) list += (list.empty() ? "" : ", ") + key.substr(13);
  return list;
}

}  // namespace

std::vector<std::string> without_effect(const recipe::Recipe& recipe, const Mesh& mesh) {
  std::vector<std::string> notes;
  const recipe::Facts facts{recipe, mesh, several, windows};
  add_idle(facts, notes);
  const std::string replaced = replaced_sizes(recipe);
  if (!recipe.model.preset.empty() && !replaced.empty())
    notes.push_back("model.preset = " + recipe.model.preset + " is changed by model.config, which gives " + replaced);
  const auto add = [&](const char* key, const std::string& words) {
    notes.push_back(std::string(key) + " = " + recipe.values.at(key) + " " + words);
  };
  if (recipe.lr_schedule.warmup_steps > recipe.run.steps && recipe.lr_schedule.name != "constant")
    add("train.warmup_steps", "never ends: run.steps = " + std::to_string(recipe.run.steps) +
                                  ", so the learning rate does not reach train.lr");
  if (plan::row(recipe.plan.states.optimizer).distance && recipe.train.lr < 0.1)
    add("train.lr", "multiplies the step size that train.optimizer = " + recipe.values.at("train.optimizer") +
                        " finds itself: 1 is usual");
  if (facts.searches()) {
    const int64_t share = div_up(recipe.train.global_batch, mesh.dp_size());
    if (recipe.train.micro_batch > share)
      add("train.micro_batch", "is more than the samples of a rank: micro-batches have " + std::to_string(share));
    if (recipe.plan.strategy && mesh.world() == 1 && *recipe.plan.strategy != plan::Strategy::no_shard &&
        *recipe.plan.strategy != plan::Strategy::two_level)
      add("plan.strategy", "has no effect on one rank: there is no other to share with");
  }
  const int replicas = mesh[Axis::dp_replicate];
  const bool two_level = recipe.plan.strategy == plan::Strategy::two_level;
  if (replicas > 1 && mesh[Axis::dp_shard] == 1 && !two_level)
    notes.push_back("mesh.dp_replicate = " + std::to_string(replicas) +
                    " shards nothing: every rank holds the whole model, gradients and states; dp_shard = " +
                    std::to_string(replicas) + " shards them over as many ranks");
  if (two_level && replicas == 1)
    notes.push_back(
        "plan.strategy = two_level has no effect: with mesh.dp_replicate = 1 there is one replica, "
        "and it is full_shard");
  if (mesh.dp_size() > recipe.train.global_batch && recipe::batches(recipe).empty())
    notes.push_back("train.global_batch = " + std::to_string(recipe.train.global_batch) + " leaves " +
                    std::to_string(mesh.dp_size() - recipe.train.global_batch) + " of " +
                    std::to_string(mesh.dp_size()) + " ranks without a sample, which wait for the others");
  if (!recipe.model.path.empty() && recipe.model.init != "random") {
    const char* why =
        " while model.path has pretrained weights, which expect the embeddings and latents they were trained with";
    if (encodes_texts(recipe) && recipe.data.text_encoder_path.empty())
      notes.push_back("data.text_encoder_path is empty: '" + recipe.data.text_encoder + "' gets random weights" + why);
    const bool codes = encodes_clips(recipe);
    if (codes && models::is_built_in_codec(recipe.data.vae))
      notes.push_back("data.vae = " + recipe.data.vae + " is a plain wavelet" + why);
    if (codes && std::ranges::count(models::autoencoder_presets(), recipe.data.vae) > 0)
      notes.push_back("data.vae = " + recipe.data.vae + " is a name without a file: it gets random weights" + why);
  }
  return notes;
}

}  // namespace tessera::job
