#include "tessera/models/common/weight_form.h"

#include <algorithm>

#include "tessera/base/check.h"

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

}  // namespace tessera::models
