#include "tessera/models/common/weight_form.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/json.h"

namespace tessera::models {

int64_t Sizes::operator()(const std::string& name, size_t dim) const {
  const int64_t size = size_of(shapes, name, dim);
  if (size <= 0)
    throw UserError(Exit::input, "models.config", "the weights lack " + name + ", which tells the model's sizes",
                    "the file is not whole: fetch it again");
  return size;
}

std::vector<int64_t> shape_under(const WeightForm* form, std::string_view official, std::string_view naming,
                                 const std::vector<int64_t>& shape) {
  const bool flat = form && std::ranges::any_of(form->flat_in_diffusers,
                                                [&](const std::string& pattern) { return matches(pattern, official); });
  if (!flat) return shape;
  int64_t channels = 1;
  for (const int64_t size : shape) channels *= size;
  return naming == "diffusers" ? std::vector{channels} : std::vector<int64_t>{1, channels, 1, 1};
}

bool is_official_only(const Identity& identity, std::string_view official) {
  if (!identity.form) return false;
  return std::ranges::any_of(identity.form->official_only,
                             [&](const std::string& pattern) { return matches(pattern, official); });
}

namespace {

using Json = nlohmann::ordered_json;

/// The given config, or an empty one if it belongs to another model in the same folder.
Json relevant(const std::string& text, const WeightForm& form) {
  if (!json_or_nothing(text).is_object()) return Json::object();
  const Json json = parse_ordered_json(text, "config.json");
  const bool fits = std::ranges::any_of(form.config_marks, [&](const auto& key) { return json.contains(key); });
  return fits ? json : Json::object();
}

/// A number that says the same stays as it was written: transformers refuses 16.0 where it wants 16.
void keep_written(Json& made, const Json& given) {
  for (const auto& [key, value] : given.items())
    if (made.contains(key) && made[key] == value) made[key] = value;
}

}  // namespace

std::string config_for(const std::string& to, const Identity& identity, const Shapes& official,
                       const std::string& given, const std::string& file) {
  if (!identity.form || !identity.form->config) return {};
  try {
    const ConfigSource source{to == "diffusers", identity, Sizes{official}, {relevant(given, *identity.form)}, file};
    Json made = identity.form->config(source);
    keep_written(made, source.given.json);
    return made.dump(2) + "\n";
  } catch (const Json::exception& error) {
    throw UserError(Exit::input, "models.config", file + ": a field is not of its type: " + error.what(),
                    "check the file, or remove it: most sizes are in the weights");
  }
}

void check_heads(int64_t heads, int64_t mlp_ratio, int64_t head, int64_t mlp_dim, int64_t width) {
  check_input(heads >= 1 && mlp_ratio >= 1, "models.config",
              "heads of " + std::to_string(head) + " channels and feed-forwards of " + std::to_string(mlp_dim) +
                  " do not belong to a model of " + std::to_string(width),
              "the file is not whole: fetch it again");
}

void check_rotation(const std::array<int64_t, 3>& axes, int64_t head_dim) {
  check_input(axes[0] != 0, "models.config",
              "how heads of " + std::to_string(head_dim) +
                  " channels are rotated by frames, rows and columns does not follow from the weights",
              "put the model's config.json beside them");
}

}  // namespace tessera::models
