#include "tessera/job/encoder_plan.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "tessera/checkpoint/weights.h"
#include "tessera/models/known.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::job {

namespace {

/// Of plan.budget, in eighths: text encoders are in memory together, the image encoder is beside the autoencoder.
enum Eighths { kText = 5, kSecond = 1, kImage = 2 };

bool released_in_bf16(const std::string& preset) {
  return std::ranges::any_of(models::text_encoders(), [&](const models::TextEncoderMake& make) {
    return std::ranges::find(make.in_bf16, preset) != make.in_bf16.end();
  });
}

HeldWeights storage(const recipe::Recipe::Data& data, const recipe::Recipe::Planning& plan, const std::string& path,
                    Eighths eighths, const std::string& preset = {}) {
  const int64_t room = data.beside() ? 0 : std::max<int64_t>(0, plan.budget) / 8 * eighths;
  if (path.empty()) return {.room = room};
  bool narrow = released_in_bf16(preset);
  if (std::filesystem::exists(path)) {
    const checkpoint::WeightSet weights = checkpoint::open_weights(path);
    narrow = std::ranges::all_of(weights.names(),
                                 [&](const std::string& name) { return weights.at(name).dtype == DType::bf16; });
  }
  const bool asked = plan.compute != DType::f32;
  return {narrow || asked ? DType::bf16 : DType::f32, asked && !narrow, room};
}

/// Bytes on the first rank's device of weights and of the slots of gathered units.
int64_t held_bytes(const plan::ModelSpec& spec, const plan::Plan& plan) {
  const plan::Schedule schedule = plan::compile_forward(spec, plan, /*rank=*/0, "encode", 1);
  const plan::MemoryParts parts = plan::memory_curve(spec, plan, schedule, 0).by_part;
  return parts.parameters + parts.slots;
}

}  // namespace

HeldWeights text_storage(const recipe::Recipe::Data& data, const recipe::Recipe::Planning& plan) {
  return storage(data, plan, data.text_encoder_path, kText, data.text_encoder);
}

HeldWeights second_storage(const recipe::Recipe::Data& data, const recipe::Recipe::Planning& plan) {
  return storage(data, plan, data.second_encoder_path(), kSecond);
}

HeldWeights image_storage(const recipe::Recipe::Data& data, const recipe::Recipe::Planning& plan) {
  return storage(data, plan, data.image_encoder_path, kImage);
}

void hold_as(plan::ModelSpec& spec, DType dtype) {
  for (plan::UnitSpec& unit : spec.units)
    for (plan::ParamSpec& param : unit.params) param.stored = dtype;
}

plan::Plan encoder_plan(const plan::ModelSpec& spec, const Mesh& mesh, int64_t room) {
  plan::Plan plan;
  plan.mesh = mesh;
  plan.mesh[Axis::dp_replicate] *= std::exchange(plan.mesh[Axis::pp], 1);
  plan.units.resize(spec.units.size());
  int64_t bytes = 0;
  for (const plan::UnitSpec& unit : spec.units)
    for (const plan::ParamSpec& param : unit.params) bytes += plan::stored_bytes(param.stored, param.numel());
  if (mesh.world() > 1 && bytes <= kWholeEncoder)
    for (plan::UnitPlan& unit : plan.units) unit.strategy = plan::Strategy::no_shard;
  // A unit on the host takes slots where it is gathered: the first ones that move may free less than that, and the table of
  // words, which is the largest, frees nothing.
  int64_t least = room > 0 ? held_bytes(spec, plan) : 0;
  auto best = plan.units.end();
  for (auto unit = plan.units.end(); unit != plan.units.begin() && least > room;) {
    (--unit)->parameters = plan::Tier::host;
    if (const int64_t held = held_bytes(spec, plan); held < least) least = held, best = unit;
  }
  for (auto unit = plan.units.begin(); unit != best; ++unit) unit->parameters = plan::Tier::device;
  return plan;
}

}  // namespace tessera::job
