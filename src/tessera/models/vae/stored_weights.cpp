#include "tessera/models/vae/stored_weights.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::models {

namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

}  // namespace

bool has_tensor(const WeightSource& weights, const std::string& name) {
  return std::ranges::find(weights.names, name) != weights.names.end();
}

void expect_tensor(const WeightSource& weights, const std::string& name, const std::vector<int64_t>& shape,
                   const std::string& hint) {
  const std::string tensor = weights.file + ": tensor '" + name + "' ";
  check_input(has_tensor(weights, name), "models.vae", tensor + "is missing",
              "fetch the file again, or give a whole one");
  const std::vector<int64_t> found = weights.shape(name);
  check_input(found == shape, "models.vae", tensor + "has shape " + text_of(found) + ", expected " + text_of(shape),
              hint);
}

}  // namespace tessera::models
