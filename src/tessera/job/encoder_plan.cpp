#include "tessera/job/encoder_plan.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "tessera/checkpoint/weights.h"

namespace tessera::job {

namespace {

HeldWeights storage(const recipe::Recipe& recipe, const std::string& path) {
  if (path.empty()) return {};
  bool narrow = false;
  if (std::filesystem::exists(path)) {
    const checkpoint::WeightSet weights = checkpoint::open_weights(path);
    narrow = std::ranges::all_of(weights.names(),
                                 [&](const std::string& name) { return weights.at(name).dtype == DType::bf16; });
  }
  const bool asked = recipe.plan.compute != DType::f32;
  return {narrow || asked ? DType::bf16 : DType::f32, asked && !narrow};
}

}  // namespace

HeldWeights text_storage(const recipe::Recipe& recipe) { return storage(recipe, recipe.data.text_encoder_path); }

HeldWeights pooled_storage(const recipe::Recipe& recipe) { return storage(recipe, recipe.data.pooled_encoder_path); }

HeldWeights image_storage(const recipe::Recipe& recipe) { return storage(recipe, recipe.data.image_encoder_path); }

void hold_as(plan::ModelSpec& spec, DType dtype) {
  for (plan::UnitSpec& unit : spec.units)
    for (plan::ParamSpec& param : unit.params) param.stored = dtype;
}

plan::Plan encoder_plan(const plan::ModelSpec& spec, const Mesh& mesh) {
  plan::Plan plan;
  plan.mesh = mesh;
  plan.mesh[Axis::dp_replicate] *= std::exchange(plan.mesh[Axis::pp], 1);
  plan.units.resize(spec.units.size());
  int64_t bytes = 0;
  for (const plan::UnitSpec& unit : spec.units)
    for (const plan::ParamSpec& param : unit.params) bytes += plan::stored_bytes(param.stored, param.numel());
  if (mesh.world() > 1 && bytes <= kWholeEncoder)
    for (plan::UnitPlan& unit : plan.units) unit.strategy = plan::Strategy::no_shard;
  return plan;
}

}  // namespace tessera::job
