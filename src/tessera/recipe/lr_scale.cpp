#include "tessera/recipe/lr_scale.h"

#include <cmath>
#include <cstdlib>

#include "tessera/base/check.h"

namespace tessera::recipe {

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

}  // namespace tessera::recipe
