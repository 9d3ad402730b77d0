#include "tessera/prepare/encoder_run.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/job/encoders.h"
#include "tessera/models/encoders/clip_vision.h"

namespace tessera::prepare {

EncoderRun::EncoderRun(const std::vector<std::unique_ptr<net::Unit>>& units, const std::string& name, const Mesh& mesh,
                       comm::Comm& comm, int rank, const job::HeldWeights& held, size_t first) {
  // The schedule needs the units' parameters only: what a prompt's or a picture's tokens take is small beside them.
  spec_.name = name;
  for (const auto& unit : units)
    if (spec_.units.size() < first) spec_.units.push_back(unit->spec());
  job::hold_as(spec_, held.dtype);
  const plan::Plan plan = job::encoder_plan(spec_, mesh, held.room);
  on_host_ = std::ranges::count(plan.units, plan::Tier::host, &plan::UnitPlan::parameters);
  program_ = std::make_shared<const plan::Program>(plan, plan::compile_forward(spec_, plan, rank, "encode", 1));
  engine_ = std::make_unique<engine::Engine>(units, spec_, plan, comm, rank,
                                             engine::EngineOptions{.trainable = false, .cut_tokens = false});
  engine_->use(*program_);
}

std::string EncoderRun::held_text(const std::string& encoder, const job::HeldWeights& held, const Mesh& mesh) const {
  int64_t bytes = 0;
  for (const plan::UnitSpec& unit : spec_.units)
    for (const plan::ParamSpec& param : unit.params) bytes += plan::stored_bytes(param.stored, param.numel());
  const bool narrow = held.dtype != DType::f32;
  return encoder + ": " + format_bytes(bytes) + " in " + std::string(name(held.dtype)) +
         (!narrow        ? ""
          : held.rounded ? ", rounded as plan.compute_dtype says"
                         : ", as its file has them") +
         (spec_.units.empty() || mesh.world() == 1 || bytes <= job::kWholeEncoder
              ? ""
              : ", spread over " + std::to_string(mesh.world()) + " ranks") +
         (on_host_ == 0 ? ""
                        : ", " + std::to_string(on_host_) + " of " + std::to_string(spec_.units.size()) +
                              " units on the host: plan.budget has no room for them");
}

void load_text(EncoderRun& run, const net::TextEncoder& encoder, const std::string& path) {
  const models::NamedWeights weights = job::open_text_weights(encoder, path);
  engine::load_weights(run.store(), weights.set(), weights.names(), job::likely_text_cause);
}

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
