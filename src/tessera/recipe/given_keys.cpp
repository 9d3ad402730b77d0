#include "tessera/recipe/given_keys.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/families/frames/frame_masks.h"

namespace tessera::recipe {

namespace {

/// "t2v=1,i2v_head=5"; each of `known`.
std::vector<families::Weighted> weighted(const Given& given, std::string (*known)(const std::string&)) {
  std::vector<families::Weighted> all;
  for (const std::string& item : split_list(given.text)) {
    const size_t equal = item.find('=');
    if (equal == std::string::npos || equal == 0) given.fail("KIND=WEIGHT");
    const double weight = checked_number(given, item.substr(equal + 1), "KIND=WEIGHT");
    if (weight < 0) given.fail("weights of at least 0");
    all.push_back({known(item.substr(0, equal)), weight});
  }
  return all;
}

std::string given_kind(const std::string& name) {
  families::places_of(name);
  return name;
}

/// Weights of which one is above 0, or none at all.
void check_weights(const std::vector<families::Weighted>& kinds, const Given& given) {
  double sum = 0;
  for (const families::Weighted& kind : kinds) sum += kind.weight;
  if (!kinds.empty() && !(sum > 0)) given.fail("a kind with a weight above 0");
}

std::string drop_kind(const std::string& name) {
  const std::vector<std::string> known = families::drop_kinds();
  if (std::ranges::find(known, name) == known.end())
    throw UserError(Exit::usage, "recipe", "diffusion.drop_condition: unknown kind '" + name + "'",
                    "there are cond and null, which drop the caption, text and null, which drop the frames, and keep");
  return name;
}

}  // namespace

void read_conditions(Recipe& recipe, const Given& given) {
  recipe.diffusion.conditions = weighted(given, given_kind);
  check_weights(recipe.diffusion.conditions, given);
}

void read_mask_ratios(Recipe& recipe, const Given& given) {
  constexpr double kRounding = 1e-9;  // of ratios that sum to 1
  recipe.diffusion.mask_ratios = weighted(given, families::mask_kind);
  double sum = 0;
  for (const families::Weighted& kind : recipe.diffusion.mask_ratios) sum += kind.weight;
  if (sum > 1 + kRounding) given.fail("ratios that sum to at most 1", "the rest has no frame that is given");
}

void read_mask_types(Recipe& recipe, const Given& given) {
  recipe.diffusion.mask_types = weighted(given, families::beside_kind);
  check_weights(recipe.diffusion.mask_types, given);
}

void read_drop_condition(Recipe& recipe, const Given& given) {
  recipe.diffusion.drop_condition = weighted(given, drop_kind);
  check_weights(recipe.diffusion.drop_condition, given);
}

}  // namespace tessera::recipe
