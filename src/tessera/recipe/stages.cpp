#include "tessera/recipe/stages.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

std::string table_of(const Setting& setting) { return setting.key.substr(0, setting.key.find('.')); }

bool changeable(const std::string& name) {
  const auto is_it = [&](const Setting& s) { return (s.key == name || s.key == list_row(name)) && s.more.in_stages; };
  return std::ranges::any_of(settings(), is_it) || std::ranges::any_of(set_settings(), is_it);
}

/// "run.on_nan, ..., sample.*": a table all of whose keys may change is named as one.
std::string changeable_text() {
  std::map<std::string, bool> whole;
  for (const Setting& s : settings()) whole.emplace(table_of(s), true).first->second &= s.more.in_stages;
  std::string text, last;
  for (const Setting& s : settings()) {
    const std::string shown = whole.at(table_of(s)) ? table_of(s) + ".*" : s.key;
    if (s.more.in_stages && shown != last) text += (text.empty() ? "" : ", ") + shown;
    if (s.more.in_stages) last = shown;
  }
  return text;
}

/// "frames" is data.frames: a key without its table, where only one table has it.
std::string full_name(const std::string& name) {
  if (name.find('.') != std::string::npos) return name;
  std::vector<std::string> found;
  for (const Option& option : recipe_table().options())
    if (option.name.ends_with("." + name)) found.push_back(option.name);
  return found.size() == 1 ? found[0] : name;
}

}  // namespace

namespace {

/// A set that comes or goes within the run is a stage from that step on, which a file that was resolved has already.
void add_stages_of_sets(Recipe& recipe) {
  const std::vector<Recipe::DataSet> sets = recipe.sets;
  for (size_t s = 0; s < sets.size(); ++s)
    for (const auto& [key, step] : {std::pair("from_step", sets[s].from_step), {"to_step", sets[s].to_step + 1}}) {
      if (step < 2 || step > recipe.run.steps) continue;
      const auto at = std::ranges::lower_bound(recipe.stages, step, {}, &Stage::from);
      Stage& stage = at != recipe.stages.end() && at->from == step ? *at : *recipe.stages.insert(at, {step, {}});
      const std::string name = "data.set." + std::to_string(s) + "." + key;
      stage.changes[name] = recipe.values.at(name);
    }
  for (size_t number = 0; !sets.empty() && number <= recipe.stages.size(); ++number)
    if (recipe.at_stage(number).sets.empty())
      throw UserError(Exit::usage, "recipe",
                      "from step " + std::to_string(number == 0 ? 1 : recipe.stages[number - 1].from) +
                          " on no [[data.set]] is drawn from",
                      "change from_step or to_step of one");
}

}  // namespace

void add_stages(Recipe& recipe, const RecipeFile& file) {
  int64_t before = 1;
  for (const RecipeFile::Stage& written : file.stages) {
    if (written.from <= before)
      throw UserError(Exit::usage, written.where,
                      "from = " + std::to_string(written.from) +
                          (before == 1 ? ": step 1 has the recipe's own keys"
                                       : ": the stage before begins at step " + std::to_string(before)),
                      "stages stand in the order of their steps, the first from step 2 on");
    Stage& stage = recipe.stages.emplace_back();
    before = stage.from = written.from;
    Values checked = recipe_table().defaults();
    for (const FileKey& key : written.keys) {
      const std::string name = full_name(key.name);
      recipe_table().at(name, key.where);
      if (!changeable(name))
        throw UserError(Exit::usage, written.where, name + " cannot change within a run",
                        "what can: " + changeable_text());
      recipe_table().set(checked, name, key.value, key.where);
      stage.changes[name] = checked.at(name);
    }
    if (stage.changes.empty())
      throw UserError(Exit::usage, written.where, "it changes nothing",
                      "what a stage can change: " + changeable_text());
    // Values that do not go together are found now, not when the stage begins.
    RunPart part{.number = static_cast<int>(recipe.stages.size()), .first = stage.from, .recipe = {}, .changes = {}};
    in_part(part, [&] { recipe.at_stage(recipe.stages.size()); });
  }
  add_stages_of_sets(recipe);
}

std::map<int, int64_t> batches(const Recipe& recipe) {
  std::map<int, int64_t> all;
  const std::vector<data::Bucket>& buckets = recipe.data.clips.buckets;
  for (size_t b = 0; b < buckets.size(); ++b)
    if (buckets[b].batch > 0) all[static_cast<int>(b)] = buckets[b].batch;
  return all;
}

std::string RunPart::name() const {
  return number == 0 ? "the start" : "stage " + std::to_string(number) + " (from step " + std::to_string(first) + ")";
}

std::vector<RunPart> run_parts(const Recipe& recipe) {
  std::vector<RunPart> parts;
  for (size_t number = 0; number <= recipe.stages.size(); ++number) {
    const int64_t first = number == 0 ? 1 : recipe.stages[number - 1].from;
    if (first > recipe.run.steps) {
      log::info("stage " + std::to_string(number) + " begins at step " + std::to_string(first) + ", but the run has " +
                std::to_string(recipe.run.steps) + " steps: the stage never starts");
      break;
    }
    if (number > 0) parts.back().last = first - 1;
    parts.push_back({static_cast<int>(number), first, recipe.run.steps, recipe.at_stage(number),
                     number == 0 ? "" : changes_text(recipe.stages[number - 1])});
  }
  return parts;
}

bool any_samples(const std::vector<RunPart>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const RunPart& part) { return part.recipe.sample.every > 0; });
}

bool same_data(const Recipe& a, const Recipe& b) {
  const auto of_sets = [](const Recipe& r) {
    Values values;
    for (const auto& [key, value] : r.values)
      if (list_row(key).starts_with("data.set.N.")) values[key] = value;
    return values;
  };
  const auto drawn = [](const Recipe& r) {
    std::vector<std::string> names;
    for (const Recipe::DataSet& set : r.sets) names.push_back(set.name);
    return names;
  };
  if (of_sets(a) != of_sets(b) || drawn(a) != drawn(b)) return false;
  return std::ranges::all_of(settings(), [&](const Setting& s) {
    const bool matters = s.more.prepared || s.key.starts_with("data.") || s.key == "run.seed";
    return !matters || a.values.at(s.key) == b.values.at(s.key);
  });
}

namespace {

/// "key = value", as TOML.
std::string key_line(const std::string& name, const std::string& value) {
  return name + " = " + toml_value(*recipe_table().find(name), value);
}

}  // namespace

std::string stages_toml(const std::vector<Stage>& stages) {
  std::string text;
  for (const Stage& stage : stages) {
    text += "\n[[stage]]\nfrom = " + std::to_string(stage.from) + "\n";
    for (const auto& [name, value] : stage.changes) text += key_line(name, value) + "\n";
  }
  return text;
}

std::string changes_text(const Stage& stage) {
  std::string text;
  for (const auto& [name, value] : stage.changes) text += (text.empty() ? "" : ", ") + key_line(name, value);
  return text;
}

}  // namespace tessera::recipe
