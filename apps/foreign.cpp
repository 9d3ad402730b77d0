#include "foreign.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/mesh.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/job/given_checks.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/recipe/recipe_file.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/tools/import/import.h"

namespace tessera::apps {

namespace {

/// Ranks that share a sample, as far as keys typed as flags say.
int ranks_a_sample(const recipe::Overrides& keys) {
  Mesh mesh;
  for (const auto& [name, value] : keys) {
    if (name == "mesh") mesh = Mesh::parse(value);
    for (Axis axis : kAllAxes)
      if (name == "mesh." + std::string(axis_name(axis))) mesh[axis] = static_cast<int>(to_integer(value));
  }
  return std::max(1, mesh.world() / std::max(1, mesh.dp_size()));
}

int ranks_of(const recipe::Overrides& keys) {
  Mesh mesh;
  for (const auto& [name, value] : keys)
    if (name == "mesh") mesh = Mesh::parse(value);
  return mesh.world();
}

bool names_mesh(const recipe::Overrides& keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [](const auto& key) { return key.first == "mesh" || key.first.starts_with("mesh."); });
}

/// A file's mesh is how it trains. Preparing and sampling need not have those ranks: without a mesh of their own they
/// spread over the ones that are there.
void fit_mesh(recipe::Recipe& recipe, const Arguments& arguments, const recipe::Overrides& typed, int world) {
  const std::string& command = arguments.command->name;
  const bool free = command == "prepare" || command == "sample";
  if (!free || world < 1 || names_mesh(typed) || recipe.mesh.world() == world) return;
  for (Axis axis : kAllAxes)
    recipe.set("mesh." + std::string(axis_name(axis)), std::to_string(axis == Axis::dp_shard ? world : 1));
}

/// Relative paths begin there, and a run notes where it began.
void require_current_folder() {
  if (::access(".", X_OK) != 0)
    throw UserError(Exit::usage, "start", std::string("the current folder cannot be used: ") + std::strerror(errno),
                    "cd to a folder that this user may enter (cd ~)");
}

}  // namespace

std::vector<Flag> foreign_flags(const tools::Dialect& dialect) {
  std::vector<Flag> flags;
  for (const tools::Rule& rule : dialect.rules) {
    const char* value = rule.takes == tools::Takes::nothing   ? ""
                        : rule.takes == tools::Takes::perhaps ? kOptionalBool
                                                              : "VALUE";
    flags.push_back({rule.option, value, rule.becomes});
  }
  return flags;
}

std::vector<Flag> training_flags() {
  std::vector<Flag> flags = foreign_flags(tools::training_line());
  flags.push_back({"--deepspeed", "FILE", "a DeepSpeed configuration"});
  return flags;
}

Translated recipe_from(const Arguments& arguments, const recipe::Overrides& keys, int world) {
  require_current_folder();
  Translated result;
  if (arguments.foreign.empty()) {
    result.recipe = recipe::load_recipe(arguments.only_word("recipe"), keys);
    fit_mesh(result.recipe, arguments, keys, world);
    return result;
  }
  std::vector<tools::Given> options;
  std::string deepspeed;
  for (const auto& [name, value] : arguments.foreign) {
    if (name == "--deepspeed")
      deepspeed = value;
    else
      options.push_back({name, value});
  }
  tools::ImportContext context;
  context.ranks = std::max(1, (world > 0 ? world : ranks_of(keys)) / ranks_a_sample(keys));
  const bool samples = arguments.command->name == "sample";
  if (!options.empty())
    result.translation =
        tools::translate(samples ? tools::generate_line() : tools::training_line(), std::move(options), context);
  if (!deepspeed.empty()) {
    const tools::Translation file = tools::import_file(deepspeed, context);
    if (result.translation.from.empty()) result.translation.from = file.from;
    result.translation.merge(file);
  }
  result.translation.refuse_to(arguments.command->name);

  const std::string path = arguments.words.empty() ? "" : arguments.only_word("recipe");
  std::vector<std::string> in_file;
  if (!path.empty())
    for (const recipe::FileKey& key : recipe::read_recipe_file(path).keys) in_file.push_back(key.name);
  recipe::Overrides all;
  std::erase_if(result.translation.settings, [&](const tools::Translation::Setting& s) {
    return s.assumed && std::find(in_file.begin(), in_file.end(), s.key) != in_file.end();
  });
  for (const auto& setting : result.translation.settings) all.emplace_back(setting.key, setting.value);
  all.insert(all.end(), keys.begin(), keys.end());
  result.recipe = recipe::load_recipe(path, all);
  fit_mesh(result.recipe, arguments, all, world);
  return result;
}

Translated recipe_from(const Arguments& arguments, const recipe::Overrides& keys) {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  log::set_rank(place.rank, place.world);
  Translated result = recipe_from(arguments, keys, place.world);
  if (!std::getenv("TESSERA_STORE") && place.rank == 0) tell(result.translation);
  return result;
}

void tell(const tools::Translation& translation) {
  for (const std::string& line : translation.lines()) log::info("options: " + line);
  for (const auto& warned : translation.warned) log::warn("options: " + warned.option + ": " + warned.why);
}

recipe::Recipe look_over(recipe::Recipe recipe, int world, job::Missing missing) {
  const Mesh mesh = world == 0 ? recipe.mesh : planning::fill_mesh(recipe.mesh, world);
  job::check_sources(recipe, missing);
  for (const std::string& words : job::without_effect(recipe, mesh)) log::warn(words);
  return recipe;
}

recipe::Recipe look_over(recipe::Recipe recipe) {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  log::set_rank(place.rank, place.world);
  if (std::getenv("TESSERA_STORE") || place.rank > 0) return recipe;  // the launcher did, or rank 0 does
  return look_over(std::move(recipe), place.world);
}

}  // namespace tessera::apps
