#include "tessera/models/common/golden_case.h"

#include <map>

#include "tessera/checkpoint/row_part.h"

namespace tessera::models {

using at::Tensor;

std::string of_sample(const std::string& name, size_t sample) { return name + "." + std::to_string(sample); }

NamedTensors outputs_of_samples(const std::vector<at::Tensor>& predictions) {
  NamedTensors named;
  for (size_t i = 0; i < predictions.size(); ++i) named.emplace_back(of_sample("out", i), predictions[i]);
  return named;
}

std::vector<std::pair<std::string, Tensor>> stored_together(
    const std::vector<std::pair<std::string, Tensor>>& ours,
    const std::function<std::string(const std::string&)>& name) {
  std::vector<std::pair<std::string, Tensor>> stored;
  std::map<std::string, Tensor> wholes;
  for (const auto& [own, value] : ours) {
    const std::string theirs = name(own);
    const auto part = checkpoint::row_part(theirs);
    if (!part) {
      stored.emplace_back(theirs, value);
      continue;
    }
    const std::vector<int64_t> shape = checkpoint::stored_shape(*part, value.sizes().vec());
    Tensor& whole = wholes[part->whole];
    if (!whole.defined()) stored.emplace_back(part->whole, whole = at::zeros(shape, at::kFloat));
    checkpoint::put_part(*part, shape, sizeof(float), value.contiguous().const_data_ptr(), whole.mutable_data_ptr());
  }
  return stored;
}

}  // namespace tessera::models
