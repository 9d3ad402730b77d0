#include "tessera/prepare/encoder_run.h"

#include <algorithm>

#include "tessera/base/units.h"
#include "tessera/job/encoders.h"

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
  const weights::NamedWeights weights = job::open_text_weights(encoder, path);
  engine::load_weights(run.store(), weights.set(), weights.names(), job::likely_text_cause);
}

}  // namespace tessera::prepare
