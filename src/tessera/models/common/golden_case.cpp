#include "tessera/models/common/golden_case.h"

#include <map>

#include "tessera/base/check.h"
#include "tessera/checkpoint/row_part.h"

namespace tessera::models {

using at::Tensor;

int64_t rows_of(const CaseTensors& file, const char* mask, int64_t i) {
  const Tensor kept = file.tensor(mask)[i];
  const auto rows = kept.sum().item<int64_t>();
  check_input(kept.slice(0, 0, rows).min().item<int64_t>() == 1, "verify",
              file.label() + ": the padding of caption " + std::to_string(i) + " is not at its end");
  return rows;
}

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
