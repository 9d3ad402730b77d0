#include "tessera/recipe/run_recipe.h"

#include <algorithm>
#include <filesystem>

#include "tessera/base/options.h"
#include "tessera/recipe/recipe_checks.h"
#include "tessera/recipe/recipe_table.h"

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

}  // namespace tessera::recipe
