#include "tessera/recipe/run_recipe.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/options.h"
#include "tessera/recipe/recipe_file.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/stages.h"

namespace tessera::recipe {

namespace {

namespace fs = std::filesystem;

/// Keys whose values are paths; `always`: also where nothing is there, because the run makes it; `strength`: a number may
/// follow behind a colon.
struct PathKey {
  std::string_view name;
  bool always = false, strength = false;
};
constexpr PathKey kPathKeys[] = {{"run.out", true},
                                 {"run.resume"},
                                 {"model.path"},
                                 {"data.path"},
                                 {"data.metadata"},
                                 {"data.set.N.path"},
                                 {"data.set.N.metadata"},
                                 {"data.cache", true},
                                 {"data.mask_path"},
                                 {"data.vae"},
                                 {"data.text_encoder_path"},
                                 {"data.tokenizer"},
                                 {"data.instruction"},
                                 {"data.instruction_image"},
                                 {"data.image_encoder_path"},
                                 {"data.pooled_encoder_path"},
                                 {"data.glyph_encoder_path"},
                                 {"data.pooled_tokenizer"},
                                 {"data.audio_encoder"},
                                 {"lora.init"},
                                 {"plan.file"},
                                 {"plan.profile"},
                                 {"plan.nvme"},
                                 {"sample.image"},
                                 {"sample.last_image"},
                                 {"sample.video"},
                                 {"sample.audio"},
                                 {"sample.pose"},
                                 {"sample.guide"},
                                 {"sample.guide_mask"},
                                 {"sample.control"},
                                 {"sample.reference"},
                                 {"sample.lora", false, true},
                                 {"data.null_text"}};

const PathKey* path_key(std::string_view name) {
  const auto row = std::ranges::find(kPathKeys, list_row(name), &PathKey::name);
  return row == std::end(kPathKeys) ? nullptr : &*row;
}

bool there(const fs::path& path) {
  std::error_code unseen;
  return fs::exists(path, unseen);
}

fs::path plain(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

struct Places {
  fs::path started_in, here;
  fs::path recorded, found;  ///< the run's folder as written and as it is; empty: it was not moved

  std::string settled(const PathKey& key, const std::string& value) const {
    if (value.empty() || value == "auto" || value == "no" || value == "online") return value;
    if (const size_t colon = value.rfind(':'); key.strength && colon != value.npos)
      return settled({key.name, key.always}, value.substr(0, colon)) + value.substr(colon);
    const fs::path then = plain(started_in / value);  // an absolute value stays
    if (!found.empty()) {
      const fs::path inside = then.lexically_relative(recorded);
      const bool own = !inside.empty() && *inside.begin() != "..";
      if (own && (inside == "." || there(found / inside))) return plain(found / inside).string();
    }
    if (fs::path(value).is_absolute() || started_in == here) return value;
    return key.always || there(then) ? then.string() : value;
  }
};

/// The run's folder where it was moved: a recipe that a run wrote lies in it.
fs::path moved_to(const fs::path& file, const fs::path& recorded) {
  const fs::path folder = plain(fs::absolute(file)).parent_path();
  if (file.filename() != "recipe.toml" || !there(folder / "plan.json")) return {};
  std::error_code unseen;
  return fs::equivalent(folder, recorded, unseen) ? fs::path() : folder;
}

}  // namespace

std::string expanded(const std::string& key, const std::string& value, const std::string& where) {
  if (!path_key(key) || value.find_first_of("~$") == value.npos) return value;
  const Kind kind = recipe_table().at(key, where).kind;
  if (kind != Kind::list && kind != Kind::paths) return expand_path(value, where + ": " + key);
  const char separator = value.find(kListSeparator) == value.npos ? ',' : kListSeparator;
  std::string text;
  for (size_t at = 0; at < value.size();) {
    const size_t begin = std::min(value.find_first_not_of(' ', at), value.size());
    const size_t end = std::min(value.find(separator, begin), value.size());
    text += expand_path(value.substr(begin, end - begin), where + ": " + key);
    if (end < value.size()) text += separator;
    at = end + 1;
  }
  return text;
}

void settle_paths(RecipeFile& file, const std::string& path) {
  const auto find = [&](std::string_view name) { return std::ranges::find(file.keys, name, &FileKey::name); };
  const auto said = find(kStartedIn);
  if (said == file.keys.end()) return;
  Places places{said->value, fs::current_path(), {}, {}};
  file.keys.erase(said);
  if (const auto out = find("run.out"); out != file.keys.end()) {
    places.recorded = plain(places.started_in / out->value);
    places.found = moved_to(recipe_at(path), places.recorded);
  }
  const auto settle = [&](std::vector<FileKey>& keys) {
    for (FileKey& key : keys) {
      const PathKey* row = path_key(key.name);
      if (!row) continue;
      const bool list = key.value.find(kListSeparator) != key.value.npos;
      std::string text;
      for (const std::string& item : list ? split_list(key.value) : std::vector{key.value})
        text += places.settled(*row, item) + (list ? std::string(1, kListSeparator) : "");
      key.value = text;
    }
  };
  settle(file.keys);
  for (RecipeFile::Stage& stage : file.stages) settle(stage.keys);
}

namespace {

void set_key(Values& values, const std::string& name, const std::string& value, const std::string& where) {
  if (!recipe_table().find(name))
    throw UserError(Exit::usage, where, "unknown key '" + name + "'",
                    key_meant(name) + " tessera train --help lists keys");
  recipe_table().set(values, name, value, where);
}

/// Sets a key of one table of a list that stands in a recipe as lines ("norm_q lr=1e-5"), --train.group.0.lr 1e-5; a table
/// behind the last one begins with its match. False: `name` is no such key.
bool set_in_line(Values& values, const std::string& name, const std::string& value) {
  std::string key;
  for (const std::string list : {"train.group", "plan.units"})
    if (list_row(name).starts_with(list + ".N.")) key = list;
  if (key.empty()) return false;
  const size_t dot = name.find('.', key.size() + 1);
  const auto number = static_cast<size_t>(to_integer(name.substr(key.size() + 1, dot - key.size() - 1)));
  const std::string word = name.substr(dot + 1);
  std::vector<std::string> lines = split_list(values.at(key));
  if (number > lines.size() || (number == lines.size() && word != "match"))
    throw UserError(Exit::usage, "--" + name, key + " has " + std::to_string(lines.size()) + " tables, counted from 0",
                    "begin one more by --" + key + "." + std::to_string(lines.size()) + ".match PATTERN");
  if (number == lines.size()) lines.emplace_back();
  std::istringstream old(lines[number]);
  std::string match, rest;
  old >> match;
  for (std::string each; old >> each;)
    if (!each.starts_with(word + "=")) rest += " " + each;
  lines[number] = word == "match" ? value + rest : match + rest + " " + word + "=" + value;
  std::string all;
  for (const std::string& line : lines) all += line + kListSeparator;
  recipe_table().set(values, key, all, "--" + name);
  return true;
}

}  // namespace

Recipe load_recipe(const std::string& path, const Overrides& overrides) {
  Recipe recipe;
  recipe.values = recipe_table().defaults();
  if (!path.empty()) check_path(path);
  RecipeFile file = path.empty() ? RecipeFile{} : read_recipe_file(path);
  for (FileKey& key : file.keys) key.value = expanded(key.name, key.value, key.where);
  for (RecipeFile::Stage& stage : file.stages)
    for (FileKey& key : stage.keys) key.value = expanded(key.name, key.value, key.where);
  settle_paths(file, path);
  for (const FileKey& key : file.keys) set_key(recipe.values, key.name, key.value, key.where);
  for (const auto& [name, value] : overrides) {
    if (name == "mesh") {
      const Mesh mesh = Mesh::parse(value);
      for (Axis axis : kAllAxes)
        recipe_table().set(recipe.values, "mesh." + std::string(axis_name(axis)), std::to_string(mesh[axis]), "--mesh");
      continue;
    }
    if (set_in_line(recipe.values, name, value)) continue;
    const auto* option = recipe_table().find(name);
    const bool list = option && (option->kind == Kind::list || option->kind == Kind::paths);
    set_key(recipe.values, name, expanded(name, list ? list_as_written(value) : value, "command line"), "--" + name);
  }
  recipe.fill();
  add_stages(recipe, file);
  return recipe;
}

}  // namespace tessera::recipe
