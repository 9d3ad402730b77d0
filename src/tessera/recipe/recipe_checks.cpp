#include "tessera/recipe/recipe_checks.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::recipe {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Range {
  const char* key;
  double least, most;
  bool open = false;   ///< without its ends
  bool below = false;  ///< without its upper end
};
constexpr Range kRanges[] = {
    {"train.lr", 0, kInfinity},
    {"train.betas", 0, 1, false, true},  // 1 never learns from a gradient, and corrects its bias by dividing by 0
    {"train.eps", 0, kInfinity, true},
    {"train.weight_decay", 0, kInfinity},
    {"train.clip_norm", 0, kInfinity},
    {"train.eta_min", 0, kInfinity},
    {"train.power", 0, kInfinity, true},
    {"train.num_cycles", 0, kInfinity, true},
    {"train.stable_steps", 0, kInfinity},
    {"train.decay_steps", 0, kInfinity},
    {"data.fps", 0, kInfinity},
    {"diffusion.shift", 0, kInfinity, true},
    {"sample.guidance", 0, kInfinity},
    {"fault.timeout", 0, kInfinity, true},
    {"fault.slow_factor", 0, kInfinity},
    {"lora.dropout", 0, 1, false, true},
    {"experts.temperature", 0, kInfinity, true},
    {"experts.balance", 0, kInfinity},
    {"diffusion.min_t", 0, 1},
    {"diffusion.max_t", 0, 1},
};

std::string expected(const Range& range) {
  const auto text = [](double x) { return std::to_string(std::lround(x)); };
  if (range.most < kInfinity)
    return "from " + text(range.least) + (range.below ? " to below " : " to ") + text(range.most);
  return (range.open ? "above " : "at least ") + text(range.least);
}

}  // namespace

void check_path(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return;
  const fs::path inside = fs::path(path) / "recipe.toml";
  throw UserError(Exit::usage, "recipe", path + " is a folder, expected a recipe, a TOML file",
                  fs::exists(inside) ? "did you mean " + inside.string() + "?" : "recipes/ has examples");
}

void check_ranges(const Values& values) {
  for (const Range& range : kRanges)
    for (const std::string& text : split_list(values.at(range.key))) {
      const double value = to_number(text);
      const bool at_end = (range.open && value == range.least) || ((range.open || range.below) && value == range.most);
      if (value >= range.least && value <= range.most && std::isfinite(value) && !at_end) continue;
      throw UserError(Exit::usage, "recipe", std::string(range.key) + " = " + text + ": expected " + expected(range),
                      "see tessera train --help");
    }
}

}  // namespace tessera::recipe
