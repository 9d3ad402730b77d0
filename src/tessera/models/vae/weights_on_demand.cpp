#include "tessera/models/vae/weights_on_demand.h"

#include <algorithm>
#include <utility>

#include "tessera/device/backend.h"
#include "tessera/models/vae/vae_values.h"

namespace tessera::models {

WeightsOnDemand::WeightsOnDemand(std::vector<Parameter> parameters, ReadWeight read)
    : parameters_(std::move(parameters)), read_(std::move(read)) {}

const net::WeightMap& WeightsOnDemand::loaded() const {
  if (!weights_.empty() && weights_.begin()->second.device() != device::here()) weights_.clear();
  if (weights_.empty())
    for (const Parameter& p : parameters_) weights_.emplace(p.name, read_(p.name).to(device::here()));
  return weights_;
}

net::WeightMap WeightsOnDemand::meta() const {
  net::WeightMap meta;
  for (const Parameter& p : parameters_)
    meta.emplace(p.name, at::empty(p.shape, at::TensorOptions(at::kFloat).device(at::kMeta)));
  return meta;
}

int64_t WeightsOnDemand::bytes() const {
  int64_t numel = 0;
  for (const Parameter& p : parameters_) numel += c10::multiply_integers(p.shape);
  return numel * static_cast<int64_t>(sizeof(float));
}

uint64_t WeightsOnDemand::hash() const {
  std::vector<std::string> names;
  for (const Parameter& p : parameters_) names.push_back(p.name);
  std::ranges::sort(names);  // an order that does not depend on the version of this code
  uint64_t hash = kHashStart;
  for (const std::string& name : names)  // one at a time: the hash does not need all of them in memory
    hash = hash_tensor(hash, weights_.empty() ? read_(name) : weights_.find(name)->second);
  return hash;
}

}  // namespace tessera::models
