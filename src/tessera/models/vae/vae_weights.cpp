#include "tessera/models/vae/vae_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/common/initial.h"

namespace tessera::models {

uint64_t hash_tensor(uint64_t hash, const Tensor& tensor) {
  const Tensor dense = tensor.cpu().contiguous();
  const auto* bytes = static_cast<const char*>(dense.const_data_ptr());
  const size_t count = dense.nbytes();
  for (size_t i = 0; i < count; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<size_t>(8, count - i));
    hash = (hash ^ word) * 0x100000001B3;
    hash ^= hash >> 29;  // a product alone never carries high bits into low ones
  }
  return hash;
}

WeightsOnDemand::WeightsOnDemand(std::vector<Parameter> parameters, ReadWeight read)
    : parameters_(std::move(parameters)), read_(std::move(read)) {}

const net::WeightMap& WeightsOnDemand::loaded() const {
  if (!weights_.empty() && weights_.begin()->second.device() != device::here()) weights_.clear();
  if (weights_.empty())
    for (const Parameter& p : parameters_) weights_.emplace(p.name, read_(p.name).to(device::here()));
  return weights_;
}

const net::WeightMap& WeightsOnDemand::meta() const {
  if (meta_.empty())
    for (const Parameter& p : parameters_)
      meta_.emplace(p.name, at::empty(p.shape, at::TensorOptions(at::kFloat).device(at::kMeta)));
  return meta_;
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

ReadWeight random_weights(const std::vector<Parameter>& parameters) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : parameters) shapes[parameter.name] = parameter.shape;
  return [shapes = std::move(shapes)](const std::string& name) { return random_tensor(name, shapes.at(name)); };
}

StoredWeights::StoredWeights(const WeightSource& source, const std::vector<std::string>& marks,
                             const std::string& naming, const KeyMap& diffusers)
    : source_(source) {
  const auto foreign = [&](const std::string& name, const std::string& to) {
    return to == naming ? name : to_foreign(diffusers, name);
  };
  std::vector<std::string> namings = {naming};
  if (!diffusers.empty()) namings.push_back("diffusers");
  const Naming found = detect_naming(marks, foreign, namings, source.names, source.file);
  prefix_ = found.prefix;
  if (found.naming != naming) map_ = diffusers;
}

ShapeOf StoredWeights::shapes() const {
  return [this](const std::string& name) {
    return has_tensor(source_, full(name)) ? source_.shape(full(name)) : std::vector<int64_t>{};
  };
}

void StoredWeights::expect(const std::vector<Parameter>& parameters, const std::string& title) const {
  for (const Parameter& parameter : parameters)
    expect_tensor(source_, full(parameter.name), parameter.shape, "these are not weights of " + title);
}

ReadWeight StoredWeights::reader() const {
  return [prefix = prefix_, map = map_, read = source_.read](const std::string& name) {
    return read(prefix + to_foreign(map, name));
  };
}

}  // namespace tessera::models
