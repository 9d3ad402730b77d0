#include "tessera/models/vae/stored_weights.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"

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

Tensor random_tensor(const std::string& name, const std::vector<int64_t>& shape) {
  constexpr uint64_t kSeed = 0;
  Tensor value = at::empty(shape, at::kFloat);
  const int64_t rows = shape.empty() ? 1 : shape[0];
  const int64_t inputs = rows > 0 ? value.numel() / rows : 0;
  const Initial initial = name.ends_with(".bias") ? Initial::constant(0)
                          : inputs <= 1           ? Initial::constant(1)
                                                  : Initial::normal(1 / std::sqrt(static_cast<double>(inputs)));
  draw_initial(initial, kSeed, name, 0, value.numel(), value.mutable_data_ptr<float>());
  return value;
}

}  // namespace tessera::models
