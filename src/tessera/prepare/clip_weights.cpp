#include "tessera/prepare/clip_weights.h"

#include "tessera/base/check.h"
#include "tessera/models/encoders/clip_vision.h"

namespace tessera::prepare {

namespace {

namespace clip = models::clip;

const std::vector<std::string> kTowerNamings = {"official", "hf"};

/// The naming under which a file has the tower, judged by the first part of each tensor.
models::Naming tower_naming(const plan::ModelSpec& spec, const checkpoint::WeightSet& weights) {
  std::vector<std::string> official;
  for (const auto& unit : spec.units)
    for (const auto& param : unit.params) official.push_back(param.name);
  const auto first_part = [](const std::string& name, const std::string& naming) {
    return clip::stored_parts(name, naming).front();
  };
  return models::detect_naming(official, first_part, kTowerNamings, weights.names(), weights.path().string());
}

/// Elements [first, first + count) of a tensor that is stored as several, one after the other.
void read_parts(const checkpoint::WeightSet& weights, const std::vector<std::string>& parts, int64_t first,
                int64_t count, float* out) {
  for (const std::string& part : parts) {
    const int64_t size = weights.at(part).count();
    const int64_t take = std::clamp<int64_t>(size - first, 0, count);
    if (take > 0) weights.read_f32(part, first, take, out);
    first = std::max<int64_t>(0, first - size);
    count -= take;
    out += take;
  }
}

}  // namespace

void load_tower(EncoderRun& run, const checkpoint::WeightSet& weights) {
  const models::Naming naming = tower_naming(run.spec(), weights);
  run.fill([&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    std::vector<std::string> parts = clip::stored_parts(param.name, naming.naming);
    int64_t stored = 0;
    for (std::string& part : parts) {
      part = naming.prefix + part;
      stored += weights.at(part).count();
    }
    check_input(stored == param.numel(), "clip.load",
                weights.path().string() + ": " + parts.front() + " has " + std::to_string(stored) +
                    " elements, expected " + std::to_string(param.numel()),
                "does data.image_encoder name the tower of these weights?");
    read_parts(weights, parts, first, count, out);
  });
}

at::Tensor image_features(EncoderRun& run, const models::clip::ClipVision& tower, const at::Tensor& picture) {
  return run.forward(tower.pack({tower.preprocess(picture)}));
}

}  // namespace tessera::prepare
