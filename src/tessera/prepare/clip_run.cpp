#include "tessera/prepare/clip_run.h"

#include "tessera/base/check.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/models/clip/names.h"
#include "tessera/plan/compile/compile.h"

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

ClipRun::ClipRun(const clip::ClipVision& tower, const Mesh& mesh, comm::Comm& comm, int rank) : tower_(tower) {
  // The schedule needs the units' parameters only: what one picture's tokens take is small beside them.
  spec_.name = tower.fingerprint();
  std::vector<std::string> prefixes;
  for (const auto& unit : tower.units()) {
    spec_.units.push_back(unit->spec());
    prefixes.push_back(unit->prefix());
  }
  plan_.mesh = mesh;
  plan_.units.resize(spec_.units.size());
  schedule_ = plan::compile_forward(spec_, plan_, rank, "encode", 1);
  store_ = std::make_unique<engine::Store>(spec_, prefixes, plan_, rank, at::kCPU, /*trainable=*/false);
  store_->set_arena(schedule_.arena);
  executor_ = std::make_unique<engine::Executor>(tower.units(), *store_, comm, plan_, rank,
                                                 engine::ExecutorOptions{.cut_tokens = false});
}

void ClipRun::load(const checkpoint::WeightSet& weights) {
  const models::Naming naming = tower_naming(spec_, weights);
  engine::fill_shards(*store_, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
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

void ClipRun::initialise(uint64_t seed) {
  engine::fill_shards(*store_, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    tower_.initialise(param, seed, first, count, out);
  });
}

at::Tensor ClipRun::forward(const net::Batch& batch) { return executor_->forward(schedule_, 0, {batch})[0]; }

}  // namespace tessera::prepare
